//! A small world around a controller: agents that drain when asked, a trainer that reports.

mod agents;
mod direct;
mod scorers;
mod trainer;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};

use async_trait::async_trait;
use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{NodeName, PolicyVersion, ReplicaId};
use ebbtide_core::policy::Market;
use ebbtide_core::sample::{Chunk, Finish, FinishReason, Origin};
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::client::{Hint, MemoryPort, QueueError, QueuePort};
use ebbtide_queue::command::{Command, Then, UnitWrite};
use ebbtide_queue::control::{
    ControlCommand, ControlReply, DrainRecord, DrainState, NodeState, TrainerPhase, TrainerRecord,
};
use ebbtide_queue::memory::ShardSettings;
use ebbtide_queue::reply::Reply;
use tokio::time::Instant;

pub use self::agents::{Agents, Told};
use self::agents::{TRAINERS, holder};
pub use self::direct::DirectWorker;
pub use self::scorers::score;
use self::trainer::{FakeTrainer, report_trainer};
use super::super::*;
use crate::capacity::local::{LocalCapacity, LocalPool};
use crate::image_rollout::NoGroups;
use crate::leader::MemoryLease;
use crate::signals::NoSources;

/// Longest that any event of these tests may take, on the paused clock.
const LIMIT: Duration = Duration::from_secs(300);

/// The paused clock as a wall clock, so that nothing here runs on real time.
pub fn paused_clock() -> UnixMillis {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let (now, origin) = (Instant::now(), *ORIGIN);
    let base = UnixMillis(1_700_000_000_000);
    base.plus(now.saturating_duration_since(origin)).minus(origin.saturating_duration_since(now))
}

/// Two groups of one sample per step, lag 3, four samples on a node: 8 useful units, 1 to 4 nodes.
pub fn policy(mode: &str) -> FleetPolicy {
    policy_with(mode, "")
}

/// The same with a section `drain`, and a pool of an Auto Scaling group that nobody uses.
pub fn policy_with(mode: &str, drain: &str) -> FleetPolicy {
    policy_of(mode, &format!("\n  drain: {{{drain}}}\n"))
}

/// The same with more sections, and pools for services.
pub fn policy_of(mode: &str, more: &str) -> FleetPolicy {
    let text = format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run}}
spec:
  mode: {mode}{more}  staleness: {{maxLag: 3}}
  trainer: {{groupsPerStep: 2, groupSize: 1}}
  rollout:
    minReplicas: 1
    maxReplicas: 4
    concurrencyPerReplica: 2
    pools: [spot]
    bufferTargetSteps: 1.0
    bufferMaxSteps: 2.0
    startupEstimate: 5s
    stabilizationDown: 5s
    tick: 1s
  pools:
    - {{name: spot, provider: local, market: spot, maxNodes: 8}}
    - {{name: scorers, provider: local, market: spot, maxNodes: 8}}
    - {{name: cpus, provider: local, market: spot, maxNodes: 8}}
    - name: group
      provider: asg
      autoScalingGroup: rollout-a
      market: spot
      instanceType: p5en.48xlarge
      maxNodes: 8
"
    );
    FleetPolicy::parse(&text, "test").expect("valid")
}

pub fn provider() -> LocalCapacity {
    provider_with(0)
}

/// The same with so many nodes in the pool of the trainer.
fn provider_with(trainers: u32) -> LocalCapacity {
    let pool = |name: &str, market, initial_nodes| LocalPool {
        name: name.parse().expect("valid"),
        market,
        zone: None,
        initial_nodes,
        limit: 8,
    };
    let pools = [
        pool("spot", Market::Spot, 0),
        pool("scorers", Market::Spot, 0),
        pool("cpus", Market::Spot, 0),
        pool(TRAINERS, Market::OnDemand, trainers),
    ];
    LocalCapacity::new(pools.into(), Duration::from_secs(3), paused_clock)
}

pub fn config(policy: FleetPolicy) -> ControllerConfig {
    let policy_source = PolicySource::Fixed;
    ControllerConfig { policy, policy_source, listen: None, tick: None, journal: None }
}

pub fn outside(
    queue: QueueSource,
    capacity: LocalCapacity,
    lease: MemoryLease,
    status: ControllerStatus,
) -> Outside {
    Outside {
        queue,
        capacity: Arc::new(capacity),
        events: EventParts::default(),
        groups: Arc::new(NoGroups),
        signals: Arc::new(NoSources),
        leader: Arc::new(lease.candidate()),
        metrics: Metrics::new().expect("names differ"),
        status,
        now: paused_clock,
    }
}

