//! Server-sent events out of a byte stream, cut anywhere: inside a line, inside a character.
//!
//! Works on bytes; only whole events are looked at. An event larger than the limit is an error,
//! so that a mad engine cannot fill the memory.

use super::EngineError;

/// Largest event. Routed experts of a long response come as base64 in one event: some MiB.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// Collects bytes and gives out the data of whole events.
#[derive(Debug, Default)]
pub(super) struct EventBuffer {
    bytes: Vec<u8>,
    /// Where the search for the next blank line goes on.
    searched: usize,
    /// Where the next event begins.
    start: usize,
}

impl EventBuffer {
    /// Takes in what arrived.
    ///
    /// # Errors
    /// The event that is being collected is too large.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        if self.bytes.len() + bytes.len() > EVENT_BYTES_MAX {
            let problem = format!("an event must be at most {EVENT_BYTES_MAX} bytes");
            return Err(EngineError::Malformed { problem });
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Data of the next whole event; events without data (comments) are passed over.
    pub(super) fn next_event(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.find_blank_line()?;
            let data = data_of(&self.bytes[self.start..end]);
            self.start = self.searched;
            if !data.is_empty() {
                return Some(data);
            }
        }
    }

    /// Finds the line break that ends the event; the next search begins behind the blank line.
    fn find_blank_line(&mut self) -> Option<usize> {
        while let Some(at) = self.bytes[self.searched..].iter().position(|b| *b == b'\n') {
            let line_break = self.searched + at;
            let rest = &self.bytes[line_break + 1..];
            let blank = match rest {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                // Undecided until more bytes have come.
                [] | [b'\r'] => {
                    self.searched = line_break;
                    return None;
                }
                _ => 0,
            };
            self.searched = line_break + 1 + blank;
            if blank > 0 {
                return Some(line_break);
            }
        }
        self.searched = self.bytes.len();
        None
    }
}

/// The data lines of an event, joined as the standard says.
fn data_of(event: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    for line in event.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(value) = line.strip_prefix(b"data:") else { continue };
        if !data.is_empty() {
            data.push(b'\n');
        }
        data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events_of(pieces: &[&[u8]]) -> Vec<String> {
        let mut buffer = EventBuffer::default();
        let mut events = Vec::new();
        for piece in pieces {
            buffer.push(piece).expect("small");
            while let Some(event) = buffer.next_event() {
                events.push(String::from_utf8(event).expect("text"));
            }
        }
        events
    }

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let text =
            "data: {\"text\":\"größe €\"}\n\n: comment\n\ndata:a\ndata: b\r\n\r\ndata: [DONE]\n\n";
        let whole = events_of(&[text.as_bytes()]);
        assert_eq!(whole, ["{\"text\":\"größe €\"}", "a\nb", "[DONE]"]);
        for first in 0..text.len() {
            for second in first..text.len() {
                let bytes = text.as_bytes();
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(events_of(&pieces), whole, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn unfinished_event_is_not_given_out() {
        assert!(events_of(&[b"data: a\n"]).is_empty());
        assert!(events_of(&[b"data: a"]).is_empty());
    }

    #[test]
    fn endless_event_is_an_error() {
        let mut buffer = EventBuffer::default();
        let piece = vec![b'x'; 8 << 20];
        let refused = (0..9).map(|_| buffer.push(&piece)).find_map(Result::err);
        assert!(refused.is_some_and(|error| error.to_string().contains("at most")));
    }
}
