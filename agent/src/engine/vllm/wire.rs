//! JSON of vLLM, as far as the agent needs it. Unknown fields are passed over.

use ebbtide_core::sample::{FinishReason, StopReason};
use ebbtide_core::work::Sampling;
use serde::{Deserialize, Serialize};

use super::super::stream::Decoded;
use super::super::{
    EndReason, EngineError, GenerateCall, RequestId, StreamEnd, StreamEvent, WeightSpan,
};

/// What the server calls a token-in token-out call.
pub(super) fn generation_id(request: &RequestId) -> String {
    format!("generate-tokens-{}", request.as_str())
}

/// What the server calls a completion whose `X-Request-Id` is the request.
pub(super) fn completion_id(request: &RequestId) -> String {
    format!("cmpl-{}-0", request.as_str())
}

/// A well-formed generation that every server refuses: nothing is to be generated.
pub(super) fn no_generation() -> serde_json::Value {
    serde_json::json!({ "token_ids": [0], "sampling_params": { "max_tokens": 0 } })
}

/// A call of the worker's own method that loads weights in place.
pub(super) fn reload_weights(place: &str) -> serde_json::Value {
    serde_json::json!({ "method": "reload_weights", "kwargs": { "weights_path": place } })
}

/// A generation call.
#[derive(Serialize)]
pub(super) struct GenerateBody<'a> {
    request_id: &'a str,
    token_ids: &'a [i32],
    stream: bool,
    sampling_params: SamplingParams<'a>,
}

#[derive(Serialize)]
struct SamplingParams<'a> {
    max_tokens: u32,
    temperature: f32,
    top_p: f32,
    top_k: i32,
    min_p: f32,
    /// 0 asks for the log-probability of the sampled token alone.
    logprobs: u32,
    ignore_eos: bool,
    #[serde(skip_serializing_if = "<[i32]>::is_empty")]
    stop_token_ids: &'a [i32],
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
}

impl<'a> GenerateBody<'a> {
    pub(super) fn of(call: &'a GenerateCall) -> Self {
        Self {
            request_id: call.request.as_str(),
            token_ids: &call.token_ids,
            stream: true,
            sampling_params: SamplingParams::of(&call.sampling),
        }
    }
}

impl<'a> SamplingParams<'a> {
    fn of(sampling: &'a Sampling) -> Self {
        Self {
            max_tokens: sampling.max_tokens,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            logprobs: 0,
            ignore_eos: sampling.ignore_eos,
            stop_token_ids: &sampling.stop_token_ids,
            seed: sampling.seed,
        }
    }
}

/// A call of the route for completions.
#[derive(Serialize)]
pub(super) struct CompletionBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    prompt: &'a [i32],
    stream: bool,
    return_token_ids: bool,
    #[serde(flatten)]
    sampling_params: SamplingParams<'a>,
}

impl<'a> CompletionBody<'a> {
    /// `model`: the name to ask for; the server's own when none is given.
    pub(super) fn of(call: &'a GenerateCall, model: Option<&'a str>) -> Self {
        Self {
            model,
            prompt: &call.token_ids,
            stream: true,
            return_token_ids: true,
            sampling_params: SamplingParams::of(&call.sampling),
        }
    }
}

/// Reads the data of one event, of either route.
pub(super) fn read_event(data: &[u8]) -> Decoded {
    match serde_json::from_slice::<Chunk>(data) {
        Ok(chunk) => chunk.read(data),
        Err(_) => vec![Err(EngineError::malformed("a generation event", data))],
    }
}

/// One event of a stream.
#[derive(Deserialize)]
pub(super) struct Chunk {
    #[serde(default)]
    error: Option<ErrorDetail>,
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<StopReason>,
    #[serde(default)]
    token_ids: Option<Vec<i32>>,
    #[serde(default)]
    weight_versions: Option<Vec<Span>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

/// One list or the other, by the route.
#[derive(Default, Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Vec<TokenLogprob>,
    #[serde(default)]
    token_logprobs: Vec<f32>,
}

impl Logprobs {
    fn values(self) -> Vec<f32> {
        let content = self.content.into_iter().map(|token| token.logprob);
        content.chain(self.token_logprobs).collect()
    }
}

#[derive(Deserialize)]
struct TokenLogprob {
    logprob: f32,
}

#[derive(Deserialize)]
struct Span {
    version: String,
    start: u32,
    end: u32,
}

impl Chunk {
    /// The tokens of the event, then the end when it is the last one. Tokens that came with an
    /// unknown end are kept: the error follows them.
    pub(super) fn read(self, data: &[u8]) -> Decoded {
        if let Some(error) = self.error {
            return vec![Err(EngineError::told(error.code, error.message))];
        }
        // An event without choices carries usage alone.
        let Some(choice) = self.choices.into_iter().next() else { return Vec::new() };
        choice.read(data)
    }
}

impl Choice {
    fn read(self, data: &[u8]) -> Decoded {
        let choice = self;
        let ids = choice.token_ids.unwrap_or_default();
        let logprobs = choice.logprobs.map(Logprobs::values).unwrap_or_default();
        if ids.len() != logprobs.len() {
            return vec![Err(EngineError::malformed("one log-probability for each token", data))];
        }
        let tokens = (!ids.is_empty()).then_some(StreamEvent::Tokens { ids, logprobs });
        let spans = choice.weight_versions.unwrap_or_default().into_iter().map(WeightSpan::from);
        let end = choice.finish_reason.map(|finish| {
            let reason = read_finish(&finish, choice.stop_reason)?;
            Ok(StreamEvent::End(StreamEnd { reason, spans: spans.collect() }))
        });
        tokens.map(Ok).into_iter().chain(end).collect()
    }
}

fn read_finish(finish: &str, stop: Option<StopReason>) -> Result<EndReason, EngineError> {
    let reason = match finish {
        "stop" => FinishReason::Stop,
        "length" => FinishReason::Length,
        "repetition" => FinishReason::Repetition,
        "abort" => return Ok(EndReason::Aborted),
        _ => {
            let problem = format!("stream ended with finish {finish:?}");
            return Err(EngineError::Failed { code: 500, problem });
        }
    };
    Ok(EndReason::Finished { reason, stop })
}

impl From<Span> for WeightSpan {
    fn from(span: Span) -> Self {
        Self { label: span.version, start: span.start, end: span.end }
    }
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

/// Reply of `/version`.
#[derive(Deserialize)]
pub(super) struct Version {
    pub(super) version: String,
}

/// Reply of `/weight_info`.
#[derive(Deserialize)]
pub(super) struct WeightInfo {
    pub(super) weight_version: String,
}

/// Reply of `/is_paused`.
#[derive(Deserialize)]
pub(super) struct Paused {
    pub(super) is_paused: bool,
}

/// Reply of `/reset_prefix_cache`.
#[derive(Deserialize)]
pub(super) struct Done {
    pub(super) success: bool,
}

/// Reply of `/v1/models`.
#[derive(Deserialize)]
pub(super) struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

impl Models {
    pub(super) fn names(self) -> Vec<String> {
        self.data.into_iter().map(|model| model.id).collect()
    }
}
