//! What the controller knows at one moment: one immutable snapshot, each signal with its age.
//!
//! A signal that could not be read is [`Signal::Unknown`] and says why; it is never zero. Ages are
//! durations, taken on the clock that the signal came from, so that moments of two clocks never
//! meet here.

mod drains;
mod pools;
mod resize;
mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeName, PolicyVersion, ReplicaId};
use crate::policy::{Market, PoolName};
use crate::time::{UnixMillis, as_millis};

pub use self::drains::{DrainPurpose, DrainStage, DrainView};
pub use self::pools::{
    Activities, FailureKind, InstanceState, InstanceView, LaunchFailure, PoolSize, PoolView,
};
pub use self::resize::{EndedResize, ReleasedNode, ResizeEnd, ResizeView};
pub use self::service::ServiceView;

/// A reading with its age, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Signal<T> {
    /// It was read.
    Known {
        /// What was read.
        #[serde(rename = "is")]
        value: T,
        /// How old the reading is.
        #[serde(rename = "ageMs", with = "as_millis")]
        age: Duration,
    },
    /// It was not read, or is too old to count.
    Unknown {
        /// Why, in words.
        #[serde(rename = "unknown")]
        why: String,
    },
}

impl<T> Signal<T> {
    /// A reading of this very moment.
    pub fn fresh(value: T) -> Self {
        Self::Known { value, age: Duration::ZERO }
    }

    /// No reading.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown { why: why.into() }
    }

    /// The same signal of something that follows from the value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Signal<U> {
        match self {
            Self::Known { value, age } => Signal::Known { value: change(value), age },
            Self::Unknown { why } => Signal::Unknown { why },
        }
    }

    /// The value, when it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known { value, .. } => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    /// Why there is no value, when there is none.
    pub fn why_unknown(&self) -> Option<&str> {
        match self {
            Self::Known { .. } => None,
            Self::Unknown { why } => Some(why),
        }
    }

    /// How old the reading is, when there is one.
    pub fn age(&self) -> Option<Duration> {
        match self {
            Self::Known { age, .. } => Some(*age),
            Self::Unknown { .. } => None,
        }
    }
}

/// A signal of a duration, in whole milliseconds.
mod millis_signal {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Signal;
    use crate::time::whole_millis;

