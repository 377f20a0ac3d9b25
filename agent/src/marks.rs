//! Marks on the Kubernetes node: cordon, taint, events. Only ours are ever removed.
//!
//! Three worlds: a real API server, memory (demo and tests), and none at all.

mod kube;
mod memory;
mod plan;

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use thiserror::Error;

pub use self::kube::KubeMarks;
pub use ebbtide_core::marks::{CORDON_ANNOTATION, INTERRUPTION_TAINT};
pub use memory::{MarkedNode, MemoryMarks};

/// The annotation that remembers an extra taint of ours, as `key=value:Effect`.
pub const EXTRA_TAINT_ANNOTATION: &str = "ebbtide.dev/extra-taint";

/// The node condition that is true while the node is being emptied to go.
pub const INTERRUPTION_CONDITION: &str = "EbbtideInterruption";

/// Marks nodes. Every method may be repeated.
#[async_trait]
pub trait NodeMarks: Send + Sync {
    /// Cordons the node and taints it with the reason; taints of others stay.
    ///
    /// # Errors
    /// The API server is away or refuses.
    async fn mark(&self, node: &NodeName, reason: &str) -> Result<(), MarkError>;

    /// Removes our taint, and the cordon if it was ours.
    ///
    /// # Errors
    /// As [`NodeMarks::mark`].
    async fn clear(&self, node: &NodeName) -> Result<(), MarkError>;

    /// Shows on the node whether it is about to go, as a condition: true with this reason, or false
    /// if it ever was true. Conditions of others stay.
    ///
    /// # Errors
    /// As [`NodeMarks::mark`].
    async fn show_condition(
        &self,
        node: &NodeName,
        interruption: Option<&str>,
    ) -> Result<(), MarkError>;

    /// Tells an operator what happens, as an event on the node.
    ///
    /// # Errors
    /// As [`NodeMarks::mark`].
    async fn tell(&self, node: &NodeName, event: NodeEvent) -> Result<(), MarkError>;
}

/// Something that an operator would want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEvent {
    /// One word in upper camel case, such as `InterruptionNotice`.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
    /// Whether it is worth worrying about.
    pub is_warning: bool,
}

/// Why a node was not marked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("node {node} not marked: {problem}")]
pub struct MarkError {
    /// The node.
    pub node: NodeName,
    /// What went wrong.
    pub problem: String,
}

/// For machines without Kubernetes: nothing to mark, nothing to fail.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMarks;

#[async_trait]
impl NodeMarks for NoMarks {
    async fn mark(&self, _node: &NodeName, _reason: &str) -> Result<(), MarkError> {
        Ok(())
    }

    async fn clear(&self, _node: &NodeName) -> Result<(), MarkError> {
        Ok(())
    }

    async fn show_condition(
        &self,
        _node: &NodeName,
        _interruption: Option<&str>,
    ) -> Result<(), MarkError> {
        Ok(())
    }

    async fn tell(&self, _node: &NodeName, _event: NodeEvent) -> Result<(), MarkError> {
        Ok(())
    }
}
