//! A small world to plan on: what a plan asks for, happens.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::observation::{
    Activities, DrainPurpose, DrainStage, DrainView, FailureKind, InstanceId, InstanceState,
    InstanceView, LaunchFailure, NodeView, Observation, OthersAtWork, PoolSize, PoolView,
    ReplicaState, ReplicaView, ServiceView, Signal, TrainerPhase, TrainerView,
};
use crate::policy::{Market, PoolName};
use crate::scale::{
    Action, ActionResult, PoolTerms, Role, ScaleMemory, ScalePlan, SizingTerms, plan_scale,
};
use crate::time::UnixMillis;

pub const SPOT: usize = 0;
pub const ON_DEMAND: usize = 1;

/// Observation, terms and memory, changed in place by a test.
#[derive(Debug, Clone)]
pub struct World {
    pub terms: SizingTerms,
    pub seen: Observation,
    pub memory: ScaleMemory,
    launched: u32,
}

pub fn pool_name(name: &str) -> PoolName {
    name.parse().expect("valid")
}

impl World {
    /// A run with 8 groups of 4 samples per step, lag 3, 16 samples on a replica; 1 to 10 replicas
    /// of one node, 60 s of stabilisation downwards; Spot before on-demand; everything known, the
    /// buffer empty, nothing running.
    pub fn new() -> Self {
        Self::of_pools(&[("spot", Market::Spot), ("on-demand", Market::OnDemand)])
    }

    /// The same with other pools, the preferred one first.
    pub fn of_pools(pools: &[(&str, Market)]) -> Self {
        let pool = |(name, market): &(&str, Market)| PoolTerms {
            name: pool_name(name),
            market: *market,
            instance_type: None,
            max_nodes: 20,
            dollars_per_node_hour: None,
            reservation: None,
        };
        let view = |(name, _): &(&str, Market)| PoolView {
            name: pool_name(name),
            size: Signal::fresh(PoolSize::default()),
            activities: Signal::fresh(Activities::default()),
        };
        Self {
            terms: SizingTerms {
                role: Role::Rollout,
                groups_per_step: 8,
                group_size: 4,
                max_lag: 3,
                nodes_per_replica: 1,
                min_replicas: 1,
                max_replicas: 10,
                concurrency_per_replica: 16,
                buffer_target_steps: 1.0,
                buffer_max_steps: 2.0,
                startup: Duration::from_secs(120),
                joins_at_step_end: false,
                gang_timeout: Duration::from_secs(600),
                drain_time: Duration::from_secs(600),
                stabilization_up: Duration::ZERO,
                stabilization_down: Duration::from_secs(60),
                max_changes_per_tick: 4,
                trainer_dollars_per_hour: None,
                budget: None,
                deadline: None,
                trainer: None,
                pools: pools.iter().map(pool).collect(),
            },
            seen: Observation {
                now: UnixMillis(1_000_000_000),
                ready: Signal::fresh(0),
                in_flight: Signal::fresh(0),
                environment_waiting: Signal::fresh(0),
                reward_ready: Signal::fresh(0),
                reward_in_flight: Signal::fresh(0),
                completed: Signal::fresh(0),
                buffer_groups: Signal::fresh(0),
                buffer_taken: Signal::fresh(0),
                oldest_ready_age: Signal::fresh(Duration::ZERO),
                trainer: Signal::fresh(TrainerView {
                    phase: TrainerPhase::Train,
                    step: 0,
                    groups_per_step: 8,
                    nodes: None,
                }),
                trainer_resize: None,
                trainer_resize_ended: None,
                trainer_pool: None,
                policy_version: Signal::fresh(crate::ids::PolicyVersion(0)),
                replicas: Signal::fresh(Vec::new()),
                pools: pools.iter().map(view).collect(),
                others_at_work: Signal::fresh(OthersAtWork::default()),
                gone: BTreeSet::new(),
                others_dollars_per_hour: None,
                is_cost_of_others_unknown: false,
                service: None,
            },
            memory: ScaleMemory::default(),
            launched: 0,
        }
    }

    /// The same for a service that takes 8 items at a time on a replica.
    pub fn of_service() -> Self {
        let mut world = Self::new().with_bounds(0, 10);
        world.terms.role = Role::Reward;
        world.terms.concurrency_per_replica = 8;
        world.seen.service = Some(ServiceView::default());
        world
    }

    /// What a service sees of the rollouts.
    pub fn service_mut(&mut self) -> &mut ServiceView {
        self.seen.service.as_mut().expect("a service")
    }

    /// Dollars per hour of the trainer, of a Spot node and of an on-demand node.
    pub fn with_prices(mut self, trainer: f64, spot: f64, on_demand: f64) -> Self {
        self.terms.trainer_dollars_per_hour = Some(trainer);
        for pool in &mut self.terms.pools {
            let is_spot = pool.market == Market::Spot;
            pool.dollars_per_node_hour = Some(if is_spot { spot } else { on_demand });
        }
        self
    }

