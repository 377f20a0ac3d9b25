//! Flow D, events: a message of the queue → what it says → whom it concerns → the replica's drain
//! key, at once → a cordon if its agent stays silent → the message is deleted.
//!
//! A message is deleted only when what follows from it is durable in Redis, or nothing follows.
//! Messages are handled side by side, each within a time of its own, so that a node that is stuck
//! delays no other; one that fails stays in the queue and comes again, and doing everything twice
//! is harmless: a request is named after its event.
//!
//! What comes after the drain request, for this and every other source, is in [`follow`].

pub mod memory;
pub mod queue;
pub mod sqs;

pub(crate) mod follow;
mod judge;
pub(crate) mod places;
pub(crate) mod stand_in;
mod telling;
#[cfg(test)]
pub(crate) mod tests;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::event::{Event, Happening, LifecycleAction, Transition, parse_event};
use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::{FleetPolicy, Provider, UnknownInstances};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::{Backoff, QueueError, WorkQueue};
use ebbtide_queue::control::{
    ControlView, DrainReason, DrainRecord, DrainRequest, LifecycleRecord, NodeNames,
};
use futures::future::join_all;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::judge::{DrainOrder, Idle, Verdict, judge};
use self::places::{Place, place_in_cluster, place_in_records};
use self::queue::{BATCH_LIMIT, EventQueue, Message};
use self::stand_in::Marker;
use crate::actuate::QUEUE_WRITE_LIMIT;
use crate::aws::AwsError;
use crate::leader::Leadership;
use crate::nodes::{ClusterNodes, NodeError};
use crate::policy_source::PolicyState;
use crate::watching::Views;

/// Messages in hand at most: 10 batches, so that nodes that are stuck leave room for others.
const HANDLED_LIMIT: usize = 10 * BATCH_LIMIT;

/// Longest time for one message: a write, 11 s for the agent, 10 s for a mark, some for the look.
/// It is shorter than [`queue::VISIBILITY`], so that nobody else gets the message meanwhile.
const MESSAGE_LIMIT: Duration = Duration::from_secs(28);

/// Bounds of the pause while the queue of events is away.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Bounds of the pause before a message that failed comes again.
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Pause before a message comes again that nobody understands: only another version may.
const UNREADABLE_PAUSE: Duration = Duration::from_mins(15);

/// Pause before a message comes again whose instance is unknown, when the policy keeps it.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(60);

/// How drain requests for events begin.
pub(crate) const REQUEST_PREFIX: &str = "event-";

/// The parts that the flow works with; cheap to clone.
#[derive(Clone)]
pub(crate) struct EventFlow {
    pub inbox: Arc<dyn EventQueue>,
    pub queue: WorkQueue,
    pub nodes: Arc<dyn ClusterNodes>,
    pub marker: Marker,
    pub views: Views,
    pub leadership: watch::Receiver<Option<Leadership>>,
    pub policy: watch::Receiver<PolicyState>,
    pub now: fn() -> UnixMillis,
}

/// What became of an event for one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The drain key says so.
    DrainRequested,
    /// Only its lifecycle action is to be completed: no node has the instance.
    ActionRecorded,
    /// Nothing follows.
    Idle(Idle),
    /// It is looked at again after this time.
    Postponed(Duration),
    /// Nobody knows the instance; whether the message is kept.
    Unknown { is_kept: bool },
}

