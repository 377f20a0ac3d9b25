//! The `local` provider: nodes of a world in this process, for the demo and for tests.
//!
//! It behaves like an Auto Scaling group: a pool is asked for a number of nodes, launches what is
//! missing, replaces what is lost, and lowers only by named instances. The world takes
//! [`NodeOrder`]s: `Start` once a node's start time has passed, `Stop` when it was terminated.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::{
    Activities, FailureKind, InstanceId, InstanceState, InstanceView, LaunchFailure, PoolSize,
    PoolView, Signal,
};
use ebbtide_core::policy::{Market, Pool, PoolName, Zone};
use ebbtide_core::time::UnixMillis;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Capacity, CapacityError};

/// Time between two attempts of a pool that has no machine left.
const RELAUNCH_EVERY: Duration = Duration::from_secs(5);

/// Failures that a pool remembers.
const FAILURES_LIMIT: usize = 16;

/// One pool of the local world.
#[derive(Debug, Clone)]
pub struct LocalPool {
    /// Its name in the fleet policy.
    pub name: PoolName,
    /// How its nodes are bought.
    pub market: Market,
    /// Where its nodes are.
    pub zone: Option<Zone>,
    /// Nodes that it runs from the beginning.
    pub initial_nodes: u32,
    /// Nodes that can be had at most; asking for more fails as in a pool without capacity.
    pub limit: u32,
}

/// A node of the local world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalNode {
    /// Its instance id, to be served by its metadata service.
    pub instance: InstanceId,
    /// Its name.
    pub node: NodeName,
    /// Its pool.
    pub pool: PoolName,
    /// How it was bought.
    pub market: Market,
    /// Where it is.
    pub zone: Option<Zone>,
}

/// What the world has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeOrder {
    /// The machine has booted: start the node's agent.
    Start(LocalNode),
    /// The machine is terminated: everything on it ends at once.
    Stop(LocalNode),
}

/// The local provider; cheap to clone, all clones share the same nodes.
#[derive(Clone)]
pub struct LocalCapacity {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    now: fn() -> UnixMillis,
}

struct State {
    start_time: Duration,
    pools: BTreeMap<PoolName, PoolState>,
    orders: VecDeque<NodeOrder>,
    launched: u64,
}

struct PoolState {
    pool: LocalPool,
    desired: u32,
    nodes: BTreeMap<InstanceId, NodeState>,
    newest_activity_at: Option<UnixMillis>,
    failures: VecDeque<LaunchFailure>,
    relaunch_at: Option<Instant>,
}

struct NodeState {
    node: LocalNode,
    /// When the machine has booted; `None` once it has.
    boots_at: Option<Instant>,
}

