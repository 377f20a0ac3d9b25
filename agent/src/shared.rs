//! What all loops of one agent share.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::notice::NoticeKind;
use ebbtide_core::policy::Market;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{HandBack, HandBackCause};
use ebbtide_queue::control::{DrainReason, StragglerRecord, VersionRecord};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::AgentConfig;
use crate::gate::{ClosedFor, LeaseGate};
use crate::hosting::{EngineSlot, Roster};
use crate::interruption::DrainReport;
use crate::kubernetes::{Membership, PodStart};
use crate::ledger::{AgentCounts, Desk, Leave};
use crate::metrics::Metrics;
use crate::pulse::Pulses;
use crate::rhythm::Rhythm;
use crate::webhook::{Webhook, WebhookNotice};
use crate::workers::{TAIL_LIMIT, WorkerDesk};

/// See the module.
pub(crate) struct Shared {
    pub(crate) config: AgentConfig,
    pub(crate) queue: WorkQueue,
    pub(crate) gate: LeaseGate,
    pub(crate) desk: Desk,
    /// What custom workers hold.
    pub(crate) workers: WorkerDesk,
    /// Whoever has it may call LEASE: the queue remembers one such call of a holder at a time.
    pub(crate) lease_turn: tokio::sync::Mutex<()>,
    pub(crate) engines: Roster,
    /// Who else is told about notices.
    pub(crate) webhook: Option<Arc<Webhook>>,
    pub(crate) metrics: Metrics,
    pub(crate) pulses: Pulses,
    /// When regular work is due.
    pub(crate) rhythm: Rhythm,
    /// The node's wall clock.
    pub(crate) wall_clock: fn() -> UnixMillis,
    /// What the interruption flow says about the node.
    pub(crate) standing: watch::Sender<NodeStanding>,
    /// Who the instance is, as far as IMDS told.
    pub(crate) identity: Mutex<InstanceFacts>,
    /// The highest policy version that the run was seen to have.
    pub(crate) run_version: watch::Sender<PolicyVersion>,
    /// The published version as it was last read, with where its weights are.
    pub(crate) published: watch::Sender<VersionRecord>,
    /// When the queue last answered; none before it did.
    pub(crate) queue_answered_at: watch::Sender<Option<Instant>>,
    /// The EP group that the node serves, by its engine pod's labels; none while that is unknown
    /// or there is no such pod.
    pub(crate) membership: watch::Sender<Option<Membership>>,
    /// When the node's engine pod was created, on the API server's clock, and how it came to run;
    /// none while that is unknown, or there are several.
    pub(crate) engine_pod: watch::Sender<Option<(Option<UnixMillis>, PodStart)>>,
    /// Pods of wedged engines that this agent deletes, by UID, while they are there.
    pub(crate) deleted_pods: Mutex<BTreeSet<String>>,
    /// Whether the replica is slower than its peers, as the controller found.
    pub(crate) straggler: watch::Sender<Option<StragglerRecord>>,
    /// Whether everything that earlier agents of the node held was handed back.
    pub(crate) is_reclaimed: watch::Sender<bool>,
    /// Why the queue gave no answer, while it gives none.
    pub(crate) queue_trouble: watch::Sender<Option<String>>,
}

/// Where the node stands between service and its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeStanding {
    /// The strongest notice that counts now, and when it takes the node.
    pub(crate) notice: Option<(NoticeKind, Option<Instant>)>,
    /// The drain under way.
    pub(crate) drain: Option<DrainStanding>,
    /// The request that the node is drained for, once it is.
    pub(crate) drained_for: Option<String>,
    /// Drains that were carried out, the newest last.
    pub(crate) reports: Vec<DrainReport>,
}

/// A drain as the other loops need it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DrainStanding {
    /// Why.
    pub(crate) reason: DrainReason,
    /// What units are handed back for.
    pub(crate) why: HandBack,
    /// When the node must be empty.
    pub(crate) deadline: Instant,
    /// Nothing is held, no stream is open.
    pub(crate) is_drained: bool,
    /// The agent that speaks for the replica has not said yet that the whole of it is drained.
    pub(crate) awaits_leader: bool,
    /// Since when the node stands idle although it stays.
    pub(crate) idle_since: Option<Instant>,
    /// Pods that are still to leave the node, 0 once the evictions have ended; none while that is
    /// not known.
    pub(crate) pods_left: Option<usize>,
    /// Units that workers of the node hold which lease straight from the queue; none while that is
    /// not known.
    pub(crate) held_directly: Option<u64>,
}

/// What IMDS tells about the instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InstanceFacts {
    pub(crate) instance_id: Option<String>,
    pub(crate) zone: Option<String>,
    pub(crate) instance_type: Option<String>,
    pub(crate) market: Option<Market>,
}

impl Shared {
    /// Why hand-backs happen while a drain is under way.
    pub(crate) fn drain_why(&self) -> Option<HandBack> {
        self.standing.borrow().drain.map(|drain| drain.why)
    }

    /// What units are handed back for that may not be worked on here any more.
    pub(crate) fn leaving_why(&self) -> HandBack {
        let is_ending = self.gate.is_closed_for(ClosedFor::Shutdown);
        let otherwise = if is_ending { HandBackCause::AgentRestart } else { HandBackCause::Drain };
        self.drain_why().unwrap_or(otherwise.into())
    }

    /// Time left until the node is lost; `None` when nothing is planned.
    pub(crate) fn remaining(&self, now: Instant) -> Option<Duration> {
        let drain = self.standing.borrow().drain;
        drain.map(|drain| drain.deadline.saturating_duration_since(now))
    }

