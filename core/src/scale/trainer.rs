//! The trainer's size: legal sizes only, one step at a time, and by the resize protocol.
//!
//! ```text
//! settled ─ wanted for a whole window ─▶ asked for ─ the trainer confirms ─▶ confirmed
//!    ▲                                       │                                   │
//!    └───────── over, and why ───────────────┴── larger: raise, until it says it runs on so many
//!                                                smaller: terminate what it named as left
//! ```
//!
//! [`plan_trainer`] is pure and the same in controller, simulator and replay. Everything that it
//! goes by stands in the trainer's record, so that another leader goes on where one ended.
//!
//! Laws: nothing is written while the trainer is silent; no node comes or goes before the trainer
//! has confirmed a legal size; only nodes that it named as left are terminated, while it says that
//! it runs on no more than is asked for, and never so many that fewer would be left than it runs
//! on; what was done is not done again.

mod action;
mod judge;
mod reason;
#[cfg(test)]
mod tests;
mod watch;

use std::time::Duration;

pub use self::action::{ResizeEnd, TrainerAction};
pub use self::reason::TrainerReason;
use self::watch::Watch;
use super::plan::ScalePlan;
use super::terms::SizingTerms;
use crate::ids::NodeName;
use crate::observation::{
    InstanceId, InstanceView, Observation, PoolSize, ReleasedNode, ReplicaView, ResizeView,
    TrainerPhase,
};
use crate::policy::{FleetPolicy, PoolName};
use crate::time::UnixMillis;

/// How long the trainer may take to confirm: updates of an hour are rare.
const CONFIRM_LIMIT: Duration = Duration::from_hours(1);

/// How long, from the request on, the trainer may take to run on the nodes that it was given.
const TAKE_LIMIT: Duration = Duration::from_hours(3);

/// How long nothing is asked for after a request that the trainer did not answer.
const QUIET: Duration = Duration::from_hours(1);

/// Time between two attempts to raise a pool, while the first does not show.
const RAISE_EVERY: Duration = Duration::from_mins(1);

/// What the policy says of the trainer's nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerTerms {
    /// Where they come from.
    pub pool: PoolName,
    /// How many there may be, rising; fewer than two leave the size alone.
    pub legal_sizes: Vec<u32>,
    /// What one node costs in dollars per hour; `None` is unknown, never free.
    pub dollars_per_node_hour: Option<f64>,
    /// For how long another size must be needed.
    pub resize_after: Duration,
}

impl TrainerTerms {
    /// The terms of a policy that names the trainer's pool.
    pub fn of(policy: &FleetPolicy) -> Option<Self> {
        let pool = policy.pool(policy.trainer.pool.as_ref()?)?;
        Some(Self {
            pool: pool.name.clone(),
            legal_sizes: policy.trainer.legal_sizes.clone(),
            dollars_per_node_hour: pool.dollars_per_node_hour,
            resize_after: policy.trainer.resize_after,
        })
    }

    /// Whether there is a size to choose.
    fn is_resizable(&self) -> bool {
        self.legal_sizes.len() > 1
    }
}

/// One decision about the trainer's size.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerPlan {
    /// Nodes that it runs on, by its own word; `None` while that is unknown.
    pub nodes: Option<u32>,
    /// Nodes that it is asked to run on, while a request stands.
    pub asked: Option<u32>,
    /// What to do now.
    pub action: Option<TrainerAction>,
    /// Why.
    pub reasons: Vec<TrainerReason>,
    /// What the next plan has to know.
    pub memory: TrainerMemory,
}

/// What one plan hands to the next. None of it is needed to carry on a request that stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrainerMemory {
    watch: Watch,
    /// Nodes that it ran on at the last look.
    nodes: Option<u32>,
    /// The update from which on its size can be judged: those before were made with another.
    judged_from: u64,
    /// Until when nothing is asked for.
    quiet_until: Option<UnixMillis>,
    /// When its pool was last raised.
    raised_at: Option<UnixMillis>,
}

/// Nodes that the trainer's pool is asked for.
pub(super) fn asked_of(observation: &Observation) -> Option<u32> {
    let pool = observation.trainer_pool.as_ref()?;
    Some(pool.size.known()?.desired)
}

