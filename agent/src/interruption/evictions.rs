//! The eviction part of the Kubernetes lane: carries out what [`plan_evictions`] decides, call by
//! call. Nothing ever waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::policy::BlockedEviction;
use ebbtide_queue::client::Backoff;
use futures::FutureExt;
use tokio::time::{Instant, timeout_at};

use super::{Event, Lanes};
use crate::eviction::{
    DrainAround, EvictionPlan, EvictionTerms, Situation, SkipReason, Tried, Verdict, plan_evictions,
};
use crate::kubernetes::{Departure, EvictionError, NodePods, PodId, SeenPod};
use crate::marks::NodeEvent;
use crate::metrics::EvictionMetrics;

/// Bounds of the pause after a call that was refused or failed.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How a pod is made to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Evict,
    Delete,
}

/// The end of one call.
#[derive(Debug)]
pub(super) struct Evicted {
    pod: PodId,
    way: Way,
    answer: Result<Departure, EvictionError>,
}

/// What is known of a pod that does not leave.
#[derive(Debug)]
struct Trouble {
    backoff: Backoff,
    budget: Option<String>,
    /// Whether an operator was told what becomes of it.
    is_told: bool,
}

/// See the module.
pub(super) struct Evictions {
    pods: Arc<dyn NodePods>,
    terms: EvictionTerms,
    metrics: EvictionMetrics,
    tried: BTreeMap<String, Tried>,
    troubles: BTreeMap<String, Trouble>,
    /// The newest plan, while pods are to leave, and what it was made of.
    plan: Option<EvictionPlan>,
    planned_for: Option<(Arc<Vec<SeenPod>>, DrainAround)>,
    /// Whether an answer has come since.
    is_outdated: bool,
}

impl Evictions {
    pub(super) fn new(
        pods: Arc<dyn NodePods>,
        terms: EvictionTerms,
        metrics: EvictionMetrics,
    ) -> Self {
        Self {
            pods,
            terms,
            metrics,
            tried: BTreeMap::new(),
            troubles: BTreeMap::new(),
            plan: None,
            planned_for: None,
            is_outdated: false,
        }
    }

    /// Makes the calls that are due; gives what an operator is to be told. When nothing has changed
    /// and nothing is due, this is cheap: it runs at every event of the flow.
    pub(super) fn steer(
        &mut self,
        pods: &Arc<Vec<SeenPod>>,
        drain: DrainAround,
        lanes: &Lanes,
        now: Instant,
    ) -> Vec<NodeEvent> {
        let is_same = |(known, around): &(Arc<Vec<SeenPod>>, DrainAround)| {
            Arc::ptr_eq(known, pods) && *around == drain
        };
        let is_due = self.next_due().is_some_and(|due| due <= now);
        if !is_due && !self.is_outdated && self.planned_for.as_ref().is_some_and(is_same) {
            return Vec::new();
        }
        self.planned_for = Some((pods.clone(), drain));
        self.is_outdated = false;
        let situation = Situation { pods, tried: &self.tried, drain };
        let plan = plan_evictions(&situation, &self.terms, now);
        let deadline = drain.deadline;
        let mut events = Vec::new();
        for decision in plan.decisions.clone() {
            let pod = decision.pod;
            match decision.verdict {
                Verdict::Evict { grace, why } => {
                    let grace_seconds = grace.as_secs();
                    tracing::info!(%pod, grace_seconds, why = why.as_str(), "pod evicted");
                    self.call(pod, Way::Evict, grace, deadline, lanes);
                }
                Verdict::Delete { grace } => {
                    events.extend(self.tell_end(&pod));
                    let trouble = self.troubles.get_mut(&pod.uid);
                    // Refusals of evictions say nothing about deletions.
                    trouble.into_iter().for_each(|trouble| trouble.backoff.reset());
                    self.call(pod, Way::Delete, grace, deadline, lanes);
                }
                Verdict::Skip(SkipReason::LeftToBudget) => events.extend(self.tell_end(&pod)),
                Verdict::Wait(_) | Verdict::Skip(_) => {}
            }
        }
        self.plan = Some(plan);
        events
    }