    /// Tokens received that the queue does not have yet.
    pub(crate) fn waiting_tokens(&self) -> u64 {
        self.desk.ledger().waiting_tokens()
    }

    /// The terms on which units leave from `now` on.
    pub(crate) fn leave(&self, why: HandBack, now: Instant) -> Leave {
        Leave { why, write_by: now + self.config.pace.abort_wait }
    }

    /// The terms on which units of custom workers leave from `now` on: they may send their tail.
    pub(crate) fn leave_workers(&self, why: HandBack, now: Instant) -> Leave {
        Leave { why, write_by: now + TAIL_LIMIT }
    }

    /// How long a lease lasts that is renewed at `now`: never past the moment at which the node
    /// is lost.
    pub(crate) fn lease_ttl(&self, now: Instant) -> Duration {
        let ttl = self.config.lease.ttl;
        self.remaining(now).map_or(ttl, |remaining| ttl.min(remaining))
    }

    /// Nothing is held, no stream is open, and no lease call is under way.
    pub(crate) fn is_empty(&self) -> bool {
        !self.gate.has_claims()
            && self.desk.ledger().is_empty()
            && self.workers.workers().held() == 0
    }

    /// Units held, while none of them is on its way out and no lease call is under way: what the
    /// queue counts for this agent, if no lease was lost.
    pub(crate) fn held_at_rest(&self) -> Option<usize> {
        let (ledger, workers) = (self.desk.ledger(), self.workers.workers());
        let is_at_rest = !self.gate.has_claims() && ledger.is_at_rest() && workers.is_at_rest();
        is_at_rest.then(|| ledger.held() + workers.held())
    }

    /// As [`Self::is_empty`], and nothing is left of what earlier agents of the node held.
    pub(crate) fn has_let_go(&self) -> bool {
        self.is_empty() && *self.is_reclaimed.borrow()
    }

    /// When a unit of an engine or of a custom worker was last handed back.
    pub(crate) fn last_hand_back(&self) -> Option<Instant> {
        let engines = self.desk.ledger().last_hand_back();
        engines.max(self.workers.workers().last_hand_back())
    }

    /// Units held, for engines and for custom workers.
    pub(crate) fn held(&self) -> usize {
        self.desk.ledger().held() + self.workers.workers().held()
    }

    /// What the agent did so far, for engines and for custom workers.
    pub(crate) fn counts(&self) -> AgentCounts {
        self.desk.ledger().counts().and(self.workers.workers().counts())
    }

    /// The run was seen to have this version: streams that have to restart under it leave.
    pub(crate) fn note_run_version(&self, version: PolicyVersion) {
        let is_new = self.run_version.send_if_modified(|known| {
            let is_new = version > *known;
            *known = version.max(*known);
            is_new
        });
        if !is_new {
            return;
        }
        let now = Instant::now();
        let leave = self.leave(HandBackCause::Weights.into(), now);
        let left = self.desk.change(|ledger| ledger.note_run_version(version, leave, now));
        let leave = self.leave_workers(HandBackCause::Weights.into(), now);
        let left = left + self.workers.change(|workers| workers.note_run_version(version, leave));
        if left > 0 {
            tracing::info!(%version, units = left, "units restart under the new policy version");
        }
    }

    /// The replica that the node belongs to, and whether this agent speaks for it: as it was told
    /// at its start, else by the labels of the engine's pod, else the node by itself.
    pub(crate) fn membership(&self) -> Membership {
        let config = &self.config;
        let labelled = self.membership.borrow().clone().filter(|_| config.follows_labels);
        labelled.unwrap_or_else(|| config.membership())
    }

    /// The engines that are this node's to serve. None on a node of an EP group whose engine
    /// answers on another one, whatever the agent was told: a DaemonSet tells all the same.
    pub(crate) fn engines_in_service(&self) -> Vec<Arc<EngineSlot>> {
        let is_elsewhere = self.membership.borrow().as_ref().is_some_and(|group| !group.leads);
        if self.config.follows_labels && is_elsewhere { Vec::new() } else { self.engines.slots() }
    }

    /// What a webhook is told now.
    pub(crate) fn webhook_notice(
        &self,
        reason: &str,
        remaining: Option<Duration>,
    ) -> WebhookNotice {
        let facts = self.identity();
        WebhookNotice {
            run: self.config.run.to_string(),
            node: self.config.node().to_string(),
            replica: self.membership().replica.to_string(),
            instance_id: facts.instance_id,
            instance_type: facts.instance_type,
            zone: facts.zone,
            reason: reason.to_owned(),
            remaining_seconds: remaining.map(|remaining| remaining.as_secs()),
            units: self.held() as u64,
        }
    }

    /// What the node costs, when exactly one price of the policy's pools fits it.
    pub(crate) fn dollars_per_hour(&self) -> Option<f64> {
        let facts = self.identity();
        let fits = |wanted: &Option<String>, is: &Option<String>| wanted.is_none() || wanted == is;
        let mut prices = self.config.prices.iter().filter(|price| {
            fits(&price.instance_type, &facts.instance_type)
                && fits(&price.zone, &facts.zone)
                && facts.market == Some(price.market)
        });
        let first = prices.next()?.dollars_per_hour;
        prices.all(|price| price.dollars_per_hour == first).then_some(first)
    }

    pub(crate) fn deleted_pods(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.deleted_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn identity(&self) -> InstanceFacts {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