/// Plans the trainer's size, after `plan` of the rollouts at the same moment.
pub fn plan_trainer(
    terms: &SizingTerms,
    observation: &Observation,
    plan: &ScalePlan,
    memory: &TrainerMemory,
) -> TrainerPlan {
    let mut memory = memory.clone();
    let mut reasons = Vec::new();
    let look = Look { terms, observation, plan };
    let nodes = look.nodes(&mut memory, &mut reasons);
    let action = nodes.and_then(|nodes| look.decide(nodes, &mut memory, &mut reasons));
    match &action {
        Some(TrainerAction::Raise { .. }) => memory.raised_at = Some(observation.now),
        Some(TrainerAction::End { how, .. }) => memory.note_end(*how, observation.now),
        _ => {}
    }
    let asked = observation.trainer_resize.as_ref().map(|resize| resize.size);
    TrainerPlan { nodes, asked, action, reasons, memory }
}

impl TrainerMemory {
    /// The evidence for a request is used up with it.
    fn note_end(&mut self, how: ResizeEnd, now: UnixMillis) {
        (self.watch, self.raised_at) = (Watch::default(), None);
        if matches!(how, ResizeEnd::NotConfirmed | ResizeEnd::NotTaken) {
            self.quiet_until = Some(now.plus(QUIET));
        }
    }
}

/// What one plan looks at.
struct Look<'a> {
    terms: &'a SizingTerms,
    observation: &'a Observation,
    plan: &'a ScalePlan,
}