    pub fn serialize<S: Serializer>(
        signal: &Signal<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        signal.clone().map(whole_millis).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Signal<Duration>, D::Error> {
        Ok(Signal::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

/// The identity that a provider gives to a machine, such as an EC2 instance id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub String);

/// Longest id of an EC2 instance, in characters: today's have 19.
const EC2_ID_LIMIT: usize = 32;

impl InstanceId {
    /// The id of an EC2 instance: `i-` and small letters, digits or `-`; `None` for any other text.
    pub fn of_ec2(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("i-")?;
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_id = !rest.is_empty() && rest.bytes().all(is_plain) && text.len() <= EC2_ID_LIMIT;
        is_id.then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Everything that sizing looks at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// When it was made, on the controller's clock.
    pub now: UnixMillis,
    /// Units that wait in the queue.
    pub ready: Signal<u64>,
    /// Units that holders work on.
    pub in_flight: Signal<u64>,
    /// Units among these that wait for their environment, by the word of the agents that hold
    /// them.
    pub environment_waiting: Signal<u64>,
    /// Responses that wait for their score; zero where the run has no such stage.
    pub reward_ready: Signal<u64>,
    /// Responses that are being scored.
    pub reward_in_flight: Signal<u64>,
    /// Samples ever completed; only its growth means something.
    pub completed: Signal<u64>,
    /// Sealed groups that no trainer has taken.
    pub buffer_groups: Signal<u64>,
    /// Sealed groups that a trainer has taken and not acknowledged.
    pub buffer_taken: Signal<u64>,
    /// Age of the oldest unit that waits; zero when none does.
    #[serde(with = "millis_signal")]
    pub oldest_ready_age: Signal<Duration>,
    /// The trainer, by its own report.
    pub trainer: Signal<TrainerView>,
    /// The size that the trainer is asked for, if it is.
    #[serde(default)]
    pub trainer_resize: Option<ResizeView>,
    /// How the last request for another size ended, while none stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer_resize_ended: Option<EndedResize>,
    /// The trainer's pool, where its size is the controller's to change.
    #[serde(default)]
    pub trainer_pool: Option<PoolView>,
    /// The published policy version.
    pub policy_version: Signal<PolicyVersion>,
    /// Every replica that ever reported and was not removed.
    pub replicas: Signal<Vec<ReplicaView>>,
    /// The capacity pools of the rollout group, in the order of preference.
    pub pools: Vec<PoolView>,
    /// Who is at work outside the replicas.
    pub others_at_work: Signal<OthersAtWork>,
    /// Instances that the provider says are gone, among those that were asked about.
    pub gone: BTreeSet<InstanceId>,
    /// What the other worker groups cost as they stand, in dollars per hour; `None` where only the
    /// policy's bounds tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_dollars_per_hour: Option<f64>,
    /// Whether nobody knows what one of them costs: the size of a pool was never read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cost_of_others_unknown: bool,
    /// What a service sees of the rollouts that it serves; `None` when this is about the rollouts
    /// themselves. Then `ready` waits for the service, `in_flight` it works on, and replicas, pools
    /// and what has gone are its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceView>,
}

impl Observation {
    /// Replicas by state, those included of which no agent has reported yet; `None` while the
    /// records are unknown. A size that is unknown adds none.
    pub fn replicas_by_state(&self, nodes_per_replica: u16) -> Option<BTreeMap<ReplicaState, u64>> {
        let replicas = self.replicas.known()?;
        let mut states = BTreeMap::new();
        for replica in replicas {
            *states.entry(replica.state).or_default() += 1;
        }
        let nodes = replicas.iter().flat_map(|replica| &replica.nodes);
        let reported: BTreeSet<&InstanceId> =
            nodes.filter_map(|node| node.instance.as_ref()).collect();
        let counted = self.pools.iter().filter_map(|pool| pool.size.known());
        let silent = counted
            .flat_map(PoolSize::counted)
            .filter(|instance| !reported.contains(&instance.id))
            .count();
        let silent = u64::try_from(silent).unwrap_or(u64::MAX);
        let pending = silent.div_ceil(u64::from(nodes_per_replica).max(1));
        if pending > 0 {
            *states.entry(ReplicaState::Pending).or_default() += pending;
        }
        Some(states)
    }
}

/// Nodes that are at work and belong to no replica: they run another part of the run, or hold
/// leases without a record of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OthersAtWork {
    /// Instances that told who they are.
    pub instances: BTreeSet<InstanceId>,
    /// Nodes that did not tell their instance.
    pub nodes: BTreeSet<NodeName>,
}

/// What the trainer says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainerView {
    /// What it does.
    pub phase: TrainerPhase,
    /// Updates that it has finished.
    pub step: u64,
    /// Groups that one update consumes.
    pub groups_per_step: u32,
    /// Nodes that it runs on, once it said so.
    #[serde(default)]
    pub nodes: Option<u32>,
}

/// What the trainer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainerPhase {
    /// It updates the policy.
    Train,
    /// It spreads new weights.
    Sync,
    /// It waits for sealed groups.
    Wait,
    /// It writes a checkpoint.
    Checkpoint,
    /// The run has ended.
    Done,
}

/// One replica: what is drained, counted and paid as one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaView {
    /// The replica.
    pub id: ReplicaId,
    /// Its nodes.
    pub nodes: Vec<NodeView>,
    /// The state of its slowest node.
    pub state: ReplicaState,
    /// Units in flight, by its agents' word.
    pub in_flight: u32,
    /// Units leased to its nodes, by the queue's word.
    pub leased: Signal<u64>,
    /// Tokens per second, all nodes together, in hundredths.
    pub tokens_per_second: f64,
    /// Streams that make these tokens; none when no node tells.
    pub generating: Option<u32>,
    /// Streams that its engines are known to bear at a time; none when no node tells.
    pub capacity: Option<u32>,
    /// The instance type of its nodes, when it is one.
    pub instance_type: Option<String>,
    /// Its market; on-demand when its nodes differ, unknown until a node told.
    pub market: Option<Market>,
    /// The pool that all its nodes belong to.
    pub pool: Option<PoolName>,
    /// Whether AWS has announced the loss of one of its nodes.
    pub has_notice: bool,
    /// Whether AWS advised to leave one of its nodes.
    pub is_advised: bool,
    /// Its drain, unless that was cancelled.
    pub drain: Option<DrainView>,
}

impl ReplicaView {
    /// Age of the oldest heartbeat among its nodes.
    pub fn silence(&self) -> Duration {
        self.nodes.iter().map(|node| node.heartbeat_age).max().unwrap_or(Duration::MAX)
    }

    /// The instances of its nodes, as far as they told.
    pub fn instances(&self) -> Vec<InstanceId> {
        self.nodes.iter().filter_map(|node| node.instance.clone()).collect()
    }

    /// Whether every node told which instance it is.
    pub fn is_identified(&self) -> bool {
        !self.nodes.is_empty() && self.nodes.iter().all(|node| node.instance.is_some())
    }
}

/// One node of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// The node.
    pub name: NodeName,
    /// Its instance, once it told or its name gave it away.
    pub instance: Option<InstanceId>,
    /// Since when it is silent; zero while it was heard of within the last seconds.
    #[serde(rename = "silentMs", with = "as_millis")]
    pub heartbeat_age: Duration,
    /// Whether EC2 has announced that it takes the instance for itself.
    pub is_reclaimed: bool,
    /// Pods that are still to leave it while it drains, by its agent's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_left: Option<u32>,
}

/// How far a replica is on its way into or out of service, the earliest stage first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// Fewer nodes than it needs have reported.
    Pending,
    /// An agent runs, its engines do not answer yet.
    Starting,
    /// An engine loads weights.
    Loading,
    /// Something is wrong; it leases nothing.
    NotReady,
    /// It leases work.
    Ready,
    /// It hands work back.
    Draining,
    /// It holds nothing.
    Drained,
    /// Its instances are being terminated.
    Terminating,
    /// Its heartbeat is old: nobody knows. Never the same as gone.
    Unknown,
}

impl ReplicaState {
    /// All states, for metrics.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Starting,
        Self::Loading,
        Self::NotReady,
        Self::Ready,
        Self::Draining,
        Self::Drained,
        Self::Terminating,
        Self::Unknown,
    ];

    /// The word in metrics and journals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Starting => "starting",
            Self::Loading => "loading",
            Self::NotReady => "not_ready",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Terminating => "terminating",
            Self::Unknown => "unknown",
        }
    }
}
