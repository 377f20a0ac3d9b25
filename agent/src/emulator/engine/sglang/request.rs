//! Reads requests as SGLang 0.5.23 does, and refuses what it refuses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::EngineConfig;
use super::super::response::sampling_seed;
use super::super::sequence::GenerateCall;

/// A generation.
#[derive(Deserialize)]
pub(super) struct Generate {
    rid: Option<String>,
    input_ids: Option<Vec<i64>>,
    #[serde(default)]
    sampling_params: SamplingParams,
    #[serde(default)]
    pub(super) stream: bool,
    #[serde(default)]
    return_logprob: bool,
}

#[derive(Default, Deserialize)]
struct SamplingParams {
    max_new_tokens: Option<u32>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    sampling_seed: Option<i64>,
    #[serde(default)]
    ignore_eos: bool,
    stop_token_ids: Option<Vec<u32>>,
}

/// How the reply of a call is to look.
pub(super) struct ReplyForm {
    pub(super) request_id: String,
    pub(super) prompt_length: usize,
    pub(super) has_logprobs: bool,
    pub(super) is_incremental: bool,
    pub(super) eos_token_id: u32,
}

#[derive(Deserialize)]
pub(super) struct Abort {
    pub(super) rid: Option<String>,
    #[serde(default)]
    pub(super) abort_all: bool,
}

#[derive(Deserialize)]
pub(super) struct Pause {
    pub(super) mode: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct NewVersion {
    pub(super) new_version: String,
    #[serde(default = "yes")]
    pub(super) abort_all_requests: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
pub(super) struct NewWeights {
    pub(super) model_path: String,
    pub(super) weight_version: Option<String>,
    #[serde(default)]
    pub(super) abort_all_requests: bool,
}

/// An HTTP error in the engine's shape.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    body: Value,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

impl Refusal {
    /// A body that is not of the schema.
    pub(super) fn bad_field(problem: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, body: json!({ "error": problem }) }
    }

    /// A call that is well-formed and not to be done.
    pub(super) fn bad_value(problem: &str) -> Self {
        let body = json!({ "error": { "message": problem } });
        Self { status: StatusCode::BAD_REQUEST, body }
    }

    /// A failure that was asked for.
    pub(super) fn failing(status: StatusCode) -> Self {
        let body = json!({ "error": { "message": "this call was set to fail" } });
        Self { status, body }
    }
}

/// Reads JSON of any request.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad_field(&error.to_string()))
}

/// Turns a request into a call and the form of its reply, or says why not. Unlike vLLM, it cuts no
/// request to the context length.
pub(super) fn check(
    asked: Generate,
    config: &EngineConfig,
) -> Result<(GenerateCall, ReplyForm), String> {
    let Generate { rid, input_ids, sampling_params: sampling, return_logprob, .. } = asked;
    let prompt = check_prompt(&input_ids.unwrap_or_default(), config)?;
    check_length(prompt.len(), sampling.max_new_tokens, config.context_length)?;
    if let Some(top_k) = sampling.top_k.filter(|top_k| *top_k < 1 && *top_k != -1) {
        return Err(format!("top_k must be -1 (disable) or at least 1, got {top_k}."));
    }
    let request_id = rid.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    let form = ReplyForm {
        request_id: request_id.clone(),
        prompt_length: prompt.len(),
        has_logprobs: return_logprob,
        is_incremental: config.incremental_streaming,
        eos_token_id: config.eos_token_id,
    };
    let seed = sampling_seed(sampling.temperature, sampling.sampling_seed, &request_id);
    let call = GenerateCall {
        request_id,
        prompt,
        // Where vLLM writes up to the context length, SGLang has a number of its own.
        max_tokens: Some(sampling.max_new_tokens.unwrap_or(128).max(1)),
        sampling_seed: seed,
        ignore_eos: sampling.ignore_eos,
        stop_token_ids: sampling.stop_token_ids.unwrap_or_default(),
    };
    Ok((call, form))
}

fn check_prompt(token_ids: &[i64], config: &EngineConfig) -> Result<Vec<u32>, String> {
    if token_ids.is_empty() {
        return Err("input_ids cannot be empty.".to_owned());
    }
    let read_id = |id: &i64| match u32::try_from(*id) {
        Ok(known) if known < config.vocabulary => Ok(known),
        _ => Err(format!("The input_ids contain {id}, which is outside of the vocabulary")),
    };
    token_ids.iter().map(read_id).collect()
}

fn check_length(prompt: usize, asked: Option<u32>, context: u32) -> Result<(), String> {
    if prompt >= context as usize {
        return Err(format!(
            "The input ({prompt} tokens) is longer than the model's context length ({context} \
             tokens)."
        ));
    }
    let total = prompt as u64 + u64::from(asked.unwrap_or(0));
    if total > u64::from(context) {
        return Err(format!(
            "Requested token count exceeds the model's maximum context length of {context} \
             tokens. You requested a total of {total} tokens."
        ));
    }
    Ok(())
}
