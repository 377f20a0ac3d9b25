//! JSON of SGLang, as far as the agent needs it. Unknown fields are passed over.

use ebbtide_core::sample::{FinishReason, StopReason};
use ebbtide_core::work::Sampling;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::stream::Decoded;
use super::super::{
    EndReason, EngineError, GenerateCall, RequestId, StreamEnd, StreamEvent, WeightSpan, WeightsAt,
};

/// What the engine calls the string that it matched when a token was no token: it then writes an
/// end token in its place and says that the response has stopped.
const NOT_A_NUMBER: &str = "NaN happened";

/// A generation call.
#[derive(Serialize)]
pub(super) struct GenerateBody<'a> {
    rid: &'a str,
    input_ids: &'a [i32],
    sampling_params: SamplingParams<'a>,
    stream: bool,
    return_logprob: bool,
    /// Log-probabilities of the response alone.
    logprob_start_len: i32,
}

#[derive(Serialize)]
struct SamplingParams<'a> {
    max_new_tokens: u32,
    temperature: f32,
    top_p: f32,
    top_k: i32,
    min_p: f32,
    ignore_eos: bool,
    #[serde(skip_serializing_if = "<[i32]>::is_empty")]
    stop_token_ids: &'a [i32],
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_seed: Option<i64>,
}

impl<'a> GenerateBody<'a> {
    /// `context_length`: where the engine would refuse a call that asks for more, whatever it then
    /// writes; the response ends there by its length.
    pub(super) fn of(call: &'a GenerateCall, context_length: Option<u32>) -> Self {
        let prompt = u32::try_from(call.token_ids.len()).unwrap_or(u32::MAX);
        let room = context_length.map_or(u32::MAX, |length| length.saturating_sub(prompt));
        Self {
            rid: call.request.as_str(),
            input_ids: &call.token_ids,
            sampling_params: SamplingParams::of(&call.sampling, room),
            stream: true,
            return_logprob: true,
            logprob_start_len: -1,
        }
    }
}

impl<'a> SamplingParams<'a> {
    fn of(sampling: &'a Sampling, room: u32) -> Self {
        Self {
            // A prompt that leaves no room is refused as it is.
            max_new_tokens: sampling.max_tokens.min(if room == 0 { u32::MAX } else { room }),
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            // Here 0 is an error, there it means all.
            top_k: if sampling.top_k == 0 { -1 } else { sampling.top_k },
            min_p: sampling.min_p,
            ignore_eos: sampling.ignore_eos,
            stop_token_ids: &sampling.stop_token_ids,
            sampling_seed: sampling.seed,
        }
    }
}

/// A load of weights; what it must not do is said as well.
#[derive(Serialize)]
pub(super) struct LoadBody<'a> {
    model_path: &'a str,
    weight_version: String,
    abort_all_requests: bool,
    flush_cache: bool,
}

impl<'a> LoadBody<'a> {
    pub(super) fn of(weights: &'a WeightsAt) -> Self {
        Self {
            model_path: &weights.place,
            weight_version: weights.version.to_string(),
            abort_all_requests: false,
            flush_cache: true,
        }
    }
}

/// An abort of one call.
#[derive(Serialize)]
pub(super) struct AbortBody<'a> {
    /// The engine's scheduler takes it as the beginning of an id; no request id begins another.
    rid: &'a str,
    abort_all: bool,
}

impl<'a> AbortBody<'a> {
    pub(super) fn of(request: &'a RequestId) -> Self {
        Self { rid: request.as_str(), abort_all: false }
    }
}

/// Reads the events of one stream.
///
/// An event says how many tokens the response has in all (`completion_tokens`), so each token is
/// taken once whatever the event repeats: by default all ids from the start, with
/// `--incremental-streaming-output` the new ones, and after an abort in the waiting queue the last
/// one again, with the log-probabilities of all.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    taken: Vec<i32>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    error: Option<ErrorDetail>,
    #[serde(default)]
    output_ids: Vec<i32>,
    #[serde(default)]
    meta_info: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    completion_tokens: usize,
    #[serde(default)]
    finish_reason: Option<Finish>,
    #[serde(default)]
    output_token_logprobs: Vec<TokenLogprob>,
    #[serde(default)]
    weight_versions: Vec<Span>,
}

