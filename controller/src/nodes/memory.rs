//! Nodes in this process, for tests: they can refuse, and they can hang.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::InstanceId;

use super::{ClusterNodes, NodeError};

/// See the module; clones share their state.
#[derive(Debug, Clone, Default)]
pub struct MemoryNodes {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    by_instance: BTreeMap<InstanceId, NodeName>,
    marked: BTreeMap<NodeName, String>,
    refuses: BTreeSet<NodeName>,
    hangs: BTreeSet<NodeName>,
}

impl MemoryNodes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node, or gives it another instance.
    pub fn add(&self, node: NodeName, instance: InstanceId) {
        self.state().by_instance.insert(instance, node);
    }

    /// From now on an admission policy refuses marks on the node, or no longer does.
    pub fn refuse(&self, node: &NodeName, refuses: bool) {
        let mut state = self.state();
        state.refuses.retain(|other| other != node);
        state.refuses.extend(refuses.then(|| node.clone()));
    }

    /// From now on no mark on the node is answered.
    pub fn hang(&self, node: &NodeName) {
        self.state().hangs.insert(node.clone());
    }

    /// The reason that a node is marked with.
    pub fn mark_of(&self, node: &NodeName) -> Option<String> {
        self.state().marked.get(node).cloned()
    }
}

#[async_trait]
impl ClusterNodes for MemoryNodes {
    async fn find(&self, instance: &InstanceId) -> Result<Option<NodeName>, NodeError> {
        Ok(self.state().by_instance.get(instance).cloned())
    }

    async fn mark(&self, node: &NodeName, reason: &str) -> Result<bool, NodeError> {
        let hangs = self.state().hangs.contains(node);
        if hangs {
            std::future::pending::<()>().await;
        }
        let mut state = self.state();
        if state.refuses.contains(node) {
            let (what, problem) = (format!("cordon of {node}"), "forbidden (403)".to_owned());
            return Err(NodeError::Refused { what, problem });
        }
        let is_new = !state.marked.contains_key(node);
        state.marked.entry(node.clone()).or_insert_with(|| reason.to_owned());
        Ok(is_new)
    }
}
