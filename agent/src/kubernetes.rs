//! What Kubernetes says of the agent's own node and of the pods on it, and how those pods leave.
//!
//! Three worlds, as with [`crate::marks`]: a real API server, memory (demo and tests), and none.
//! Nothing here decides anything: what is seen goes out as plain values.

mod api;
mod engine_ports;
mod membership;
mod memory;
mod objects;
mod pod;
mod refusal;
mod request;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use tokio::sync::watch;

pub use api::KubePods;
pub use membership::Membership;
pub(crate) use membership::{engine_pod_of, engines_leave, membership_of};
pub use memory::{Departed, MemoryPods};
pub use pod::{EnginePort, GroupLabels, PodId, PodStart, SeenPod, StayReason, Termination, Tier};
pub use refusal::EvictionError;
pub(crate) use request::{RequestError, request};

/// The label of engine pods; any value.
pub const ENGINE_LABEL: &str = "ebbtide.dev/engine";

/// The name of the port on which an engine answers.
pub const ENGINE_PORT: &str = "engine";

/// The label of engine pods that work for one run alone: its name.
pub const RUN_LABEL: &str = "ebbtide.dev/run";

/// The label of custom workers' pods; any value.
pub const WORKER_LABEL: &str = "ebbtide.dev/worker";

/// The label of Ebbtide's own pods, agent and controller; any value.
pub const COMPONENT_LABEL: &str = "ebbtide.dev/component";

/// Follows the pods of one node, and makes single ones leave. Every method may be repeated.
#[async_trait]
pub trait NodePods: Send + Sync {
    /// Keeps `sights` up to date for as long as it is polled. Never ends by itself: a server that
    /// is away is asked again, with bounded pauses, and the last sight stands meanwhile.
    async fn follow(&self, node: &NodeName, sights: &watch::Sender<NodeSight>);

    /// Asks for the pod's eviction; it gets `grace` after its SIGTERM. A pod of the same name with
    /// another UID is never touched.
    ///
    /// # Errors
    /// A disruption budget does not allow it now, or the API server is away or refuses.
    async fn evict(&self, pod: &PodId, grace: Duration) -> Result<Departure, EvictionError>;

    /// Deletes the pod, whatever its disruption budgets say; otherwise as [`NodePods::evict`].
    ///
    /// # Errors
    /// The API server is away or refuses.
    async fn delete(&self, pod: &PodId, grace: Duration) -> Result<Departure, EvictionError>;
}

/// What became of a pod that was asked to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// It is on its way out.
    Begun,
    /// It was gone already, or another one has its name.
    AlreadyGone,
}

/// The node and its pods, as last seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSight {
    /// The node object; none before it was seen. A node object that goes leaves its last sight.
    pub node: Option<SeenNode>,
    /// The pods bound to the node; none before they were listed.
    pub pods: Option<Arc<Vec<SeenPod>>>,
    /// Calls that failed so far.
    pub failures: u64,
}

impl NodeSight {
    /// Nothing stands on the node, and that is certain.
    pub fn empty() -> Self {
        Self { node: Some(SeenNode::default()), pods: Some(Arc::default()), failures: 0 }
    }
}

/// What matters of a node object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenNode {
    /// Its taints, ours included.
    pub taints: Vec<SeenTaint>,
    /// Somebody has asked for the deletion of the node object.
    pub is_being_deleted: bool,
}

/// A taint, whatever its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenTaint {
    /// Its key.
    pub key: String,
    /// Its value; empty when it has none.
    pub value: String,
}

/// For machines without Kubernetes: no pods, and nobody else who handles the node.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPods;

#[async_trait]
impl NodePods for NoPods {
    async fn follow(&self, _node: &NodeName, sights: &watch::Sender<NodeSight>) {
        sights.send_replace(NodeSight::empty());
        std::future::pending().await
    }

    async fn evict(&self, _pod: &PodId, _grace: Duration) -> Result<Departure, EvictionError> {
        Ok(Departure::AlreadyGone)
    }

    async fn delete(&self, _pod: &PodId, _grace: Duration) -> Result<Departure, EvictionError> {
        Ok(Departure::AlreadyGone)
    }
}
