//! Ties the parts of the controller together and runs them until it is told to stop.
//!
//! The outside world is passed in, so that `ebbtide controller` (Redis, EC2 Auto Scaling, a
//! Kubernetes `Lease`) and `ebbtide demo` (all in this process) run the same code.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::{Backoff, WorkQueue};
use ebbtide_queue::redis::{RedisOptions, RedisPort};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::announce::announce_leadership;
use crate::autoscale::Autoscaler;
use crate::capacity::{Capacity, Desk};
use crate::events::EventFlow;
use crate::events::follow::Follower;
use crate::events::queue::EventQueue;
use crate::events::stand_in::Marker;
use crate::image_rollout::{GroupPods, ImageRollout};
use crate::journal::Journal;
use crate::leader::{LeaderLease, Leadership};
use crate::lifecycle::{LifecycleHooks, LifecycleKeeper, NoHooks};
use crate::metrics::Metrics;
use crate::nodes::{ClusterNodes, NoNodes};
use crate::policy_source::{PolicySource, PolicyState, watch_policy};
use crate::reaper::reap_while_leading;
use crate::resource::{PolicyResource, report_while_leading};
use crate::server::{Pulse, Shown, serve};
use crate::signals::{SignalSources, Signals};
use crate::status::{ControllerStatus, Snapshot};
use crate::watching::watch_while_leading;

/// Pauses between attempts to reach a queue that has never answered.
const CONNECT_PAUSE_FIRST: Duration = Duration::from_millis(250);
const CONNECT_PAUSE_MAX: Duration = Duration::from_secs(10);

/// What the controller is told once, at its start.
#[derive(Debug, Clone)]
pub struct ControllerConfig {
    /// The policy to begin with.
    pub policy: FleetPolicy,
    /// Where to look for its successors.
    pub policy_source: PolicySource,
    /// Where to serve `/healthz`, `/readyz`, `/metrics` and `/status`, if anywhere.
    pub listen: Option<SocketAddr>,
    /// Time between two decisions; none takes the policy's.
    pub tick: Option<Duration>,
    /// The journal's file; none writes decisions to the log.
    pub journal: Option<PathBuf>,
}

/// The work queue, or how to reach it.
#[derive(Clone)]
pub enum QueueSource {
    /// A queue that is there.
    Ready(WorkQueue),
    /// A queue on Redis, to be reached with patience.
    Redis(RedisOptions),
}

/// What interruptions are learned from and answered with, beside the queue of work. By default
/// there is nothing: no messages, no cluster, no Auto Scaling.
#[derive(Clone)]
pub struct EventParts {
    /// Messages about instances; none leaves it to the agents.
    pub inbox: Option<Arc<dyn EventQueue>>,
    /// The nodes of the cluster.
    pub nodes: Arc<dyn ClusterNodes>,
    /// The hooks of Auto Scaling groups.
    pub hooks: Arc<dyn LifecycleHooks>,
}

impl Default for EventParts {
    fn default() -> Self {
        Self { inbox: None, nodes: Arc::new(NoNodes), hooks: Arc::new(NoHooks) }
    }
}

/// The outside world.
pub struct Outside {
    /// Where the work is.
    pub queue: QueueSource,
    /// Where nodes come from.
    pub capacity: Arc<dyn Capacity>,
    /// What interruptions are learned from.
    pub events: EventParts,
    /// The EP groups that a new image goes to, one after the other.
    pub groups: Arc<dyn GroupPods>,
    /// Who may act.
    pub leader: Arc<dyn LeaderLease>,
    /// Where it is read what services have to do whose queues are others'.
    pub signals: Arc<dyn SignalSources>,
    /// What is counted; shared with the capacity provider.
    pub metrics: Metrics,
    /// What is shown; keep a clone to read it.
    pub status: ControllerStatus,
    /// This machine's wall clock.
    pub now: fn() -> UnixMillis,
}

