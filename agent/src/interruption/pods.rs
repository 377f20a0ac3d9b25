//! The flow and the pods of its node: what others do to them, and what it does itself.

use tokio::time::Instant;

use super::Flow;
use super::drain::RunningDrain;
use crate::eviction::{DrainAround, EvictionTerms, Holdings};
use crate::kubernetes::{
    Membership, NodeSight, SeenPod, engine_pod_of, engines_leave, membership_of,
};
use crate::shared::Shared;

impl Flow {
    /// What others do to the node and its pods; a drain of theirs empties it as well.
    pub(super) fn see_node(&mut self, sight: NodeSight, now: Instant) {
        let failures = sight.failures.saturating_sub(self.sight.failures);
        self.shared.metrics.node_watch_failures.inc_by(failures);
        self.labelled = sight.pods.as_ref().and_then(|pods| membership_of(pods));
        let pod = sight.pods.as_ref().and_then(|pods| engine_pod_of(pods));
        let born = pod.map(|pod| (pod.created, pod.start));
        self.shared.engine_pod.send_if_modified(|known| std::mem::replace(known, born) != born);
        self.sight = sight;
        self.judge_sight(now);
    }

    /// Follows which replica the engine's pod makes the node a part of. While a drain is under way
    /// the node stays part of what it is drained with: its pods leave because of that.
    pub(super) fn follow_membership(&mut self, now: Instant) {
        let labelled = self.labelled.as_ref().filter(|labelled| !self.is_left(labelled, now));
        let stays = self.drain.as_ref().is_some_and(|drain| !self.has_left_replica(drain));
        let is_new = self.shared.membership.send_if_modified(|known| {
            let is_of = |known: &Membership| {
                labelled.is_some_and(|labelled| labelled.replica == known.replica)
            };
            let stays = stays && known.as_ref().is_some_and(|known| !is_of(known));
            let is_new = !stays && known.as_ref() != labelled;
            if is_new {
                *known = labelled.cloned();
            }
            is_new
        });
        if !is_new {
            return;
        }
        let is_other = self.key.join(self.shared.membership());
        if let Some(drain) = self.drain.as_mut().filter(|_| is_other) {
            drain.forget_request();
        }
    }

    /// Whether a drained node belongs to its replica no more: an engine pod of another one is here,
    /// or none while the drain that it had was taken back.
    fn has_left_replica(&self, drain: &RunningDrain) -> bool {
        let is_elsewhere = self.labelled.is_some() || self.key.is_taken_back(drain.request_id());
        drain.is_drained() && is_elsewhere
    }

    /// Whether a drained node has nothing to do any more with the replica of its engine pods, all
    /// of them on their way out: the drain that they leave for was taken back though the node still
    /// has a notice. The replica was made anew, and a request of this node would empty that one.
    fn is_left(&self, labelled: &Membership, now: Instant) -> bool {
        let is_leaving = self.sight.pods.as_ref().is_some_and(|pods| engines_leave(pods));
        let Some(drain) = self.drain.as_ref().filter(|drain| drain.is_drained() && is_leaving)
        else {
            return false;
        };
        let is_part = self.shared.membership().replica == labelled.replica;
        let has_notice = || self.notices.emptying(now).is_some();
        !is_part || (self.key.is_taken_back(drain.request_id()) && has_notice())
    }

    pub(super) fn judge_sight(&mut self, now: Instant) {
        let is_own = |pod: &SeenPod| {
            self.evictions.has_asked(pod) || self.shared.deleted_pods().contains(&pod.id.uid)
        };
        let wall = (self.shared.wall_clock)();
        for news in self.notices.see_node(&self.sight, is_own, wall, now) {
            self.tell_news(news, None);
        }
    }

    /// Makes the pods of a node leave that is about to go.
    pub(super) fn steer_evictions(&mut self, now: Instant) {
        let drain = self.drain.as_ref().filter(|drain| self.evicts_for(drain));
        let Some((drain, pods)) = drain.zip(self.sight.pods.as_ref()) else {
            self.evictions.forget();
            return;
        };
        let around = DrainAround {
            holdings: self.holdings(drain, now),
            is_cordoned: self.node.is_marked(),
            // The planner holds back no longer than to deadline − reserve.
            held_until: self.checkpoint.is_awaited().then(|| drain.deadline()),
            begun: drain.begun(),
            deadline: drain.deadline(),
        };
        for event in self.evictions.steer(pods, around, &self.lanes, now) {
            self.node.tell(event, &self.lanes);
        }
    }

    fn evicts_for(&self, drain: &RunningDrain) -> bool {
        let terms = &self.shared.config.drain;
        let is_left_to_sizing = terms.sizing_takes_pods && drain.is_sizing();
        terms.evict && drain.evicts() && !is_left_to_sizing
    }

    /// Pods that are still to leave the node, if that is known.
    pub(super) fn pods_left(&self, drain: &RunningDrain) -> Option<usize> {
        if self.evicts_for(drain) { self.evictions.left() } else { Some(0) }
    }

    /// Whether pods of a service may still work for others: a scorer or an environment need not
    /// have leased what it works on, so that its node is drained only once its pods have left.
    pub(super) fn may_serve(&self, drain: &RunningDrain) -> bool {
        self.shared.config.role.is_service() && self.pods_left(drain) != Some(0)
    }

    /// Who still holds work in the pods of this node. The engine of an EP group runs on all of its
    /// nodes: without one of its pods the streams of the agent that leads it would end.
    fn holdings(&self, drain: &RunningDrain, now: Instant) -> Holdings {
        let claims = self.shared.gate.has_claims();
        let has_own = claims || !self.shared.desk.ledger().is_empty();
        let may_hold_directly = self.direct.units() != Some(0);
        Holdings {
            has_streams: has_own || self.key.awaits_leader(drain, now),
            has_worker_units: claims
                || may_hold_directly
                || self.shared.workers.workers().held() > 0,
        }
    }
}

pub(super) fn eviction_terms(shared: &Shared) -> EvictionTerms {
    let terms = &shared.config.drain;
    EvictionTerms {
        grace: terms.grace,
        reserve: terms.reserve,
        on_blocked: terms.on_blocked_eviction,
    }
}
