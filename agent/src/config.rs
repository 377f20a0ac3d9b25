//! Everything the agent is told at its start, in plain values.
//!
//! Whoever builds an agent (the `ebbtide agent` command, the demo, a test) maps its own settings
//! to these; nothing here knows the fleet policy, the environment or a default of theirs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{Holder, IdError, NodeName, ReplicaId, RunId};
use ebbtide_core::policy::{BlockedEviction, Market, RebalanceAction};
use ebbtide_queue::command::ProgressLimits;
use ebbtide_queue::control::NodeRole;

use crate::kubernetes::Membership;

/// Longest time after SIGTERM until the process is gone (contract, section 4).
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// How one agent is set up.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The run that it works for.
    pub run: RunId,
    /// Who it is to the queue: its node, boot and process; see [`agent_holder`].
    pub holder: Holder,
    /// What its node is drained, counted and paid with.
    pub replica: ReplicaId,
    /// Whether this agent reports the replica's drains. One agent of an EP group does; the one of
    /// a single node always does.
    pub leads_replica: bool,
    /// Whether the labels that LeaderWorkerSet puts on the engine's pod say otherwise, where there
    /// are any. Not when a replica was named.
    pub follows_labels: bool,
    /// What the node is for.
    pub role: NodeRole,
    /// Most units that one engine works on at a time; how many it really does follows its load.
    pub concurrency_per_engine: usize,
    /// Most units that the engines of the node work on together, each an even share; none: as many
    /// as each of them may.
    pub concurrency_per_node: Option<usize>,
    /// Whether engines are found among the node's pods, too: by the label `ebbtide.dev/engine` and
    /// a port of the name `engine`.
    pub finds_engines: bool,
    /// The node's fabric verdict, recorded with every token.
    pub fabric: FabricVerdict,
    /// Terms of work leases.
    pub lease: LeaseTerms,
    /// Terms of drains.
    pub drain: DrainTerms,
    /// What is done about engines whose weights are too old.
    pub weights: WeightsTerms,
    /// How long an engine must hang or fail before its pod is deleted; none: it never is.
    pub delete_wedged_engine_after: Option<Duration>,
    /// What nodes cost, by the policy's pools; for closing reports.
    pub prices: Vec<NodePrice>,
    /// How often things are done.
    pub pace: Pace,
    /// Where `/healthz`, `/readyz`, `/metrics` and `/drained` are served; none: not at all.
    pub listen: Option<SocketAddr>,
    /// The unix socket on which custom workers are served; none: not at all.
    pub socket: Option<PathBuf>,
}

impl AgentConfig {
    /// An agent of a replica of one node, everything else by the contract's defaults.
    pub fn new(run: RunId, holder: Holder) -> Self {
        Self {
            run,
            replica: ReplicaId::from(&holder.node),
            holder,
            leads_replica: true,
            follows_labels: true,
            role: NodeRole::Rollout,
            concurrency_per_engine: 256,
            concurrency_per_node: None,
            finds_engines: false,
            fabric: FabricVerdict::NotApplicable,
            lease: LeaseTerms::default(),
            drain: DrainTerms::default(),
            weights: WeightsTerms::default(),
            delete_wedged_engine_after: None,
            prices: Vec::new(),
            pace: Pace::default(),
            listen: None,
            socket: None,
        }
    }

    /// The same agent as part of `replica`. Only the one of a single-node replica is known to lead
    /// it; whoever sets up an EP group says which agent does.
    pub fn with_replica(self, replica: ReplicaId) -> Self {
        let leads_replica = replica == ReplicaId::from(&self.holder.node);
        Self { replica, leads_replica, follows_labels: false, ..self }
    }

    /// The replica that the agent was told at its start.
    pub fn membership(&self) -> Membership {
        Membership { replica: self.replica.clone(), leads: self.leads_replica, since: None }
    }

    /// Most units that each of so many engines works on at a time.
    pub(crate) fn engine_ceiling(&self, engines: usize) -> usize {
        let share = self.concurrency_per_node.map(|node| node.div_ceil(engines.max(1)));
        share.unwrap_or(usize::MAX).min(self.concurrency_per_engine)
    }

