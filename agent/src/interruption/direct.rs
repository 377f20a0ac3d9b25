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
        if shared.held_at_rest() != Some(own) {
            self.look_at = Some(now + AGAIN_AFTER);
            return;
        }
        let count = Count { own, direct: units.saturating_sub(own as u64) };
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
