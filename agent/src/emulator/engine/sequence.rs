//! One call in the emulated engine: what was asked, what was written, and where it is sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::response::{Handwriting, Response, Token};

/// A generation call, checked, in no engine's wire shape.
#[derive(Clone, Debug)]
pub(super) struct GenerateCall {
    /// Id by which the call can be aborted.
    pub(super) request_id: String,
    pub(super) prompt: Vec<u32>,
    /// Tokens to write at most; none: up to the context length.
    pub(super) max_tokens: Option<u32>,
    pub(super) sampling_seed: u64,
    pub(super) ignore_eos: bool,
    pub(super) stop_token_ids: Vec<u32>,
}

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// By the end token (none) or by this stop token.
    Stop(Option<u32>),
    Length,
    Abort,
    /// Aborted while it waited for a place.
    AbortInQueue,
}

/// Tokens `start..end` of an output were made under one weights label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VersionSpan {
    pub(super) label: Arc<str>,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// What a sequence sends to its connection.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Emission {
    /// More follows; all were made under one label.
    Tokens { tokens: Vec<Token>, label: Arc<str> },
    /// The last one; the spans cover the whole output.
    End { tokens: Vec<Token>, finish: Finish, spans: Vec<VersionSpan> },
    /// The engine failed; the last one.
    Failed,
}

/// What one tick made of a sequence.
pub(super) struct Made {
    pub(super) tokens: u64,
    pub(super) finish: Option<Finish>,
}

/// A call that runs or waits.
pub(super) struct Sequence {
    pub(super) request_id: String,
    pub(super) is_aborted: bool,
    response: Response,
    ignore_eos: bool,
    stop_token_ids: Vec<u32>,
    prompt_length: u32,
    limit: u32,
    written: u32,
    /// Time since it was submitted, until its first token.
    waited: Duration,
    due: f64,
    spans: Vec<VersionSpan>,
    outbox: UnboundedSender<Emission>,
}

impl Sequence {
    /// Prompt and response together are capped at `context_length`, as vLLM does in silence.
    pub(super) fn new(
        call: GenerateCall,
        hand: Handwriting,
        context_length: u32,
        outbox: UnboundedSender<Emission>,
    ) -> Self {
        let prompt_length = call.prompt.len() as u32;
        let room = context_length.saturating_sub(prompt_length);
        Self {
            response: hand.answer(&call.prompt, call.sampling_seed),
            request_id: call.request_id,
            is_aborted: false,
            ignore_eos: call.ignore_eos,
            stop_token_ids: call.stop_token_ids,
            prompt_length,
            limit: call.max_tokens.map_or(room, |max_tokens| max_tokens.min(room)),
            written: 0,
            waited: Duration::ZERO,
            due: 0.0,
            spans: Vec::new(),
            outbox,
        }
    }

    /// Time has passed.
    pub(super) fn wait(&mut self, elapsed: Duration) {
        self.waited += elapsed;
    }

    /// How long it has waited for its first token; none once it has one.
    pub(super) fn waited(&self) -> Option<Duration> {
        (self.written == 0).then_some(self.waited)
    }

    /// Writes the whole tokens that `due` more make up, and sends them in chunks; ends the
    /// sequence when it has come to its end or was aborted.
    pub(super) fn advance(&mut self, due: f64, label: &Arc<str>, chunk_tokens_max: usize) -> Made {
        self.due += due;
        // A float beyond the range becomes the end of the range.
        let whole = (self.due as u32).min(self.limit - self.written);
        let (mut tokens, mut finish) = (Vec::new(), None);
        while finish.is_none() && (tokens.len() as u32) < whole {
            let (token, is_end) = self.response.write(self.ignore_eos);
            tokens.push(token);
            finish = self.end_after(token.id, is_end, tokens.len() as u32);
        }
        self.due -= f64::from(tokens.len() as u32);
        self.note_span(label, tokens.len() as u32);
        if finish.is_none() && self.is_aborted {
            finish = Some(Finish::Abort);
        }
        let made = Made { tokens: tokens.len() as u64, finish };
        self.emit(tokens, finish, label, chunk_tokens_max);
        made
    }

    fn end_after(&self, id: u32, is_end: bool, written_now: u32) -> Option<Finish> {
        if is_end {
            return Some(Finish::Stop(None));
        }
        if self.stop_token_ids.contains(&id) {
            return Some(Finish::Stop(Some(id)));
        }
        (self.written + written_now >= self.limit).then_some(Finish::Length)
    }

    fn note_span(&mut self, label: &Arc<str>, count: u32) {
        if count == 0 {
            return;
        }
        let (start, end) = (self.written, self.written + count);
        self.written = end;
        match self.spans.last_mut() {
            Some(span) if span.label == *label => span.end = end,
            _ => self.spans.push(VersionSpan { label: label.clone(), start, end }),
        }
    }

    fn emit(
        &mut self,
        mut tokens: Vec<Token>,
        finish: Option<Finish>,
        label: &Arc<str>,
        chunk_tokens_max: usize,
    ) {
        while tokens.len() > chunk_tokens_max {
            let rest = tokens.split_off(chunk_tokens_max);
            self.send(Emission::Tokens { tokens, label: label.clone() });
            tokens = rest;
        }
        if let Some(finish) = finish {
            self.end(tokens, finish);
        } else if !tokens.is_empty() {
            self.send(Emission::Tokens { tokens, label: label.clone() });
        }
    }

    /// Sends the end, with the last tokens.
    pub(super) fn end(&mut self, tokens: Vec<Token>, finish: Finish) {
        let spans = std::mem::take(&mut self.spans);
        self.send(Emission::End { tokens, finish, spans });
    }

    /// To a client that hung up, nothing is sent; the next tick forgets it.
    pub(super) fn send(&self, emission: Emission) {
        let _ = self.outbox.send(emission);
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.outbox.is_closed()
    }

    /// Tokens that the sequence has in the cache.
    pub(super) fn tokens_held(&self) -> u64 {
        u64::from(self.prompt_length) + u64::from(self.written)
    }
}