    /// The node that the agent runs on.
    pub fn node(&self) -> &NodeName {
        &self.holder.node
    }
}

/// The holder of a new agent process on `node`: no two processes ever have the same.
///
/// # Errors
/// `boot_id` is not a plain name (letters, digits, `-`, `_`).
pub fn agent_holder(node: &NodeName, boot_id: &str) -> Result<Holder, IdError> {
    format!("{node}/{boot_id}/agent-{}", uuid::Uuid::new_v4()).parse()
}

/// Share of the queue's progress limit after which an agent acts: of 60 s, 3 s are left to write.
const IDLE_SHARE: f64 = 0.95;

/// Terms of work leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// How long a lease lasts without renewal. Default 15 s.
    pub ttl: Duration,
    /// How often leases are renewed. Default 5 s.
    pub renew_every: Duration,
    /// How long a unit may go without a token or a declared wait. Default 60 s.
    pub progress: ProgressLimits,
}

impl LeaseTerms {
    /// How long a stream may bring nothing: a little shorter than the queue allows its unit, as the
    /// agent knows more about the reason.
    pub fn idle_limit(&self) -> Duration {
        self.progress.idle.mul_f64(IDLE_SHARE)
    }

    /// How long an engine may stay paused: a little shorter than the queue allows its units.
    pub fn pause_limit(&self) -> Duration {
        self.progress.engine_pause.saturating_sub(self.renew_every)
    }
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(15),
            renew_every: Duration::from_secs(5),
            progress: ProgressLimits::default(),
        }
    }
}

/// Terms of drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainTerms {
    /// What must be left before the deadline when the last unit finishes. Default 10 s.
    pub reserve: Duration,
    /// Time for a drain that no notice caused. Default 10 min.
    pub request_deadline: Duration,
    /// Time that a `Terminated` target lifecycle state leaves. Default 120 s.
    pub asg_deadline: Duration,
    /// What a rebalance recommendation does. Default: stop leases.
    pub rebalance: RebalanceAction,
    /// How long a rebalance recommendation counts when nothing follows. Default 15 min.
    pub rebalance_ttl: Duration,
    /// How long before a scheduled maintenance the drain begins. Default 30 min.
    pub maintenance_lead: Duration,
    /// Whether a node with degraded hardware is drained when that is announced. Default false.
    pub leave_degraded: bool,
    /// All pods go from this long before the deadline on, the engines' too. At most the reserve.
    /// Default 5 s.
    pub grace: Duration,
    /// Whether pods are evicted at all; otherwise the node is only marked. Default: they are.
    pub evict: bool,
    /// Whether sizing takes pods and leaves their nodes: then its drains evict nothing, lest what
    /// was to go is made anew elsewhere. Default: it takes nodes.
    pub sizing_takes_pods: bool,
    /// What becomes of pods that a disruption budget keeps until then. Default: they are deleted.
    pub on_blocked_eviction: BlockedEviction,
}

impl Default for DrainTerms {
    fn default() -> Self {
        Self {
            reserve: Duration::from_secs(10),
            request_deadline: Duration::from_secs(600),
            asg_deadline: Duration::from_secs(120),
            rebalance: RebalanceAction::StopLeases,
            rebalance_ttl: Duration::from_secs(900),
            maintenance_lead: Duration::from_secs(1800),
            leave_degraded: false,
            grace: Duration::from_secs(5),
            evict: true,
            sizing_takes_pods: false,
            on_blocked_eviction: BlockedEviction::Delete,
        }
    }
}

/// What is done about engines whose weights are too old for the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsTerms {
    /// Versions that an engine may be behind the run and still get work. Default 0.
    pub max_lag: u64,
    /// How long an engine may be too old before it is brought to the run's version: the trainer may
    /// be about to push. Default 30 s.
    pub grace: Duration,
    /// Where engines find weights before they ask the store, a path in their containers in which
    /// `{version}`, `{sha256}` and `{run}` are filled in; none: there is no such place.
    pub cache: Option<String>,
    /// Time limit of one load. Default 30 min.
    pub load_limit: Duration,
}

