//! The events of one generation, from the bytes of its body.
//!
//! What an event means is the driver's to say; here is what holds for every engine: a stream ends
//! with an end or an error, and `[DONE]` or a closed connection is no finish.

use std::collections::VecDeque;

use futures::stream::StreamExt;

use super::server::ByteStream;
use super::sse::EventBuffer;
use super::{EngineError, StreamEvent, TokenStream};

/// Event that ends a stream.
const DONE: &[u8] = b"[DONE]";

/// What one event holds, in order: tokens that came with an end or an error stand before it.
pub(super) type Decoded = Vec<Result<StreamEvent, EngineError>>;

/// Turns the body of a generation into events; `decode` reads the data of one.
pub(super) fn read_events(
    bytes: ByteStream,
    decode: impl FnMut(&[u8]) -> Decoded + Send + 'static,
) -> TokenStream {
    let (buffer, ready) = (EventBuffer::default(), VecDeque::new());
    let reader = Reader { bytes, decode, buffer, ready, has_ended: false };
    futures::stream::unfold(reader, |mut reader| async move {
        if reader.has_ended {
            return None;
        }
        let event = reader.next().await;
        reader.has_ended = matches!(&event, Err(_) | Ok(StreamEvent::End(_)));
        Some((event, reader))
    })
    .boxed()
}

struct Reader<D> {
    bytes: ByteStream,
    decode: D,
    buffer: EventBuffer,
    ready: VecDeque<Result<StreamEvent, EngineError>>,
    has_ended: bool,
}

impl<D: FnMut(&[u8]) -> Decoded> Reader<D> {
    async fn next(&mut self) -> Result<StreamEvent, EngineError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            if let Some(data) = self.buffer.next_event() {
                if data == DONE {
                    return Err(broken("it said [DONE] without a finish"));
                }
                // A finish is the proof that the sample is whole; a [DONE] after it adds nothing.
                self.ready.extend((self.decode)(&data));
                continue;
            }
            match self.bytes.next().await {
                Some(bytes) => self.buffer.push(&bytes?)?,
                None => return Err(broken("it closed without a finish")),
            }
        }
    }
}

fn broken(problem: &str) -> EngineError {
    EngineError::BrokenStream { problem: problem.to_owned() }
}