impl Look<'_> {
    /// Nodes that the trainer runs on; `None` when nobody knows, or nobody asks.
    fn nodes(&self, memory: &mut TrainerMemory, reasons: &mut Vec<TrainerReason>) -> Option<u32> {
        let is_asked = self.observation.trainer_resize.is_some();
        let is_resizable = self.terms.trainer.as_ref().is_some_and(TrainerTerms::is_resizable);
        if !is_asked && !is_resizable {
            return None;
        }
        let Some(trainer) = self.observation.trainer.known() else {
            let why = self.observation.trainer.why_unknown().unwrap_or_default().to_owned();
            reasons.push(TrainerReason::Silent { why });
            memory.watch.pause();
            return None;
        };
        let Some(nodes) = trainer.nodes else {
            reasons.push(TrainerReason::SizeUntold);
            memory.watch = Watch::default();
            return None;
        };
        if memory.nodes.is_some_and(|before| before != nodes) {
            memory.watch = Watch::default();
            memory.judged_from = trainer.step.saturating_add(judge::UPDATES_OF_OLD_SIZE);
        }
        memory.nodes = Some(nodes);
        Some(nodes)
    }

    fn decide(
        &self,
        nodes: u32,
        memory: &mut TrainerMemory,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        let Some(resize) = &self.observation.trainer_resize else {
            return self.ask(nodes, memory, reasons);
        };
        memory.watch.pause();
        if resize.is_confirmed {
            self.carry_out(resize, nodes, memory, reasons)
        } else {
            self.wait_for(resize, nodes, reasons)
        }
    }

    /// A request that the trainer has not confirmed.
    fn wait_for(
        &self,
        resize: &ResizeView,
        nodes: u32,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        let has_ended = self.phase() == Some(TrainerPhase::Done);
        let how = if nodes == resize.size {
            ResizeEnd::Done
        } else if has_ended {
            ResizeEnd::RunEnded
        } else if !self.is_legal(resize.size) {
            ResizeEnd::NotLegal
        } else if resize.size > nodes && !self.is_paid(resize.size) {
            ResizeEnd::TooDear
        } else if resize.asked_for >= CONFIRM_LIMIT {
            ResizeEnd::NotConfirmed
        } else {
            let (size, waited) = (resize.size, resize.asked_for);
            reasons.push(TrainerReason::Asked { size, waited, limit: CONFIRM_LIMIT });
            return None;
        };
        Some(resize.end(how, Vec::new()))
    }

    /// A request that the trainer has confirmed.
    fn carry_out(
        &self,
        resize: &ResizeView,
        nodes: u32,
        memory: &TrainerMemory,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        if self.observation.trainer_pool.is_none() {
            return Some(resize.end(ResizeEnd::NotLegal, Vec::new()));
        }
        let size = self.pool_size(reasons)?;
        if nodes == resize.size {
            return self.release(resize, size, reasons);
        }
        if nodes > resize.size {
            // It said that it had left nodes, and works on them again.
            return Some(resize.end(ResizeEnd::TakenBack, Vec::new()))
                .filter(|_| !resize.released.is_empty() || resize.asked_for >= TAKE_LIMIT);
        }
        self.grow(resize, (nodes, size), memory, reasons)
    }

    fn grow(
        &self,
        resize: &ResizeView,
        (nodes, size): (u32, &PoolSize),
        memory: &TrainerMemory,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        let (to, now) = (resize.size, self.observation.now);
        let is_there = size.desired >= to;
        if !self.is_legal(to) {
            return Some(resize.end(ResizeEnd::NotLegal, Vec::new()));
        }
        if !is_there && !self.is_paid(to) {
            return Some(resize.end(ResizeEnd::TooDear, Vec::new()));
        }
        if resize.asked_for >= TAKE_LIMIT {
            return Some(resize.end(ResizeEnd::NotTaken, Vec::new()));
        }
        let pool = self.terms.trainer.as_ref()?.pool.clone();
        if !is_there {
            let tried = memory.raised_at.is_some_and(|at| now.since(at) < RAISE_EVERY);
            let raise = TrainerAction::Raise { pool, from: size.desired, to };
            return (!tried).then_some(raise);
        }
        let serve = size.count();
        reasons.push(if serve < to {
            TrainerReason::Filling { pool, observed: serve, desired: to }
        } else {
            TrainerReason::NotTaken { size: to, nodes }
        });
        None
    }

    /// The trainer runs on as many nodes as were asked for: those that it has left go.
    fn release(
        &self,
        resize: &ResizeView,
        size: &PoolSize,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        let left = |instance: &InstanceView| {
            let is_it = |node: &&ReleasedNode| match &instance.node {
                Some(name) => *name == node.name,
                None => node.instance.as_ref() == Some(&instance.id),
            };
            resize.released.iter().find(is_it)
        };
        let counted: Vec<&InstanceView> = size.counted().filter(|it| left(it).is_some()).collect();
        let ours = counted.iter().filter(|it| left(it).is_some_and(|node| !node.has_notice));
        let instances: Vec<InstanceId> = ours.map(|instance| instance.id.clone()).collect();
        if instances.is_empty() {
            let is_shown = size.instances.iter().any(|instance| left(instance).is_some());
            let gone = resize.released.iter().map(|node| node.name.clone());
            let gone = gone.filter(|name| !self.is_of_a_replica(name)).collect();
            return (!is_shown).then(|| resize.end(ResizeEnd::Done, gone));
        }
        let stay = size.counted().count() - counted.len();
        if stay < usize::try_from(resize.size).unwrap_or(usize::MAX) {
            let whole = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            let (released, stay, nodes) = (whole(counted.len()), whole(stay), resize.size);
            reasons.push(TrainerReason::TooManyReleased { released, stay, nodes });
            return None;
        }
        let pool = self.terms.trainer.as_ref()?.pool.clone();
        Some(TrainerAction::Release { pool, instances })
    }

    /// Whether a name is one of the rollouts' nodes, or may be.
    fn is_of_a_replica(&self, name: &NodeName) -> bool {
        let replicas = self.observation.replicas.known();
        let has = |replica: &ReplicaView| replica.nodes.iter().any(|node| node.name == *name);
        replicas.is_none_or(|replicas| replicas.iter().any(has))
    }

    fn phase(&self) -> Option<TrainerPhase> {
        self.observation.trainer.known().map(|trainer| trainer.phase)
    }

    fn is_legal(&self, nodes: u32) -> bool {
        let terms = self.terms.trainer.as_ref().filter(|terms| terms.is_resizable());
        terms.is_some_and(|terms| terms.legal_sizes.contains(&nodes))
    }

    /// The size of the trainer's pool, or why nothing can be done.
    fn pool_size(&self, reasons: &mut Vec<TrainerReason>) -> Option<&PoolSize> {
        let view = self.observation.trainer_pool.as_ref()?;
        if let Some(why) = view.size.why_unknown() {
            let (pool, why) = (view.name.clone(), why.to_owned());
            reasons.push(TrainerReason::PoolUnknown { pool, why });
        }
        view.size.known()
    }
}

impl ResizeView {
    fn end(&self, how: ResizeEnd, gone: Vec<NodeName>) -> TrainerAction {
        TrainerAction::End { generation: self.generation, size: self.size, how, gone }
    }
}
