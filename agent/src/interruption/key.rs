//! The replica's drain key in Redis: what others ask of this replica, and what they are told.
//!
//! The key is the truth between agents, controller and operators. One call at a time, repeated
//! with bounded pauses; while the queue is away the drain goes on without it.

use std::time::Duration;

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_queue::client::{Backoff, QueueError};
use ebbtide_queue::control::{
    DrainProgress, DrainReason, DrainRecord, DrainRequest, DrainState, NodeNames,
};
use futures::FutureExt;
use tokio::time::Instant;

use super::drain::{RunningDrain, Want};
use super::notices::Notices;
use super::{Event, Lanes, SeenView};
use crate::config::AgentConfig;
use crate::shared::Shared;

/// Bounds of the pause after a call that was not answered.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Difference of two deadlines below which they are the same: clocks and calls are not exact.
const DEADLINE_SLACK: Duration = Duration::from_secs(1);

/// A write of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// This node has a notice that empties it.
    Request(Want),
    /// The drain has come this far, or is taken back.
    Report(DrainState),
}

/// See the module.
#[derive(Debug)]
pub(super) struct DrainKey {
    node: NodeName,
    replica: ReplicaId,
    leads_replica: bool,
    /// How requests of this node's agents begin; a restarted agent knows its predecessor's.
    own_prefix: String,
    own_request: Option<String>,
    /// The key as last seen.
    seen: Option<SeenDrain>,
    /// Whether the key was ever read.
    is_known: bool,
    /// A request that was taken back; a view from before must not bring it to life.
    taken_back: Option<String>,
    is_calling: bool,
    try_at: Option<Instant>,
    backoff: Backoff,
}

#[derive(Debug, Clone)]
struct SeenDrain {
    record: DrainRecord,
    deadline: Instant,
}

impl SeenDrain {
    fn is_active(&self) -> bool {
        self.record.state != DrainState::Cancelled
    }
}

impl DrainKey {
    pub(super) fn new(config: &AgentConfig) -> Self {
        Self {
            node: config.node().clone(),
            replica: config.replica.clone(),
            leads_replica: config.leads_replica,
            own_prefix: format!("notice-{}-", config.node()),
            own_request: None,
            seen: None,
            is_known: false,
            taken_back: None,
            is_calling: false,
            try_at: None,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
        }
    }

    /// Whether the key was read at least once, so that its absence means something.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Takes in a reading of all keys.
    pub(super) fn take_view(&mut self, seen: &SeenView) {
        self.is_known = true;
        let record = seen.view.drains.iter().find(|drain| drain.replica == self.replica);
        let Some(record) = record else {
            // A replica that is being terminated does not come back because its key is gone.
            self.seen.take_if(|seen| seen.record.state != DrainState::Terminating);
            return;
        };
        let is_taken_back = self.taken_back.as_ref() == Some(&record.request_id);
        if is_taken_back && record.state != DrainState::Cancelled {
            return;
        }
        let remaining = record.deadline.remaining(seen.view.now);
        self.note(record.clone(), seen.at + remaining);
    }

    /// Keeps the monotonic deadline of a record whose own deadline is the same.
    fn note(&mut self, record: DrainRecord, deadline: Instant) {
        let known = self.seen.as_ref().filter(|known| {
            known.record.request_id == record.request_id && known.record.deadline == record.deadline
        });
        let deadline = known.map_or(deadline, |known| known.deadline);
        self.seen = Some(SeenDrain { record, deadline });
    }

    /// The drain that the key asks for.
    pub(super) fn wanted(&self) -> Option<Want> {
        let seen = self.seen.as_ref().filter(|seen| seen.is_active())?;
        Some(Want { reason: seen.record.reason, kind: None, deadline: seen.deadline })
    }

    /// Makes the call that is due, if one is.
    pub(super) fn steer(
        &mut self,
        notices: &Notices,
        drain: Option<&RunningDrain>,
        shared: &Shared,
        lanes: &Lanes,
        now: Instant,
    ) {
        if self.is_calling || self.try_at.is_some_and(|at| at > now) {
            return;
        }
        self.try_at = None;
        let Some(call) = self.due_call(notices, drain, now) else { return };
        let queue = shared.queue.clone();
        let write = match call {
            Call::Request(own) => {
                let request = self.request(own, now);
                async move { queue.request_drain(request).await.map(Some) }.boxed()
            }
            Call::Report(state) => {
                let Some(progress) = self.progress(state) else { return };
                async move { queue.report_drain(progress).await }.boxed()
            }
        };
        self.is_calling = true;
        lanes.push(write.map(move |answer| Event::KeyWritten(call, answer)).boxed());
    }

