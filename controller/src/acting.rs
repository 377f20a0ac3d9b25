//! Carries out the actions of a plan without waiting for a provider that does not answer.
//!
//! What concerns one pool happens in the order of the plan, and so does what concerns only the
//! queue. Neither waits for the other, and the loop waits for none longer than to the end of its
//! turn: from then on nothing more of its plan is begun, since a hold or another plan may be in
//! force. While a call is not answered nothing else is asked of that pool; a later turn takes note
//! of the answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_core::scale::Action;
use ebbtide_queue::client::{QueueError, WorkQueue};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

use crate::actuate::{ActuateError, Actuator, count_together};
use crate::capacity::{Capacity, CapacityError};
use crate::fence::{Fence, FenceError};
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

/// One action of a plan, with what is counted once it is answered, however late that is.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub action: Action,
    /// What the demand followed from, in the word of the metric.
    pub because: &'static str,
    /// Whether it ends a replica that is not known to be idle.
    pub ends_work: bool,
}

/// What a turn asks for.
pub(crate) struct Jobs {
    /// Actions of the plan that may be carried out.
    pub orders: Vec<Order>,
    /// Instances that are to be protected, by pool.
    pub unprotected: Vec<(PoolName, Vec<InstanceId>)>,
}

/// What became of it.
#[derive(Default)]
pub(crate) struct Acted {
    /// Of each order, in the order in which they were given.
    pub results: Vec<Result<(), ActuateError>>,
    /// Of orders of earlier turns that are answered now.
    pub answered: Vec<(Order, Result<(), ActuateError>)>,
    /// Of each protection that is answered now.
    pub protected: Vec<Result<(), ActuateError>>,
}

/// Whom an action asks: a pool's provider, or the queue alone.
type Place = Option<PoolName>;

/// Who has been asked for something and has not answered.
#[derive(Default)]
pub(crate) struct Acting {
    lanes: JoinSet<Lane>,
    busy: BTreeMap<Id, Busy>,
}

struct Busy {
    place: Place,
    /// Nodes that the pool is being asked for.
    raised_to: u32,
}

/// What one place is asked for in one turn.
struct Lane {
    turn: u64,
    place: Place,
    /// From when on nothing more is begun.
    until: Instant,
    /// Each order with its place in the plan, and what became of it.
    orders: Vec<(usize, Order)>,
    results: Vec<Result<(), ActuateError>>,
    unprotected: Vec<InstanceId>,
    protected: Option<Result<(), ActuateError>>,
}

impl Acting {
    /// Carries out `jobs` and waits until `until` for the answers.
    pub async fn carry_out(&mut self, tools: &Tools, jobs: Jobs, until: Instant) -> Acted {
        let mut results: Vec<Option<_>> = jobs.orders.iter().map(|_| None).collect();
        let mut acted = self.take_answers();
        self.begin(tools, jobs, until);
        while let Ok(Some(ended)) = timeout_at(until, self.lanes.join_next_with_id()).await {
            let Some(lane) = self.end(ended) else { continue };
            acted.protected.extend(lane.protected);
            for ((place, order), result) in lane.orders.into_iter().zip(lane.results) {
                match lane.turn == tools.turn {
                    true => results[place] = Some(result),
                    false => acted.answered.push((order, result)),
                }
            }
        }
        let results =
            results.into_iter().map(|result| result.unwrap_or(Err(ActuateError::Unanswered)));
        Acted { results: results.collect(), ..acted }
    }

    /// What earlier turns asked for and is answered by now.
    pub fn take_answers(&mut self) -> Acted {
        let mut acted = Acted::default();
        while let Some(ended) = self.lanes.try_join_next_with_id() {
            let Some(lane) = self.end(ended) else { continue };
            acted.protected.extend(lane.protected);
            let orders = lane.orders.into_iter().map(|(_, order)| order);
            acted.answered.extend(orders.zip(lane.results));
        }
        acted
    }

    /// Whether everything is answered.
    pub fn is_idle(&self) -> bool {
        self.lanes.is_empty()
    }

