//! The records behind the control keys, one type per key of the contract.
//!
//! Moments are the Redis server's. A record whose heartbeat is old is *unknown*, not gone.

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{Holder, Incarnation, NodeName, PolicyVersion, ReplicaId};
use ebbtide_core::observation::TrainerPhase;
use ebbtide_core::policy::Market;
use ebbtide_core::scale::Role;
use ebbtide_core::time::UnixMillis;
use serde::{Deserialize, Serialize};

/// How far a node is on its way into or out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The agent runs, its engines do not answer yet.
    Starting,
    /// An engine loads weights.
    Loading,
    /// It leases work.
    Ready,
    /// Something is wrong; it leases nothing.
    NotReady,
    /// It hands work back.
    Draining,
    /// It holds nothing and has no stream.
    Drained,
}

/// What an agent says about its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: NodeName,
    /// The agent process.
    pub holder: Holder,
    /// The replica that the node belongs to.
    pub replica: ReplicaId,
    /// What the node is for; a record without it is of a rollout node.
    #[serde(default)]
    pub role: NodeRole,
    /// EC2 instance id, once IMDS told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// Availability zone, once IMDS told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Instance type, once IMDS told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Spot or on-demand, once IMDS told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// How far it is.
    pub state: NodeState,
    /// The fabric verdict.
    pub fabric: FabricVerdict,
    /// Leased units.
    pub in_flight: u32,
    /// Generated tokens per second over the last report interval.
    pub tokens_per_second: f64,
    /// Streams that make these tokens: those that have brought one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generating: Option<u32>,
    /// Streams that its engines are known to bear at a time: the policy's maximum until one was
    /// found full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Leased units that wait for their environment or a tool, by their workers' word; `None`
    /// while no custom worker holds any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_waiting: Option<u32>,
    /// Sequences that its engines work on, by their own word, those of others included; `None`
    /// when one of them does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Sequences that wait in its engines, by their own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// Share of the KV cache in use, 0 to 1, of the engine with the fullest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_use: Option<f64>,
    /// The engines' weights, when all agree on a decimal version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_version: Option<PolicyVersion>,
    /// Kind of the notice that the node has, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice_kind: Option<String>,
    /// When the node will be lost, on the server's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice_deadline: Option<UnixMillis>,
    /// Pods that have to leave before the node may go, 0 where nobody evicts; `None` while that is
    /// not known, or no drain is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_left: Option<u32>,
    /// Since when the node stands idle although it stays: its EP group lost another node. It is
    /// capacity that can be used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<UnixMillis>,
    /// Since when its replica is known to be slower than its peers at an equal batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_since: Option<UnixMillis>,
    /// The drain request that the node is drained for: its gate is closed, and nothing that was
    /// leased through its agent is held any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_for: Option<String>,
    /// When the record was written, on the server's clock; set by the store.
    pub heartbeat: UnixMillis,
}

impl NodeRecord {
    /// The record of a node by itself, in this state, of which nothing else is known.
    pub fn new(holder: Holder, state: NodeState) -> Self {
        Self {
            node: holder.node.clone(),
            replica: ReplicaId::from(&holder.node),
            holder,
            role: NodeRole::Rollout,
            instance_id: None,
            zone: None,
            instance_type: None,
            market: None,
            state,
            fabric: FabricVerdict::NotApplicable,
            in_flight: 0,
            tokens_per_second: 0.0,
            generating: None,
            capacity: None,
            environment_waiting: None,
            running: None,
            waiting: None,
            kv_cache_use: None,
            weights_version: None,
            notice_kind: None,
            notice_deadline: None,
            pods_left: None,
            idle_since: None,
            slow_since: None,
            drained_for: None,
            heartbeat: UnixMillis::default(),
        }
    }
}

/// What a node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// It generates.
    #[default]
    Rollout,
    /// It runs the trainer or a part of it.
    Trainer,
    /// It scores.
    Reward,
    /// It runs environments or tools of the rollouts.
    Environment,
}

impl From<Role> for NodeRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Rollout => Self::Rollout,
            Role::Reward => Self::Reward,
            Role::Environment => Self::Environment,
        }
    }
}

impl NodeRole {
    /// The wire name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Trainer => "trainer",
            Self::Reward => "reward",
            Self::Environment => "environment",
        }
    }

    /// The worker group that the node is counted in, when that is one that is sized node by node.
    pub fn sized(self) -> Option<Role> {
        match self {
            Self::Rollout => Some(Role::Rollout),
            Self::Reward => Some(Role::Reward),
            Self::Environment => Some(Role::Environment),
            Self::Trainer => None,
        }
    }

    /// Whether it serves the rollouts: such a node hosts no engines of the run.
    pub fn is_service(self) -> bool {
        matches!(self, Self::Reward | Self::Environment)
    }
}

