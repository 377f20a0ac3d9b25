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
    /// The request is one made after this moment, the newest one before it.
    Asked(Option<UnixMillis>),
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
        if let Standing::Asked(before) = self.standing
            && self.seen.requested > before
            && !self.seen.is_pending()
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
            let asked_by_another = self.seen.is_pending().then_some(Standing::Asked(None));
            self.standing = asked_by_another.unwrap_or(Standing::Wanted);
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
    pub(super) fn take_answer(&mut self, answer: Result<(), QueueError>, now: Instant) {
        match answer {
            Ok(()) => {
                tracing::info!("trainer is asked for a checkpoint");
                self.turn.succeed();
                if self.standing == Standing::Wanted {
                    self.standing = Standing::Asked(self.seen.requested);
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
