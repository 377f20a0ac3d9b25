//! Turns the emissions of a call into its reply: a stream of server-sent events, or everything at
//! once. What an event looks like is the shape's to say.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{StreamExt, pending, unfold};
use serde::Serialize;

use super::response::Token;
use super::scheduler::Emissions;
use super::sequence::{Emission, Finish, VersionSpan};

/// The line that ends a stream.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

/// How one engine writes the events of a stream.
pub(super) trait Shape: Send + 'static {
    /// Tokens after which more follows, made under `label`.
    fn put_tokens(&mut self, frame: &mut Vec<u8>, tokens: &[Token], label: &Arc<str>);

    /// The last tokens and the end; the spans cover the whole output.
    fn put_end(&mut self, frame: &mut Vec<u8>, end: End<'_>);

    /// The engine failed.
    fn put_failure(&mut self, frame: &mut Vec<u8>);
}

/// How an output ended.
pub(super) struct End<'a> {
    pub(super) tokens: &'a [Token],
    pub(super) finish: Finish,
    pub(super) spans: &'a [VersionSpan],
}

/// Faults of the ends of streams.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndFaults {
    /// The `[DONE]` line is left out.
    pub(super) omits_done: bool,
    /// The connection stays open.
    pub(super) leaves_open: bool,
}

struct Events<S> {
    emissions: Emissions,
    shape: S,
    faults: EndFaults,
}

/// Replies with events as tokens come.
pub(super) fn stream(emissions: Emissions, shape: impl Shape, faults: EndFaults) -> Response {
    let events = Events { emissions, shape, faults };
    let frames = unfold(Some(events), async |events| {
        let mut events = events?;
        let (frame, is_last) = events.next().await?;
        Some((Ok::<_, std::convert::Infallible>(frame), (!is_last).then_some(events)))
    });
    let content_type = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    let body = if faults.leaves_open {
        Body::from_stream(frames.chain(pending()))
    } else {
        Body::from_stream(frames)
    };
    (content_type, body).into_response()
}

impl<S: Shape> Events<S> {
    /// The next bytes and whether they are the last. None: the node is lost, nothing is said.
    async fn next(&mut self) -> Option<(Bytes, bool)> {
        let mut frame = Vec::new();
        match self.emissions.recv().await? {
            Emission::Tokens { tokens, label } => {
                self.shape.put_tokens(&mut frame, &tokens, &label);
                return Some((frame.into(), false));
            }
            Emission::End { tokens, finish, spans } => {
                self.shape.put_end(&mut frame, End { tokens: &tokens, finish, spans: &spans });
            }
            Emission::Failed => self.shape.put_failure(&mut frame),
        }
        if !self.faults.omits_done {
            frame.extend_from_slice(DONE);
        }
        Some((frame.into(), true))
    }
}

/// The whole output of a call; none when the engine failed.
pub(super) async fn collect(
    mut emissions: Emissions,
) -> Option<(Vec<Token>, Finish, Vec<VersionSpan>)> {
    let mut all = Vec::new();
    loop {
        match emissions.recv().await? {
            Emission::Tokens { tokens, .. } => all.extend(tokens),
            Emission::End { tokens, finish, spans } => {
                all.extend(tokens);
                return Some((all, finish, spans));
            }
            Emission::Failed => return None,
        }
    }
}

/// Writes one event.
pub(super) fn put_event(frame: &mut Vec<u8>, event: &impl Serialize) {
    frame.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *frame, event)
        .expect("these types have string keys only and memory takes every write");
    frame.extend_from_slice(b"\n\n");
}