/// A queue in memory that can be away.
pub struct FlakyPort {
    memory: MemoryPort,
    pub is_away: AtomicBool,
    /// The records cannot be read; all else works.
    pub hides_records: AtomicBool,
}

impl FlakyPort {
    fn check(&self) -> Result<(), QueueError> {
        if !self.is_away.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (what, problem) = ("redis test".to_owned(), "connection refused".to_owned());
        Err(QueueError::Unavailable { what, problem })
    }
}

#[async_trait]
impl QueuePort for FlakyPort {
    fn shard_count(&self) -> u16 {
        self.memory.shard_count()
    }

    async fn call(&self, shard: u16, command: Command) -> Result<Reply, QueueError> {
        self.check()?;
        self.memory.call(shard, command).await
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        self.check()?;
        if matches!(command, ControlCommand::Read) && self.hides_records.load(Ordering::Relaxed) {
            let (what, problem) = ("redis test".to_owned(), "no answer".to_owned());
            return Err(QueueError::Unavailable { what, problem });
        }
        self.memory.control(command).await
    }

    async fn woken(&self, hint: Hint) {
        self.memory.woken(hint).await;
    }

    async fn wake(&self, hint: Hint) {
        self.memory.wake(hint).await;
    }
}

/// A controller and everything around it.
pub struct World {
    pub queue: WorkQueue,
    pub port: Arc<FlakyPort>,
    pub provider: LocalCapacity,
    pub agents: Arc<Agents>,
    trainer: Arc<Mutex<FakeTrainer>>,
    pub metrics: Metrics,
    parts: EventParts,
    lease: MemoryLease,
    status: ControllerStatus,
    shutdown: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
    first: Option<tokio::task::JoinHandle<Result<(), ControllerError>>>,
}

impl World {
    pub async fn start(policy: FleetPolicy) -> Self {
        Self::start_with(policy, EventParts::default()).await
    }

    /// Starts it with a trainer of so many nodes in a pool of its own.
    pub async fn start_with_trainer(policy: FleetPolicy, nodes: u32) -> Self {
        Self::start_all(policy, EventParts::default(), Some(nodes)).await
    }

    /// Starts it with queue of events, cluster and hooks.
    pub async fn start_with(policy: FleetPolicy, parts: EventParts) -> Self {
        Self::start_all(policy, parts, None).await
    }

    async fn start_all(policy: FleetPolicy, parts: EventParts, trainers: Option<u32>) -> Self {
        let has_reward_stage = policy.has_reward_stage();
        let settings = ShardSettings { has_reward_stage, ..ShardSettings::default() };
        let memory = MemoryPort::new(2, settings, paused_clock);
        let port =
            Arc::new(FlakyPort { memory, is_away: false.into(), hides_records: false.into() });
        let queue = WorkQueue::new(port.clone());
        let record = TrainerRecord {
            phase: TrainerPhase::Train,
            step: 1,
            groups_per_step: 2,
            nodes: trainers,
            incarnation: Some("first".parse().expect("valid")),
            heartbeat: UnixMillis(0),
        };
        let mut world = Self {
            queue: queue.clone(),
            port,
            provider: provider_with(trainers.unwrap_or(0)),
            agents: Arc::default(),
            trainer: Arc::new(Mutex::new(FakeTrainer { record, is_silent: false })),
            metrics: Metrics::new().expect("names differ"),
            parts,
            lease: MemoryLease::default(),
            status: ControllerStatus::default(),
            shutdown: CancellationToken::new(),
            tasks: tokio::task::JoinSet::new(),
            first: None,
        };
        world.agents.may_drain.store(true, Ordering::Relaxed);
        world.tasks.spawn(report_trainer(queue.clone(), world.trainer.clone()));
        world.tasks.spawn(world.agents.clone().obey(world.provider.clone(), queue));
        let (outside, shutdown) = (world.outside(world.status.clone()), world.shutdown.clone());
        world.first = Some(tokio::spawn(run(config(policy), outside, shutdown)));
        world.until("it leads", async || world.snapshot().is_leader).await;
        world
    }

    fn outside(&self, status: ControllerStatus) -> Outside {
        let queue = QueueSource::Ready(self.queue.clone());
        let outside = outside(queue, self.provider.clone(), self.lease.clone(), status);
        Outside { events: self.parts.clone(), metrics: self.metrics.clone(), ..outside }
    }

