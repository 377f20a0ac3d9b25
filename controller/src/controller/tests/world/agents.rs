//! Agents in miniature: they report, and drain when asked and allowed to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ebbtide_core::ids::{Holder, NodeName, PolicyVersion, ReplicaId};
use ebbtide_core::policy::Market;
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::control::{DrainProgress, DrainState, NodeRecord, NodeRole, NodeState};

use crate::capacity::local::{LocalCapacity, LocalNode, NodeOrder};

/// The pool of the trainer.
pub const TRAINERS: &str = "trainers";

/// Time between two reports.
pub const BEAT: Duration = Duration::from_millis(500);

/// Agents in miniature: they report, and drain when asked and allowed to.
#[derive(Default)]
pub struct Agents {
    pub may_drain: AtomicBool,
    dead: Mutex<BTreeSet<NodeName>>,
    told: Mutex<BTreeMap<NodeName, Told>>,
}

/// What the agent of a node has to tell besides.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub notice_kind: Option<String>,
    pub pods_left: Option<u32>,
    pub environment_waiting: Option<u32>,
    /// Streams, and the tokens per second of each.
    pub speed: Option<(u32, f64)>,
}

impl Agents {
    /// The node falls silent without a word.
    pub fn kill(&self, node: &NodeName) {
        self.dead.lock().expect("no panic").insert(node.clone());
    }

    /// From now on the agent of a node tells this as well.
    pub fn tell(&self, node: &NodeName, told: Told) {
        self.told.lock().expect("no panic").insert(node.clone(), told);
    }

    fn lives(&self, node: &NodeName) -> bool {
        !self.dead.lock().expect("no panic").contains(node)
    }

    pub async fn obey(self: Arc<Self>, provider: LocalCapacity, queue: WorkQueue) {
        loop {
            match provider.next_order().await {
                NodeOrder::Start(node) => {
                    tokio::spawn(self.clone().report(node, queue.clone()));
                }
                NodeOrder::Stop(node) => self.kill(&node.node),
            }
        }
    }

    async fn report(self: Arc<Self>, node: LocalNode, queue: WorkQueue) {
        while self.lives(&node.node) {
            if self.report_once(&node, &queue).await.is_err() {
                tracing::debug!("queue is away");
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    async fn report_once(&self, node: &LocalNode, queue: &WorkQueue) -> Result<(), QueueError> {
        let replica = ReplicaId::from(&node.node);
        let drain = queue.view().await?.active_drain(&replica).cloned();
        let state = match &drain {
            None => NodeState::Ready,
            Some(_) if self.may_drain.load(Ordering::Relaxed) => NodeState::Drained,
            Some(_) => NodeState::Draining,
        };
        let report = match state {
            NodeState::Drained => Some(DrainState::Drained),
            NodeState::Draining => Some(DrainState::Draining),
            _ => None,
        };
        if let (Some(drain), Some(state)) = (drain, report) {
            let (request_id, replica) = (drain.request_id, replica.clone());
            queue.report_drain(DrainProgress { replica, request_id, generation: 0, state }).await?;
        }
        let told = self.told.lock().expect("no panic").get(&node.node).cloned();
        let nothing_left = Told { pods_left: Some(0), ..Told::default() };
        let told = told.unwrap_or(nothing_left);
        let Told { notice_kind, pods_left, environment_waiting, speed } = told;
        let told = NodeRecord { notice_kind, pods_left, ..record(node, state) };
        let mut record = NodeRecord { environment_waiting, ..told };
        if let Some((streams, speed)) = speed {
            record.generating = Some(streams);
            record.tokens_per_second = f64::from(streams) * speed;
        }
        queue.put_node(record).await
    }
}

fn record(node: &LocalNode, state: NodeState) -> NodeRecord {
    NodeRecord {
        role: match node.pool.as_str() {
            "scorers" => NodeRole::Reward,
            "cpus" => NodeRole::Environment,
            TRAINERS => NodeRole::Trainer,
            _ => NodeRole::Rollout,
        },
        instance_id: Some(node.instance.0.clone()),
        market: Some(Market::Spot),
        tokens_per_second: 10.0,
        weights_version: Some(PolicyVersion(0)),
        ..NodeRecord::new(holder(&node.node), state)
    }
}

pub fn holder(node: &NodeName) -> Holder {
    format!("{node}/boot/agent").parse().expect("valid")
}
