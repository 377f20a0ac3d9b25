//! Carries out the actions of a plan without waiting for a provider that does not answer.
//!
//! What concerns one pool happens in the order of the plan. Pools do not wait for one another, and
//! the loop waits for none of them longer than to the end of its turn. While a call of a pool is
//! not answered nothing else is asked of that pool; a later turn takes note of the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_core::scale::Action;
use ebbtide_queue::client::WorkQueue;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::actuate::{ActuateError, Actuator};
use crate::capacity::{Capacity, CapacityError};
use crate::fence::Fence;
use crate::leader::Leadership;

/// What actions are carried out with, in one turn.
#[derive(Clone)]
pub(crate) struct Tools {
    pub queue: WorkQueue,
    pub leadership: watch::Receiver<Option<Leadership>>,
    pub capacity: Arc<dyn Capacity>,
    pub policy: Arc<FleetPolicy>,
    /// Names this process in claims.
    pub process: u32,
    /// Names the turn.
    pub turn: u64,
}

impl Tools {
    pub fn actuator(&self) -> Actuator<'_> {
        let Self { queue, leadership, process, turn, .. } = self;
        let fence = Fence { queue, leadership, process: *process, turn: *turn };
        Actuator { queue, fence, capacity: &*self.capacity, policy: &self.policy }
    }
}

/// What a turn asks for.
pub(crate) struct Jobs {
    /// Actions of the plan that may be carried out.
    pub actions: Vec<Action>,
    /// Instances that are to be protected, by pool.
    pub unprotected: Vec<(PoolName, Vec<InstanceId>)>,
}

/// What became of it.
pub(crate) struct Acted {
    /// Of each action, in the order in which they were given.
    pub results: Vec<Result<(), ActuateError>>,
    /// Of actions of earlier turns that are answered now.
    pub answered: Vec<(Action, Result<(), ActuateError>)>,
    /// Of each protection that is answered now.
    pub protected: Vec<Result<(), ActuateError>>,
}

/// Pools that have been asked for something and have not answered.
#[derive(Default)]
pub(crate) struct Acting {
    lanes: JoinSet<Lane>,
    busy: BTreeSet<PoolName>,
}

/// What one pool is asked for in one turn.
struct Lane {
    turn: u64,
    pool: PoolName,
    /// Each action with its place in the plan, and what became of it.
    actions: Vec<(usize, Action)>,
    results: Vec<Result<(), ActuateError>>,
    unprotected: Vec<InstanceId>,
    protected: Option<Result<(), ActuateError>>,
}

impl Acting {
    /// Carries out `jobs` and waits until `until` for the answers.
    pub async fn carry_out(&mut self, tools: &Tools, jobs: Jobs, until: Instant) -> Acted {
        let Jobs { actions, unprotected } = jobs;
        let mut results: Vec<Option<_>> = actions.iter().map(|_| None).collect();
        let direct = self.begin(tools, actions, unprotected, &mut results);
        for (place, action) in direct {
            results[place] = Some(tools.actuator().carry_out(&action).await);
        }
        let (mut answered, mut protected) = (Vec::new(), Vec::new());
        while let Ok(Some(ended)) = timeout_at(until, self.lanes.join_next()).await {
            let Ok(lane) = ended else { continue };
            self.busy.remove(&lane.pool);
            protected.extend(lane.protected);
            for ((place, action), result) in lane.actions.into_iter().zip(lane.results) {
                if lane.turn == tools.turn {
                    results[place] = Some(result);
                } else {
                    answered.push((action, result));
                }
            }
        }
        if self.lanes.is_empty() {
            self.busy.clear();
        }
        let results =
            results.into_iter().map(|result| result.unwrap_or(Err(ActuateError::Unanswered)));
        Acted { results: results.collect(), answered, protected }
    }

    /// Begins with every pool that has nothing to answer, and says which actions concern none.
    fn begin(
        &mut self,
        tools: &Tools,
        actions: Vec<Action>,
        unprotected: Vec<(PoolName, Vec<InstanceId>)>,
        results: &mut [Option<Result<(), ActuateError>>],
    ) -> Vec<(usize, Action)> {
        let mut lanes = BTreeMap::new();
        let lane = |pool: &PoolName| Lane {
            turn: tools.turn,
            pool: pool.clone(),
            actions: Vec::new(),
            results: Vec::new(),
            unprotected: Vec::new(),
            protected: None,
        };
        let mut direct = Vec::new();
        for (place, action) in actions.into_iter().enumerate() {
            match pool_of(&action) {
                None => direct.push((place, action)),
                Some(pool) if self.busy.contains(pool) => {
                    results[place] = Some(Err(ActuateError::Unanswered));
                }
                Some(pool) => {
                    let lane = lanes.entry(pool.clone()).or_insert_with(|| lane(pool));
                    lane.actions.push((place, action));
                }
            }
        }
        for (pool, instances) in unprotected.into_iter().filter(|it| !self.busy.contains(&it.0)) {
            lanes.entry(pool.clone()).or_insert_with(|| lane(&pool)).unprotected = instances;
        }
        for (pool, lane) in lanes {
            self.busy.insert(pool);
            self.lanes.spawn(lane.follow(tools.clone()));
        }
        direct
    }
}

impl Lane {
    /// One thing after the other; a pool that gave no answer is asked for nothing more.
    async fn follow(mut self, tools: Tools) -> Self {
        let actuator = tools.actuator();
        for (_, action) in &self.actions {
            let result = match self.results.last().is_some_and(is_silent) {
                true => Err(ActuateError::Unanswered),
                false => actuator.carry_out(action).await,
            };
            self.results.push(result);
        }
        if !self.unprotected.is_empty() && !self.results.last().is_some_and(is_silent) {
            self.protected = Some(actuator.protect(&self.pool, &self.unprotected).await);
        }
        self
    }
}

fn is_silent(result: &Result<(), ActuateError>) -> bool {
    use ActuateError::{Capacity, Unanswered};
    matches!(result, Err(Unanswered | Capacity(CapacityError::Unavailable { .. })))
}

/// The pool whose provider an action asks.
fn pool_of(action: &Action) -> Option<&PoolName> {
    match action {
        Action::Raise { pool, .. } | Action::Retire { pool, .. } | Action::Discard { pool, .. } => {
            Some(pool)
        }
        Action::CancelDrain { .. } | Action::RequestDrain { .. } | Action::Forget { .. } => None,
    }
}
