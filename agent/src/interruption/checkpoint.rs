//! A trainer's node that goes: a checkpoint is asked for, and waited for as long as there is time.

use std::time::Duration;

use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::QueueError;
use ebbtide_queue::control::{CheckpointRecord, NodeRole};
use futures::FutureExt;
use tokio::time::Instant;

use super::turn::Turn;
use super::{Event, Lanes, SeenView};
use crate::shared::Shared;

/// Bounds of the pause after a call that was not answered.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How far the checkpoint of this drain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// None is wanted.
    Idle,
    /// It is to be asked for.
    Wanted,
    /// It was asked for at this moment, by the store's clock.
    Asked(UnixMillis),
    /// The trainer has written it.
    Confirmed,
}

/// See the module.
#[derive(Debug)]
pub(super) struct CheckpointLane {
    standing: Standing,
    /// The record as last read.
    seen: CheckpointRecord,
    turn: Turn,
}

impl CheckpointLane {
    pub(super) fn new() -> Self {
        Self {
            standing: Standing::Idle,
            seen: CheckpointRecord::default(),
            turn: Turn::new(PAUSE_MIN, PAUSE_MAX),
        }
    }

    /// Takes in a reading of all keys.
    pub(super) fn take_view(&mut self, seen: &SeenView) {
        self.seen = seen.view.checkpoint;
        if let Standing::Asked(moment) = self.standing
            && self.seen.confirmed >= Some(moment)
        {
            tracing::info!("trainer has written its checkpoint");
            self.standing = Standing::Confirmed;
        }
    }

    /// Says whether the node goes and needs one; asks for it if that was not done.
    pub(super) fn steer(&mut self, goes: bool, shared: &Shared, lanes: &Lanes, now: Instant) {
        let is_free = self.turn.is_free(now);
        if !goes || shared.config.role != NodeRole::Trainer {
            self.standing = Standing::Idle;
            return;
        }
        if self.standing == Standing::Idle {
            // Another node of the trainer may have asked already.
            let by_another = self.seen.requested.filter(|_| self.seen.is_pending());
            self.standing = by_another.map_or(Standing::Wanted, Standing::Asked);
        }
        if self.standing != Standing::Wanted || !is_free {
            return;
        }
        self.turn.begin();
        let queue = shared.queue.clone();
        let call = async move { queue.request_checkpoint().await };
        lanes.push(call.map(Event::CheckpointAsked).boxed());
    }

    /// Takes in the answer to a call.
    pub(super) fn take_answer(&mut self, answer: Result<UnixMillis, QueueError>, now: Instant) {
        match answer {
            Ok(moment) => {
                tracing::info!("trainer is asked for a checkpoint");
                self.turn.succeed();
                if self.standing == Standing::Wanted {
                    self.standing = Standing::Asked(moment);
                }
            }
            Err(error) => {
                if self.turn.fail(now) {
                    tracing::warn!(%error, "checkpoint not asked for yet");
                }
            }
        }
    }

    /// Whether the node still has to stay for the trainer's sake.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.standing, Standing::Wanted | Standing::Asked(_))
    }

    /// When an unanswered call is repeated.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.turn.next_due()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebbtide_queue::control::ControlView;

    use super::*;

    fn view(requested: u64, confirmed: u64) -> SeenView {
        let moment = |at: u64| (at > 0).then_some(UnixMillis(at));
        let (requested, confirmed) = (moment(requested), moment(confirmed));
        let checkpoint = CheckpointRecord { requested, confirmed };
        let view = ControlView { checkpoint, ..ControlView::default() };
        let view = Arc::new(view.into_replica("t1".parse().expect("valid")));
        SeenView { view, at: Instant::now() }
    }

    /// A lane whose call is under way.
    fn asking() -> CheckpointLane {
        let mut lane = CheckpointLane::new();
        lane.standing = Standing::Wanted;
        lane.turn.begin();
        lane
    }

    #[test]
    fn own_request_that_is_seen_before_its_answer_is_confirmed_as_any() {
        let mut lane = asking();
        lane.take_view(&view(1_000, 0));
        lane.take_answer(Ok(UnixMillis(1_000)), Instant::now());
        assert!(lane.is_awaited());
        lane.take_view(&view(1_000, 1_000));
        assert!(!lane.is_awaited());
    }

    #[test]
    fn request_is_answered_by_its_own_confirmation_or_a_later_one() {
        for (requested, confirmed, is_awaited) in
            [(1_000, 900, true), (2_000, 900, true), (2_000, 1_000, false), (2_000, 2_000, false)]
        {
            let mut lane = asking();
            lane.take_answer(Ok(UnixMillis(1_000)), Instant::now());
            lane.take_view(&view(requested, confirmed));
            assert_eq!(lane.is_awaited(), is_awaited, "{requested}, {confirmed}");
        }
    }
}
