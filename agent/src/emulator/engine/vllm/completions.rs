//! Replies of `/v1/completions`, with token ids beside the text, which is always empty here: a
//! stream of events, or one JSON body. They tell no weight versions.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::super::wall_clock;
use super::super::events::{self, End, EndFaults, Shape, put_event};
use super::super::response::Token;
use super::super::scheduler::Emissions;
use super::super::sequence::Finish;
use super::VERSION;
use super::request::ReplyForm;
use super::wire;

const OBJECT: &str = "text_completion";

/// A stream under way.
struct Chunks {
    form: ReplyForm,
    model: String,
    created: i64,
    has_begun: bool,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    system_fingerprint: Option<String>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    text: &'static str,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<u32>,
    /// With the first event alone.
    prompt_token_ids: Option<&'a [u32]>,
    token_ids: Vec<u32>,
}

#[derive(Serialize)]
struct Logprobs {
    text_offset: Vec<u32>,
    token_logprobs: Vec<f64>,
    tokens: Vec<&'static str>,
    top_logprobs: Vec<Map<String, Value>>,
}

impl Logprobs {
    fn of(tokens: &[Token]) -> Self {
        let logprob = |token: &Token| f64::from(token.logprob);
        let top = |token: &Token| Map::from_iter([(String::new(), logprob(token).into())]);
        Self {
            text_offset: vec![0; tokens.len()],
            token_logprobs: tokens.iter().map(logprob).collect(),
            tokens: vec![""; tokens.len()],
            top_logprobs: tokens.iter().map(top).collect(),
        }
    }
}

/// Replies with events as tokens come.
pub(super) fn stream(
    emissions: Emissions,
    form: ReplyForm,
    model: String,
    faults: EndFaults,
) -> Response {
    let created = wall_clock().as_second();
    events::stream(emissions, Chunks { form, model, created, has_begun: false }, faults)
}

impl Shape for Chunks {
    fn put_tokens(&mut self, frame: &mut Vec<u8>, tokens: &[Token], _: &Arc<str>) {
        self.put_chunk(frame, tokens, None);
    }

    fn put_end(&mut self, frame: &mut Vec<u8>, end: End<'_>) {
        self.put_chunk(frame, end.tokens, Some(end.finish));
    }

    fn put_failure(&mut self, frame: &mut Vec<u8>) {
        put_event(frame, &wire::core_died());
    }
}

impl Chunks {
    fn put_chunk(&mut self, frame: &mut Vec<u8>, tokens: &[Token], end: Option<Finish>) {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let (finish_reason, stop_reason) = wire::finish_of(end);
        let choice = Choice {
            index: 0,
            text: "",
            logprobs: self.form.has_logprobs.then(|| Logprobs::of(tokens)),
            finish_reason,
            stop_reason,
            prompt_token_ids: self.form.prompt.as_deref().filter(|_| is_first),
            token_ids: tokens.iter().map(|token| token.id).collect(),
        };
        let chunk = Chunk {
            id: &self.form.request_id,
            object: OBJECT,
            created: self.created,
            model: &self.model,
            choices: [choice],
            system_fingerprint: end.map(|_| fingerprint()),
        };
        put_event(frame, &chunk);
    }
}

/// As recorded.
fn fingerprint() -> String {
    format!("vllm-{VERSION}-cb34f5a2")
}

/// Replies once, at the end. A dead core makes it a bare 500, and the tokens are lost.
pub(super) async fn whole(emissions: Emissions, form: ReplyForm, model: String) -> Response {
    let Some((tokens, finish, _)) = events::collect(emissions).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response();
    };
    let (finish_reason, stop_reason) = wire::finish_of(Some(finish));
    let token_ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
    let written = tokens.len();
    Json(json!({
        "id": form.request_id, "object": OBJECT, "created": wall_clock().as_second(),
        "model": model,
        "choices": [{
            "index": 0, "text": "", "logprobs": form.has_logprobs.then(|| Logprobs::of(&tokens)),
            "finish_reason": finish_reason, "stop_reason": stop_reason, "token_ids": token_ids,
            "prompt_logprobs": null, "prompt_token_ids": form.prompt, "routed_experts": null,
        }],
        "service_tier": null, "system_fingerprint": fingerprint(),
        "usage": {
            "prompt_tokens": form.prompt_length, "total_tokens": form.prompt_length + written,
            "completion_tokens": written, "prompt_tokens_details": null,
            "completion_tokens_details": null,
        },
        "kv_transfer_params": null, "ec_transfer_params": null, "metrics": null,
    }))
    .into_response()
}