    fn due_call(
        &self,
        notices: &Notices,
        drain: Option<&RunningDrain>,
        now: Instant,
    ) -> Option<Call> {
        let active = self.seen.as_ref().filter(|seen| seen.is_active());
        if let Some(own) = notices.emptying(now) {
            let own = Want::for_notice(own.kind, own.deadline);
            let is_told = active.is_some_and(|seen| {
                let is_early = seen.deadline <= own.deadline + DEADLINE_SLACK;
                let is_notice = seen.record.reason == DrainReason::Notice;
                is_early && (is_notice || own.reason != DrainReason::Notice)
            });
            if !is_told {
                return Some(Call::Request(own));
            }
        } else if let Some(seen) = active {
            let is_ours = seen.record.request_id.starts_with(&self.own_prefix);
            let may_cancel = seen.record.state != DrainState::Terminating;
            if is_ours && may_cancel && notices.is_quiet(now) {
                return Some(Call::Report(DrainState::Cancelled));
            }
        }
        self.due_report(drain)
    }

    fn due_report(&self, drain: Option<&RunningDrain>) -> Option<Call> {
        let seen = self.seen.as_ref().filter(|seen| seen.is_active())?;
        let is_drained = drain?.is_drained();
        let reached = if is_drained { DrainState::Drained } else { DrainState::Draining };
        (self.leads_replica && seen.record.state < reached).then_some(Call::Report(reached))
    }

    /// Whether others still have to be told how far the drain is.
    pub(super) fn has_call_to_make(&self, drain: Option<&RunningDrain>) -> bool {
        self.is_calling || self.due_report(drain).is_some()
    }

    fn request(&mut self, own: Want, now: Instant) -> DrainRequest {
        let fresh = || format!("{}{}", self.own_prefix, uuid::Uuid::new_v4());
        let request_id = self.own_request.clone().unwrap_or_else(fresh);
        self.own_request = Some(request_id.clone());
        DrainRequest {
            replica: self.replica.clone(),
            request_id,
            generation: 0,
            reason: own.reason,
            remaining: own.deadline.saturating_duration_since(now),
            lost: self.lost_by(own.reason),
        }
    }

    /// What this node says about its end: it is lost, unless it only leaves for a while.
    fn lost_by(&self, reason: DrainReason) -> NodeNames {
        match reason {
            DrainReason::Notice | DrainReason::Maintenance | DrainReason::Lifecycle => {
                NodeNames::from(self.node.clone())
            }
            _ => NodeNames::default(),
        }
    }

    fn progress(&self, state: DrainState) -> Option<DrainProgress> {
        let seen = self.seen.as_ref()?;
        Some(DrainProgress {
            replica: self.replica.clone(),
            request_id: seen.record.request_id.clone(),
            generation: 0,
            state,
        })
    }

    /// Takes in the answer to a call.
    pub(super) fn take_answer(
        &mut self,
        call: Call,
        answer: Result<Option<DrainRecord>, QueueError>,
        now: Instant,
    ) {
        self.is_calling = false;
        let record = match answer {
            Ok(record) => record,
            Err(error) => {
                if self.backoff.failures() == 0 {
                    tracing::warn!(%error, "drain key not written, the drain goes on without it");
                }
                self.try_at = Some(now + self.backoff.next_pause());
                return;
            }
        };
        self.backoff.reset();
        // The answer is the state that holds; asking for the same again at once would be idle.
        self.try_at = Some(now + PAUSE_MIN);
        let Some(record) = record else {
            self.seen = None;
            return;
        };
        if record.state == DrainState::Cancelled {
            self.taken_back = Some(record.request_id.clone());
            self.own_request = None;
        }
        let known = self.seen.as_ref().map(|seen| seen.deadline);
        let deadline = match call {
            Call::Request(own) => known.map_or(own.deadline, |known| known.min(own.deadline)),
            Call::Report(_) => known.unwrap_or(now),
        };
        self.note(record, deadline);
    }

    /// When an unanswered call is repeated.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.try_at.filter(|_| !self.is_calling)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebbtide_core::ids::RunId;
    use ebbtide_core::notice::{Announcement, NoticeKind};
    use ebbtide_core::time::UnixMillis;
    use ebbtide_queue::control::ControlView;

    use super::*;
    use crate::config::{DrainTerms, agent_holder};
    use crate::imds::{Sighting, Source};

    const SERVER_NOW: UnixMillis = UnixMillis(5_000_000);

    fn key() -> DrainKey {
        let run: RunId = "r".parse().expect("valid");
        let holder = agent_holder(&"n1".parse().expect("valid"), "b").expect("valid");
        DrainKey::new(&AgentConfig::new(run, holder))
    }