/// The weights of a policy version, by reference.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VersionRecord {
    /// The version.
    pub version: PolicyVersion,
    /// Where the weights are (`s3://`, `file://`, `http(s)://`); empty when the trainer pushes.
    pub uri: String,
    /// SHA-256 of the weights as hex; empty when there is no `uri`.
    pub sha256: String,
    /// When it was published, on the server's clock; set by the store.
    pub published_at: UnixMillis,
}

/// An engine that the trainer may push weights to. What it does not tell of its load has no value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineRecord {
    /// The replica that it serves.
    pub replica: ReplicaId,
    /// Its number within the replica, from 0.
    pub index: u16,
    /// Base URL.
    pub address: String,
    /// `vllm` or `sglang`; `unknown` while it has not said.
    pub kind: String,
    /// Kind and version, such as `vllm/0.32.0`; empty while it has not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub engine: String,
    /// Its weights, when the label is a decimal version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_version: Option<PolicyVersion>,
    /// `ready` or why not.
    pub state: String,
    /// Streams that it may have now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<u32>,
    /// Sequences that it works on, by its own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// Sequences that wait in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// Share of its KV cache in use, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache_use: Option<f64>,
    /// Tokens that it generated per second over the last 10 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Mean time to the first token over the last 10 s, in seconds, its own queue included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_seconds: Option<f64>,
    /// Sequences thrown out of its KV cache since it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<u64>,
    /// Share of the prompt tokens of the last 10 s that its prefix cache had, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_hit_share: Option<f64>,
    /// Load of the mean expert rank by that of the busiest over the last 10 s; 1 is even.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_balance: Option<f64>,
    /// Its last start: until its pod had a node, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_node_seconds: Option<f64>,
    /// From there until its containers ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_image_seconds: Option<f64>,
    /// From there to its first answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_engine_seconds: Option<f64>,
    /// From there until the run took its weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_weights_seconds: Option<f64>,
    /// From there to its first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_first_token_seconds: Option<f64>,
    /// When the record was written, on the server's clock; set by the store.
    pub heartbeat: UnixMillis,
}

/// What the trainer says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainerRecord {
    /// What it does.
    pub phase: TrainerPhase,
    /// Updates that it has finished.
    pub step: u64,
    /// Groups that one update consumes.
    pub groups_per_step: u32,
    /// Nodes that it runs on; what does not say so leaves it as it was.
    #[serde(rename = "size", default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Its start: a trainer that starts again takes another one. Without it the trainer can name no
    /// node that it has left; what does not say so leaves it as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// When the record was written, on the server's clock; set by the store.
    pub heartbeat: UnixMillis,
}

/// A checkpoint that the trainer was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckpointRecord {
    /// When the newest was asked for, on the server's clock; set by the store.
    #[serde(rename = "checkpoint_requested", default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<UnixMillis>,
    /// The request that the trainer has carried out, named by its moment.
    #[serde(rename = "checkpoint_confirmed", default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<UnixMillis>,
}

impl CheckpointRecord {
    /// Whether the trainer still has to write one that was asked for.
    pub fn is_pending(&self) -> bool {
        self.requested > self.confirmed
    }
}

/// A lifecycle action of an Auto Scaling group that waits for its completion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifecycleRecord {
    /// The instance that the group takes out.
    pub instance_id: String,
    /// The group.
    pub group: String,
    /// The hook that holds the instance.
    pub hook: String,
    /// The action's token, when a message told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// When it was learned, on the server's clock; set by the store.
    pub seen_at: UnixMillis,
}

/// A replica that is slower than its peers at an equal batch, by the controller's judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StragglerRecord {
    /// The replica.
    pub replica: ReplicaId,
    /// Its speed as a share of its peers' median when it was named.
    pub share: f64,
    /// When it was named, on the server's clock; set by the store.
    #[serde(default)]
    pub named_at: UnixMillis,
}

/// No actuation for a role until a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRecord {
    /// `rollout`, `trainer`, `reward`, `environment` or `all`.
    pub role: String,
    /// When the hold ends, on the server's clock.
    pub until: UnixMillis,
    /// Why.
    pub reason: String,
    /// Who asked for it.
    pub who: String,
}
