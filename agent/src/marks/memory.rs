//! Node marks in memory, with the same rules as on a real node: for the demo and for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use tokio::sync::watch;

use super::{MarkError, NodeEvent, NodeMarks};

/// Events kept of one node; older ones go.
const EVENTS_KEPT: usize = 64;

/// The nodes of a small world; clones share it.
#[derive(Debug, Clone, Default)]
pub struct MemoryMarks {
    world: Arc<World>,
}

#[derive(Debug, Default)]
struct World {
    nodes: Mutex<BTreeMap<NodeName, MarkedNode>>,
    changes: watch::Sender<()>,
}

/// What stands on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MarkedNode {
    /// No new pods.
    pub is_cordoned: bool,
    /// The cordon is the agent's.
    pub is_cordon_ours: bool,
    /// Value of our taint, if it is there.
    pub taint: Option<String>,
    /// What the condition says: the reason while it is true, none afterwards.
    pub condition: Option<String>,
    /// The newest events.
    pub events: Vec<NodeEvent>,
}

impl MemoryMarks {
    /// What stands on a node now.
    pub fn node(&self, node: &NodeName) -> MarkedNode {
        self.nodes().get(node).cloned().unwrap_or_default()
    }

    /// Cordons a node as an administrator does.
    pub fn cordon_by_hand(&self, node: &NodeName) {
        self.nodes().entry(node.clone()).or_default().is_cordoned = true;
    }

    /// Waits until a node's marks are as wanted. Give it a time limit.
    pub async fn wait_for(&self, node: &NodeName, is_wanted: impl Fn(&MarkedNode) -> bool) {
        let mut changes = self.world.changes.subscribe();
        while !is_wanted(&self.node(node)) {
            // The sender lives in `self`, so the wait cannot end with an error.
            let _ = changes.changed().await;
        }
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<NodeName, MarkedNode>> {
        self.world.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, node: &NodeName, change: impl FnOnce(&mut MarkedNode)) {
        change(self.nodes().entry(node.clone()).or_default());
        self.world.changes.send_replace(());
    }
}

#[async_trait]
impl NodeMarks for MemoryMarks {
    async fn mark(&self, node: &NodeName, reason: &str) -> Result<(), MarkError> {
        self.change(node, |marked| {
            marked.is_cordon_ours |= !marked.is_cordoned;
            marked.is_cordoned = true;
            marked.taint = Some(reason.to_owned());
        });
        Ok(())
    }

    async fn clear(&self, node: &NodeName) -> Result<(), MarkError> {
        self.change(node, |marked| {
            marked.is_cordoned &= !marked.is_cordon_ours;
            marked.is_cordon_ours = false;
            marked.taint = None;
        });
        Ok(())
    }

    async fn show_condition(
        &self,
        node: &NodeName,
        interruption: Option<&str>,
    ) -> Result<(), MarkError> {
        self.change(node, |marked| marked.condition = interruption.map(str::to_owned));
        Ok(())
    }

    async fn tell(&self, node: &NodeName, event: NodeEvent) -> Result<(), MarkError> {
        self.change(node, |marked| {
            if marked.events.len() == EVENTS_KEPT {
                marked.events.remove(0);
            }
            marked.events.push(event);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cordon_of_an_administrator_stays() {
        let marks = MemoryMarks::default();
        let node: NodeName = "n1".parse().expect("valid");
        marks.cordon_by_hand(&node);
        marks.mark(&node, "spot_terminate").await.expect("memory");
        marks.clear(&node).await.expect("memory");
        let marked = marks.node(&node);
        assert!(marked.is_cordoned && marked.taint.is_none());
    }

    #[tokio::test]
    async fn own_cordon_goes_with_the_taint_even_when_marked_twice() {
        let marks = MemoryMarks::default();
        let node: NodeName = "n1".parse().expect("valid");
        marks.mark(&node, "spot_terminate").await.expect("memory");
        marks.mark(&node, "spot_terminate").await.expect("memory");
        assert!(marks.node(&node).is_cordoned);
        marks.clear(&node).await.expect("memory");
        assert_eq!(marks.node(&node), MarkedNode::default());
    }
}
