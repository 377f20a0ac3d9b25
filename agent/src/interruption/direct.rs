//! Workers of this node that lease straight from the queue: how many units they hold.
//!
//! Their units bear the node's name in their holder, so the node is not drained before these are
//! given back; but no session, gate or ledger of this agent knows them. So while a drain is under
//! way the queue is asked how many units the node holds in all, and what this agent holds is taken
//! off. A count says something only when the agent held the same before and after, with none of it
//! on its way out: then both numbers speak of the same units. Leases of processes that died count
//! until somebody reaps them, which is soon after they have run out.

use std::time::Duration;

use ebbtide_queue::client::QueueError;
use futures::FutureExt;
use tokio::time::Instant;

use super::others::OthersHold;
use super::turn::Turn;
use super::{Event, Lanes};
use crate::shared::Shared;

/// Bounds of the pause after a call that was not answered.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Time between two counts while such workers hold something.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// The same while only this agent does.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Pause while units of this agent are on their way out.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What the queue was seen to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    /// Units of this agent at that moment.
    own: usize,
    /// Units of others on this node.
    direct: u64,
}

impl Count {
    /// What `units` of the node mean, when this agent held `own` before they were counted, and at
    /// rest `own_after` that. A lease that it has lost without knowing makes the others no fewer
    /// than none.
    fn of(units: u64, own: usize, own_after: Option<usize>) -> Option<Self> {
        (own_after == Some(own)).then(|| Self { own, direct: units.saturating_sub(own as u64) })
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct DirectLane {
    /// The newest count of this drain.
    seen: Option<Count>,
    /// What this agent held when it asked last.
    asked_with: Option<usize>,
    /// When it asks again.
    look_at: Option<Instant>,
    turn: Turn,
}

impl DirectLane {
    pub(super) fn new() -> Self {
        let turn = Turn::new(PAUSE_MIN, PAUSE_MAX);
        Self { seen: None, asked_with: None, look_at: None, turn }
    }

    /// Asks if it is time to; until nothing is held on the node any more, or no drain is under way.
    pub(super) fn steer(
        &mut self,
        is_draining: bool,
        shared: &Shared,
        lanes: &Lanes,
        now: Instant,
    ) {
        let is_free = self.turn.is_free(now);
        if !is_draining {
            (self.seen, self.asked_with, self.look_at) = (None, None, None);
            return;
        }
        if !is_free || self.is_clear() {
            return;
        }
        let own = shared.held_at_rest();
        // What the drain waits for is looked at at once.
        let is_emptied = own == Some(0) && self.asked_with != Some(0);
        if !is_emptied && self.look_at.is_some_and(|at| now < at) {
            return;
        }
        let Some(own) = own else {
            self.look_at = Some(now + AGAIN_AFTER);
            return;
        };
        self.asked_with = Some(own);
        self.turn.begin();
        let (queue, node) = (shared.queue.clone(), shared.config.node().clone());
        let call = async move { queue.held_by(&node).await };
        lanes.push(call.map(move |answer| Event::HeldCounted(own, answer)).boxed());
    }

    /// Takes in the answer to a call that was made when this agent held `own` units.
    pub(super) fn take_answer(
        &mut self,
        own: usize,
        answer: Result<u64, QueueError>,
        shared: &Shared,
        now: Instant,
    ) {
        let units = match answer {
            Ok(units) => units,
            Err(error) => {
                if self.turn.fail(now) {
                    tracing::warn!(%error, "it is not known what this node's direct workers hold");
                }
                return;
            }
        };
        self.turn.succeed();
        let Some(count) = Count::of(units, own, shared.held_at_rest()) else {
            self.look_at = Some(now + AGAIN_AFTER);
            return;
        };
        if count.direct != self.seen.map_or(0, |seen| seen.direct) {
            tracing::info!(units = count.direct, "held by workers that lease from the queue");
        }
        self.look_at = Some(now + if count.direct > 0 { WATCH_EVERY } else { LOOK_EVERY });
        self.seen = Some(count);
    }

    /// Units that direct workers hold; none while that is not known, or no drain is under way.
    pub(super) fn units(&self) -> Option<u64> {
        self.seen.map(|seen| seen.direct)
    }

    /// What keeps the node from being drained: nothing once the queue has said of the emptied agent
    /// that nobody holds anything here.
    pub(super) fn hold(&self) -> OthersHold {
        OthersHold { nodes: u32::from(!self.is_clear()), units: self.units().unwrap_or(0) }
    }

    fn is_clear(&self) -> bool {
        self.seen == Some(Count { own: 0, direct: 0 })
    }

    /// Whether the queue is still to say what an agent that holds nothing has to know.
    pub(super) fn is_awaited(&self) -> bool {
        self.turn.is_calling() || self.asked_with != Some(0)
    }

    /// When it asks next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let look_at = self.look_at.filter(|_| !self.is_clear() && !self.turn.is_calling());
        self.turn.next_due().or(look_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_says_something_only_if_nothing_of_this_agent_left_meanwhile() {
        let of = |units, own, after| Count::of(units, own, after).map(|count| count.direct);
        assert_eq!(of(2, 0, Some(0)), Some(2));
        assert_eq!(of(10, 8, Some(8)), Some(2));
        assert_eq!(of(10, 8, Some(7)), None, "was the eighth counted?");
        assert_eq!(of(2, 8, None), None, "some are on their way out");
        assert_eq!(of(7, 8, Some(8)), Some(0), "a lease was lost");
    }

    #[test]
    fn node_is_clear_once_an_emptied_agent_has_heard_so() {
        let mut lane = DirectLane::new();
        let held = |lane: &DirectLane| (lane.units(), lane.hold().nodes, lane.hold().units);
        assert_eq!(held(&lane), (None, 1, 0), "not asked yet");
        for (own, direct, expected) in [
            (3, 0, (Some(0), 1, 0)),
            (3, 2, (Some(2), 1, 2)),
            (0, 2, (Some(2), 1, 2)),
            (0, 0, (Some(0), 0, 0)),
        ] {
            lane.seen = Some(Count { own, direct });
            assert_eq!(held(&lane), expected, "{own} and {direct}");
        }
    }
}
