//! The replica's drain key in Redis: what others ask of this replica, and what they are told.
//!
//! The key is the truth between agents, controller and operators. One call at a time, repeated
//! with bounded pauses; while the queue is away the drain goes on without it.
//!
//! A drain ends with the replica that it was asked for. LeaderWorkerSet makes a whole EP group
//! anew, under the same name, once a pod of it is gone: the agent that speaks for the new one takes
//! back what the old one was drained for, and the node that goes leaves it.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_core::notice::NoticeKind;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::QueueError;
use ebbtide_queue::control::{
    DrainProgress, DrainReason, DrainRecord, DrainRequest, DrainState, ReplicaView,
};
use futures::FutureExt;
use tokio::time::Instant;

use super::drain::{RunningDrain, Want};
use super::notices::Notices;
use super::others::{OthersHold, others_hold, silence_limit};
use super::requests::OwnRequests;
use super::turn::Turn;
use super::{Event, Lanes, SeenView};
use crate::config::AgentConfig;
use crate::kubernetes::Membership;
use crate::shared::Shared;

mod anew;
mod due;
mod report;

/// Bounds of the pause after a call that was not answered.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

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
    /// The replica, and the node's place in it.
    membership: Membership,
    own_requests: OwnRequests,
    /// The key as last seen.
    seen: Option<SeenDrain>,
    /// Whether the key was ever read.
    is_known: bool,
    /// The keys as last read, and when.
    read: Option<(Arc<ReplicaView>, Instant)>,
    /// Silence after which another node of the replica holds nothing any more.
    silence_limit: Duration,
    /// A request that was taken back; a view from before must not bring it to life.
    taken_back: Option<String>,
    turn: Turn,
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
            membership: config.membership(),
            own_requests: OwnRequests::of(config.node()),
            seen: None,
            is_known: false,
            read: None,
            silence_limit: silence_limit(config.lease.ttl, config.pace.meet_every),
            taken_back: None,
            turn: Turn::new(PAUSE_MIN, PAUSE_MAX),
        }
    }

    /// Takes in which replica the node belongs to; says whether it is another one. In another one
    /// nothing is known yet.
    pub(super) fn join(&mut self, membership: Membership) -> bool {
        let (replica, leads) = (&membership.replica, membership.leads);
        let is_other = *replica != self.membership.replica;
        if is_other {
            tracing::info!(%replica, leads, "node belongs to another replica");
            (self.is_known, self.read, self.seen) = (false, None, None);
            self.own_requests.forget();
            self.taken_back = None;
        }
        self.membership = membership;
        is_other
    }

    /// Whether this agent speaks for the replica.
    pub(super) fn leads_replica(&self) -> bool {
        self.membership.leads
    }

    /// Whether the replica is this node alone.
    fn is_single(&self) -> bool {
        self.membership.replica.as_str() == self.node.as_str()
    }

    /// Whether the key was read at least once, so that its absence means something.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Takes in a reading of the keys. One of the replica that the node belonged to before says
    /// nothing about this one.
    pub(super) fn take_view(&mut self, seen: &SeenView) {
        if seen.view.replica != self.membership.replica {
            return;
        }
        self.is_known = true;
        self.read = Some((seen.view.clone(), seen.at));
        let Some(record) = &seen.view.drain else {
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

    /// A moment on the store's clock, once that was read.
    pub(super) fn on_server_clock(&self, moment: Instant) -> Option<UnixMillis> {
        let (view, at) = self.read.as_ref()?;
        let (now, at) = (view.now, *at);
        Some(if moment >= at { now.plus(moment - at) } else { now.minus(at - moment) })
    }

    /// Keeps the monotonic deadline of a record whose own deadline is the same.
    fn note(&mut self, record: DrainRecord, deadline: Instant) {
        let known = self.seen.as_ref().filter(|known| {
            known.record.request_id == record.request_id && known.record.deadline == record.deadline
        });
        let deadline = known.map_or(deadline, |known| known.deadline);
        self.seen = Some(SeenDrain { record, deadline });
    }

    /// Whether the agent that speaks for the replica may still hold something of this drain, or be
    /// about to: as long as the key does not say that it is done.
    pub(super) fn awaits_leader(&self, drain: &RunningDrain, now: Instant) -> bool {
        let seen = self.seen.as_ref().filter(|seen| seen.is_active());
        let is_done = seen.is_some_and(|seen| seen.record.state >= DrainState::Drained);
        !self.leads_replica() && !is_done && now < drain.deadline()
    }

    /// Names the drain that the key asks for.
    pub(super) fn request_id(&self) -> Option<&str> {
        let seen = self.seen.as_ref().filter(|seen| seen.is_active());
        seen.map(|seen| seen.record.request_id.as_str())
    }

    /// Whether the key says that this drain was taken back.
    pub(super) fn is_taken_back(&self, request_id: Option<&str>) -> bool {
        let seen = self.seen.as_ref().filter(|seen| !seen.is_active());
        seen.is_some_and(|seen| Some(seen.record.request_id.as_str()) == request_id)
    }

    /// What the other nodes of the replica still hold, for the agent that speaks for them.
    pub(super) fn others_hold(&self) -> OthersHold {
        if !self.leads_replica() || self.is_single() {
            return OthersHold::default();
        }
        let Some((view, _)) = &self.read else { return OthersHold::UNREAD };
        others_hold(view, &self.node, self.request_id(), self.silence_limit)
    }

    /// The drain that a notice of this node asks for.
    ///
    /// The end of an engine pod asks nothing more of a node that is drained with its replica: the
    /// group is made anew because another node goes, and that one's time is not to be cut.
    pub(super) fn own_want(
        &self,
        notices: &Notices,
        drain: Option<&RunningDrain>,
        now: Instant,
    ) -> Option<Want> {
        let own = notices.emptying(now)?;
        let is_drained = drain.is_some_and(RunningDrain::is_drained);
        let is_consequence =
            own.kind == NoticeKind::EngineDeleted && is_drained && self.request_id().is_some();
        (!is_consequence).then(|| Want::for_notice(own.kind, own.deadline))
    }

    /// The drain that the key asks for.
    pub(super) fn wanted(&self) -> Option<Want> {
        let seen = self.seen.as_ref().filter(|seen| seen.is_active())?;
        let reason = seen.record.reason;
        let goes = self.goes(&seen.record);
        Some(Want { reason, kind: None, deadline: seen.deadline, goes })
    }

    /// Whether this node goes with a drain: it is named, or the replica goes as a whole.
    fn goes(&self, record: &DrainRecord) -> bool {
        let is_whole = matches!(record.reason, DrainReason::ScaleIn | DrainReason::Swap);
        let is_nobody = record.lost.is_empty();
        match record.reason {
            DrainReason::Drill => false,
            // Other handlers name nobody: the node that they have marked names itself.
            DrainReason::Foreign => record.lost.0.contains(&self.node),
            _ => {
                record.lost.0.contains(&self.node) || (is_nobody && (is_whole || self.is_single()))
            }
        }
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
        if !self.turn.is_free(now) {
            return;
        }
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
        self.turn.begin();
        lanes.push(write.map(move |answer| Event::KeyWritten(call, answer)).boxed());
    }

    fn request(&mut self, own: Want, now: Instant) -> DrainRequest {
        DrainRequest {
            replica: self.membership.replica.clone(),
            request_id: self.own_requests.current(),
            generation: 0,
            reason: own.reason,
            remaining: own.deadline.saturating_duration_since(now),
            lost: self.lost_by(own),
        }
    }

    fn progress(&self, state: DrainState) -> Option<DrainProgress> {
        let seen = self.seen.as_ref()?;
        Some(DrainProgress {
            replica: self.membership.replica.clone(),
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
        let record = match answer {
            Ok(record) => record,
            Err(error) => {
                if self.turn.fail(now) {
                    tracing::warn!(%error, "drain key not written, the drain goes on without it");
                }
                return;
            }
        };
        self.turn.succeed();
        // The answer is the state that holds; asking for the same again at once would be idle.
        self.turn.rest_until(now + PAUSE_MIN);
        let Some(record) = record else {
            self.seen = None;
            return;
        };
        if record.replica != self.membership.replica {
            // Asked for before the node became part of another replica.
            return;
        }
        if record.state == DrainState::Cancelled {
            self.taken_back = Some(record.request_id.clone());
            self.own_requests.forget();
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
        self.turn.next_due()
    }
}

#[cfg(test)]
mod tests;