/// Why a controller cannot run.
#[derive(Debug, Error)]
pub enum ControllerError {
    /// The address to serve on is taken or not of this machine.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The first valid policy of a resource, however long that takes; `None` when `stop` comes before.
/// Health checks are answered meanwhile, so that nobody takes the waiting for a hang.
///
/// # Errors
/// Only when the address cannot be listened on.
pub async fn first_policy(
    resource: &PolicyResource,
    address: SocketAddr,
    (metrics, status): (&Metrics, &ControllerStatus),
    now: fn() -> UnixMillis,
    stop: &CancellationToken,
) -> Result<Option<FleetPolicy>, ControllerError> {
    let pulse = Pulse::new();
    let shown = Shown { metrics: metrics.clone(), status: status.clone(), pulse };
    let server = tokio::spawn(serve(listen(address).await?, shown.clone(), stop.clone()));
    let policy = resource.first_policy(&shown, now, stop).await;
    // The address is free again once the task is gone.
    server.abort();
    drop(server.await);
    Ok(policy)
}

/// Runs the controller until `shutdown`, then gives the leader lease back.
///
/// Whatever is away, at the start or later, is waited for: the queue, the capacity provider, the
/// leader lease. A run without a single tick ends well, too.
///
/// # Errors
/// Only when the address cannot be listened on.
pub async fn run(
    config: ControllerConfig,
    outside: Outside,
    shutdown: CancellationToken,
) -> Result<(), ControllerError> {
    // Everything below ends with this token, also when this future is dropped in mid-run.
    let stop = shutdown.child_token();
    let _stop_on_drop = stop.clone().drop_guard();
    let pulse = Pulse::new();
    let shown = Shown {
        metrics: outside.metrics.clone(),
        status: outside.status.clone(),
        pulse: pulse.clone(),
    };
    let mut tasks = JoinSet::new();
    if let Some(address) = config.listen {
        tasks.spawn(serve(listen(address).await?, shown, stop.clone()));
    }
    let (policy, policy_seen) = watch::channel(PolicyState::new(config.policy));
    let resource = match &config.policy_source {
        PolicySource::Resource(resource) => Some((**resource).clone()),
        PolicySource::Fixed | PolicySource::File(_) => None,
    };
    tasks.spawn(watch_policy(config.policy_source, policy, stop.clone()));

    let connected = tokio::select! {
        queue = connect(outside.queue.clone(), &outside.status, &pulse) => Some(queue),
        () = stop.cancelled() => None,
    };
    if let Some(queue) = connected {
        let (standing, leadership) = watch::channel(None);
        let (leader, ended) = (outside.leader.clone(), stop.clone());
        tasks.spawn(async move { leader.campaign(standing, ended).await });
        let desk = Desk { queue: queue.clone(), leadership: leadership.clone() };
        outside.capacity.keep_books(&desk);
        let process = draw();
        let attendants = Attendants {
            queue: queue.clone(),
            leadership: leadership.clone(),
            policy: policy_seen.clone(),
            process,
        };
        attendants.spawn(&outside, &mut tasks, &stop);
        if let Some(resource) = resource {
            let (status, now) = (outside.status.clone(), outside.now);
            tasks.spawn(report_while_leading(resource, status, now, stop.clone()));
        }
        let autoscaler = Autoscaler {
            queue,
            capacity: outside.capacity,
            leadership,
            policy: policy_seen,
            tick: config.tick,
            journal: Journal::new(config.journal),
            metrics: outside.metrics,
            status: outside.status,
            pulse,
            now: outside.now,
            process,
            signals: Signals::new(outside.signals),
        };
        autoscaler.run(stop.clone()).await;
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// Everything that attends to losses (expired leases, messages, silent agents, lifecycle actions)
/// and to new images.
struct Attendants {
    queue: WorkQueue,
    leadership: watch::Receiver<Option<Leadership>>,
    policy: watch::Receiver<PolicyState>,
    process: u32,
}

impl Attendants {
    fn spawn(self, outside: &Outside, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        let Self { queue, leadership, policy, process } = self;
        let (parts, status) = (outside.events.clone(), outside.status.clone());
        let counts = outside.metrics.clone();
        let (leads, claimant) = (leadership.clone(), (process, status.clone()));
        tasks.spawn(announce_leadership(queue.clone(), leads, claimant, stop.clone()));
        tasks.spawn(reap_while_leading(queue.clone(), leadership.clone(), counts, stop.clone()));
        let (looks, views) = watch::channel(None);
        tasks.spawn(watch_while_leading(queue.clone(), leadership.clone(), looks, stop.clone()));
        let metrics = outside.metrics.events.clone();
        let marker =
            Marker { nodes: parts.nodes.clone(), metrics: metrics.clone(), status: status.clone() };
        if let Some(inbox) = parts.inbox {
            let flow = EventFlow {
                inbox,
                queue: queue.clone(),
                nodes: parts.nodes.clone(),
                marker: marker.clone(),
                views: views.clone(),
                leadership: leadership.clone(),
                policy: policy.clone(),
                now: outside.now,
            };
            tasks.spawn(flow.run(stop.clone()));
        }
        let rollout = ImageRollout { groups: outside.groups.clone(), views: views.clone() };
        tasks.spawn(rollout.run(stop.clone()));
        let follower = Follower {
            queue: queue.clone(),
            marker,
            views: views.clone(),
            leadership: leadership.clone(),
            policy: policy.clone(),
        };
        tasks.spawn(follower.run(stop.clone()));
        let keeper = LifecycleKeeper {
            queue,
            hooks: parts.hooks,
            nodes: parts.nodes,
            views,
            leadership,
            policy,
            metrics,
            status,
            process,
        };
        tasks.spawn(keeper.run(stop.clone()));
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ControllerError> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ControllerError::Listen { address, source })?;
    let address = listener.local_addr().unwrap_or(address);
    tracing::info!(%address, "controller listens");
    Ok(listener)
}

/// Reaches the queue, however long that takes.
async fn connect(source: QueueSource, status: &ControllerStatus, pulse: &Pulse) -> WorkQueue {
    let options = match source {
        QueueSource::Ready(queue) => return queue,
        QueueSource::Redis(options) => options,
    };
    let mut backoff = Backoff::new(CONNECT_PAUSE_FIRST, CONNECT_PAUSE_MAX);
    let mut last_problem = String::new();
    loop {
        pulse.beat(CONNECT_PAUSE_MAX);
        match RedisPort::connect(options.clone()).await {
            Ok(port) => {
                tracing::info!("queue is reachable");
                return WorkQueue::new(Arc::new(port));
            }
            Err(error) => {
                let problem = error.to_string();
                if problem != last_problem {
                    tracing::warn!(%error, "queue is not reachable");
                }
                let problems = vec![problem.clone()];
                status.replace(Snapshot { problems, ..Snapshot::default() });
                last_problem = problem;
            }
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// A number that tells this process from others: the standard library seeds its hashers at random.
fn draw() -> u32 {
    u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests;