impl Default for WeightsTerms {
    fn default() -> Self {
        Self {
            max_lag: 0,
            grace: Duration::from_secs(30),
            cache: None,
            load_limit: Duration::from_secs(1800),
        }
    }
}

/// What a node costs, by the pool that it may belong to.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePrice {
    /// Instance type, when the pool has one.
    pub instance_type: Option<String>,
    /// Availability zone, when the pool has one.
    pub zone: Option<String>,
    /// Market of the pool.
    pub market: Market,
    /// Price of one node and hour, in dollars.
    pub dollars_per_hour: f64,
}

/// How often things are done. The defaults fit two minutes of notice; a world whose nodes get
/// three seconds needs shorter ones, see [`Pace::brisk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Between two reads of the Spot instance action. Default 1 s.
    pub spot_poll: Duration,
    /// Between two reads of the rebalance recommendation. Default 2 s.
    pub rebalance_poll: Duration,
    /// Between two reads of the target lifecycle state. Default 2 s.
    pub lifecycle_poll: Duration,
    /// Between two reads of the scheduled maintenance. Default 30 s.
    pub maintenance_poll: Duration,
    /// Between two appends of the tokens received. Default 500 ms.
    pub append_every: Duration,
    /// Tokens of one unit that are appended without waiting for that. Default 512.
    pub append_tokens: usize,
    /// Between two probes of an engine's health and weights. Default 1 s.
    pub engine_probe: Duration,
    /// Between two reads of the control keys and reports of the node. Default 1 s.
    pub meet_every: Duration,
    /// Between two looks at the plan of a running drain. Default 1 s.
    pub replan_every: Duration,
    /// How long a hand-back waits for the last tokens of an aborted stream. Default 250 ms.
    pub abort_wait: Duration,
    /// Longest silence of a loop that turns; `/healthz` fails beyond it. Default 30 s: the longest
    /// pause of a loop and its slowest call stay below half of this.
    pub silence_limit: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            spot_poll: Duration::from_secs(1),
            rebalance_poll: Duration::from_secs(2),
            lifecycle_poll: Duration::from_secs(2),
            maintenance_poll: Duration::from_secs(30),
            append_every: Duration::from_millis(500),
            append_tokens: 512,
            engine_probe: Duration::from_secs(1),
            meet_every: Duration::from_secs(1),
            replan_every: Duration::from_secs(1),
            abort_wait: Duration::from_millis(250),
            silence_limit: Duration::from_secs(30),
        }
    }
}

impl Pace {
    /// For a world in which nodes start, are noticed and die within seconds.
    pub fn brisk() -> Self {
        Self {
            spot_poll: Duration::from_millis(100),
            rebalance_poll: Duration::from_millis(200),
            lifecycle_poll: Duration::from_millis(200),
            maintenance_poll: Duration::from_millis(200),
            append_every: Duration::from_millis(100),
            append_tokens: 256,
            engine_probe: Duration::from_millis(100),
            meet_every: Duration::from_millis(200),
            replan_every: Duration::from_millis(100),
            abort_wait: Duration::from_millis(150),
            silence_limit: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What AWS grants an instance is shared by everybody on it.
    #[test]
    fn notices_are_looked_for_with_less_than_three_reads_a_second() {
        let Pace { spot_poll, rebalance_poll, lifecycle_poll, maintenance_poll, .. } =
            Pace::default();
        let looks = [spot_poll, rebalance_poll, lifecycle_poll, maintenance_poll];
        let rate: f64 = looks.iter().map(|every| every.as_secs_f64().recip()).sum();
        assert!(spot_poll == Duration::from_secs(1) && rate < 3.0, "{rate} a second");
    }

    #[test]
    fn only_a_replica_of_one_node_is_led_by_default() {
        let run: RunId = "test".parse().expect("valid");
        let config = AgentConfig::new(run, "n1/b/agent-p".parse().expect("valid"));
        assert!(config.leads_replica);
        let of_itself = config.clone().with_replica("n1".parse().expect("valid"));
        assert!(of_itself.leads_replica);
        let of_a_group = config.with_replica("ep-0".parse().expect("valid"));
        assert!(!of_a_group.leads_replica);
        assert_eq!(of_a_group.replica.as_str(), "ep-0");
    }
}
