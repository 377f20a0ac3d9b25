//! Reads a generation request as vLLM 0.32 does, and refuses it in the recorded words.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::EngineConfig;
use super::super::response::sampling_seed;
use super::super::sequence::GenerateCall;
use super::REQUEST_ID_PREFIX;
use super::wire::{self, ErrorBody};

/// What a request is held against.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) vocabulary: u32,
    pub(super) context_length: u32,
}

impl Limits {
    pub(super) fn of(config: &EngineConfig) -> Self {
        Self { vocabulary: config.vocabulary, context_length: config.context_length }
    }
}

/// How the reply of a call is to look.
pub(super) struct ReplyForm {
    /// As the server calls it in replies.
    pub(super) request_id: String,
    pub(super) is_stream: bool,
    pub(super) includes_usage: bool,
    pub(super) has_logprobs: bool,
    pub(super) prompt_length: usize,
    /// Set when the prompt is to be repeated in the reply.
    pub(super) prompt: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Request {
    request_id: Option<String>,
    token_ids: Option<Vec<i64>>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    return_token_ids: Option<bool>,
    sampling_params: Option<SamplingParams>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A prompt of token ids; texts are refused.
#[derive(Deserialize)]
struct CompletionRequest {
    prompt: Option<Vec<i64>>,
    #[serde(default)]
    stream: bool,
    return_token_ids: Option<bool>,
    #[serde(flatten)]
    sampling_params: SamplingParams,
}

#[derive(Default, Deserialize)]
struct SamplingParams {
    max_tokens: Option<i64>,
    temperature: Option<f64>,
    logprobs: Option<i64>,
    seed: Option<i64>,
    ignore_eos: Option<bool>,
    stop_token_ids: Option<Vec<u32>>,
}

/// An HTTP error in the engine's shape.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    body: ErrorBody,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

/// Reads JSON of any request.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::new(StatusCode::BAD_REQUEST, "Bad Request", &error.to_string(), None)
    })
}

/// Turns a request into a call and the form of its reply.
pub(super) fn parse(body: &[u8], limits: Limits) -> Result<(GenerateCall, ReplyForm), Refusal> {
    let request: Request = read(body)?;
    let token_ids = request.token_ids.ok_or_else(|| Refusal::missing_field(body, "token_ids"))?;
    let sampling = request.sampling_params.unwrap_or_default();
    let prompt = check_prompt(&token_ids, limits)?;
    let id = request.request_id.unwrap_or_else(new_id);
    let form = ReplyForm {
        request_id: format!("{REQUEST_ID_PREFIX}{id}"),
        is_stream: request.stream,
        includes_usage: request.stream_options.is_some_and(|o| o.include_usage == Some(true)),
        has_logprobs: sampling.logprobs.is_some(),
        prompt_length: prompt.len(),
        prompt: (request.return_token_ids == Some(true)).then(|| prompt.clone()),
    };
    let call = sampling.call(form.request_id.clone(), prompt, &id)?;
    Ok((call, form))
}

/// Turns a request for a completion into a call and the form of its reply.
pub(super) fn parse_completion(
    body: &[u8],
    id: Option<&str>,
    limits: Limits,
) -> Result<(GenerateCall, ReplyForm), Refusal> {
    let request: CompletionRequest = read(body)?;
    let token_ids = request.prompt.ok_or_else(|| Refusal::missing_field(body, "prompt"))?;
    let prompt = check_prompt(&token_ids, limits)?;
    let id = id.map_or_else(new_id, str::to_owned);
    let form = ReplyForm {
        request_id: format!("cmpl-{id}"),
        is_stream: request.stream,
        includes_usage: false,
        has_logprobs: request.sampling_params.logprobs.is_some(),
        prompt_length: prompt.len(),
        prompt: (request.return_token_ids == Some(true)).then(|| prompt.clone()),
    };
    // The first of the prompts that one call may have.
    let call = request.sampling_params.call(format!("{}-0", form.request_id), prompt, &id)?;
    Ok((call, form))
}

fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

impl SamplingParams {
    fn call(self, request_id: String, prompt: Vec<u32>, id: &str) -> Result<GenerateCall, Refusal> {
        Ok(GenerateCall {
            request_id,
            prompt,
            max_tokens: check_max_tokens(self.max_tokens)?,
            sampling_seed: sampling_seed(self.temperature, self.seed, id),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop_token_ids: self.stop_token_ids.unwrap_or_default(),
        })
    }
}

fn check_max_tokens(max_tokens: Option<i64>) -> Result<Option<u32>, Refusal> {
    match max_tokens {
        Some(asked) if asked < 1 => {
            let message = format!(
                "max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})"
            );
            Err(Refusal::bad_request(&message, Some("max_tokens")))
        }
        asked => Ok(asked.map(|asked| u32::try_from(asked).unwrap_or(u32::MAX))),
    }
}

fn check_prompt(token_ids: &[i64], limits: Limits) -> Result<Vec<u32>, Refusal> {
    if token_ids.is_empty() {
        return Err(Refusal::bad_request("The decoder prompt cannot be empty", None));
    }
    let (length, longest) = (token_ids.len(), limits.context_length);
    if length >= longest as usize {
        let message = format!(
            "The decoder prompt (length {length}) plus the number of requested output tokens (at \
             least 1) is longer than the maximum model length of {longest}. Make sure that \
             `max_model_len` is no smaller than the number of text tokens (prompt + requested \
             output tokens)."
        );
        return Err(Refusal::bad_request(&message, None));
    }
    let read_id = |id: &i64| match u32::try_from(*id) {
        Ok(known) if known < limits.vocabulary => Ok(known),
        _ => Err(Refusal::bad_request(&format!("Token id {id} is out of vocabulary"), None)),
    };
    token_ids.iter().map(read_id).collect()
}

impl Refusal {
    fn new(status: StatusCode, kind: &'static str, message: &str, param: Option<&str>) -> Self {
        Self { status, body: ErrorBody::new(status.as_u16(), kind, message, param) }
    }

    fn bad_request(message: &str, param: Option<&str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message, param)
    }

    /// A body without a field it must have; the other kinds of error have another `type`.
    pub(super) fn missing_field(body: &[u8], field: &str) -> Self {
        let items = serde_json::from_slice::<Value>(body)
            .ok()
            .and_then(|value| value.as_object().map(serde_json::Map::len))
            .unwrap_or(0);
        let message = format!(
            "1 validation error:\n  {{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field \
             required', 'input': '<dict of {items} items>'}}"
        );
        let param = format!("body.{field}");
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", &message, Some(&param))
    }

    pub(super) fn scale_out_disabled() -> Self {
        let message = "Scale-out endpoints are disabled. Restart vllm serve with \
                       --enable-scale-out to enable them.";
        Self::new(StatusCode::FORBIDDEN, "PermissionDeniedError", message, None)
    }

    pub(super) fn unknown_pause_mode(mode: &str) -> Self {
        let message = format!("mode must be abort, wait or keep, got {mode}");
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", &message, Some("query.mode"))
    }

    pub(super) fn core_died() -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, body: wire::core_died() }
    }

    /// A failure that was asked for.
    pub(super) fn failing(status: StatusCode) -> Self {
        Self::new(status, "InternalServerError", "this call was set to fail", None)
    }
}
