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

/// Turns the body of a generation into events; `decode` reads the data of one, and `tokens_max` is
/// what was asked for.
pub(super) fn read_events(
    bytes: ByteStream,
    tokens_max: u32,
    decode: impl FnMut(&[u8]) -> Decoded + Send + 'static,
) -> TokenStream {
    let (buffer, ready) = (EventBuffer::default(), VecDeque::new());
    let (tokens_left, has_ended) = (u64::from(tokens_max), false);
    let reader = Reader { bytes, decode, buffer, ready, tokens_left, has_ended };
    futures::stream::unfold(reader, |mut reader| async move {
        if reader.has_ended {
            return None;
        }
        let event = reader.next().await.and_then(|event| reader.count(event));
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
    tokens_left: u64,
    has_ended: bool,
}

impl<D: FnMut(&[u8]) -> Decoded> Reader<D> {
    /// An engine that does not stop where it was told would go on for ever.
    fn count(&mut self, event: StreamEvent) -> Result<StreamEvent, EngineError> {
        let StreamEvent::Tokens { ids, .. } = &event else { return Ok(event) };
        let left = self.tokens_left.checked_sub(ids.len() as u64);
        self.tokens_left = left.ok_or_else(|| {
            let more = ids.len() as u64 - self.tokens_left;
            let problem = format!("expected the end at the limit of tokens, got {more} more");
            EngineError::Malformed { problem }
        })?;
        Ok(event)
    }

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

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::super::testing::read_all;
    use super::*;

    fn tokens(data: &[u8]) -> Decoded {
        let ids = vec![7; data.len()];
        vec![Ok(StreamEvent::Tokens { logprobs: vec![-1.0; ids.len()], ids })]
    }

    /// The queue would refuse them, and the unit would go round for ever.
    #[tokio::test]
    async fn engine_that_goes_on_behind_the_limit_is_cut_off() {
        let body = || stream::iter([Ok("data: abc\n\ndata: de\n\ndata: f\n\n".into())]).boxed();
        let (whole, end) = read_all(read_events(body(), 6, tokens)).await;
        assert_eq!((whole.len(), end), (6, Err(broken("it closed without a finish"))));
        let (whole, end) = read_all(read_events(body(), 4, tokens)).await;
        let Err(EngineError::Malformed { problem }) = end else { panic!("{end:?}") };
        assert_eq!((whole.len(), problem.contains("1 more")), (3, true), "{problem}");
    }
}