/// Why an event was not attended to.
#[derive(Debug, Error)]
enum AttendError {
    #[error("another controller leads")]
    NotLeading,
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Nodes(#[from] NodeError),
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// It comes again after this time.
    Again(Duration),
    /// It is deleted.
    Done,
}

impl EventFlow {
    /// Receives and handles messages until `shutdown`, while this controller leads. What is in hand
    /// at the end comes again, to the next leader.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut handled = JoinSet::new();
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let received = tokio::select! {
                received = self.next_batch(&mut handled) => received,
                () = shutdown.cancelled() => return,
            };
            self.tell_received(&received, backoff.failures());
            let pause = match received {
                Ok(messages) => {
                    backoff.reset();
                    for message in messages {
                        handled.spawn(self.clone().settle(message));
                    }
                    continue;
                }
                Err(_) => backoff.next_pause(),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn next_batch(&self, handled: &mut JoinSet<()>) -> Result<Vec<Message>, AwsError> {
        while handled.try_join_next().is_some() {}
        while handled.len() + BATCH_LIMIT > HANDLED_LIMIT {
            handled.join_next().await;
        }
        let mut leadership = self.leadership.clone();
        if leadership.wait_for(Option::is_some).await.is_err() {
            // Nobody campaigns any more: the process ends.
            std::future::pending::<()>().await;
        }
        self.inbox.receive().await
    }

    /// Handles a message and deletes it, or says when it comes again.
    async fn settle(self, message: Message) {
        let fate = match timeout(MESSAGE_LIMIT, self.handle(&message)).await {
            Ok(fate) => fate,
            Err(_) => {
                self.tell_overtime();
                Fate::Again(retry_pause(&message))
            }
        };
        let (what, settled) = match fate {
            Fate::Done => ("delete", self.inbox.delete(&message).await),
            Fate::Again(after) => ("hide", self.inbox.hide(&message, after).await),
        };
        if let Err(error) = settled {
            self.tell_unsettled(what, &error);
        }
    }

    async fn handle(&self, message: &Message) -> Fate {
        let event = match parse_event(&message.body) {
            Ok(event) => event,
            Err(error) => {
                self.tell_unreadable(&error);
                return Fate::Again(UNREADABLE_PAUSE);
            }
        };
        if event.instances().is_empty() {
            self.tell_outcome(&event, None, Outcome::Idle(Idle::NothingToDo));
            return Fate::Done;
        }
        let fates = event.instances().iter().map(async |instance| {
            match self.attend(&event, instance).await {
                Ok(outcome) => {
                    self.tell_outcome(&event, Some(instance), outcome);
                    outcome.fate()
                }
                Err(error) => {
                    self.tell_failure(&event, instance, &error);
                    Fate::Again(retry_pause(message))
                }
            }
        });
        // The whole message stays when it failed for one instance; for the others nothing changes.
        join_all(fates).await.into_iter().min().unwrap_or(Fate::Done)
    }

    /// Does what an event asks for about one instance.
    async fn attend(&self, event: &Event, instance: &InstanceId) -> Result<Outcome, AttendError> {
        if self.leadership.borrow().is_none() {
            return Err(AttendError::NotLeading);
        }
        let policy = self.policy.borrow().policy.clone();
        let (view, place) = self.find(instance).await?;
        let Some(place) = place else { return self.attend_unknown(event, &policy, &view).await };
        let standing = place.standing(&view);
        match judge(event, standing, &policy.drain, (self.now)()) {
            Verdict::Nothing(idle) => Ok(Outcome::Idle(idle)),
            Verdict::Postpone(time) => Ok(Outcome::Postponed(time)),
            Verdict::Drain(order) => {
                if let Happening::Lifecycle(action) = &event.happening
                    && is_our_hook(&policy, action, &view)
                {
                    self.queue.put_lifecycle(self.generation()?, record_of(action)).await?;
                }
                let drain = self.request_drain(event, &place, order).await?;
                if order.node_lives {
                    self.marker.cover(&place, &drain, self.views.clone()).await?;
                }
                Ok(Outcome::DrainRequested)
            }
        }
    }

    /// Where an instance is, with the look at the control keys that says so. A look that does not
    /// know it is a second old; a node that has just begun is known to Redis.
    async fn find(
        &self,
        instance: &InstanceId,
    ) -> Result<(Arc<ControlView>, Option<Place>), AttendError> {
        let view = self.newest_view().await;
        if let Some(place) = place_in_records(instance, &view) {
            return Ok((view, Some(place)));
        }
        let view = Arc::new(self.queue.view().await?);
        let place = match place_in_records(instance, &view) {
            Some(place) => Some(place),
            None => place_in_cluster(instance, &view, &self.nodes).await?,
        };
        Ok((view, place))
    }

    /// An instance of which no agent has reported. If it leaves a group of ours before it ever
    /// worked, its lifecycle action must not run into its time limit.
    async fn attend_unknown(
        &self,
        event: &Event,
        policy: &FleetPolicy,
        view: &ControlView,
    ) -> Result<Outcome, AttendError> {
        if let Happening::Lifecycle(action) = &event.happening
            && action.transition == Transition::Terminating
            && is_ours(policy, &action.group)
        {
            if !is_our_hook(policy, action, view) {
                return Ok(Outcome::Idle(Idle::OtherHook));
            }
            self.queue.put_lifecycle(self.generation()?, record_of(action)).await?;
            return Ok(Outcome::ActionRecorded);
        }
        let is_kept = policy.drain.unknown_instances == UnknownInstances::Keep;
        Ok(Outcome::Unknown { is_kept })
    }

    async fn request_drain(
        &self,
        event: &Event,
        place: &Place,
        order: DrainOrder,
    ) -> Result<DrainRecord, AttendError> {
        let request = DrainRequest {
            replica: place.replica.clone(),
            request_id: format!("{REQUEST_PREFIX}{}", event.id),
            generation: self.generation()?,
            reason: order.reason,
            remaining: order.remaining,
            lost: order.lost(place),
        };
        Ok(self.queue.request_drain(request).await?)
    }

    /// The generation to write under.
    fn generation(&self) -> Result<u64, AttendError> {
        let held = *self.leadership.borrow();
        let held = held.filter(|held| held.holds_for(QUEUE_WRITE_LIMIT, Instant::now()));
        Ok(held.ok_or(AttendError::NotLeading)?.generation)
    }

    /// The newest look at the control keys; the first may take a moment.
    async fn newest_view(&self) -> Arc<ControlView> {
        let mut views = self.views.clone();
        match views.wait_for(Option::is_some).await.map(|view| view.clone()) {
            Ok(Some(view)) => view,
            // Nobody looks any more: the process ends.
            _ => std::future::pending().await,
        }
    }
}

impl Outcome {
    fn fate(self) -> Fate {
        match self {
            Self::DrainRequested | Self::ActionRecorded | Self::Idle(_) => Fate::Done,
            Self::Unknown { is_kept: false } => Fate::Done,
            Self::Unknown { is_kept: true } => Fate::Again(UNKNOWN_PAUSE),
            Self::Postponed(time) => Fate::Again(time),
        }
    }
}

impl DrainOrder {
    /// The nodes that are lost: after a recommendation the node may come back.
    fn lost(&self, place: &Place) -> NodeNames {
        match self.reason {
            DrainReason::Rebalance => NodeNames::default(),
            _ => place.node.clone().into(),
        }
    }
}

fn record_of(action: &LifecycleAction) -> LifecycleRecord {
    LifecycleRecord {
        instance_id: action.instance.0.clone(),
        group: action.group.clone(),
        hook: action.hook.clone(),
        token: action.token.clone(),
        seen_at: UnixMillis::default(),
    }
}

/// Whether a group is a pool of the policy.
fn is_ours(policy: &FleetPolicy, group: &str) -> bool {
    let is_it =
        |provider: &Provider| matches!(provider, Provider::Asg(name) if name.as_str() == group);
    policy.pools.iter().any(|pool| is_it(&pool.provider))
}

/// Whether an action may be ours to complete: its hook has the name that the policy says. Without
/// one the first that is heard of counts; which of several hooks it is, is seen later.
fn is_our_hook(policy: &FleetPolicy, action: &LifecycleAction, view: &ControlView) -> bool {
    if let Some(hook) = &policy.drain.lifecycle_hook {
        return hook.as_str() == action.hook;
    }
    let known = view.lifecycles.iter().find(|known| known.instance_id == action.instance.0);
    known.is_none_or(|known| known.hook == action.hook)
}

/// Pause before a message that failed comes again: doubling with every delivery.
fn retry_pause(message: &Message) -> Duration {
    let doublings = message.deliveries.saturating_sub(1).min(16);
    RETRY_MIN.saturating_mul(1 << doublings).min(RETRY_MAX)
}
