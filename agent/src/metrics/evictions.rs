//! What becomes of pods that are made to leave.

use prometheus::{IntCounter, IntCounterVec};

use super::{counter, counters};
use crate::kubernetes::{Departure, EvictionError};

/// See the module. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct EvictionMetrics {
    pub(super) calls: IntCounterVec,
    pub(super) blocked: IntCounter,
}

/// Outcomes of a call, as labels.
const OUTCOMES: [&str; 5] = ["evicted", "deleted", "gone", "blocked", "failed"];

impl EvictionMetrics {
    pub(super) fn new() -> Self {
        let calls = counters(
            "ebbtide_evictions_total",
            "Calls to make a pod leave the node, by outcome.",
            &["outcome"],
        );
        for outcome in OUTCOMES {
            calls.with_label_values(&[outcome]);
        }
        let blocked = counter(
            "ebbtide_evictions_blocked_total",
            "Evictions that a disruption budget, or the server's own limit, did not allow.",
        );
        Self { calls, blocked }
    }

    /// Counts the end of one call.
    pub(crate) fn note(&self, is_deletion: bool, answer: &Result<Departure, EvictionError>) {
        let outcome = match answer {
            Ok(Departure::Begun) if is_deletion => "deleted",
            Ok(Departure::Begun) => "evicted",
            Ok(Departure::AlreadyGone) => "gone",
            Err(EvictionError::Blocked { .. }) => "blocked",
            Err(EvictionError::Failed { .. }) => "failed",
        };
        self.calls.with_label_values(&[outcome]).inc();
        if matches!(answer, Err(EvictionError::Blocked { .. })) {
            self.blocked.inc();
        }
    }
}
