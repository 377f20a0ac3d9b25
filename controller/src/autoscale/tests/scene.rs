//! One turn after the other of the loop, beside a provider and a queue that may keep it waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use async_trait::async_trait;
use ebbtide_core::observation::{
    Activities, InstanceId, InstanceState, InstanceView, PoolSize, PoolView, Signal,
};
use ebbtide_core::policy::{Pool, PoolName};
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::client::{Hint, MemoryPort, QueueError, QueuePort};
use ebbtide_queue::command::Command;
use ebbtide_queue::control::{
    ControlCommand, ControlReply, NodeRecord, NodeRole, NodeState, TrainerPhase, TrainerRecord,
};
use ebbtide_queue::memory::ShardSettings;
use ebbtide_queue::reply::Reply;

use super::super::*;
use crate::capacity::{CapacityError, unread};
use crate::controller::tests::world::paused_clock;
use crate::signals::NoSources;

/// Longest time between two turns of the policy.
pub const TICK: Duration = Duration::from_secs(5);

/// A provider that does what it is asked, pool by pool as fast as a test lets it.
#[derive(Default)]
pub struct Provider {
    state: Mutex<State>,
    changed: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    sizes: BTreeMap<PoolName, PoolSize>,
    unread: BTreeSet<PoolName>,
    hangs: BTreeSet<PoolName>,
    refuses: BTreeSet<PoolName>,
    keeps: BTreeSet<String>,
    takes: Duration,
    asked: Vec<String>,
}

fn name(pool: &str) -> PoolName {
    pool.parse().expect("valid")
}

impl Provider {
    /// Everything that it was asked for so far, in order.
    pub fn asked(&self) -> Vec<String> {
        self.state().asked.clone()
    }

    /// From now on calls about the pool are not answered.
    pub fn hang(&self, pool: &str) {
        self.state().hangs.insert(name(pool));
    }

    /// They are, those that wait for it included.
    pub fn answer(&self, pool: &str) {
        self.state().hangs.remove(&name(pool));
        self.changed.notify_waiters();
    }

    /// Its calls find the pool at another size than they were told.
    pub fn refuse(&self, pool: &str) {
        self.state().refuses.insert(name(pool));
    }

    /// It does not give up this instance, nor others that are named with it.
    pub fn keep(&self, instance: &str) {
        self.state().keeps.insert(instance.to_owned());
    }

    /// Nobody can read the size of the pool.
    pub fn hide(&self, pool: &str) {
        self.state().unread.insert(name(pool));
    }

    /// It can be read again.
    pub fn show(&self, pool: &str) {
        self.state().unread.remove(&name(pool));
    }

    /// Each of its calls takes so long.
    pub fn slow_down(&self, takes: Duration) {
        self.state().takes = takes;
    }

    /// So many instances of a pool are in service.
    pub fn fill(&self, pool: &str, nodes: u32) {
        let instance = |number| {
            let id = InstanceId(format!("{pool}-{number}"));
            InstanceView::new(id, InstanceState::InService)
        };
        let instances = (1..=nodes).map(instance).collect();
        let size = PoolSize { desired: nodes, instances, ..PoolSize::default() };
        self.state().sizes.insert(name(pool), size);
    }

