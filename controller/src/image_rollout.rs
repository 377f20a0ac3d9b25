//! Flow: a new image of the rollout workers goes to one EP group first, and on to the next only
//! when that group is ready and as fast as the others.
//!
//! LeaderWorkerSet replaces group after group, each once the one before it is ready. The chart
//! gives the leader's pod of each group a readiness gate ([`SPEED_GATE`]): until this condition is
//! true the pod is not ready, whatever its probes say. Here it is made true, for good, once the
//! group has shown its speed. Agents give work to a group whether its pod is ready or not, so the
//! gate costs no token, and without a controller a change of image waits.

mod kube;
#[cfg(test)]
mod memory;
mod pods;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::image_rollout::{Reading, SpeedVerdict, SpeedWindow, judge_speed};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{ControlView, NodeRecord, NodeState};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

pub use self::kube::KubeGroups;
pub use self::pods::{GroupError, GroupPods, LeaderPod, NoGroups};
use crate::watching::Views;

/// The condition that a group has shown its speed.
pub const SPEED_GATE: &str = "ebbtide.dev/as-fast-as-before";

/// Time between two looks, and between two readings of speed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Longest time of one call to the API server.
const CALL_LIMIT: Duration = Duration::from_secs(4);

/// See the module.
pub(crate) struct ImageRollout {
    pub(crate) groups: Arc<dyn GroupPods>,
    /// The newest look at the control keys; none while another controller leads.
    pub(crate) views: Views,
}

impl ImageRollout {
    /// Judges until `shutdown`, whenever this controller leads.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut speeds = Speeds::default();
        let mut is_told = false;
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = shutdown.cancelled() => return,
            }
            let view = self.views.borrow().clone();
            let Some(view) = view else {
                speeds = Speeds::default();
                continue;
            };
            match self.look(&view, &mut speeds).await {
                Ok(()) => is_told = false,
                Err(error) if !is_told => {
                    tracing::warn!(%error, "speed of new groups is not judged");
                    is_told = true;
                }
                Err(_) => {}
            }
        }
    }

    async fn look(&self, view: &ControlView, speeds: &mut Speeds) -> Result<(), GroupError> {
        let pods = timeout(CALL_LIMIT, self.groups.leaders()).await;
        let pods = pods.unwrap_or(Err(GroupError::Silent))?;
        for (pod, verdict) in speeds.judge(&pods, view) {
            let is_news = pod.told.as_deref() != Some(verdict.as_str());
            if !is_news {
                continue;
            }
            let (group, why) = (&pod.replica, verdict.to_string());
            let tell = self.groups.tell(pod, verdict.goes_on(), verdict.as_str(), &why);
            timeout(CALL_LIMIT, tell).await.unwrap_or(Err(GroupError::Silent))?;
            let goes_on = verdict.goes_on();
            tracing::info!(%group, goes_on, reason = verdict.as_str(), why, "speed of a group");
        }
        Ok(())
    }
}

/// How fast the groups were since one of them had to show it.
#[derive(Debug, Default)]
struct Speeds {
    /// By the UID of the leader's pod.
    windows: BTreeMap<String, SpeedWindow>,
    /// The look that was last read, on the store's clock.
    read: Option<UnixMillis>,
}

impl Speeds {
    /// Takes a reading of every group, and judges those that have shown nothing yet and whose
    /// engine answers.
    fn judge<'a>(
        &mut self,
        pods: &'a [LeaderPod],
        view: &ControlView,
    ) -> Vec<(&'a LeaderPod, SpeedVerdict)> {
        let waiting: Vec<&LeaderPod> =
            pods.iter().filter(|pod| !pod.is_open && pod.answers).collect();
        if waiting.is_empty() {
            *self = Self::default();
            return Vec::new();
        }
        // While the queue is away its last look stands; it counts once.
        let is_new = self.read.replace(view.now) != Some(view.now);
        self.windows.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        for pod in pods {
            let window = self.windows.entry(pod.uid.clone()).or_default();
            if let Some(reading) = reading_of(&pod.replica, view).filter(|_| is_new) {
                window.add(reading);
            }
        }
        let judge = |pod: &'a LeaderPod| {
            let is_other =
                |other: &&LeaderPod| other.set == pod.set && other.revision != pod.revision;
            let others = pods.iter().filter(is_other);
            let others: Vec<&SpeedWindow> =
                others.filter_map(|other| self.windows.get(&other.uid)).collect();
            (pod, judge_speed(&self.windows[&pod.uid], &others))
        };
        waiting.into_iter().map(judge).collect()
    }
}

/// What a replica does, by the records of its nodes; none unless all are in service.
fn reading_of(replica: &ReplicaId, view: &ControlView) -> Option<Reading> {
    let members = || view.nodes.iter().filter(|node| node.replica == *replica);
    let is_silent = |node: &NodeRecord| view.now.since(node.heartbeat) > 2 * LOOK_EVERY;
    let is_out = |node: &NodeRecord| node.state != NodeState::Ready || is_silent(node);
    if members().any(is_out) || members().next().is_none() {
        return None;
    }
    Some(Reading {
        tokens_per_second: members().map(|node| node.tokens_per_second).sum(),
        // Those that make the tokens, where that is told: not those that still wait in the engine.
        in_flight: members().map(|node| node.generating.unwrap_or(node.in_flight)).sum(),
    })
}
