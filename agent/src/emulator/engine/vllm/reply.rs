//! Replies of the token-in token-out route: a stream of events, or one JSON body.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::super::super::wall_clock;
use super::super::events::{self, End, EndFaults, Shape, put_event};
use super::super::response::Token;
use super::super::scheduler::Emissions;
use super::super::sequence::{Finish, VersionSpan};
use super::request::ReplyForm;
use super::wire::{self, Choice, Chunk, ChunkUsage, WholeReply, WholeUsage};

const TOKENS: &str = "tokens";

/// A stream under way.
struct Chunks {
    form: ReplyForm,
    written: usize,
}

/// Replies with events as tokens come.
pub(super) fn stream(emissions: Emissions, form: ReplyForm, faults: EndFaults) -> Response {
    events::stream(emissions, Chunks { form, written: 0 }, faults)
}

impl Shape for Chunks {
    fn put_tokens(&mut self, frame: &mut Vec<u8>, tokens: &[Token], _: &Arc<str>) {
        self.put_chunk(frame, tokens, None);
    }

    fn put_end(&mut self, frame: &mut Vec<u8>, end: End<'_>) {
        self.put_chunk(frame, end.tokens, Some((end.finish, end.spans)));
        if self.form.includes_usage {
            self.put_usage(frame);
        }
    }

    fn put_failure(&mut self, frame: &mut Vec<u8>) {
        put_event(frame, &wire::core_died());
    }
}

impl Chunks {
    fn put_chunk(
        &mut self,
        frame: &mut Vec<u8>,
        tokens: &[Token],
        end: Option<(Finish, &[VersionSpan])>,
    ) {
        self.written += tokens.len();
        let choices = vec![Choice::new(tokens, end, self.form.has_logprobs)];
        let request_id = &self.form.request_id;
        put_event(frame, &Chunk { request_id, usage: None, output_mode: TOKENS, choices });
    }

    fn put_usage(&self, frame: &mut Vec<u8>) {
        let chunk = Chunk {
            request_id: &self.form.request_id,
            usage: Some(usage(&self.form, self.written)),
            output_mode: TOKENS,
            choices: Vec::new(),
        };
        put_event(frame, &chunk);
    }
}

/// Replies once, at the end. A dead core makes it a bare 500, and the tokens are lost.
pub(super) async fn whole(emissions: Emissions, form: ReplyForm, model: &str) -> Response {
    let Some((all, finish, spans)) = events::collect(emissions).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response();
    };
    let choice = Choice::new(&all, Some((finish, &spans)), form.has_logprobs);
    whole_reply(form, model, choice, all.len())
}

fn whole_reply(form: ReplyForm, model: &str, choice: Choice, written: usize) -> Response {
    let usage = usage(&form, written);
    Json(WholeReply {
        request_id: &form.request_id,
        model,
        created: wall_clock().as_second(),
        usage: WholeUsage { usage, prompt_tokens_details: None, completion_tokens_details: None },
        prompt_logprobs: None,
        prompt_token_id_logprobs: None,
        prompt_token_ids: form.prompt,
        mm_placeholders: None,
        metrics: None,
        kv_transfer_params: None,
        ec_transfer_params: None,
        output_mode: TOKENS,
        choices: [choice],
    })
    .into_response()
}

fn usage(form: &ReplyForm, written: usize) -> ChunkUsage {
    ChunkUsage {
        prompt_tokens: form.prompt_length,
        total_tokens: form.prompt_length + written,
        completion_tokens: written,
    }
}
