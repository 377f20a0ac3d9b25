//! The tokens of one unit that the queue does not have yet, as chunks of one weight version each.
//!
//! A chunk that was sent once is never changed again: when the reply was lost, the queue knows it
//! by being equal. Tokens that were not sent yet may still get the version that the engine tells
//! at the end of the stream.

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::sample::{Chunk, Origin};
use ebbtide_core::time::UnixMillis;

use crate::engine::WeightSpan;

/// Tokens received and not stored; see the module.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Where and by whom tokens are made; times are filled in for each chunk.
    origin: Origin,
    /// Weights that make the tokens that arrive now.
    version: PolicyVersion,
    /// One past the last token received.
    end: u32,
    /// Sent, not known to be stored.
    sent: Vec<Chunk>,
    /// Not sent yet.
    fresh: Vec<Chunk>,
}

impl Tail {
    /// An empty tail that begins at token `offset` of the response.
    pub(crate) fn new(origin: Origin, offset: u32, version: PolicyVersion) -> Self {
        Self { origin, version, end: offset, sent: Vec::new(), fresh: Vec::new() }
    }

    /// Takes in tokens that arrived at `now` on the node's clock.
    pub(crate) fn push(&mut self, ids: &[i32], logprobs: &[f32], now: UnixMillis) {
        let is_same = |chunk: &&mut Chunk| chunk.weight_version == self.version;
        let chunk = match self.fresh.last_mut().filter(is_same) {
            Some(chunk) => chunk,
            None => {
                let origin = Origin { started_at: now, ..self.origin.clone() };
                self.fresh.push(Chunk {
                    offset: self.end,
                    weight_version: self.version,
                    token_ids: Vec::new(),
                    logprobs: Vec::new(),
                    origin,
                });
                let last = self.fresh.len() - 1;
                &mut self.fresh[last]
            }
        };
        chunk.token_ids.extend_from_slice(ids);
        chunk.logprobs.extend_from_slice(logprobs);
        chunk.origin.ended_at = now;
        self.end = chunk.end();
    }

    /// One past the last token received, counted from the start of the response.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Weights of the tokens that arrive now.
    pub(crate) fn version(&self) -> PolicyVersion {
        self.version
    }

    /// Tokens from now on are made under `version`; an older one changes nothing.
    pub(crate) fn raise_version(&mut self, version: PolicyVersion) {
        self.version = self.version.max(version);
    }

    /// Gives tokens that were not sent yet the versions that the engine told at the end.
    ///
    /// `base` is where the output of this stream begins in the response. Versions never fall,
    /// whatever the engine says; a label that is no version changes nothing.
    pub(crate) fn correct(&mut self, spans: &[WeightSpan], base: u32) {
        let tokens: Vec<Chunk> = std::mem::take(&mut self.fresh);
        let mut lowest = self.sent.last().map(|chunk| chunk.weight_version);
        for chunk in tokens {
            for piece in split(chunk, spans, base, lowest) {
                lowest = Some(piece.weight_version);
                self.append(piece);
            }
        }
    }

    fn append(&mut self, piece: Chunk) {
        match self.fresh.last_mut().filter(|last| last.weight_version == piece.weight_version) {
            Some(last) => {
                last.token_ids.extend(piece.token_ids);
                last.logprobs.extend(piece.logprobs);
                last.origin.ended_at = piece.origin.ended_at;
            }
            None => self.fresh.push(piece),
        }
    }

    /// Everything that is not stored, to be sent now.
    pub(crate) fn send(&mut self) -> &[Chunk] {
        self.sent.append(&mut self.fresh);
        &self.sent
    }

    /// The first `chunks` of what was sent are stored; returns their tokens.
    pub(crate) fn stored(&mut self, chunks: usize) -> u64 {
        let stored = self.sent.drain(..chunks.min(self.sent.len()));
        stored.map(|chunk| u64::from(chunk.len())).sum()
    }

    /// The queue has the response up to `offset`. Returns the tokens that turn out to be stored,
    /// or `None` when what is kept here does not go on from there.
    pub(crate) fn realign(&mut self, offset: u32) -> Option<u64> {
        let known = self.sent.iter().take_while(|chunk| chunk.end() <= offset).count();
        let next = self.sent.get(known).or(self.fresh.first()).map_or(self.end, |c| c.offset);
        (next == offset && known > 0).then(|| self.stored(known))
    }

    /// Tokens received and not known to be stored.
    pub(crate) fn tokens(&self) -> u64 {
        self.sent.iter().chain(&self.fresh).map(|chunk| u64::from(chunk.len())).sum()
    }

    /// Tokens never sent yet.
    pub(crate) fn fresh_tokens(&self) -> usize {
        self.fresh.iter().map(|chunk| chunk.token_ids.len()).sum()
    }

    /// Whether there is something to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.fresh.is_empty()
    }

    /// Throws away what is not stored; returns its tokens.
    pub(crate) fn clear(&mut self) -> u64 {
        let tokens = self.tokens();
        self.sent.clear();
        self.fresh.clear();
        tokens
    }
}