    pub fn desired(&self, pool: &str) -> u32 {
        self.state().sizes.get(&name(pool)).map_or(0, |size| size.desired)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    async fn take(&self, pool: &Pool, what: String) -> Result<(), CapacityError> {
        self.state().asked.push(what);
        loop {
            let changed = self.changed.notified();
            if !self.state().hangs.contains(&pool.name) {
                break;
            }
            changed.await;
        }
        let takes = self.state().takes;
        tokio::time::sleep(takes).await;
        match self.state().refuses.contains(&pool.name) {
            true => Err(CapacityError::moved(pool, 0, 0)),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Capacity for Provider {
    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView> {
        let state = self.state();
        let look = |pool: &&Pool| match state.unread.contains(&pool.name) {
            true => unread(&[pool], "away").remove(0),
            false => PoolView {
                name: pool.name.clone(),
                size: Signal::fresh(state.sizes.get(&pool.name).cloned().unwrap_or_default()),
                activities: Signal::fresh(Activities::default()),
            },
        };
        pools.iter().map(look).collect()
    }

    async fn find_gone(
        &self,
        _: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        Ok(instances.iter().cloned().collect())
    }

    async fn raise(&self, pool: &Pool, from: u32, to: u32, gang: u32) -> Result<(), CapacityError> {
        self.take(pool, format!("raise {} from {from} to {to} by {gang}", pool.name)).await?;
        self.state().sizes.entry(pool.name.clone()).or_default().desired = to;
        Ok(())
    }

    async fn protect(&self, pool: &Pool, _: &[InstanceId]) -> Result<(), CapacityError> {
        self.take(pool, format!("protect {}", pool.name)).await
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        let names: Vec<&str> = instances.iter().map(|id| id.0.as_str()).collect();
        self.take(pool, format!("terminate {}", names.join(" "))).await?;
        let mut state = self.state();
        if let Some(kept) = names.iter().find(|name| state.keeps.contains(**name)) {
            return Err(CapacityError::Refused {
                what: "termination".to_owned(),
                code: "OutOfTurn".to_owned(),
                message: format!("{kept} stays"),
            });
        }
        let size = state.sizes.entry(pool.name.clone()).or_default();
        size.instances.retain(|instance| !instances.contains(&instance.id));
        size.desired = u32::try_from(size.instances.len()).expect("few");
        Ok(())
    }
}

/// A queue in memory that keeps those waiting who ask for drains, and tells of journals.
pub struct Port {
    memory: MemoryPort,
    drains_take: Mutex<Duration>,
    on_journal: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Port {
    /// From now on each request to drain takes so long.
    pub fn slow_drains_down(&self, takes: Duration) {
        *self.drains_take.lock().expect("no panic") = takes;
    }

    /// Does this when the next record of a journal comes.
    pub fn on_journal(&self, act: impl FnOnce() + Send + 'static) {
        *self.on_journal.lock().expect("no panic") = Some(Box::new(act));
    }
}

#[async_trait]
impl QueuePort for Port {
    fn shard_count(&self) -> u16 {
        self.memory.shard_count()
    }

    async fn call(&self, shard: u16, command: Command) -> Result<Reply, QueueError> {
        self.memory.call(shard, command).await
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        if matches!(command, ControlCommand::RequestDrain(_)) {
            let takes = *self.drains_take.lock().expect("no panic");
            tokio::time::sleep(takes).await;
        }
        if format!("{command:?}").contains("AddJournal")
            && let Some(act) = self.on_journal.lock().expect("no panic").take()
        {
            act();
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

/// Replicas of rollouts of two nodes, and what the policy has besides: pools `spot`, `scorers` and
/// `cpus`, of which the last has pods.
pub fn policy(more: &str) -> FleetPolicy {
    let text = format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run}}
spec:
  mode: act
  trainer: {{groupsPerStep: 2, groupSize: 1}}
  rollout:
    maxReplicas: 4
    nodesPerReplica: 2
    pools: [spot]
    concurrencyPerReplica: 1
    tick: 5s
{more}
  pools:
    - {{name: spot, provider: local, market: spot, maxNodes: 8, dollarsPerNodeHour: 1}}
    - {{name: scorers, provider: local, market: spot, maxNodes: 8, dollarsPerNodeHour: 1}}
    - name: cpus
      provider: scale
      scale: {{kind: StatefulSet, name: cpus}}
      market: spot
      maxNodes: 8
      dollarsPerNodeHour: 1
"
    );
    FleetPolicy::parse(&text, "test").expect("valid")
}

pub const REWARD: &str = "
  queue: {stages: [generate, reward]}
  reward: {maxReplicas: 4, itemsPerReplica: 2, pools: [scorers]}
";

pub const ENVIRONMENT: &str = "
  environment: {maxReplicas: 4, itemsPerReplica: 2, pools: [cpus]}
";

/// What the node of an instance reports.
pub fn node(instance: &str, role: NodeRole, state: NodeState) -> NodeRecord {
    let holder = format!("n-{instance}/boot/agent").parse().expect("valid");
    NodeRecord { role, instance_id: Some(instance.to_owned()), ..NodeRecord::new(holder, state) }
}

/// A loop that turns when it is told.
pub struct Scene {
    pub autoscaler: Autoscaler,
    pub past: Past,
    pub provider: Arc<Provider>,
    pub port: Arc<Port>,
    pub queue: WorkQueue,
    pub policy: watch::Sender<PolicyState>,
    pub leadership: watch::Sender<Option<Leadership>>,
}

impl Scene {
    /// A leader under this policy, before its first turn.
    pub fn new(policy: FleetPolicy) -> Self {
        let has_reward_stage = policy.has_reward_stage();
        let settings = ShardSettings { has_reward_stage, ..ShardSettings::default() };
        let port = Arc::new(Port {
            memory: MemoryPort::new(1, settings, paused_clock),
            drains_take: Mutex::default(),
            on_journal: Mutex::default(),
        });
        let queue = WorkQueue::new(port.clone());
        let provider = Arc::new(Provider::default());
        let (policy, policies) = watch::channel(PolicyState::new(policy));
        let led = Leadership { generation: 1, until: None };
        let (leadership, standing) = watch::channel(Some(led));
        let autoscaler = Autoscaler {
            queue: queue.clone(),
            capacity: provider.clone(),
            leadership: standing,
            policy: policies,
            tick: None,
            journal: Journal::new(None),
            metrics: Metrics::new().expect("names differ"),
            status: ControllerStatus::default(),
            pulse: Pulse::new(),
            now: paused_clock,
            process: 1,
            signals: Signals::new(Arc::new(NoSources)),
        };
        let past = Past::default();
        Self { autoscaler, past, provider, port, queue, policy, leadership }
    }

    /// Turns once.
    pub async fn turn(&mut self) {
        let past = std::mem::take(&mut self.past);
        self.past = self.autoscaler.turn(past).await;
    }

    /// Another policy is in force.
    pub fn set_policy(&self, policy: FleetPolicy) {
        self.policy.send_replace(PolicyState::new(policy));
    }

    /// The trainer says what it does.
    pub async fn report_trainer(&self, phase: TrainerPhase) {
        let record = TrainerRecord {
            phase,
            step: 1,
            groups_per_step: 2,
            nodes: None,
            incarnation: None,
            heartbeat: UnixMillis(0),
        };
        self.queue.put_trainer(record).await.expect("memory");
    }

    /// The node of an instance reports.
    pub async fn report_node(&self, instance: &str, role: NodeRole, state: NodeState) {
        self.report(node(instance, role, state)).await;
    }

    pub async fn report(&self, record: NodeRecord) {
        self.queue.put_node(record).await.expect("memory");
    }

    /// So many groups of one unit wait.
    pub async fn enqueue_groups(&self, groups: u32) {
        for number in 0..groups {
            let id = format!("group-{number}").parse().expect("valid");
            self.queue.enqueue(PromptGroup::new(id, 1, vec![1, 2, 3])).await.expect("memory");
        }
    }

    /// Lines of the metrics that begin so.
    pub fn metrics(&self, name: &str) -> Vec<String> {
        let text = self.autoscaler.metrics.render();
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }
}
