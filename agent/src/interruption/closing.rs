//! Closing reports on their way to Redis, where operators find them. Nobody waits for them.

use std::collections::VecDeque;
use std::time::Duration;

use ebbtide_queue::client::QueueError;
use ebbtide_queue::control::ClosingReport;
use futures::FutureExt;
use tokio::time::Instant;

use super::drain::{DrainReport, RunningDrain};
use super::key::DrainKey;
use super::turn::Turn;
use super::{Event, Lanes};
use crate::shared::Shared;

/// Reports that may wait for the queue; the oldest is dropped for a newer one.
const WAITING_MAX: usize = 16;

/// Bounds of the pause after a call that was not answered.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A report of which the request is not known yet.
#[derive(Debug)]
struct Unnamed {
    report: DrainReport,
    begun: Instant,
    request_id: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ClosingLane {
    /// What the last drain came to, until it has a name: that of an idle node is over before.
    unnamed: Option<Unnamed>,
    waiting: VecDeque<ClosingReport>,
    turn: Turn,
}

impl ClosingLane {
    pub(super) fn new() -> Self {
        let turn = Turn::new(PAUSE_MIN, PAUSE_MAX);
        Self { unnamed: None, waiting: VecDeque::new(), turn }
    }

    /// Puts the report of this drain on its way.
    pub(super) fn add(&mut self, report: DrainReport, drain: &RunningDrain) {
        let request_id = drain.request_id().map(str::to_owned);
        self.unnamed = Some(Unnamed { report, begun: drain.begun(), request_id });
    }

    /// Whether one is still on its way.
    pub(super) fn has_more(&self) -> bool {
        self.unnamed.is_some() || !self.waiting.is_empty()
    }

    /// Makes the call that is due, if one is. `drain`: the one that was reported, if it stands; one
    /// that was taken back before it had a name is known to nobody else.
    pub(super) fn steer(
        &mut self,
        key: &DrainKey,
        drain: Option<&RunningDrain>,
        shared: &Shared,
        lanes: &Lanes,
        now: Instant,
    ) {
        self.name(key, drain, shared);
        if !self.turn.is_free(now) {
            return;
        }
        let Some(report) = self.waiting.front().cloned() else { return };
        self.turn.begin();
        let queue = shared.queue.clone();
        let call = async move { queue.add_report(report).await };
        lanes.push(call.map(Event::ReportKept).boxed());
    }

    fn name(&mut self, key: &DrainKey, drain: Option<&RunningDrain>, shared: &Shared) {
        let Some(Unnamed { report, begun, request_id }) = &self.unnamed else { return };
        let request_id = request_id.as_deref().or(drain.and_then(RunningDrain::request_id));
        let closing = request_id.and_then(|id| key.closing_report(report, id, *begun, shared));
        if closing.is_none() && drain.is_some() && key.leads_replica() {
            return;
        }
        self.unnamed = None;
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.extend(closing);
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
