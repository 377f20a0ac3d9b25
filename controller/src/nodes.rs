//! Kubernetes nodes, as far as the controller touches them: it finds one by its instance, and
//! cordons and taints one whose agent is silent.
//!
//! Each agent marks its own node; the controller stands in, with the same marks, so that the agent
//! takes them for its own when it comes back.

mod kube;
mod memory;

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::InstanceId;
use thiserror::Error;

pub use self::kube::KubeNodes;
pub use self::memory::MemoryNodes;

/// Why nothing was found out or marked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The API server, or something that it asks for admission, does not allow it.
    #[error("{what} was refused: {problem}")]
    Refused {
        /// What was to be done.
        what: String,
        /// What the server said.
        problem: String,
    },
    /// The API server did not answer.
    #[error("{what} failed: {problem}")]
    Unavailable {
        /// What was to be done.
        what: String,
        /// What went wrong.
        problem: String,
    },
}

/// The nodes of the cluster. Every method may be repeated.
#[async_trait]
pub trait ClusterNodes: Send + Sync {
    /// The node whose `spec.providerID` ends in the instance, if there is one.
    ///
    /// # Errors
    /// The API server does not answer, or refuses.
    async fn find(&self, instance: &InstanceId) -> Result<Option<NodeName>, NodeError>;

    /// Cordons the node and taints it with the reason. Taints of others stay, and an
    /// administrator's cordon stays theirs. Answers whether that changed anything: a node that is
    /// marked already, or gone, needs no mark.
    ///
    /// # Errors
    /// As [`ClusterNodes::find`].
    async fn mark(&self, node: &NodeName, reason: &str) -> Result<bool, NodeError>;
}

/// For controllers outside Kubernetes: no node is known, and none has to be marked.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoNodes;

#[async_trait]
impl ClusterNodes for NoNodes {
    async fn find(&self, _instance: &InstanceId) -> Result<Option<NodeName>, NodeError> {
        Ok(None)
    }

    async fn mark(&self, _node: &NodeName, _reason: &str) -> Result<bool, NodeError> {
        Ok(false)
    }
}
