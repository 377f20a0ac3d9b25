//! What an engine's own `/metrics` says about its load, in Prometheus' text format.
//!
//! Reads only the families that are needed, in the names of either engine kind, and passes over
//! everything else, nonsense included: a page that says nothing is a load of which nothing is
//! known. Lines are read as they arrive, so that a page of megabytes (an engine with many
//! data-parallel ranks) costs no memory.

mod line;
mod page;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};

use super::EngineError;
use page::PageReader;

/// What an engine says about its load. What it does not tell is none, never zero.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineLoad {
    /// Sequences that it works on, all ranks together.
    pub running: Option<u64>,
    /// Sequences that wait in its own queue, all ranks together.
    pub waiting: Option<u64>,
    /// Share of the KV cache in use, 0 to 1, of the rank with the fullest one.
    pub kv_cache_use: Option<f64>,
    /// Tokens generated since it started.
    pub generated_tokens: Option<u64>,
    /// Times to the first token since it started, in seconds, its own queue included.
    pub first_tokens: Option<Mean>,
    /// Sequences thrown out of the KV cache since it started, to be computed again.
    pub preemptions: Option<u64>,
    /// Prompt tokens looked up in the prefix cache since it started.
    pub prefix_tokens: Option<u64>,
    /// Prompt tokens found there since it started.
    pub prefix_hits: Option<u64>,
    /// Load of the mean expert rank by that of the busiest, one value a step: 1 is even.
    pub expert_balance: Option<Mean>,
}

/// A sum of values and how many there were, both only rising.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mean {
    /// The sum.
    pub sum: f64,
    /// How many.
    pub count: f64,
}

impl Mean {
    /// The mean of what came after `earlier`; none when nothing came.
    pub fn since(self, earlier: Self) -> Option<f64> {
        let (sum, count) = (self.sum - earlier.sum, self.count - earlier.count);
        (count > 0.0 && sum >= 0.0).then(|| sum / count)
    }
}

/// A value that is needed of every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    Running,
    Waiting,
    KvCacheUse,
    GeneratedTokens,
    FirstTokenSeconds,
    FirstTokens,
    Preemptions,
    PrefixTokens,
    PrefixHits,
    BalanceSum,
    BalanceCount,
}

impl Figure {
    const COUNT: usize = Self::BalanceCount as usize + 1;
}

/// How one kind of engine calls its families.
#[derive(Debug, Clone, Copy)]
pub(super) struct Families {
    /// Begins the name of each.
    prefix: &'static str,
    /// Names behind the prefix; where two stand for one figure, an engine has one of them.
    names: &'static [(&'static str, Figure)],
}

/// As vLLM 0.32 has them. It reports no load of experts.
pub(super) const VLLM: Families = Families {
    prefix: "vllm:",
    names: &[
        ("num_requests_running", Figure::Running),
        ("num_requests_waiting", Figure::Waiting),
        ("kv_cache_usage_perc", Figure::KvCacheUse),
        ("generation_tokens_total", Figure::GeneratedTokens),
        ("time_to_first_token_seconds_sum", Figure::FirstTokenSeconds),
        ("time_to_first_token_seconds_count", Figure::FirstTokens),
        ("num_preemptions_total", Figure::Preemptions),
        ("prefix_cache_queries_total", Figure::PrefixTokens),
        ("prefix_cache_hits_total", Figure::PrefixHits),
    ],
};

/// As SGLang 0.5.23 has them. The balance of experts is there when it was started with
/// `--expert-balancedness-report-mode prometheus` (before: `--enable-expert-distribution-metrics`
/// and `SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC`).
pub(super) const SGLANG: Families = Families {
    prefix: "sglang:",
    names: &[
        ("num_running_reqs", Figure::Running),
        ("num_queue_reqs", Figure::Waiting),
        ("full_token_usage", Figure::KvCacheUse),
        ("token_usage", Figure::KvCacheUse),
        ("generation_tokens_total", Figure::GeneratedTokens),
        ("time_to_first_token_seconds_sum", Figure::FirstTokenSeconds),
        ("time_to_first_token_seconds_count", Figure::FirstTokens),
        ("num_retracted_requests_total", Figure::Preemptions),
        ("prompt_tokens_total", Figure::PrefixTokens),
        ("cached_tokens_total", Figure::PrefixHits),
        ("eplb_balancedness_sum", Figure::BalanceSum),
        ("eplb_balancedness_count", Figure::BalanceCount),
    ],
};

/// Reads a page to its end.
///
/// # Errors
/// The page breaks off, or is larger than any engine's.
pub(super) async fn read_page(
    mut bytes: BoxStream<'static, Result<Bytes, EngineError>>,
    families: Families,
) -> Result<EngineLoad, EngineError> {
    let mut page = PageReader::new(families);
    while let Some(piece) = bytes.next().await {
        page.push(&piece?)?;
    }
    Ok(page.finish())
}

#[cfg(test)]
mod tests;
