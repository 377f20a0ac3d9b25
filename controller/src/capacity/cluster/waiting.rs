//! Pods that no node can take.
//!
//! That is how every start begins where nodes are launched for pods: a pool is short of capacity
//! only when it lasts. How long it has lasted is measured here, on this process's own clock; when
//! it began is the API server's word.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ebbtide_core::observation::{Activities, FailureKind, LaunchFailure};
use tokio::time::Instant;

use super::pod::SeenPod;

/// Pods that wait for a node, and since when they were seen to.
#[derive(Default)]
pub(in crate::capacity) struct Waiting {
    /// By pool, and by the pod's UID.
    seen: Mutex<BTreeMap<(String, String), Instant>>,
}

impl Waiting {
    /// The failed launches of a pool, after one more look at its pods. A launch counts as failed
    /// after `patience`, and again each time as long has passed.
    pub fn look(&self, pool: &str, pods: &[SeenPod], patience: Duration) -> Activities {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |pod: &SeenPod| pod.unschedulable.is_some() && pod.node.is_none();
        let is_there = |uid: &str| pods.iter().any(|pod| pod.uid == uid && waits(pod));
        seen.retain(|(of, uid), _| of != pool || is_there(uid));
        let mut failures = Vec::new();
        for pod in pods.iter().filter(|pod| waits(pod)) {
            let Some((since, message)) = &pod.unschedulable else { continue };
            let key = (pool.to_owned(), pod.uid.clone());
            let waited = seen.entry(key).or_insert_with(Instant::now).elapsed();
            let times = waited.as_millis() / patience.as_millis().max(1);
            if let Some(times) = u32::try_from(times).ok().filter(|times| *times > 0) {
                let at = since.plus(patience.saturating_mul(times));
                let message = format!("pod {} finds no node: {message}", pod.name);
                failures.push(LaunchFailure { at, kind: FailureKind::Capacity, message });
            }
        }
        Activities { newest_at: failures.iter().map(|failure| failure.at).max(), failures }
    }
}

#[cfg(test)]
mod tests {
    use ebbtide_core::time::UnixMillis;
    use serde_json::json;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    fn pod(node: Option<&str>) -> SeenPod {
        let pod = json!({
            "metadata": { "name": "ep-0", "uid": "u" },
            "spec": { "containers": [], "nodeName": node },
            "status": { "phase": "Pending", "conditions": [{
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] },
        });
        SeenPod::read(&serde_json::from_value(pod).expect("a pod")).expect("it has not ended")
    }

    #[tokio::test(start_paused = true)]
    async fn pod_without_a_node_is_a_failure_only_after_a_while_and_then_again() {
        let waiting = Waiting::default();
        let look = || waiting.look("spot", &[pod(None)], PATIENCE).failures;
        assert_eq!(look(), []);
        tokio::time::advance(PATIENCE - Duration::from_secs(1)).await;
        assert_eq!(look(), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        let failed = look();
        let began_at = UnixMillis(1_767_225_600_000);
        assert_eq!(
            (failed[0].at, failed[0].kind),
            (began_at.plus(PATIENCE), FailureKind::Capacity)
        );
        assert_eq!(failed[0].message, "pod ep-0 finds no node: 0/3 nodes are available");
        tokio::time::advance(PATIENCE).await;
        assert_eq!(
            look()[0].at,
            began_at.plus(PATIENCE * 2),
            "another one, to whom it may concern"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_found_a_node_or_is_gone_begins_anew() {
        let waiting = Waiting::default();
        for between in [&[pod(Some("n1"))][..], &[]] {
            waiting.look("spot", &[pod(None)], PATIENCE);
            tokio::time::advance(PATIENCE).await;
            assert_eq!(waiting.look("spot", between, PATIENCE).failures, []);
            assert_eq!(waiting.look("spot", &[pod(None)], PATIENCE).failures, []);
            waiting.look("spot", &[], PATIENCE);
        }
        waiting.look("spot", &[pod(None)], PATIENCE);
        tokio::time::advance(PATIENCE).await;
        waiting.look("other", &[], PATIENCE);
        assert_eq!(
            waiting.look("spot", &[pod(None)], PATIENCE).failures.len(),
            1,
            "pools are apart"
        );
    }
}