/// Log-probability, id, and a text that is not asked for.
#[derive(Deserialize)]
struct TokenLogprob(f32, i32, #[allow(dead_code, reason = "part of the shape")] Value);

#[derive(Deserialize)]
struct Finish {
    #[serde(rename = "type")]
    kind: String,
    /// A token, a string, or several tokens.
    #[serde(default)]
    matched: Value,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    status_code: Option<u16>,
}

#[derive(Deserialize)]
struct Span {
    version: String,
    start: u32,
    end: u32,
}

#[derive(Deserialize)]
struct ErrorDetail {
    #[serde(default)]
    message: String,
    #[serde(default = "unknown_code")]
    code: u16,
}

fn unknown_code() -> u16 {
    500
}

impl Decoder {
    /// The new tokens of an event, then the end when it is the last one.
    pub(super) fn read(&mut self, data: &[u8]) -> Decoded {
        let Ok(event) = serde_json::from_slice::<Event>(data) else {
            return vec![Err(EngineError::malformed("a generation event", data))];
        };
        if let Some(error) = event.error {
            return vec![Err(EngineError::told(error.code, error.message))];
        }
        let Some(meta) = event.meta_info else {
            return vec![Err(EngineError::malformed("meta_info", data))];
        };
        let end = meta.finish_reason.map(|finish| finish.read(meta.weight_versions));
        // What stands in the place of a token that is none was not generated.
        let is_last_false = matches!(end, Some(Err(Ended::NotANumber)));
        let total = meta.completion_tokens.saturating_sub(usize::from(is_last_false));
        let new = self.new_tokens(&event.output_ids, &meta.output_token_logprobs, total);
        let Some((ids, logprobs)) = new else {
            let expected = "each new token once, with its log-probability";
            return vec![Err(EngineError::malformed(expected, data))];
        };
        self.taken.extend_from_slice(&ids);
        let tokens = (!ids.is_empty()).then_some(Ok(StreamEvent::Tokens { ids, logprobs }));
        let end = end.map(|end| end.map(StreamEvent::End).map_err(EngineError::from));
        tokens.into_iter().chain(end).collect()
    }

    /// Ids and log-probabilities beyond those taken, when the response has `total` tokens; none
    /// when they are not all there.
    fn new_tokens(
        &self,
        ids: &[i32],
        logprobs: &[TokenLogprob],
        total: usize,
    ) -> Option<(Vec<i32>, Vec<f32>)> {
        let taken = self.taken.len();
        let new = total.checked_sub(taken)?;
        let fits = |from: usize| {
            let range = from..from + new;
            let (ids, logprobs) = (ids.get(range.clone())?, logprobs.get(range)?);
            let is_same = ids.iter().zip(logprobs).all(|(id, logprob)| *id == logprob.1);
            is_same.then(|| (ids.to_vec(), logprobs.iter().map(|logprob| logprob.0).collect()))
        };
        let repeats_all = ids.len() >= total
            && ids.len() == logprobs.len()
            && ids.starts_with(&self.taken)
            && logprobs.iter().zip(&self.taken).all(|(logprob, id)| logprob.1 == *id);
        // An abort in the queue may come in one event with the tokens before it: the first are new.
        repeats_all.then(|| fits(taken)).flatten().or_else(|| fits(0))
    }
}

/// How a stream ended otherwise than by an end.
enum Ended {
    Badly(EngineError),
    NotANumber,
}

impl From<Ended> for EngineError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Badly(error) => error,
            Ended::NotANumber => {
                let problem = "the model's output was not a number".to_owned();
                Self::Failed { code: 500, problem }
            }
        }
    }
}

impl Finish {
    fn read(self, spans: Vec<Span>) -> Result<StreamEnd, Ended> {
        let (reason, stop) = match self.kind.as_str() {
            "stop" if self.matched == NOT_A_NUMBER => return Err(Ended::NotANumber),
            "stop" => (FinishReason::Stop, read_match(&self.matched)),
            "length" => (FinishReason::Length, None),
            "abort" => return self.read_abort(spans),
            kind => {
                let problem = format!("stream ended with finish {kind:?}");
                return Err(Ended::Badly(EngineError::Failed { code: 500, problem }));
            }
        };
        let reason = EndReason::Finished { reason, stop };
        Ok(StreamEnd { reason, spans: spans.into_iter().map(WeightSpan::from).collect() })
    }

    /// An abort with a status is an error of the engine's own making.
    fn read_abort(self, spans: Vec<Span>) -> Result<StreamEnd, Ended> {
        match self.status_code {
            Some(code) => {
                Err(Ended::Badly(EngineError::told(code, self.message.unwrap_or_default())))
            }
            None => Ok(StreamEnd {
                reason: EndReason::Aborted,
                spans: spans.into_iter().map(WeightSpan::from).collect(),
            }),
        }
    }
}

fn read_match(matched: &Value) -> Option<StopReason> {
    match matched {
        Value::String(text) => Some(StopReason::Text(text.clone())),
        Value::Array(tokens) => read_match(tokens.last()?),
        token => i32::try_from(token.as_i64()?).ok().map(StopReason::Token),
    }
}

impl From<Span> for WeightSpan {
    fn from(span: Span) -> Self {
        Self { label: span.version, start: span.start, end: span.end }
    }
}

/// Reply of `/server_info`: how the server was started.
#[derive(Deserialize)]
pub(super) struct ServerInfo {
    pub(super) version: String,
    #[serde(default)]
    pub(super) served_model_name: Option<String>,
    #[serde(default)]
    pub(super) incremental_streaming_output: bool,
}

/// Reply of `/model_info`: what changes while it runs.
#[derive(Deserialize)]
pub(super) struct ModelInfo {
    #[serde(default)]
    pub(super) weight_version: Option<String>,
    #[serde(default)]
    pub(super) served_model_name: Option<String>,
    #[serde(default = "yes")]
    pub(super) is_generation: bool,
}

fn yes() -> bool {
    true
}

/// Reply of `/v1/models`.
#[derive(Deserialize)]
pub(super) struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    max_model_len: Option<u32>,
}

impl Models {
    pub(super) fn names(self) -> impl Iterator<Item = String> {
        self.data.into_iter().map(|model| model.id)
    }

    pub(super) fn context_length(&self) -> Option<u32> {
        self.data.first()?.max_model_len
    }
}
