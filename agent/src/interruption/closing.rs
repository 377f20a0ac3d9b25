//! Closing reports on their way to Redis, where operators find them. Nobody waits for them.

use std::collections::VecDeque;
use std::time::Duration;

use ebbtide_queue::client::QueueError;
use ebbtide_queue::control::ClosingReport;
use futures::FutureExt;
use tokio::time::Instant;

use super::turn::Turn;
use super::{Event, Lanes};
use crate::shared::Shared;

/// Reports that may wait for the queue; the oldest is dropped for a newer one.
const WAITING_MAX: usize = 16;

/// Bounds of the pause after a call that was not answered.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct ClosingLane {
    waiting: VecDeque<ClosingReport>,
    turn: Turn,
}

impl ClosingLane {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::new(), turn: Turn::new(PAUSE_MIN, PAUSE_MAX) }
    }

    /// Puts a report on its way.
    pub(super) fn add(&mut self, report: ClosingReport) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(report);
    }

    /// Whether one is still on its way.
    pub(super) fn has_more(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Makes the call that is due, if one is.
    pub(super) fn steer(&mut self, shared: &Shared, lanes: &Lanes, now: Instant) {
        if !self.turn.is_free(now) {
            return;
        }
        let Some(report) = self.waiting.front().cloned() else { return };
        self.turn.begin();
        let queue = shared.queue.clone();
        let call = async move { queue.add_report(report).await };
        lanes.push(call.map(Event::ReportKept).boxed());
    }

    /// Takes in the answer to a call.
    pub(super) fn take_answer(&mut self, answer: Result<(), QueueError>, now: Instant) {
        match answer {
            Ok(()) => {
                self.waiting.pop_front();
                self.turn.succeed();
            }
            Err(error) => {
                if self.turn.fail(now) {
                    tracing::warn!(%error, "closing report not kept yet");
                }
            }
        }
    }

    /// When an unanswered call is repeated.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.turn.next_due()
    }
}
