//! Deletes the pods of engines that hang or fail for so long that the policy gives them up.
//!
//! A pod goes when none of its engines works and nothing of this agent is on them. Each must have
//! answered since the pod's containers last began to run: a start, however long, is the kubelet's
//! to judge. The agent starts nothing: whoever owns the pod makes another one.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_queue::client::Backoff;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::hosting::{EngineHeld, EngineSlot};
use crate::kubernetes::{Departure, NodePods, NodeSight, PodStart, SeenPod};
use crate::marks::{NodeEvent, NodeMarks};
use crate::operator::tell_event;
use crate::shared::Shared;

/// Bounds of the pause after a deletion that was refused or not answered.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Least grace of a deletion: with none the API server would forget a pod that still runs.
const GRACE_MIN: Duration = Duration::from_secs(1);

/// Deletes what is to be deleted, for as long as it is polled.
pub(crate) async fn tend(
    shared: &Shared,
    marks: Arc<dyn NodeMarks>,
    pods: Arc<dyn NodePods>,
    sights: watch::Receiver<NodeSight>,
) {
    let Some(limit) = shared.config.delete_wedged_engine_after else { return pending().await };
    let mut watch = Watch {
        limit,
        looks: BTreeMap::new(),
        answered: BTreeMap::new(),
        deleted: BTreeSet::new(),
    };
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        sleep_until(shared.rhythm.next(shared.config.pace.engine_probe)).await;
        let seen = sights.borrow().pods.clone().unwrap_or_default();
        for (pod, why) in watch.look(shared, &seen, Instant::now()) {
            // Before the call: the deletion may be seen before it is answered.
            shared.deleted_pods().insert(pod.id.uid.clone());
            let grace = shared.config.drain.grace.max(GRACE_MIN);
            match pods.delete(&pod.id, grace).await {
                Ok(Departure::Begun) => {
                    tracing::warn!(pod = %pod.id, why, "pod of a wedged engine deleted");
                    watch.deleted.insert(pod.id.uid.clone());
                    shared.metrics.wedged_pods_deleted.inc();
                    backoff.reset();
                    tell_event(shared, &*marks, describe(&pod, &why)).await;
                }
                Ok(Departure::AlreadyGone) => {
                    watch.deleted.insert(pod.id.uid.clone());
                }
                Err(error) => {
                    if backoff.failures() == 0 {
                        tracing::warn!(pod = %pod.id, %error, "pod of a wedged engine stays");
                    }
                    sleep(backoff.next_pause()).await;
                }
            }
        }
    }
}

/// A pod, with one start of its containers.
type Incarnation = (String, PodStart);

/// What is remembered between two looks.
struct Watch {
    limit: Duration,
    /// What was seen of an engine at the look before: its pod, and its good probes.
    looks: BTreeMap<usize, (Incarnation, u64)>,
    /// As what an engine last answered.
    answered: BTreeMap<usize, Incarnation>,
    /// Pods that were deleted, while they are there.
    deleted: BTreeSet<String>,
}

impl Watch {
    /// The pods to delete now, and why. Their engines are given nothing more.
    fn look(&mut self, shared: &Shared, pods: &[SeenPod], now: Instant) -> Vec<(SeenPod, String)> {
        let is_there = |uid: &String| pods.iter().any(|pod| pod.id.uid == *uid);
        self.deleted.retain(is_there);
        shared.deleted_pods().retain(is_there);
        let is_draining = shared.standing.borrow().drain.is_some();
        let (mut due, mut given_up) = (Vec::new(), BTreeSet::new());
        for pod in pods.iter().filter(|pod| pod.termination.is_none() && !is_draining) {
            let Some(slots) = shared.engines.of_pod(pod, &shared.config.run) else { continue };
            let Some(why) = self.why_wedged(pod, &slots, now) else { continue };
            // First nothing more, then a look at what it has: in this order nothing slips through.
            slots.iter().for_each(|slot| slot.give_up(true));
            given_up.extend(slots.iter().map(|slot| slot.index));
            let is_idle = |slot: &Arc<EngineSlot>| {
                shared.desk.ledger().held_on(slot.index) == EngineHeld::default()
            };
            if slots.iter().all(is_idle) && !self.deleted.contains(&pod.id.uid) {
                due.push((pod.clone(), why));
            }
        }
        if self.deleted.is_empty() {
            let others = shared.engines.slots().into_iter();
            let others = others.filter(|slot| !given_up.contains(&slot.index));
            others.for_each(|slot| slot.give_up(false));
        }
        due
    }

    /// Why the pod is to go, if none of its engines has worked for long enough.
    fn why_wedged(
        &mut self,
        pod: &SeenPod,
        slots: &[Arc<EngineSlot>],
        now: Instant,
    ) -> Option<String> {
        let this = (pod.id.uid.clone(), pod.start);
        for slot in slots {
            let look = (this.clone(), slot.answers());
            // It is this one that has answered only if it was there before the answer.
            let before = self.looks.insert(slot.index, look.clone());
            if before.is_some_and(|before| before.0 == look.0 && before.1 < look.1) {
                self.answered.insert(slot.index, this.clone());
            }
        }
        let wedged = slots.iter().map(|slot| {
            let (time, why) = slot.wedged_for(now)?;
            let has_answered = self.answered.get(&slot.index) == Some(&this);
            let address = slot.engine.address();
            let why = || format!("engine {address} {why} for {} s", time.as_secs());
            (has_answered && time >= self.limit).then(why)
        });
        wedged.collect::<Option<Vec<String>>>().map(|all| all.join(", "))
    }
}

fn describe(pod: &SeenPod, why: &str) -> NodeEvent {
    NodeEvent {
        reason: "WedgedEngine",
        message: format!("Pod {} is deleted, as the policy asks: {why}.", pod.id),
        is_warning: true,
    }
}
