//! What an emulated engine is doing and has done, as numbers.

use super::sequence::Finish;

/// A moment of an engine. The totals only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineCounts {
    /// Streams that have a place, held ones included.
    pub running: usize,
    /// Streams that wait for a place.
    pub waiting: usize,
    /// Whether a pause was asked for and not ended.
    pub is_paused: bool,
    /// Whether the pause is complete: everything is held.
    pub is_frozen: bool,
    /// Share of the cache in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Tokens in the cache.
    pub tokens_held: u64,
    /// Generation calls taken.
    pub requests: u64,
    /// Tokens made so far, delivered or not.
    pub tokens_generated: u64,
    /// Tokens of the prompts taken, those of continuations included.
    pub prompt_tokens: u64,
    /// Ids given to the abort routes, known ones or not; an abort of all counts the live streams.
    pub abort_ids: u64,
    /// Responses ended by the end token or a stop token.
    pub finished_stop: u64,
    /// Responses ended by their limit.
    pub finished_length: u64,
    /// Responses ended by an abort while running.
    pub finished_abort: u64,
    /// Calls to load weights, those that failed included.
    pub weight_loads: u64,
    /// Streams ended by a pause in mode abort; the only aborts that vLLM's own counter sees.
    pub paused_aborts: u64,
}

impl EngineCounts {
    /// No stream, neither running nor waiting.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting == 0
    }

    pub(super) fn count_end(&mut self, finish: Finish) {
        match finish {
            Finish::Stop(_) => self.finished_stop += 1,
            Finish::Length => self.finished_length += 1,
            Finish::Abort | Finish::AbortInQueue => self.finished_abort += 1,
        }
    }
}