/// Cuts a chunk where the engine's spans say that the weights changed.
fn split(
    mut chunk: Chunk,
    spans: &[WeightSpan],
    base: u32,
    lowest: Option<PolicyVersion>,
) -> Vec<Chunk> {
    let mut pieces = Vec::new();
    let mut lowest = lowest;
    while !chunk.is_empty() {
        let at = chunk.offset - base.min(chunk.offset);
        let span = spans.iter().find(|span| span.start <= at && at < span.end);
        let told = span.and_then(|span| PolicyVersion::from_weights_label(&span.label));
        let length = span.map_or(chunk.len(), |span| (span.end - at).min(chunk.len()));
        let rest = cut(&mut chunk, length);
        let version = told.unwrap_or(chunk.weight_version);
        chunk.weight_version = lowest.map_or(version, |lowest| lowest.max(version));
        lowest = Some(chunk.weight_version);
        pieces.push(std::mem::replace(&mut chunk, rest));
    }
    pieces
}

/// Shortens a chunk to `length` tokens and returns the rest.
fn cut(chunk: &mut Chunk, length: u32) -> Chunk {
    Chunk {
        offset: chunk.offset + length,
        weight_version: chunk.weight_version,
        token_ids: chunk.token_ids.split_off(length as usize),
        logprobs: chunk.logprobs.split_off(length as usize),
        origin: chunk.origin.clone(),
    }
}

#[cfg(test)]
mod tests {
    use ebbtide_core::fabric::FabricVerdict;
    use ebbtide_core::ids::FencingToken;

    use super::*;

    fn tail(offset: u32, version: u64) -> Tail {
        let origin = Origin {
            holder: "n/b/agent-p".parse().expect("valid"),
            fencing_token: FencingToken(1),
            engine: "vllm/0".to_owned(),
            fabric: FabricVerdict::NotApplicable,
            started_at: UnixMillis(0),
            ended_at: UnixMillis(0),
        };
        Tail::new(origin, offset, PolicyVersion(version))
    }

    fn shape(chunks: &[Chunk]) -> Vec<(u32, u64, Vec<i32>)> {
        chunks.iter().map(|c| (c.offset, c.weight_version.0, c.token_ids.clone())).collect()
    }

    fn push(tail: &mut Tail, ids: &[i32]) {
        tail.push(ids, &vec![-1.0; ids.len()], UnixMillis(5));
    }

    fn span(label: &str, start: u32, end: u32) -> WeightSpan {
        WeightSpan { label: label.to_owned(), start, end }
    }

    #[test]
    fn tokens_of_one_version_are_one_chunk() {
        let mut tail = tail(10, 3);
        push(&mut tail, &[1]);
        push(&mut tail, &[2, 3]);
        tail.raise_version(PolicyVersion(2));
        push(&mut tail, &[4]);
        tail.raise_version(PolicyVersion(4));
        push(&mut tail, &[5]);
        assert_eq!(tail.end(), 15);
        assert_eq!(shape(tail.send()), [(10, 3, vec![1, 2, 3, 4]), (14, 4, vec![5])]);
    }

    #[test]
    fn sent_chunk_stays_as_it_was_until_it_is_stored() {
        let mut tail = tail(0, 1);
        push(&mut tail, &[1, 2]);
        let first = tail.send().to_vec();
        push(&mut tail, &[3]);
        tail.correct(&[span("2", 0, 3)], 0);
        let again = tail.send().to_vec();
        assert_eq!(again[..1], first, "the lost reply is repeated");
        assert_eq!(shape(&again), [(0, 1, vec![1, 2]), (2, 2, vec![3])]);
        assert_eq!(tail.stored(1), 2);
        assert_eq!(tail.tokens(), 1);
    }

    #[test]
    fn versions_told_at_the_end_cut_chunks_and_never_fall() {
        let mut tail = tail(10, 5);
        push(&mut tail, &[1, 2, 3, 4, 5]);
        tail.correct(&[span("5", 0, 2), span("6", 2, 4), span("3", 4, 5)], 10);
        assert_eq!(shape(tail.send()), [(10, 5, vec![1, 2]), (12, 6, vec![3, 4, 5])]);
    }

    #[test]
    fn labels_that_are_no_versions_change_nothing() {
        let mut tail = tail(0, 5);
        push(&mut tail, &[1, 2]);
        tail.correct(&[span("default", 0, 2)], 0);
        assert_eq!(shape(tail.send()), [(0, 5, vec![1, 2])]);
    }

    #[test]
    fn offset_of_the_queue_is_followed_only_where_a_chunk_ends() {
        let mut tail = tail(0, 1);
        push(&mut tail, &[1, 2]);
        tail.send();
        push(&mut tail, &[3]);
        tail.send();
        assert_eq!(tail.realign(1), None);
        assert_eq!(tail.realign(2), Some(2));
        assert_eq!(shape(tail.send()), [(2, 1, vec![3])]);
    }
}
