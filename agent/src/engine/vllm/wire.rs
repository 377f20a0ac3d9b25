//! JSON of vLLM, as far as the agent needs it. Unknown fields are passed over.

use ebbtide_core::sample::{FinishReason, StopReason};
use ebbtide_core::work::Sampling;
use serde::{Deserialize, Serialize};

use super::super::{EndReason, EngineError, GenerateCall, StreamEnd, StreamEvent, WeightSpan};

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

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Vec<TokenLogprob>,
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
    pub(super) fn read(self, data: &[u8]) -> Vec<Result<StreamEvent, EngineError>> {
        if let Some(error) = self.error {
            return vec![Err(EngineError::Failed { code: error.code, problem: error.message })];
        }
        // An event without choices carries usage alone.
        let Some(choice) = self.choices.into_iter().next() else { return Vec::new() };
        choice.read(data)
    }
}

impl Choice {
    fn read(self, data: &[u8]) -> Vec<Result<StreamEvent, EngineError>> {
        let choice = self;
        let ids = choice.token_ids.unwrap_or_default();
        let content = choice.logprobs.map(|logprobs| logprobs.content).unwrap_or_default();
        if ids.len() != content.len() {
            return vec![Err(EngineError::malformed("one log-probability for each token", data))];
        }
        let logprobs = content.into_iter().map(|token| token.logprob).collect();
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

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

/// What an error body says, in whichever shape it came.
pub(super) fn error_text(body: &[u8]) -> String {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => body.error.message,
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    }
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
