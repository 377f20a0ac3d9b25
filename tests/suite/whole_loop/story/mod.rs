//! The story of the whole loop, told to a test at 48 nodes and to a benchmark at 1,000.
//!
//! | file | what it holds |
//! |---|---|
//! | `acts` | what happens, one act after the other |
//! | `cluster` | node pools, templates, the policy, the controller's process |
//! | `agents`, `replica` | the agents: heartbeats, leases, hand-backs, drains |
//! | `sight` | what the agents see of the cluster |
//! | `trainer` | groups in, samples out, each exactly once |

mod acts;
mod agents;
mod cluster;
mod replica;
mod sight;
mod trainer;

use std::time::Duration;

use ebbtide_harness::{ControlPlane, InstanceType};
use ebbtide_queue::client::WorkQueue;

pub use self::acts::tell;

/// The run, and the namespace of its groups.
pub const RUN: &str = "whole-loop";

/// Shards of its queue.
pub const SHARDS: u16 = 4;

/// Nodes of one replica.
pub const NODES_PER_REPLICA: u32 = 4;

/// Samples of one prompt group.
pub const GROUP_SIZE: u16 = 4;

/// Units that one replica works on at a time: two groups.
pub const UNITS_PER_REPLICA: u32 = 8;

/// Replicas that stay when the demand falls: the minimum of the policy.
pub const KEPT: u32 = 2;

/// Where everything is.
pub struct Site<'a> {
    pub cluster: &'a ControlPlane,
    pub client: kube::Client,
    pub queue: WorkQueue,
    /// URL of the Redis that the queue is on.
    pub redis: String,
    /// The `ebbtide` binary.
    pub program: &'a str,
}

/// How large the fleet gets. All in replicas.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// In the zone that has Spot capacity.
    pub spot: u32,
    /// In the zone that has none: what is asked for there never comes.
    pub dry: u32,
    /// On demand, in place of what the dry zone does not bring and beside it.
    pub on_demand: u32,
    /// `rollout.maxChangesPerTick`.
    pub changes_per_tick: u32,
    /// `rollout.tick`.
    pub tick: &'static str,
    /// Time between two looks of the agents.
    pub agents_look_every: Duration,
    /// Over how long the controller's cost is measured.
    pub footprint_of: Duration,
}

impl Size {
    /// For a test.
    pub const NODES_48: Self = Self {
        spot: 8,
        dry: 2,
        on_demand: 4,
        changes_per_tick: 2,
        tick: "1s",
        agents_look_every: Duration::from_millis(500),
        footprint_of: Duration::ZERO,
    };

    /// For a benchmark.
    pub const NODES_1000: Self = Self {
        spot: 200,
        dry: 20,
        on_demand: 50,
        changes_per_tick: 20,
        tick: "5s",
        agents_look_every: Duration::from_secs(3),
        footprint_of: Duration::from_secs(30),
    };

    /// Replicas that the demand asks for.
    pub fn replicas(self) -> u32 {
        self.spot + self.on_demand
    }

    /// Groups that occupy them all, which is one step of the trainer.
    pub fn groups_per_step(self) -> u32 {
        self.replicas() * UNITS_PER_REPLICA / u32::from(GROUP_SIZE)
    }
}

/// What Karpenter may launch: Spot in one zone and in no other, and on-demand nodes of two types,
/// one of them cheaper.
pub fn instance_types() -> [InstanceType; 2] {
    [
        InstanceType::gpu(DEAR).spot("us-east-1a", 21.5).on_demand("us-east-1a", 63.3),
        InstanceType::gpu(CHEAP).on_demand("us-east-1a", 55.0),
    ]
}

/// What every pool has at first.
const DEAR: &str = "p5en.48xlarge";

/// Where Karpenter moves on-demand nodes to.
const CHEAP: &str = "p5.48xlarge";