    /// Work: waiting units, units in flight, sealed groups.
    pub fn with_work(mut self, ready: u64, in_flight: u64, buffer_groups: u64) -> Self {
        self.seen.ready = Signal::fresh(ready);
        self.seen.in_flight = Signal::fresh(in_flight);
        self.seen.buffer_groups = Signal::fresh(buffer_groups);
        self
    }

    /// Ready replicas of a pool, each with so many samples in flight.
    pub fn with_replicas(mut self, pool: usize, loads: &[u32]) -> Self {
        for load in loads {
            self.size_mut(pool).desired += u32::from(self.terms.nodes_per_replica);
            let id = self.launch(pool);
            self.replica_mut(&id).in_flight = *load;
            self.replica_mut(&id).leased = Signal::fresh(u64::from(*load));
        }
        self
    }

    /// Bounds of the fleet.
    pub fn with_bounds(mut self, min_replicas: u32, max_replicas: u32) -> Self {
        (self.terms.min_replicas, self.terms.max_replicas) = (min_replicas, max_replicas);
        self
    }

    pub fn with_phase(mut self, phase: TrainerPhase) -> Self {
        let step = self.seen.trainer.known().map_or(0, |trainer| trainer.step);
        self.seen.trainer =
            Signal::fresh(TrainerView { phase, step, groups_per_step: 8, nodes: None });
        self
    }

    pub fn size_mut(&mut self, pool: usize) -> &mut PoolSize {
        match &mut self.seen.pools[pool].size {
            Signal::Known { value, .. } => value,
            Signal::Unknown { why } => panic!("size is unknown: {why}"),
        }
    }

    pub fn replicas(&self) -> &[ReplicaView] {
        self.seen.replicas.known().map_or(&[][..], Vec::as_slice)
    }

    /// Their names, the oldest first.
    pub fn ids(&self) -> Vec<String> {
        self.replicas().iter().map(|replica| replica.id.to_string()).collect()
    }

    fn replicas_mut(&mut self) -> &mut Vec<ReplicaView> {
        match &mut self.seen.replicas {
            Signal::Known { value, .. } => value,
            Signal::Unknown { why } => panic!("replicas are unknown: {why}"),
        }
    }

    pub fn replica_mut(&mut self, id: &str) -> &mut ReplicaView {
        let found = self.replicas_mut().iter_mut().find(|replica| replica.id.as_str() == id);
        found.expect("exists")
    }

    /// Lets a drain be at this stage.
    pub fn set_drain(&mut self, id: &str, purpose: DrainPurpose, stage: DrainStage) {
        let request_id = "earlier".to_owned();
        let replica = self.replica_mut(id);
        replica.drain = Some(DrainView { request_id, purpose, stage, lost: Vec::new() });
        replica.state = match stage {
            DrainStage::Requested | DrainStage::Draining => ReplicaState::Draining,
            DrainStage::Drained => ReplicaState::Drained,
            DrainStage::Terminating => ReplicaState::Terminating,
        };
    }

    /// A launch of this pool failed at `at`, on the provider's clock.
    pub fn fail_launch(&mut self, pool: usize, kind: FailureKind, at: UnixMillis) {
        let failure = LaunchFailure { at, kind, message: kind.as_str().to_owned() };
        let failures = vec![failure];
        self.seen.pools[pool].activities =
            Signal::fresh(Activities { newest_at: Some(at), failures });
    }

    /// Plans at this moment and remembers.
    pub fn plan(&mut self) -> ScalePlan {
        let plan = plan_scale(&self.terms, &self.seen, &self.memory);
        self.memory = plan.memory.clone();
        plan
    }

    pub fn pass(&mut self, time: Duration) {
        self.seen.now = self.seen.now.plus(time);
    }

    /// Plans every five seconds for so long and answers the last plan.
    pub fn plan_for(&mut self, time: Duration) -> ScalePlan {
        let every = Duration::from_secs(5);
        let mut plan = self.plan();
        let mut passed = Duration::ZERO;
        while passed < time {
            self.pass(every);
            passed += every;
            plan = self.plan();
        }
        plan
    }

    /// Lets happen what the plan asks for: agents drain at once, pools deliver at once.
    pub fn apply(&mut self, plan: &ScalePlan) {
        for action in &plan.actions {
            self.memory.note_outcome(action, ActionResult::Done);
            match action {
                Action::Raise { pool, to, .. } => {
                    let pool = self.pool_index(pool);
                    self.size_mut(pool).desired = *to;
                    self.heal(pool);
                }
                Action::RequestDrain { replica, .. } => {
                    self.set_drain(replica.as_str(), DrainPurpose::Sizing, DrainStage::Drained);
                    let replica = self.replica_mut(replica.as_str());
                    replica.in_flight = 0;
                    replica.leased = Signal::fresh(0);
                }
                Action::CancelDrain { replica, .. } => {
                    let replica = self.replica_mut(replica.as_str());
                    replica.drain = None;
                    replica.state = ReplicaState::Ready;
                }
                Action::Retire { replica, pool, instances, .. } => {
                    self.terminate(replica.as_str(), pool, instances);
                }
                Action::Discard { pool, instances } => {
                    let pool = self.pool_index(pool);
                    self.remove(pool, instances);
                }
                Action::Forget { replica, .. } => {
                    self.replicas_mut().retain(|other| other.id != *replica);
                }
            }
        }
    }

