//! What a drain came to.

use std::time::Duration;

use ebbtide_core::notice::NoticeKind;
use ebbtide_queue::control::{DrainOutcome, DrainReason};

use crate::shared::Shared;

/// What a drain came to. Times count from its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainReport {
    /// Why the node was drained.
    pub reason: DrainReason,
    /// The notice behind it, if this node had one.
    pub kind: Option<NoticeKind>,
    /// How it ended.
    pub outcome: DrainOutcome,
    /// Time until its deadline.
    pub lead: Duration,
    /// Units held when it began.
    pub units_held: usize,
    /// Units that finished meanwhile.
    pub units_completed: u64,
    /// Units handed back meanwhile.
    pub units_handed_back: u64,
    /// Units still held at its deadline, by direct workers of the node as well; for the agent that
    /// speaks for the replica, by other nodes too.
    pub units_left: usize,
    /// Tokens that units handed back took with them.
    pub tokens_preserved: u64,
    /// Tokens received here that the queue never got.
    pub tokens_wasted: u64,
    /// Time until the last hand-back; `None` when there was none.
    pub last_hand_back: Option<Duration>,
    /// Time until nothing was held on the node and no stream was open, on the other nodes of the
    /// replica either for the agent that speaks for it; of an overdue one, until that was told.
    pub duration: Duration,
}

impl DrainReport {
    /// One line, and the metrics.
    pub(super) fn tell(&self, reason: &'static str, shared: &Shared) {
        let (completed, handed_back) = (self.units_completed, self.units_handed_back);
        let duration_ms = self.duration.as_millis() as u64;
        if self.outcome != DrainOutcome::Cancelled {
            shared.metrics.drain_duration.observe(self.duration.as_secs_f64());
        }
        match self.outcome {
            DrainOutcome::Drained => {
                tracing::info!(reason, completed, handed_back, duration_ms, "drained");
            }
            DrainOutcome::Overdue => {
                let left = self.units_left;
                tracing::error!(
                    reason,
                    completed,
                    handed_back,
                    left,
                    "deadline passed, what is not handed back now comes back when its lease expires"
                );
            }
            DrainOutcome::Cancelled => {}
        }
    }
}
