//! Pods that no node can take.
//!
//! That is how every start begins where nodes are launched for pods: a pool is short of capacity
//! only when it lasts. How long it has lasted is measured here, on this process's own clock; when
//! it began is the API server's word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ebbtide_core::observation::{Activities, FailureKind, LaunchFailure};
use ebbtide_core::time::UnixMillis;
use tokio::time::Instant;

use super::pod::SeenPod;

/// Pods that wait for a node, by pool.
#[derive(Default)]
pub(in crate::capacity) struct Waiting {
    pools: Mutex<BTreeMap<String, PoolWaits>>,
}

/// Pods of one pool.
#[derive(Default)]
struct PoolWaits {
    /// Since when each was seen to wait, by its UID.
    seen: BTreeMap<String, Instant>,
    /// Most pods that had a node at a time since some wait.
    most_placed: usize,
    /// When there were more of them for the last time.
    grown_at: Option<Instant>,
}

impl Waiting {
    /// The failed launches of a pool, after one more look at its pods. A launch counts as failed
    /// once no pod of the pool has found a node for `patience`, and again each time as long has
    /// passed: a pool that fills slowly has capacity.
    pub fn look(&self, pool: &str, pods: &[SeenPod], patience: Duration) -> Activities {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = pools.entry(pool.to_owned()).or_default();
        waits.look(pods);
        let mut failures = Vec::new();
        for (pod, since, message) in pods.iter().filter_map(waiting) {
            let seen = waits.seen.get(&pod.uid).map(Instant::elapsed).unwrap_or_default();
            let waited = waits.grown_at.map_or(seen, |grown_at| seen.min(grown_at.elapsed()));
            let times = waited.as_millis() / patience.as_millis().max(1);
            if let Some(times) = u32::try_from(times).ok().filter(|times| *times > 0) {
                let at = since.plus(seen - waited).plus(patience.saturating_mul(times));
                let message = format!("pod {} finds no node: {message}", pod.name);
                failures.push(LaunchFailure { at, kind: FailureKind::Capacity, message });
            }
        }
        Activities { newest_at: failures.iter().map(|failure| failure.at).max(), failures }
    }
}

impl PoolWaits {
    fn look(&mut self, pods: &[SeenPod]) {
        let now = Instant::now();
        let wait: BTreeSet<&str> =
            pods.iter().filter_map(waiting).map(|(pod, ..)| pod.uid.as_str()).collect();
        self.seen.retain(|uid, _| wait.contains(uid.as_str()));
        let placed = pods.iter().filter(|pod| pod.counts()).count();
        if self.seen.is_empty() {
            (self.most_placed, self.grown_at) = (placed, None);
        } else if placed > self.most_placed {
            (self.most_placed, self.grown_at) = (placed, Some(now));
        }
        for uid in wait {
            self.seen.entry(uid.to_owned()).or_insert(now);
        }
    }
}

/// A pod that no node can take, since when, and what the scheduler says.
fn waiting(pod: &SeenPod) -> Option<(&SeenPod, UnixMillis, &str)> {
    let (since, message) = pod.unschedulable.as_ref().filter(|_| pod.node.is_none())?;
    Some((pod, *since, message))
}

#[cfg(test)]
mod tests {
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

    #[tokio::test(start_paused = true)]
    async fn pool_that_fills_slowly_has_not_failed_until_it_stands_still() {
        let (waiting, minute) = (Waiting::default(), Duration::from_mins(1));
        let named =
            |number: usize, node: Option<&str>| SeenPod { uid: number.to_string(), ..pod(node) };
        let mut pods: Vec<SeenPod> = (0..12).map(|number| named(number, None)).collect();
        for number in 0..10 {
            assert_eq!(waiting.look("spot", &pods, PATIENCE).failures, [], "minute {number}");
            tokio::time::advance(minute).await;
            pods[number] = named(number, Some("n1"));
        }
        // From here on a pod is moved, and no other one finds a node.
        waiting.look("spot", &pods, PATIENCE);
        for node in [None, Some("n2"), None, Some("n1")] {
            tokio::time::advance(minute).await;
            pods[0] = named(0, node);
            assert_eq!(waiting.look("spot", &pods, PATIENCE).failures, []);
        }
        tokio::time::advance(minute).await;
        let failures = waiting.look("spot", &pods, PATIENCE).failures;
        let began_at = UnixMillis(1_767_225_600_000);
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert_eq!(failures[0].at, began_at.plus(10 * minute).plus(PATIENCE));
    }
}
