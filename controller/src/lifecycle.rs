//! Lifecycle actions of Auto Scaling groups: an instance on its way out waits until its node is
//! drained and its pods have left; then its action is completed, once.
//!
//! Actions are learned from the queue of events and stand in Redis, so that the next leader goes on
//! with them. What no message told is found out: an agent reports that its group takes the instance
//! out, and Auto Scaling says which hook holds it. One look a second: [`plan::plan_lifecycle`]
//! decides, each call is fenced.

mod asg;
mod find;
mod hooks;
mod memory;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::{FleetPolicy, Mode};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::{Backoff, QueueError, WorkQueue};
use ebbtide_queue::control::{ControlView, DrainReason, DrainRequest, LifecycleRecord, NodeRecord};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub use self::asg::AsgHooks;
use self::find::Finder;
pub use self::hooks::{ActionAnswer, HeldInstance, LifecycleHooks, NoHooks, TerminateHook};
pub use self::memory::MemoryHooks;
use self::plan::{LifecycleFacts, LifecyclePlan, NodeSeen, depends_on_leases, plan_lifecycle};
use crate::aws::AwsError;
use crate::capacity::CALL_LIMIT;
use crate::events::REQUEST_PREFIX;
use crate::events::places::{record_of_instance, record_of_node};
use crate::fence::{Fence, FenceError};
use crate::leader::Leadership;
use crate::metrics::EventMetrics;
use crate::nodes::ClusterNodes;
use crate::policy_source::PolicyState;
use crate::status::{ControllerStatus, Topic};
use crate::watching::Views;

/// Bounds of the pause after a call that failed.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Longest time for the queue to say what is leased to a node.
const HELD_LIMIT: Duration = Duration::from_secs(4);

/// Longest time to find out which node an instance is.
const FIND_LIMIT: Duration = Duration::from_secs(5);

/// The parts that lifecycle actions need.
pub(crate) struct LifecycleKeeper {
    pub queue: WorkQueue,
    pub hooks: Arc<dyn LifecycleHooks>,
    pub nodes: Arc<dyn ClusterNodes>,
    pub views: Views,
    pub leadership: watch::Receiver<Option<Leadership>>,
    pub policy: watch::Receiver<PolicyState>,
    pub metrics: EventMetrics,
    pub status: ControllerStatus,
    /// Names this process in claims.
    pub process: u32,
}

/// What this leader remembers of an action.
struct Tracked {
    heartbeat_at: Option<Instant>,
    /// When it is tried again, and what went wrong, after a failure.
    try_at: Option<Instant>,
    problem: Option<String>,
    backoff: Backoff,
    /// The action of the instance that has ended; only its record is still to be removed.
    ended: Option<LifecycleRecord>,
}

impl Default for Tracked {
    fn default() -> Self {
        Self {
            heartbeat_at: None,
            try_at: None,
            problem: None,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            ended: None,
        }
    }
}

impl Tracked {
    /// Whether exactly this action has ended: an instance may meet another hook.
    fn has_ended(&self, action: &LifecycleRecord) -> bool {
        let is_same = |ended: &LifecycleRecord| {
            ended.hook == action.hook && ended.group == action.group && ended.token == action.token
        };
        self.ended.as_ref().is_some_and(is_same)
    }
}