    /// One more controller for the same lease; it ends with the world.
    pub fn add_controller(&mut self, policy: FleetPolicy) -> ControllerStatus {
        let status = ControllerStatus::default();
        let metrics = Metrics::new().expect("names differ");
        let outside = Outside { metrics, ..self.outside(status.clone()) };
        self.tasks.spawn(async move {
            run(config(policy), outside, CancellationToken::new()).await.expect("runs");
        });
        status
    }

    /// One more controller, on its own way to the queue and by its own lease.
    pub fn add_rival(
        &mut self,
        policy: FleetPolicy,
        queue: WorkQueue,
        lease: impl LeaderLease + 'static,
    ) -> ControllerStatus {
        let status = ControllerStatus::default();
        let metrics = Metrics::new().expect("names differ");
        let (queue, leader) = (QueueSource::Ready(queue), Arc::new(lease));
        let outside = Outside { metrics, queue, leader, ..self.outside(status.clone()) };
        self.tasks.spawn(async move {
            run(config(policy), outside, CancellationToken::new()).await.expect("runs");
        });
        status
    }

    /// Lets something go on beside; it ends with the world.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Ends the first controller and waits for its end.
    pub async fn end_first(&mut self) {
        self.shutdown.cancel();
        let first = self.first.take().expect("it runs");
        first.await.expect("no panic").expect("ends well");
    }

    /// Waits for an event, with a bound.
    pub async fn until(&self, event: &str, is_so: impl AsyncFn() -> bool) {
        let waits = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        if tokio::time::timeout(LIMIT, waits).await.is_err() {
            panic!("not in time: {event}; {:?}", self.snapshot());
        }
    }

    /// The trainer, to be changed.
    pub fn trainer(&self) -> MutexGuard<'_, FakeTrainer> {
        self.trainer.lock().expect("no panic")
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.status.snapshot()
    }

    pub async fn ready_nodes(&self) -> usize {
        let view = self.queue.view().await.expect("memory");
        view.nodes.iter().filter(|node| node.state == NodeState::Ready).count()
    }

    pub async fn node_records(&self) -> usize {
        self.queue.view().await.expect("memory").nodes.len()
    }

    /// The drain of a node's replica, if there is one.
    pub async fn drain_of(&self, node: &NodeName) -> Option<DrainRecord> {
        let view = self.queue.view().await.expect("memory");
        view.drains.into_iter().find(|drain| drain.replica == ReplicaId::from(node))
    }

    pub async fn drains(&self) -> Vec<(String, DrainState)> {
        let view = self.queue.view().await.expect("memory");
        view.drains.iter().map(|drain| (drain.replica.to_string(), drain.state)).collect()
    }

    pub async fn enqueue_groups(&self, numbers: Range<u32>) {
        for number in numbers {
            let id = format!("group-{number}").parse().expect("valid");
            self.queue.enqueue(PromptGroup::new(id, 1, vec![1, 2, 3])).await.expect("memory");
        }
    }

    /// Completes so many of the groups that wait.
    pub async fn fill_buffer(&self, groups: usize) {
        let holder = holder(&"filler".parse().expect("valid"));
        let ttl = Duration::from_secs(10);
        let leased = self.queue.lease(&holder, groups, ttl, PolicyVersion(0)).await;
        let leased = leased.expect("memory");
        assert_eq!(leased.grants.len(), groups);
        let writes = leased.grants.iter().map(|grant| UnitWrite {
            unit: grant.unit.clone(),
            fencing_token: grant.fencing_token,
            tail: vec![Chunk {
                offset: 0,
                weight_version: PolicyVersion(0),
                token_ids: vec![7],
                logprobs: vec![-0.5],
                origin: Origin {
                    holder: holder.clone(),
                    fencing_token: grant.fencing_token,
                    engine: "test/1".to_owned(),
                    fabric: FabricVerdict::NotApplicable,
                    started_at: UnixMillis(1),
                    ended_at: UnixMillis(2),
                },
            }],
            then: Then::Complete(Finish { reason: FinishReason::Stop, stop_reason: None }),
        });
        for reply in self.queue.write(&holder, writes.collect()).await {
            assert_eq!(reply.expect("memory"), ebbtide_queue::reply::WriteReply::Ok);
        }
    }

    /// The trainer takes everything that is sealed.
    pub async fn empty_buffer(&self) {
        let taken = self.queue.take("trainer", 100).await.expect("memory");
        let groups: Vec<_> = taken.iter().map(|taken| taken.group.group_id.clone()).collect();
        self.queue.acknowledge("trainer", &groups).await.expect("memory");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