    fn record(request_id: &str, reason: DrainReason, state: DrainState) -> DrainRecord {
        DrainRecord {
            replica: "n1".parse().expect("valid"),
            request_id: request_id.to_owned(),
            generation: 0,
            reason,
            deadline: SERVER_NOW.plus(Duration::from_secs(60)),
            state,
            requested_at: SERVER_NOW,
            lost: NodeNames::default(),
        }
    }

    fn view(drains: Vec<DrainRecord>, at: Instant) -> SeenView {
        let view = ControlView { now: SERVER_NOW, drains, ..ControlView::default() };
        SeenView { view: Arc::new(view), at }
    }

    fn notices(lead: Option<Duration>, at: Instant) -> Notices {
        let mut notices = Notices::new(DrainTerms::default());
        let wall = UnixMillis(9_000_000);
        let announcement = lead.map(|lead| Announcement {
            kind: NoticeKind::SpotTerminate,
            time: Some(wall.plus(lead)),
        });
        let look = |source, announcement| Sighting { source, announcement, wall, at };
        for _ in 0..3 {
            notices.see(look(Source::Spot, announcement));
            notices.see(look(Source::Rebalance, None));
            notices.see(look(Source::Lifecycle, None));
            notices.see(look(Source::Maintenance, None));
        }
        notices
    }

    #[test]
    fn notice_is_told_until_the_key_says_so() {
        let now = Instant::now();
        let mut key = key();
        let noticed = notices(Some(Duration::from_secs(50)), now);
        assert!(matches!(key.due_call(&noticed, None, now), Some(Call::Request(_))));
        let later = record("scale-in", DrainReason::ScaleIn, DrainState::Draining);
        key.take_view(&view(vec![later], now));
        assert!(matches!(key.due_call(&noticed, None, now), Some(Call::Request(_))), "later");
        let told = DrainRecord {
            deadline: SERVER_NOW.plus(Duration::from_secs(50)),
            ..record("scale-in", DrainReason::Notice, DrainState::Draining)
        };
        key.take_view(&view(vec![told], now));
        assert_eq!(key.due_call(&noticed, None, now), None);
    }

    #[test]
    fn only_own_requests_are_taken_back_and_only_when_all_is_quiet() {
        let now = Instant::now();
        let mut key = key();
        let own = record("notice-n1-7", DrainReason::Notice, DrainState::Drained);
        key.take_view(&view(vec![own.clone()], now));
        let unknown = Notices::new(DrainTerms::default());
        assert_eq!(key.due_call(&unknown, None, now), None, "nothing was looked at yet");
        let quiet = notices(None, now);
        let cancel = Some(Call::Report(DrainState::Cancelled));
        assert_eq!(key.due_call(&quiet, None, now), cancel);
        let terminating = DrainRecord { state: DrainState::Terminating, ..own };
        key.take_view(&view(vec![terminating], now));
        assert_eq!(key.due_call(&quiet, None, now), None);
        let foreign = record("scale-in", DrainReason::ScaleIn, DrainState::Drained);
        key.take_view(&view(vec![foreign], now));
        assert_eq!(key.due_call(&quiet, None, now), None);
    }

    #[test]
    fn old_view_does_not_bring_a_cancelled_drain_to_life() {
        let now = Instant::now();
        let mut key = key();
        let own = record("notice-n1-7", DrainReason::Notice, DrainState::Draining);
        key.take_view(&view(vec![own.clone()], now));
        let cancelled = DrainRecord { state: DrainState::Cancelled, ..own.clone() };
        let call = Call::Report(DrainState::Cancelled);
        key.take_answer(call, Ok(Some(cancelled)), now);
        assert_eq!(key.wanted(), None);
        key.take_view(&view(vec![own], now));
        assert_eq!(key.wanted(), None);
    }

    #[test]
    fn terminating_replica_does_not_come_back_without_its_key() {
        let now = Instant::now();
        let mut key = key();
        let drained = record("scale-in", DrainReason::ScaleIn, DrainState::Drained);
        key.take_view(&view(vec![drained.clone()], now));
        key.take_view(&view(vec![], now));
        assert_eq!(key.wanted(), None);
        let terminating = DrainRecord { state: DrainState::Terminating, ..drained };
        key.take_view(&view(vec![terminating], now));
        key.take_view(&view(vec![], now));
        assert!(key.wanted().is_some());
    }

    #[test]
    fn deadline_is_fixed_at_first_sight() {
        let now = Instant::now();
        let mut key = key();
        let asked = record("scale-in", DrainReason::ScaleIn, DrainState::Requested);
        key.take_view(&view(vec![asked.clone()], now));
        key.take_view(&view(vec![asked], now + Duration::from_secs(5)));
        let deadline = key.wanted().map(|want| want.deadline);
        assert_eq!(deadline, Some(now + Duration::from_secs(60)));
    }
}