    /// No pod is to leave any more; what was tried means nothing.
    pub(super) fn forget(&mut self) {
        self.tried.clear();
        self.troubles.clear();
        self.plan = None;
        self.planned_for = None;
    }

    fn call(&mut self, pod: PodId, way: Way, grace: Duration, deadline: Instant, lanes: &Lanes) {
        self.tried.insert(pod.uid.clone(), Tried::Calling);
        let pods = self.pods.clone();
        let call = async move {
            let asked = async {
                match way {
                    Way::Evict => pods.evict(&pod, grace).await,
                    Way::Delete => pods.delete(&pod, grace).await,
                }
            };
            // What is answered after the deadline helps nobody.
            let answer = timeout_at(deadline, asked).await.unwrap_or_else(|_| {
                let problem = "no answer before the deadline".to_owned();
                Err(EvictionError::Failed { problem })
            });
            Event::Evicted(Evicted { pod, way, answer })
        };
        lanes.push(call.boxed());
    }

    /// Takes in the answer to a call.
    pub(super) fn take_answer(&mut self, evicted: Evicted, now: Instant) {
        let Evicted { pod, way, answer } = evicted;
        self.metrics.note(way == Way::Delete, &answer);
        self.is_outdated = true;
        if !self.tried.contains_key(&pod.uid) {
            // The drain is over.
            return;
        }
        let tried = match answer {
            Ok(Departure::Begun) => Tried::Accepted,
            Ok(Departure::AlreadyGone) => Tried::Gone,
            Err(error) => self.note_trouble(&pod, way, error, now),
        };
        self.tried.insert(pod.uid, tried);
    }

    fn note_trouble(&mut self, pod: &PodId, way: Way, error: EvictionError, now: Instant) -> Tried {
        let trouble = self.troubles.entry(pod.uid.clone()).or_insert_with(|| Trouble {
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            budget: None,
            is_told: false,
        });
        let is_first = trouble.backoff.failures() == 0;
        let retry_at = now + trouble.backoff.next_pause();
        match error {
            EvictionError::Blocked { budget, problem } => {
                if is_first {
                    let budget = budget.as_deref().unwrap_or("unknown");
                    tracing::warn!(%pod, budget, problem, "eviction blocked, trying again");
                }
                trouble.budget = budget.or_else(|| trouble.budget.take());
                Tried::Blocked { retry_at }
            }
            EvictionError::Failed { problem } => {
                if is_first {
                    tracing::warn!(%pod, problem, "pod not evicted, trying again");
                }
                Tried::Failed { is_blocked: way == Way::Delete, retry_at }
            }
        }
    }

    /// What an operator is told of a pod that a budget kept until its time was up; once.
    fn tell_end(&mut self, pod: &PodId) -> Option<NodeEvent> {
        let trouble = self.troubles.get_mut(&pod.uid).filter(|trouble| !trouble.is_told)?;
        trouble.is_told = true;
        let budget = trouble.budget.as_deref().unwrap_or("unknown");
        let (reason, what) = match self.terms.on_blocked {
            BlockedEviction::Delete => ("EbbtideEvictionForced", "deleted"),
            BlockedEviction::Wait => ("EbbtideEvictionBlocked", "left to go with the node"),
        };
        let tries = trouble.backoff.failures();
        tracing::warn!(%pod, budget, tries, outcome = what, "pod kept by its disruption budget");
        Some(NodeEvent {
            reason,
            message: format!(
                "pod {pod} was kept by disruption budget {budget} until its time was up \
                 ({tries} evictions refused): {what}"
            ),
            is_warning: true,
        })
    }

    /// Whether this pod's way out is this agent's own doing.
    pub(super) fn has_asked(&self, pod: &SeenPod) -> bool {
        matches!(self.tried.get(&pod.id.uid), Some(Tried::Calling | Tried::Accepted))
    }

    /// Pods that are still to go; none before the first plan.
    pub(super) fn left(&self) -> Option<usize> {
        self.plan.as_ref().map(EvictionPlan::left)
    }

    /// When time alone changes something.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.plan.as_ref()?.next_due
    }
}