/// Why a step was not carried out.
#[derive(Debug, Error)]
enum KeepError {
    #[error("another controller leads")]
    NotLeading,
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Aws(#[from] AwsError),
}

impl LifecycleKeeper {
    /// Looks at every new view until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut tracked = BTreeMap::new();
        let mut finder = Finder::default();
        let mut turn = 0;
        loop {
            tokio::select! {
                changed = self.views.changed() => if changed.is_err() { return },
                () = shutdown.cancelled() => return,
            }
            let view = self.views.borrow_and_update().clone();
            let Some(view) = view else {
                tracked.clear();
                continue;
            };
            turn += 1;
            tokio::select! {
                () = self.keep_all(&view, &mut tracked, &mut finder, turn) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// One look: what is new is found out, and every action gets what it needs.
    async fn keep_all(
        &self,
        view: &ControlView,
        tracked: &mut BTreeMap<String, Tracked>,
        finder: &mut Finder,
        turn: u64,
    ) {
        let mut problem = finder.find_untold(self, view).await;
        finder.learn_timeouts(&*self.hooks, &view.lifecycles).await;
        tracked.retain(|id, _| view.lifecycles.iter().any(|action| action.instance_id == *id));
        let policy = self.policy.borrow().policy.clone();
        let mut steps = Vec::new();
        for action in &view.lifecycles {
            let mut tracked = tracked.remove(&action.instance_id).unwrap_or_default();
            let hook_timeout = finder.timeout_of(action);
            let policy = &*policy;
            let ambiguity = finder.ambiguity(action, policy);
            steps.push(async move {
                if ambiguity.is_some() {
                    tracked.problem = ambiguity;
                    return (action, tracked, Ok(()));
                }
                let world = World { view, policy, hook_timeout, turn };
                let kept = self.keep(action, &mut tracked, &world).await;
                (action, tracked, kept)
            });
        }
        for (action, mut state, kept) in futures::future::join_all(steps).await {
            if let Err(error) = kept {
                self.note_failure(action, &mut state, &error);
            }
            problem = problem.or_else(|| state.problem.clone());
            tracked.insert(action.instance_id.clone(), state);
        }
        match problem {
            Some(problem) => self.status.set_problem(Topic::Lifecycle, problem),
            None => self.status.clear_problem(Topic::Lifecycle),
        }
    }

    /// Gives one action what it needs now.
    async fn keep(
        &self,
        action: &LifecycleRecord,
        tracked: &mut Tracked,
        world: &World<'_>,
    ) -> Result<(), KeepError> {
        if tracked.try_at.is_some_and(|at| at > Instant::now()) {
            return Ok(());
        }
        if tracked.has_ended(action) {
            return self.forget(action).await;
        }
        let plan = self.plan(action, tracked, world).await;
        if let LifecyclePlan::Drain { remaining } = plan {
            self.request_drain(action, remaining, world).await?;
        } else if world.policy.mode == Mode::Observe {
            self.recommend(action, tracked, plan);
            return Ok(());
        }
        match plan {
            LifecyclePlan::Wait(_) | LifecyclePlan::Drain { .. } => {}
            LifecyclePlan::Heartbeat(awaited) => {
                self.claim("heartbeat", action, world.turn).await?;
                let answer = self.hooks.heartbeat(action).await?;
                tracked.heartbeat_at = Some(Instant::now());
                if answer == ActionAnswer::Accepted {
                    self.metrics.lifecycle("heartbeat");
                    let instance = &action.instance_id;
                    tracing::info!(instance, %awaited, "lifecycle action goes on");
                }
                self.note_answer(action, tracked, answer).await?;
            }
            LifecyclePlan::Complete(end) => {
                self.claim("complete", action, world.turn).await?;
                let answer = self.hooks.complete(action).await?;
                if answer == ActionAnswer::Accepted {
                    self.metrics.lifecycle("completed");
                    tracked.ended = Some(action.clone());
                    let (instance, hook) = (&action.instance_id, &action.hook);
                    tracing::info!(instance, hook, why = %end, "lifecycle action completed");
                    self.forget(action).await?;
                }
                self.note_answer(action, tracked, answer).await?;
            }
        }
        (tracked.try_at, tracked.problem) = (None, None);
        tracked.backoff.reset();
        Ok(())
    }

    async fn plan(
        &self,
        action: &LifecycleRecord,
        tracked: &Tracked,
        world: &World<'_>,
    ) -> LifecyclePlan {
        let node = self.node_of(action, world.view).await;
        let (mut drain, mut leased) = (None, None);
        if let NodeSeen::Record(record) = node {
            drain = world.view.active_drain(&record.replica);
            leased = self.leased_to(record, world.view.now).await;
        }
        plan_lifecycle(&LifecycleFacts {
            action,
            node,
            drain,
            leased,
            hook_timeout: world.hook_timeout,
            since_heartbeat: tracked.heartbeat_at.map(|at| at.elapsed()),
            asg_deadline: world.policy.drain.asg_deadline,
            now: world.view.now,
        })
    }

    /// The node of an action's instance: by its agent's word, then by the cluster's.
    async fn node_of<'a>(&self, action: &LifecycleRecord, view: &'a ControlView) -> NodeSeen<'a> {
        let instance = InstanceId(action.instance_id.clone());
        if let Some(record) = record_of_instance(view, &instance) {
            return NodeSeen::Record(record);
        }
        match timeout(FIND_LIMIT, self.nodes.find(&instance)).await {
            Ok(Ok(Some(node))) => {
                record_of_node(view, &node).map_or(NodeSeen::Absent, NodeSeen::Record)
            }
            Ok(Ok(None)) => NodeSeen::Absent,
            _ => NodeSeen::Unclear,
        }
    }