    /// Launches what a pool lacks, whole replicas only.
    pub fn heal(&mut self, pool: usize) {
        let gang = usize::from(self.terms.nodes_per_replica);
        loop {
            let size = self.size_mut(pool);
            let wanted = usize::try_from(size.desired).expect("few");
            let free = wanted.saturating_sub(size.counted().count());
            if free < gang {
                return;
            }
            self.launch(pool);
        }
    }

    fn terminate(&mut self, replica: &str, pool: &PoolName, instances: &[InstanceId]) {
        let pool = self.pool_index(pool);
        self.remove(pool, instances);
        for node in &mut self.replica_mut(replica).nodes {
            node.heartbeat_age = Duration::from_secs(60);
        }
    }

    fn remove(&mut self, pool: usize, instances: &[InstanceId]) {
        let size = self.size_mut(pool);
        size.instances.retain(|instance| !instances.contains(&instance.id));
        size.desired = size.desired.saturating_sub(u32::try_from(instances.len()).expect("few"));
        self.seen.gone.extend(instances.iter().cloned());
    }

    /// An instance that was asked for and whose node says nothing.
    pub fn add_silent(&mut self, pool: usize, id: &str, state: InstanceState) {
        let raised = self.terms.pools[pool].name.clone();
        let raise = Action::Raise { pool: raised, from: 0, to: 1 };
        self.memory.note_outcome(&raise, ActionResult::Failed);
        self.add_stranger(pool, id, state);
    }

    /// An instance that nobody asked for here, and whose node says nothing.
    pub fn add_stranger(&mut self, pool: usize, id: &str, state: InstanceState) {
        let instance = InstanceView {
            node: Some(format!("node-of-{id}").parse().expect("valid")),
            market: Some(self.terms.pools[pool].market),
            ..InstanceView::new(InstanceId(id.to_owned()), state)
        };
        let size = self.size_mut(pool);
        size.desired += 1;
        size.instances.push(instance);
    }

    fn pool_index(&self, pool: &PoolName) -> usize {
        self.seen.pools.iter().position(|view| view.name == *pool).expect("exists")
    }

    /// A new replica of the pool, ready and idle.
    fn launch(&mut self, pool: usize) -> String {
        self.launched += 1;
        let name = format!("{}-{}", self.terms.pools[pool].name, self.launched);
        let nodes = (0..self.terms.nodes_per_replica).map(|node| NodeView {
            name: format!("{name}.{node}").parse().expect("valid"),
            instance: Some(InstanceId(format!("i-{name}.{node}"))),
            heartbeat_age: Duration::from_secs(1),
            is_reclaimed: false,
            pods_left: None,
        });
        let nodes: Vec<NodeView> = nodes.collect();
        let market = self.terms.pools[pool].market;
        for node in &nodes {
            let id = node.instance.clone().expect("just set");
            let new = InstanceView::new(id, InstanceState::InService);
            let instance = InstanceView { market: Some(market), ..new };
            self.size_mut(pool).instances.push(instance);
        }
        let replica = ReplicaView {
            id: name.parse().expect("valid"),
            nodes,
            state: ReplicaState::Ready,
            in_flight: 0,
            leased: Signal::fresh(0),
            generating: None,
            capacity: None,
            instance_type: None,
            tokens_per_second: 100.0,
            market: Some(market),
            pool: Some(self.terms.pools[pool].name.clone()),
            has_notice: false,
            is_advised: false,
            drain: None,
        };
        self.replicas_mut().push(replica);
        name
    }

    /// A measured pace: so many seconds of training per step, so many in flight per sample.
    pub fn with_pace(mut self, busy_seconds: u64, in_flight_seconds: u64) -> Self {
        let (ready, in_flight, buffer) =
            (self.seen.ready.clone(), self.seen.in_flight.clone(), self.seen.buffer_groups.clone());
        let together = 64;
        self.seen.in_flight = Signal::fresh(together);
        let mut seconds = 0;
        while self.memory.pace.measured().is_none() {
            seconds += 1;
            self.pass(Duration::from_secs(1));
            self.seen.completed = Signal::fresh(seconds * together / in_flight_seconds);
            let step = seconds / busy_seconds;
            let trainer =
                TrainerView { phase: TrainerPhase::Train, step, groups_per_step: 8, nodes: None };
            self.seen.trainer = Signal::fresh(trainer);
            self.memory.pace = self.memory.pace.advance(&self.seen, false, false);
            assert!(seconds < 20_000, "the pace must become measurable");
        }
        (self.seen.ready, self.seen.in_flight, self.seen.buffer_groups) =
            (ready, in_flight, buffer);
        self
    }
}

/// The texts of the actions, for short expectations.
pub fn actions(plan: &ScalePlan) -> Vec<String> {
    plan.actions.iter().map(ToString::to_string).collect()
}
