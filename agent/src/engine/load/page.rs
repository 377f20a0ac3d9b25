//! A whole page of metrics, line by line as it arrives, and what its ranks come to together.

use super::line::sample_of;
use super::{EngineLoad, Families, Figure, Mean};
use crate::engine::EngineError;

/// Longest line that is looked at; longer ones are passed over. 8 KiB hold 50 labels.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Largest page. 64 ranks × 2,000 lines × 200 bytes are 25 MB.
const PAGE_BYTES_MAX: usize = 32 << 20;

/// Most ranks that are told apart: four times the largest published decode group.
const RANKS_MAX: usize = 1024;

/// Collects the figures of a page.
#[derive(Debug)]
pub(super) struct PageReader {
    families: Families,
    /// The line that is not complete yet.
    line: Vec<u8>,
    /// The line is too long to be looked at.
    is_skipping: bool,
    bytes_read: usize,
    ranks: Vec<(String, [Option<f64>; Figure::COUNT])>,
}

impl PageReader {
    pub(super) fn new(families: Families) -> Self {
        let ranks = Vec::new();
        Self { families, line: Vec::new(), is_skipping: false, bytes_read: 0, ranks }
    }

    /// Takes in what arrived.
    ///
    /// # Errors
    /// The page is larger than any engine's.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        self.bytes_read += bytes.len();
        if self.bytes_read > PAGE_BYTES_MAX {
            let problem = format!("a page of metrics must be at most {PAGE_BYTES_MAX} bytes");
            return Err(EngineError::Malformed { problem });
        }
        let mut pieces = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            self.extend_line(piece);
            if pieces.peek().is_some() {
                self.end_line();
            }
        }
        Ok(())
    }

    /// What the page said; its last line needs no line break.
    pub(super) fn finish(mut self) -> EngineLoad {
        self.end_line();
        let of = |figure| self.combined(figure);
        let whole = |figure| self.combined(figure).map(to_count);
        let mean = |sum, count| Some(Mean { sum: of(sum)?, count: of(count)? });
        EngineLoad {
            running: whole(Figure::Running),
            waiting: whole(Figure::Waiting),
            kv_cache_use: of(Figure::KvCacheUse).map(|share| share.min(1.0)),
            generated_tokens: whole(Figure::GeneratedTokens),
            first_tokens: mean(Figure::FirstTokenSeconds, Figure::FirstTokens),
            preemptions: whole(Figure::Preemptions),
            prefix_tokens: whole(Figure::PrefixTokens),
            prefix_hits: whole(Figure::PrefixHits),
            expert_balance: mean(Figure::BalanceSum, Figure::BalanceCount),
        }
    }

    fn extend_line(&mut self, piece: &[u8]) {
        self.is_skipping |= self.line.len() + piece.len() > LINE_BYTES_MAX;
        if !self.is_skipping {
            self.line.extend_from_slice(piece);
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !std::mem::take(&mut self.is_skipping) {
            self.take_in(&line);
        }
        // Its room is used again.
        self.line = line;
        self.line.clear();
    }

    fn take_in(&mut self, line: &[u8]) -> Option<()> {
        let named = line.trim_ascii_start().strip_prefix(self.families.prefix.as_bytes())?;
        let sample = sample_of(std::str::from_utf8(named).ok()?)?;
        let (_, figure) = self.families.names.iter().find(|(name, _)| *name == sample.name)?;
        let known = self.ranks.iter().position(|(rank, _)| *rank == sample.rank);
        let index = known.unwrap_or(self.ranks.len());
        if index == RANKS_MAX {
            return None;
        }
        if known.is_none() {
            self.ranks.push((sample.rank, [None; Figure::COUNT]));
        }
        let value = &mut self.ranks[index].1[*figure as usize];
        *value = Some(match (*value, figure) {
            (None, _) => sample.value,
            // One series for each kind of step.
            (Some(known), Figure::BalanceSum | Figure::BalanceCount) => known + sample.value,
            // The tensor-parallel ranks of one data-parallel rank all tell the same.
            (Some(known), _) => known.max(sample.value),
        });
        Some(())
    }

    /// All ranks together; none when no rank tells it.
    fn combined(&self, figure: Figure) -> Option<f64> {
        let told = self.ranks.iter().filter_map(|(_, figures)| figures[figure as usize]);
        told.reduce(|one, other| match figure {
            Figure::KvCacheUse => one.max(other),
            _ => one + other,
        })
    }
}

/// A count, which travels as a float.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ends at the limits")]
fn to_count(value: f64) -> u64 {
    value as u64
}