    /// Units that the queue has leased to holders of the node, where that matters.
    async fn leased_to(&self, node: &NodeRecord, now: UnixMillis) -> Option<u64> {
        if !depends_on_leases(node, now) {
            return None;
        }
        timeout(HELD_LIMIT, self.queue.held_by(&node.node)).await.ok()?.ok()
    }

    /// Hand-back is no write to AWS: it is asked for in mode observe as well.
    async fn request_drain(
        &self,
        action: &LifecycleRecord,
        remaining: Duration,
        world: &World<'_>,
    ) -> Result<(), KeepError> {
        let NodeSeen::Record(node) = self.node_of(action, world.view).await else { return Ok(()) };
        let generation = self.claim("drain", action, world.turn).await?;
        let (instance, seen_at) = (&action.instance_id, action.seen_at.0);
        let request = DrainRequest {
            replica: node.replica.clone(),
            request_id: format!("{REQUEST_PREFIX}{instance}-{seen_at}"),
            generation,
            reason: DrainReason::Lifecycle,
            remaining,
            lost: node.node.clone().into(),
        };
        self.queue.request_drain(request).await?;
        tracing::info!(instance, node = node.node.as_str(), "drain asked for");
        Ok(())
    }

    /// The generation to write records under.
    fn generation(&self) -> Result<u64, KeepError> {
        self.leadership.borrow().map(|held| held.generation).ok_or(KeepError::NotLeading)
    }

    async fn forget(&self, action: &LifecycleRecord) -> Result<(), KeepError> {
        Ok(self.queue.remove_lifecycle(self.generation()?, &action.instance_id).await?)
    }

    async fn claim(
        &self,
        verb: &str,
        action: &LifecycleRecord,
        turn: u64,
    ) -> Result<u64, FenceError> {
        let (queue, leadership) = (&self.queue, &self.leadership);
        let fence = Fence { queue, leadership, process: self.process, turn };
        fence.claim(verb, &action.instance_id, CALL_LIMIT).await
    }

    /// An action that Auto Scaling does not know any more has ended.
    async fn note_answer(
        &self,
        action: &LifecycleRecord,
        tracked: &mut Tracked,
        answer: ActionAnswer,
    ) -> Result<(), KeepError> {
        if answer == ActionAnswer::NotActive {
            self.metrics.lifecycle("not_active");
            tracked.ended = Some(action.clone());
            tracing::info!(instance = action.instance_id, "lifecycle action had ended before");
            self.forget(action).await?;
        }
        Ok(())
    }

    /// In mode observe nothing is written to AWS.
    fn recommend(&self, action: &LifecycleRecord, tracked: &mut Tracked, plan: LifecyclePlan) {
        if let LifecyclePlan::Complete(end) = plan {
            tracked.ended = Some(action.clone());
            self.metrics.lifecycle("recommended");
            let instance = &action.instance_id;
            tracing::info!(instance, why = %end, "lifecycle action may end, mode observe waits");
        }
    }

    fn note_failure(&self, action: &LifecycleRecord, tracked: &mut Tracked, error: &KeepError) {
        self.metrics.lifecycle("failed");
        if tracked.backoff.failures() == 0 {
            let instance = &action.instance_id;
            tracing::warn!(%error, instance, "lifecycle action not dealt with, trying again");
        }
        tracked.try_at = Some(Instant::now() + tracked.backoff.next_pause());
        tracked.problem = Some(error.to_string());
    }
}

/// What one look knows.
struct World<'a> {
    view: &'a ControlView,
    policy: &'a FleetPolicy,
    hook_timeout: Option<Duration>,
    turn: u64,
}
