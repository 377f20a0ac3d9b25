//! Which write of the key is due: a request for a notice of this node, its withdrawal, or how far
//! the drain is.

use std::time::Duration;

use ebbtide_queue::control::{DrainReason, DrainState, NodeNames};
use tokio::time::Instant;

use super::anew::is_made_anew;
use super::{Call, DrainKey, SeenDrain};
use crate::interruption::drain::{RunningDrain, Want};
use crate::interruption::notices::Notices;

/// Difference of two deadlines below which they are the same: clocks and calls are not exact.
const DEADLINE_SLACK: Duration = Duration::from_secs(1);

impl DrainKey {
    pub(super) fn due_call(
        &self,
        notices: &Notices,
        drain: Option<&RunningDrain>,
        now: Instant,
    ) -> Option<Call> {
        let active = self.seen.as_ref().filter(|seen| seen.is_active());
        if let Some(own) = self.own_want(notices, drain, now) {
            if !active.is_some_and(|seen| self.is_told(own, seen)) {
                return Some(Call::Request(own));
            }
        } else if let Some(seen) = active {
            let is_ours = self.own_requests.has_named(&seen.record.request_id);
            let may_cancel = seen.record.state != DrainState::Terminating;
            // What this very process asked for has no reasons that it does not know, but for a
            // notice that others have seen.
            let reason = seen.record.reason;
            let is_own = self.own_requests.is_current(&seen.record.request_id);
            let is_known = is_own && reason != DrainReason::Notice;
            let is_withdrawn = || is_ours && notices.is_quiet_for(reason, is_known, now);
            if may_cancel && (is_made_anew(&self.membership, &seen.record) || is_withdrawn()) {
                return Some(Call::Report(DrainState::Cancelled));
            }
        }
        self.due_report(drain, now)
    }

    /// Whether the key says all that a notice of this node means for the replica.
    fn is_told(&self, own: Want, seen: &SeenDrain) -> bool {
        let is_early = seen.deadline <= own.deadline + DEADLINE_SLACK;
        let is_strong = match seen.record.reason {
            DrainReason::Notice => true,
            DrainReason::Drill => false,
            _ => own.reason != DrainReason::Notice,
        };
        let is_named = self.lost_by(own).is_empty() || self.goes(&seen.record);
        is_early && is_strong && is_named
    }

    fn due_report(&self, drain: Option<&RunningDrain>, now: Instant) -> Option<Call> {
        let seen = self.seen.as_ref().filter(|seen| seen.is_active() && self.leads_replica())?;
        // Past the deadline no lease of the others is left either.
        let is_alone = self.others_hold().is_nothing() || now >= seen.deadline;
        let is_drained = drain?.is_drained() && is_alone;
        let is_rehearsal = seen.record.reason == DrainReason::Drill;
        // A rehearsal is over when it is done, or its time is: the node returns to work, whatever
        // has become of the one who asked.
        if is_rehearsal && (seen.record.state == DrainState::Drained || now >= seen.deadline) {
            return Some(Call::Report(DrainState::Cancelled));
        }
        let reached = if is_drained { DrainState::Drained } else { DrainState::Draining };
        (seen.record.state < reached).then_some(Call::Report(reached))
    }

    /// Whether others still have to be told how far the drain is.
    pub(in crate::interruption) fn has_call_to_make(
        &self,
        drain: Option<&RunningDrain>,
        now: Instant,
    ) -> bool {
        self.turn.is_calling() || self.due_report(drain, now).is_some()
    }

    /// What this node says about its end: it is lost, unless it only leaves for a while.
    pub(super) fn lost_by(&self, own: Want) -> NodeNames {
        match own.reason {
            DrainReason::Notice
            | DrainReason::Maintenance
            | DrainReason::Lifecycle
            | DrainReason::Foreign
                if own.goes =>
            {
                NodeNames::from(self.node.clone())
            }
            _ => NodeNames::default(),
        }
    }
}
