//! Pods and marks of others in memory, with the rules of a real API server as far as evictions go:
//! for the demo and for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use ebbtide_core::time::UnixMillis;
use tokio::sync::watch;

use super::pod::{PodId, SeenPod, Termination};
use super::{Departure, EvictionError, NodePods, NodeSight, SeenNode, SeenTaint};

/// The pods of a small world; clones share it.
#[derive(Debug, Clone, Default)]
pub struct MemoryPods {
    world: Arc<World>,
}

#[derive(Debug, Default)]
struct World {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<NodeName, (SeenNode, Vec<SeenPod>)>,
    /// UIDs that a disruption budget keeps.
    kept: BTreeSet<String>,
    departed: Vec<Departed>,
    refusals: u64,
}

/// A pod that was made to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departed {
    /// Which one.
    pub pod: PodId,
    /// Whether it was deleted; otherwise it was evicted.
    pub is_deleted: bool,
    /// The grace that it was given.
    pub grace: Duration,
}

impl MemoryPods {
    /// Binds a pod to a node.
    pub fn bind(&self, node: &NodeName, pod: SeenPod) {
        self.change(|state| state.nodes.entry(node.clone()).or_default().1.push(pod));
    }

    /// Lets a disruption budget keep a pod from now on.
    pub fn keep(&self, uid: &str) {
        self.change(|state| state.kept.insert(uid.to_owned()));
    }

    /// Begins a pod's deletion, as somebody else does.
    pub fn terminate(&self, uid: &str, termination: Termination) {
        self.change(|state| {
            let pods = state.nodes.values_mut().flat_map(|(_, pods)| pods);
            pods.filter(|pod| pod.id.uid == uid)
                .for_each(|pod| pod.termination = Some(termination));
        });
    }

    /// Starts a pod's containers anew, as the kubelet does.
    pub fn restart(&self, uid: &str, started: UnixMillis) {
        self.change(|state| {
            let pods = state.nodes.values_mut().flat_map(|(_, pods)| pods);
            pods.filter(|pod| pod.id.uid == uid).for_each(|pod| pod.start.started = Some(started));
        });
    }

    /// Takes a pod away at once.
    pub fn remove(&self, uid: &str) {
        self.change(|state| state.remove(uid));
    }

    /// Sets the taints of a node, as others do.
    pub fn taint(&self, node: &NodeName, taints: &[(&str, &str)]) {
        let taint = |(key, value): &(&str, &str)| SeenTaint {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        let taints = taints.iter().map(taint).collect();
        self.change(|state| state.nodes.entry(node.clone()).or_default().0.taints = taints);
    }

    /// The pods that were made to leave, in order.
    pub fn departed(&self) -> Vec<Departed> {
        self.state().departed.clone()
    }

    /// Evictions that a budget did not allow.
    pub fn refusals(&self) -> u64 {
        self.state().refusals
    }

    /// Waits until the world is as wanted. Give it a time limit.
    pub async fn wait_for(&self, is_wanted: impl Fn(&Self) -> bool) {
        let mut changes = self.world.changes.subscribe();
        while !is_wanted(self) {
            // The sender lives in `self`, so the wait cannot end with an error.
            let _ = changes.changed().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.world.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.state());
        self.world.changes.send_replace(());
        result
    }

    fn sight(&self, node: &NodeName) -> NodeSight {
        let state = self.state();
        let (node, pods) = state.nodes.get(node).cloned().unwrap_or_default();
        NodeSight { node: Some(node), pods: Some(Arc::new(pods)), failures: 0 }
    }
}

impl State {
    /// A pod leaves at once: nothing of it runs here.
    fn depart(&mut self, pod: &PodId, is_deleted: bool, grace: Duration) -> Departure {
        let all = self.nodes.values().flat_map(|(_, pods)| pods);
        if !all.into_iter().any(|known| known.id == *pod) {
            return Departure::AlreadyGone;
        }
        self.remove(&pod.uid);
        self.departed.push(Departed { pod: pod.clone(), is_deleted, grace });
        Departure::Begun
    }

    fn remove(&mut self, uid: &str) {
        for (_, pods) in self.nodes.values_mut() {
            pods.retain(|pod| pod.id.uid != uid);
        }
    }
}

#[async_trait]
impl NodePods for MemoryPods {
    async fn follow(&self, node: &NodeName, sights: &watch::Sender<NodeSight>) {
        let mut changes = self.world.changes.subscribe();
        loop {
            sights.send_replace(self.sight(node));
            // The sender lives in `self`, so the wait cannot end with an error.
            let _ = changes.changed().await;
        }
    }

    async fn evict(&self, pod: &PodId, grace: Duration) -> Result<Departure, EvictionError> {
        self.change(|state| {
            if state.kept.contains(&pod.uid) {
                state.refusals += 1;
                let (budget, problem) = (Some("kept".to_owned()), "kept by a budget".to_owned());
                return Err(EvictionError::Blocked { budget, problem });
            }
            Ok(state.depart(pod, false, grace))
        })
    }

    async fn delete(&self, pod: &PodId, grace: Duration) -> Result<Departure, EvictionError> {
        self.change(|state| Ok(state.depart(pod, true, grace)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn kept_pod_is_not_evicted_and_a_successor_is_not_touched() {
        let pods = MemoryPods::default();
        let node: NodeName = "n1".parse().expect("valid");
        let pod = SeenPod::ordinary("rl", "p", "u1");
        pods.bind(&node, pod.clone());
        pods.keep("u1");
        let grace = Duration::from_secs(3);
        assert!(pods.evict(&pod.id, grace).await.is_err());
        let other = PodId { uid: "u0".to_owned(), ..pod.id.clone() };
        assert_eq!(pods.delete(&other, grace).await, Ok(Departure::AlreadyGone));
        assert_eq!(pods.delete(&pod.id, grace).await, Ok(Departure::Begun));
        let departed = Departed { pod: pod.id, is_deleted: true, grace };
        assert_eq!((pods.departed(), pods.refusals()), (vec![departed], 1));
    }
}
