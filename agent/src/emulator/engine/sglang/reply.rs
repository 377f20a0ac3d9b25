//! Replies of `/generate`: a stream of events, or one JSON body.
//!
//! By default every event repeats the response from its start. In incremental form events carry
//! what is new; then an abort in the waiting queue repeats the last token, with the
//! log-probabilities of all.

use std::sync::Arc;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::super::events::{self, DONE, End, EndFaults, Shape, put_event};
use super::super::response::Token;
use super::super::scheduler::Emissions;
use super::super::sequence::{Finish, VersionSpan};
use super::request::ReplyForm;
use super::wire::{self, Meta, Reason, Reply, Span};

/// A stream under way.
struct Output {
    form: ReplyForm,
    written: Vec<Token>,
    spans: Vec<VersionSpan>,
}

/// Replies with events as tokens come.
pub(super) fn stream(emissions: Emissions, form: ReplyForm, faults: EndFaults) -> Response {
    events::stream(emissions, Output::new(form), faults)
}

/// Replies that a streaming call is not done: by an event, under status 200.
pub(super) fn refused(problem: &str) -> Response {
    let mut frame = Vec::new();
    put_event(&mut frame, &wire::error(problem, "invalid_request_error", 400));
    frame.extend_from_slice(DONE);
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], frame).into_response()
}

/// Replies once, at the end.
pub(super) async fn whole(emissions: Emissions, form: ReplyForm) -> Response {
    let Some((tokens, finish, spans)) = events::collect(emissions).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response();
    };
    let form = ReplyForm { is_incremental: false, ..form };
    let output = Output { form, written: tokens, spans };
    Json(output.reply(0, Some(finish))).into_response()
}

impl Shape for Output {
    fn put_tokens(&mut self, frame: &mut Vec<u8>, tokens: &[Token], label: &Arc<str>) {
        let from = self.take(tokens);
        let end = self.written.len() as u32;
        match self.spans.last_mut() {
            Some(span) if span.label == *label => span.end = end,
            _ => self.spans.push(VersionSpan { label: label.clone(), start: from as u32, end }),
        }
        put_event(frame, &self.reply(from, None));
    }

    fn put_end(&mut self, frame: &mut Vec<u8>, end: End<'_>) {
        let from = self.take(end.tokens);
        self.spans = end.spans.to_vec();
        put_event(frame, &self.reply(from, Some(end.finish)));
    }

    fn put_failure(&mut self, frame: &mut Vec<u8>) {
        put_event(frame, &wire::error("the scheduler failed", "internal_error", 500));
    }
}

impl Output {
    fn new(form: ReplyForm) -> Self {
        Self { form, written: Vec::new(), spans: Vec::new() }
    }

    /// Adds tokens, and gives the place of the first.
    fn take(&mut self, tokens: &[Token]) -> usize {
        self.written.extend_from_slice(tokens);
        self.written.len() - tokens.len()
    }

    /// An event, with tokens from place `from` on.
    fn reply(&self, from: usize, finish: Option<Finish>) -> Reply<'_> {
        let written = self.written.len();
        let from = if self.form.is_incremental { from } else { 0 };
        let (ids_from, logprobs_from) = match finish {
            Some(Finish::AbortInQueue) if self.form.is_incremental => {
                (written.saturating_sub(1), 0)
            }
            _ => (from, from),
        };
        let ids = self.written[ids_from..].iter().map(|token| token.id);
        let logprobs = || self.written[logprobs_from..].iter().map(wire::logprob).collect();
        let label = self.spans.last().map(|span| span.label.to_string());
        let form = &self.form;
        let meta_info = Meta {
            id: &form.request_id,
            finish_reason: finish.map(|it| Reason::of(it, written, form.eos_token_id)),
            prompt_tokens: form.prompt_length,
            weight_version: label.unwrap_or_default(),
            weight_versions: self.spans.iter().map(Span::of).collect(),
            completion_tokens: written,
            cached_tokens: 0,
            num_retractions: 0,
            output_token_logprobs: form.has_logprobs.then(logprobs),
            e2e_latency: 0.0,
        };
        Reply { text: "", output_ids: ids.collect(), meta_info }
    }
}
