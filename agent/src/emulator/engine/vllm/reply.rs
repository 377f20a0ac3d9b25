//! Turns the emissions of a call into its reply: a stream of server-sent events, or one JSON body.

use axum::Json;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::unfold;
use serde::Serialize;

use super::super::super::wall_clock;
use super::super::response::Token;
use super::super::scheduler::Emissions;
use super::super::sequence::{Emission, Finish, VersionSpan};
use super::request::ReplyForm;
use super::wire::{self, Choice, Chunk, ChunkUsage, WholeReply, WholeUsage};

const TOKENS: &str = "tokens";
const DONE: &[u8] = b"data: [DONE]\n\n";

/// A stream under way.
struct Events {
    emissions: Emissions,
    form: ReplyForm,
    omits_done: bool,
    written: usize,
}

/// Replies with events as tokens come.
pub(super) fn stream(emissions: Emissions, form: ReplyForm, omits_done: bool) -> Response {
    let events = Events { emissions, form, omits_done, written: 0 };
    let frames = unfold(Some(events), async |events| {
        let mut events = events?;
        let (frame, is_last) = events.next().await?;
        Some((Ok::<_, std::convert::Infallible>(frame), (!is_last).then_some(events)))
    });
    let content_type = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    (content_type, Body::from_stream(frames)).into_response()
}

impl Events {
    /// The next bytes and whether they are the last. None: the node is lost, nothing is said.
    async fn next(&mut self) -> Option<(Bytes, bool)> {
        let mut frame = Vec::new();
        match self.emissions.recv().await? {
            Emission::Tokens(tokens) => {
                self.put_chunk(&mut frame, &tokens, None);
                return Some((frame.into(), false));
            }
            Emission::End { tokens, finish, spans } => {
                self.put_chunk(&mut frame, &tokens, Some((finish, &spans)));
                if self.form.includes_usage {
                    self.put_usage(&mut frame);
                }
            }
            Emission::CoreDied => put_event(&mut frame, &wire::core_died()),
        }
        if !self.omits_done {
            frame.extend_from_slice(DONE);
        }
        Some((frame.into(), true))
    }

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
pub(super) async fn whole(mut emissions: Emissions, form: ReplyForm, model: &str) -> Response {
    let mut all = Vec::new();
    loop {
        match emissions.recv().await {
            Some(Emission::Tokens(tokens)) => all.extend(tokens),
            Some(Emission::End { tokens, finish, spans }) => {
                all.extend(tokens);
                let choice = Choice::new(&all, Some((finish, &spans)), form.has_logprobs);
                return whole_reply(form, model, choice, all.len());
            }
            Some(Emission::CoreDied) | None => {
                return (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
                    .into_response();
            }
        }
    }
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

fn put_event(frame: &mut Vec<u8>, event: &impl Serialize) {
    frame.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *frame, event)
        .expect("these types have string keys only and memory takes every write");
    frame.extend_from_slice(b"\n\n");
}
