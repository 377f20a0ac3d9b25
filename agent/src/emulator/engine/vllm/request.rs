//! Reads a generation request as vLLM 0.32 does, and refuses it in the recorded words.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::response::{hash_text, mix};
use super::super::sequence::GenerateCall;
use super::REQUEST_ID_PREFIX;
use super::wire::{self, ErrorBody};

/// What a request is held against.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) vocabulary: u32,
    pub(super) context_length: u32,
}

/// How the reply of a call is to look.
pub(super) struct ReplyForm {
    /// With the prefix that the server puts before it.
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
    let max_tokens = check_max_tokens(sampling.max_tokens)?;
    let prompt = check_prompt(&token_ids, limits)?;
    let id = request.request_id.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    let form = ReplyForm {
        request_id: format!("{REQUEST_ID_PREFIX}{id}"),
        is_stream: request.stream,
        includes_usage: request.stream_options.is_some_and(|o| o.include_usage == Some(true)),
        has_logprobs: sampling.logprobs.is_some(),
        prompt_length: prompt.len(),
        prompt: (request.return_token_ids == Some(true)).then(|| prompt.clone()),
    };
    let call = GenerateCall {
        request_id: form.request_id.clone(),
        prompt,
        max_tokens,
        sampling_seed: sampling_seed(sampling.temperature, sampling.seed, &id),
        ignore_eos: sampling.ignore_eos.unwrap_or(false),
        stop_token_ids: sampling.stop_token_ids.unwrap_or_default(),
    };
    Ok((call, form))
}

/// Greedy calls have no chance in them; sampled ones without a seed differ by their id.
fn sampling_seed(temperature: Option<f64>, seed: Option<i64>, id: &str) -> u64 {
    match (temperature, seed) {
        (Some(0.0), _) => 0,
        (_, Some(seed)) => mix(seed.cast_unsigned()),
        (_, None) => hash_text(id),
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