impl LocalCapacity {
    /// A provider of these pools whose nodes take `start_time` from order to boot. `now` is the
    /// clock of its activities.
    pub fn new(pools: Vec<LocalPool>, start_time: Duration, now: fn() -> UnixMillis) -> Self {
        let state = |pool: LocalPool| PoolState {
            desired: pool.initial_nodes,
            pool,
            nodes: BTreeMap::new(),
            newest_activity_at: None,
            failures: VecDeque::new(),
            relaunch_at: None,
        };
        let pools = pools.into_iter().map(|pool| (pool.name.clone(), state(pool))).collect();
        let state = State { start_time, pools, orders: VecDeque::new(), launched: 0 };
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::new(Notify::new()), now }
    }

    /// Waits for the next thing to do. One caller at a time.
    pub async fn next_order(&self) -> NodeOrder {
        loop {
            let changed = self.changed.notified();
            let wake_at = {
                let mut state = self.advanced();
                if let Some(order) = state.orders.pop_front() {
                    return order;
                }
                state.next_event_at()
            };
            match wake_at {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    /// The machine died, by an interruption or by itself; its pool replaces it.
    pub fn lose(&self, instance: &InstanceId) {
        let mut state = self.advanced();
        for pool in state.pools.values_mut() {
            pool.nodes.remove(instance);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Changes how many nodes of a pool can be had.
    pub fn set_limit(&self, pool: &PoolName, limit: u32) {
        let mut state = self.advanced();
        if let Some(pool) = state.pools.get_mut(pool) {
            pool.pool.limit = limit;
            pool.relaunch_at = None;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Nodes that have booted and live.
    pub fn nodes(&self) -> Vec<LocalNode> {
        let state = self.advanced();
        let nodes = state.pools.values().flat_map(|pool| pool.nodes.values());
        nodes.filter(|node| node.boots_at.is_none()).map(|node| node.node.clone()).collect()
    }

    /// The state, brought up to this moment.
    fn advanced(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(Instant::now(), (self.now)());
        state
    }
}

impl State {
    fn advance(&mut self, now: Instant, wall_now: UnixMillis) {
        let Self { start_time, pools, orders, launched } = self;
        for pool in pools.values_mut() {
            for node in pool.nodes.values_mut() {
                if node.boots_at.is_some_and(|at| at <= now) {
                    node.boots_at = None;
                    orders.push_back(NodeOrder::Start(node.node.clone()));
                }
            }
            pool.heal(*start_time, launched, now, wall_now);
        }
    }

    fn next_event_at(&self) -> Option<Instant> {
        let boots = self.pools.values().flat_map(|pool| pool.nodes.values());
        let boots = boots.filter_map(|node| node.boots_at);
        boots.chain(self.pools.values().filter_map(|pool| pool.relaunch_at)).min()
    }

    fn pool_mut(&mut self, pool: &Pool) -> Result<&mut PoolState, CapacityError> {
        let foreign = || CapacityError::foreign(pool);
        self.pools.get_mut(&pool.name).ok_or_else(foreign)
    }
}

impl PoolState {
    fn size(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// Launches what is missing, as far as there are machines.
    fn heal(&mut self, start: Duration, launched: &mut u64, now: Instant, wall_now: UnixMillis) {
        while self.size() < self.desired.min(self.pool.limit) {
            *launched += 1;
            let node = self.pool.node(*launched);
            let state = NodeState { node: node.clone(), boots_at: Some(now + start) };
            self.nodes.insert(node.instance, state);
            self.newest_activity_at = Some(wall_now);
        }
        if self.size() >= self.desired {
            self.relaunch_at = None;
        } else if self.relaunch_at.is_none_or(|at| at <= now) {
            self.relaunch_at = Some(now + RELAUNCH_EVERY);
            self.newest_activity_at = Some(wall_now);
            self.failures.truncate(FAILURES_LIMIT - 1);
            self.failures.push_front(LaunchFailure {
                at: wall_now,
                kind: FailureKind::Capacity,
                message: format!("InsufficientInstanceCapacity: {} nodes exist", self.pool.limit),
            });
        }
    }

    fn view(&self) -> PoolView {
        let instance = |state: &NodeState| {
            let has_booted = state.boots_at.is_none();
            let stage = if has_booted { InstanceState::InService } else { InstanceState::Pending };
            InstanceView {
                is_protected: true,
                node: Some(state.node.node.clone()),
                zone: state.node.zone.clone(),
                market: Some(state.node.market),
                ..InstanceView::new(state.node.instance.clone(), stage)
            }
        };
        PoolView {
            name: self.pool.name.clone(),
            size: Signal::fresh(PoolSize {
                desired: self.desired,
                limit: None,
                floor: 0,
                instances: self.nodes.values().map(instance).collect(),
                is_unmanaged: false,
                remarks: Vec::new(),
            }),
            activities: Signal::fresh(Activities {
                newest_at: self.newest_activity_at,
                failures: self.failures.iter().cloned().collect(),
            }),
        }
    }
}

impl LocalPool {
    fn node(&self, number: u64) -> LocalNode {
        let text = format!("node-{number}");
        LocalNode {
            instance: InstanceId(format!("i-local-{number}")),
            node: text.parse().expect("letters, digits and a dash are a node name"),
            pool: self.name.clone(),
            market: self.market,
            zone: self.zone.clone(),
        }
    }
}

#[async_trait]
impl Capacity for LocalCapacity {
    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView> {
        let state = self.advanced();
        let view = |pool: &&Pool| match state.pools.get(&pool.name) {
            Some(found) => found.view(),
            None => PoolView::unread(pool.name.clone(), "the local provider has no such pool"),
        };
        pools.iter().map(view).collect()
    }

    async fn find_gone(
        &self,
        _: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        let state = self.advanced();
        let lives = |id: &InstanceId| state.pools.values().any(|pool| pool.nodes.contains_key(id));
        Ok(instances.iter().filter(|id| !lives(id)).cloned().collect())
    }

    async fn raise(&self, pool: &Pool, from: u32, to: u32, _: u32) -> Result<(), CapacityError> {
        let mut state = self.advanced();
        let found = state.pool_mut(pool)?;
        if found.desired != from || to < from {
            return Err(CapacityError::moved(pool, from, found.desired));
        }
        found.desired = to;
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError> {
        let mut state = self.advanced();
        let found = state.pool_mut(pool)?;
        let mut ended = Vec::new();
        for instance in instances {
            if let Some(node) = found.nodes.remove(instance) {
                found.desired = found.desired.saturating_sub(1);
                ended.push((node.boots_at.is_none(), node.node));
            }
        }
        for (has_booted, node) in ended {
            if has_booted {
                state.orders.push_back(NodeOrder::Stop(node));
            }
        }
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
