//! A fleet at work as its records tell it: replicas of five nodes, a pool for every hundred nodes.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_controller::capacity::{Capacity, CapacityError};
use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::observation::{
    Activities, InstanceId, InstanceState, InstanceView, PoolSize, PoolView, Signal, TrainerPhase,
};
use ebbtide_core::policy::{FleetPolicy, Market, Pool};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{ControlView, NodeRecord, NodeState, TrainerRecord, VersionRecord};
use ebbtide_queue::status::ShardStatus;
use tokio::sync::Notify;

pub const NODES_PER_REPLICA: u32 = 5;
const NODES_PER_POOL: u32 = 100;
pub const UNITS_PER_REPLICA: u32 = 64;
pub const GROUP_SIZE: u16 = 16;

/// So many nodes.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    pub nodes: u32,
}

impl Fleet {
    pub fn replicas(self) -> u32 {
        self.nodes / NODES_PER_REPLICA
    }

    /// Groups that the trainer takes for one update: there is use for twice as many replicas.
    pub fn groups_per_step(self) -> u32 {
        2 * self.replicas()
    }

    fn pools(self) -> u32 {
        self.nodes.div_ceil(NODES_PER_POOL)
    }

    /// The policy of the fleet; there is room for as many nodes again.
    pub fn policy(self, mode: &str) -> anyhow::Result<FleetPolicy> {
        let names: Vec<String> = (0..self.pools()).map(pool_name).collect();
        let mut text = format!(
            "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: fleet}}
spec:
  mode: {mode}
  staleness: {{maxLag: 4}}
  trainer: {{groupsPerStep: {}, groupSize: {GROUP_SIZE}}}
  rollout:
    nodesPerReplica: {NODES_PER_REPLICA}
    maxReplicas: {}
    concurrencyPerReplica: {UNITS_PER_REPLICA}
    pools: [{}]
    tick: 1s
  pools:
",
            self.groups_per_step(),
            2 * self.replicas(),
            names.join(", "),
        );
        for (number, name) in names.iter().enumerate() {
            let market = if number % 4 == 3 { "onDemand" } else { "spot" };
            let nodes = 2 * NODES_PER_POOL;
            let dollars = 20 + number % 7;
            writeln!(
                text,
                "    - {{name: {name}, provider: local, market: {market}, maxNodes: {nodes}, \
                 dollarsPerNodeHour: {dollars}}}"
            )?;
        }
        Ok(FleetPolicy::parse(&text, "fleet")?)
    }

    /// The record of each node.
    pub fn records(self) -> impl Iterator<Item = NodeRecord> {
        (0..self.nodes).map(|number| {
            let holder = format!("{}/boot/agent", node_name(number)).parse().expect("valid");
            let leads = number % NODES_PER_REPLICA == 0;
            NodeRecord {
                replica: format!("replica-{}", number / NODES_PER_REPLICA).parse().expect("valid"),
                instance_id: Some(instance_id(number)),
                zone: Some("us-east-2a".to_owned()),
                instance_type: Some("p5en.48xlarge".to_owned()),
                market: Some(Market::Spot),
                in_flight: if leads { UNITS_PER_REPLICA } else { 0 },
                tokens_per_second: if leads { 2_000.0 } else { 0.0 },
                generating: leads.then_some(UNITS_PER_REPLICA),
                capacity: leads.then_some(UNITS_PER_REPLICA),
                weights_version: Some(PolicyVersion(1)),
                ..NodeRecord::new(holder, NodeState::Ready)
            }
        })
    }

    /// Records, trainer and version as they are read at `now`.
    pub fn view(self, now: UnixMillis, step: u64) -> ControlView {
        let mut nodes: Vec<NodeRecord> = self.records().collect();
        nodes.iter_mut().for_each(|node| node.heartbeat = now);
        ControlView {
            now,
            nodes,
            trainer: Some(TrainerRecord { heartbeat: now, ..self.trainer(step) }),
            version: VersionRecord { version: PolicyVersion(step), ..VersionRecord::default() },
            ..ControlView::default()
        }
    }

    pub fn trainer(self, step: u64) -> TrainerRecord {
        TrainerRecord {
            phase: TrainerPhase::Train,
            step,
            groups_per_step: self.groups_per_step(),
            nodes: None,
            incarnation: None,
            heartbeat: UnixMillis(0),
        }
    }

    /// Leases of every replica, by the node that holds them.
    pub fn status(self, now: UnixMillis) -> ShardStatus {
        let leaders = (0..self.nodes).step_by(5);
        let units = u64::from(UNITS_PER_REPLICA);
        ShardStatus {
            leased: u64::from(self.replicas()) * units,
            leased_by_node: leaders
                .map(|it| (node_name(it).parse().expect("valid"), units))
                .collect(),
            now,
            ..ShardStatus::default()
        }
    }

    /// Every pool with its instances.
    pub fn pool_views(self) -> Vec<PoolView> {
        let pool = |number: u32| {
            let begin = number * NODES_PER_POOL;
            let end = (begin + NODES_PER_POOL).min(self.nodes);
            let instances: Vec<InstanceView> = (begin..end)
                .map(|number| {
                    InstanceView::new(InstanceId(instance_id(number)), InstanceState::InService)
                })
                .collect();
            PoolView {
                name: pool_name(number).parse().expect("valid"),
                size: Signal::fresh(PoolSize {
                    desired: end - begin,
                    instances,
                    ..PoolSize::default()
                }),
                activities: Signal::fresh(Activities::default()),
            }
        };
        (0..self.pools()).map(pool).collect()
    }
}

fn pool_name(number: u32) -> String {
    format!("pool-{number}")
}

fn node_name(number: u32) -> String {
    format!("ip-10-{}-{}-{}.ec2.internal", number >> 16, number >> 8 & 255, number & 255)
}

fn instance_id(number: u32) -> String {
    format!("i-{number:017x}")
}

/// A provider that shows these pools, tells when it is asked for more, and does nothing.
pub struct StandingPools {
    views: Vec<PoolView>,
    /// Told at each call that raises.
    pub raised: Notify,
}

impl StandingPools {
    pub fn of(views: Vec<PoolView>) -> Self {
        Self { views, raised: Notify::new() }
    }
}

#[async_trait]
impl Capacity for StandingPools {
    async fn observe(&self, _pools: &[&Pool]) -> Vec<PoolView> {
        self.views.clone()
    }

    async fn find_gone(
        &self,
        _pools: &[&Pool],
        _instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        Ok(BTreeSet::new())
    }

    async fn raise(
        &self,
        _pool: &Pool,
        _from: u32,
        _to: u32,
        _gang: u32,
    ) -> Result<(), CapacityError> {
        self.raised.notify_one();
        Ok(())
    }

    async fn terminate(
        &self,
        _pool: &Pool,
        _instances: &[InstanceId],
    ) -> Result<(), CapacityError> {
        Ok(())
    }
}

/// Time between two passes or ticks.
pub const TICK: Duration = Duration::from_secs(1);