    /// How many nodes the pool is being asked for, by a call that is not answered; else 0.
    pub fn raised_to(&self, pool: &PoolName) -> u32 {
        let asked = self.busy.values().filter(|busy| busy.place.as_ref() == Some(pool));
        asked.map(|busy| busy.raised_to).max().unwrap_or(0)
    }

    fn end(&mut self, ended: Result<(Id, Lane), JoinError>) -> Option<Lane> {
        match ended {
            Ok((id, lane)) => {
                self.busy.remove(&id);
                Some(lane)
            }
            Err(error) => {
                self.busy.remove(&error.id());
                tracing::error!(%error, "what was asked for is not known to be done");
                None
            }
        }
    }

    /// Begins at every place that has nothing to answer.
    fn begin(&mut self, tools: &Tools, jobs: Jobs, until: Instant) {
        let mut lanes = BTreeMap::<Place, Lane>::new();
        let lane = |place: &Place| Lane {
            turn: tools.turn,
            place: place.clone(),
            until,
            orders: Vec::new(),
            results: Vec::new(),
            unprotected: Vec::new(),
            protected: None,
        };
        for (number, order) in jobs.orders.into_iter().enumerate() {
            let place = place_of(&order.action);
            lanes.entry(place.clone()).or_insert_with(|| lane(&place)).orders.push((number, order));
        }
        for (pool, instances) in jobs.unprotected {
            let place = Some(pool);
            lanes.entry(place.clone()).or_insert_with(|| lane(&place)).unprotected = instances;
        }
        for (place, lane) in lanes {
            if self.busy.values().any(|busy| busy.place == place) {
                continue;
            }
            let raised_to = lane.orders.iter().map(|(_, order)| raised_to(&order.action)).max();
            let raised_to = raised_to.unwrap_or(0);
            let id = self.lanes.spawn(lane.follow(tools.clone())).id();
            self.busy.insert(id, Busy { place, raised_to });
        }
    }
}

impl Lane {
    /// One thing after the other; who gave no answer is asked for nothing more.
    async fn follow(mut self, tools: Tools) -> Self {
        let actuator = tools.actuator();
        let actions: Vec<&Action> = self.orders.iter().map(|(_, order)| &order.action).collect();
        let mut left = &actions[..];
        while !left.is_empty() {
            let (together, later) = left.split_at(count_together(left));
            left = later;
            match self.why_stop() {
                Some(why) => self.results.extend(together.iter().map(|_| Err(why()))),
                None => {
                    let results = actuator.carry_out_together(together, self.until).await;
                    self.results.extend(results);
                }
            }
        }
        if let Some(pool) = self.place.as_ref().filter(|_| !self.unprotected.is_empty())
            && self.why_stop().is_none()
        {
            self.protected = Some(actuator.protect(pool, &self.unprotected).await);
        }
        self
    }

    /// Why nothing more is begun, if so. What is asked for first is begun in any case.
    fn why_stop(&self) -> Option<fn() -> ActuateError> {
        let last = self.results.last()?;
        if is_silent(last) {
            return Some(|| ActuateError::Unanswered);
        }
        (Instant::now() >= self.until).then_some(|| ActuateError::TurnEnded)
    }
}

fn is_silent(result: &Result<(), ActuateError>) -> bool {
    use ActuateError::{Capacity, Fence, Hung, Queue, Unanswered};
    matches!(
        result,
        Err(Unanswered
            | Hung { .. }
            | Capacity(CapacityError::Unavailable { .. })
            | Queue(QueueError::Unavailable { .. })
            | Fence(FenceError::Queue(QueueError::Unavailable { .. })))
    )
}

fn place_of(action: &Action) -> Place {
    match action {
        Action::Raise { pool, .. } | Action::Retire { pool, .. } | Action::Discard { pool, .. } => {
            Some(pool.clone())
        }
        Action::CancelDrain { .. } | Action::RequestDrain { .. } | Action::Forget { .. } => None,
    }
}

fn raised_to(action: &Action) -> u32 {
    match action {
        Action::Raise { to, .. } => *to,
        _ => 0,
    }
}
