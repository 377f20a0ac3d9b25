//! The tokens of one unit that the queue does not have yet, as chunks of one weight version each.
//!
//! A chunk that was sent once is never changed again: when the reply was lost, the queue knows it
//! by being equal. Tokens that were not sent yet may still get the version that the engine tells
//! at the end of the stream, and are thrown away where it tells none: what was made by unknown
//! weights, or by lower ones than before, is nobody's.

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::sample::{Chunk, Origin};
use ebbtide_core::time::UnixMillis;

use crate::engine::WeightSpan;

/// Tokens received and not stored; see the module.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Where and by whom tokens are made; times are filled in for each chunk.
    origin: Origin,
    /// Weights that it was begun with.
    floor: PolicyVersion,
    /// Weights that make the tokens that arrive now.
    version: PolicyVersion,
    /// Nobody knows which weights make the tokens that arrive now.
    is_doubted: bool,
    /// Tokens were thrown away: it is no longer whole.
    is_cut: bool,
    /// One past the last token taken in.
    end: u32,
    /// Sent, not known to be stored.
    sent: Vec<Chunk>,
    /// Not sent yet.
    fresh: Vec<Chunk>,
}

impl Tail {
    /// An empty tail that begins at token `offset` of the response.
    pub(crate) fn new(origin: Origin, offset: u32, version: PolicyVersion) -> Self {
        Self {
            origin,
            floor: version,
            version,
            is_doubted: false,
            is_cut: false,
            end: offset,
            sent: Vec::new(),
            fresh: Vec::new(),
        }
    }

    /// Takes in tokens that arrived at `now` on the node's clock; not those of unknown weights.
    /// Says whether it did.
    pub(crate) fn push(&mut self, ids: &[i32], logprobs: &[f32], now: UnixMillis) -> bool {
        if self.is_doubted {
            self.is_cut = true;
            return false;
        }
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
        true
    }

    /// One past the last token taken in, counted from the start of the response.
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

    /// The engine's weights are unknown, or lower than before. What was not sent yet waits for the
    /// engine's own account; nothing more is taken in.
    pub(crate) fn doubt(&mut self) {
        self.is_doubted = true;
    }

    /// Whether what was not sent yet must wait for the engine's own account.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_doubted
    }

    /// Whether tokens were thrown away, so that an end of the stream is not that of the unit.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Gives tokens that were not sent yet the versions that the engine told at the end, and throws
    /// away those from the first one on that was made by no version, or by a lower one than those
    /// before it. Returns how many went.
    ///
    /// `base` is where the output of this stream begins in the response. Where the engine tells
    /// nothing, tokens keep the version that it had when they came, unless that is in doubt.
    pub(crate) fn correct(&mut self, spans: &[WeightSpan], base: u32) -> u64 {
        let dropped = match self.known_until(spans) {
            Some(offset) => self.cut_at(base.saturating_add(offset)),
            None => 0,
        };
        self.is_doubted = false;
        let tokens: Vec<Chunk> = std::mem::take(&mut self.fresh);
        let mut lowest = self.sent.last().map(|chunk| chunk.weight_version);
        for chunk in tokens {
            for piece in split(chunk, spans, base, lowest) {
                lowest = Some(piece.weight_version);
                self.append(piece);
            }
        }
        dropped
    }

    /// How far into the output the weights are known; none: to its end.
    fn known_until(&self, spans: &[WeightSpan]) -> Option<u32> {
        let (mut highest, mut end) = (self.floor, 0);
        for span in spans {
            match PolicyVersion::from_weights_label(&span.label) {
                Some(version) if version >= highest => (highest, end) = (version, span.end),
                _ => return Some(span.start),
            }
        }
        self.is_doubted.then_some(end)
    }

    /// Throws away what was not sent yet and nobody vouches for; returns its tokens.
    pub(crate) fn drop_doubted(&mut self) -> u64 {
        if self.is_doubted { self.cut_at(0) } else { 0 }
    }

    /// Throws away what was not sent yet, from `offset` of the response on; returns its tokens.
    fn cut_at(&mut self, offset: u32) -> u64 {
        let before = self.fresh_tokens();
        self.fresh.retain_mut(|chunk| {
            if chunk.end() > offset {
                drop(cut(chunk, offset.saturating_sub(chunk.offset)));
            }
            !chunk.is_empty()
        });
        let dropped = before - self.fresh_tokens();
        self.end -= u32::try_from(dropped).unwrap_or(self.end);
        self.is_cut |= dropped > 0;
        dropped as u64
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
mod tests;
