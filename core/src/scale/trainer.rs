//! The trainer's size: legal sizes only, one step at a time, and by the resize protocol.
//!
//! ```text
//! settled ─ wanted for a whole window ─▶ asked for ─ the trainer confirms ─▶ confirmed
//!    ▲                                       │                                   │
//!    └───────── over, and why ───────────────┴── larger: raise, until it says it runs on so many
//!                                                smaller: terminate what it named as left
//! ```
//!
//! A pool that is larger than the trainer is asked about in the same way, at the size that the
//! trainer has: it names what it does not run on.
//!
//! [`plan_trainer`] is pure and the same in controller, simulator and replay. Everything that it
//! goes by stands in the trainer's record, so that another leader goes on where one ended.
//!
//! Laws: nothing is written while the trainer is silent; no node comes or goes before the trainer
//! has confirmed a legal size; only nodes that it named as left are terminated, while it has not
//! started again and says that it runs on no more than is asked for, and never so many that fewer
//! would be left than it runs on; what was done is not done again.

mod action;
mod carry;
mod judge;
mod reason;
#[cfg(test)]
mod tests;
mod watch;

use std::time::Duration;

pub use self::action::TrainerAction;
pub use self::reason::TrainerReason;
use self::watch::Watch;
use super::plan::ScalePlan;
use super::terms::SizingTerms;
use crate::observation::{EndedResize, Observation, PoolSize};
use crate::policy::{FleetPolicy, PoolName};
use crate::time::UnixMillis;

/// How long the trainer may take to confirm: updates of an hour are rare.
const CONFIRM_LIMIT: Duration = Duration::from_hours(1);

/// How long, from the request on, the trainer may take to run on the nodes that it was given, and
/// those that it has left to go.
const CARRY_LIMIT: Duration = Duration::from_hours(3);

/// How long nothing is asked for after a request that came to nothing on the trainer's side.
const QUIET: Duration = EndedResize::AGO_MAX;

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
    /// For how long its pool has been larger than it.
    surplus: Watch,
    /// The request about the nodes beside the trainer's that it has taken meanwhile.
    overtaken: Option<u64>,
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
        // The evidence for a request is used up with it.
        Some(TrainerAction::End { .. }) => {
            memory.forget_evidence();
            memory.raised_at = None;
        }
        _ => {}
    }
    let asked = observation.trainer_resize.as_ref().map(|resize| resize.size);
    TrainerPlan { nodes, asked, action, reasons, memory }
}

impl TrainerMemory {
    fn forget_evidence(&mut self) {
        (self.watch, self.surplus) = (Watch::default(), Watch::default());
    }

    /// The time until the next look says nothing.
    fn pause(&mut self) {
        self.watch.pause();
        self.surplus.pause();
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
            memory.pause();
            return None;
        };
        let Some(nodes) = trainer.nodes else {
            reasons.push(TrainerReason::SizeUntold);
            memory.forget_evidence();
            return None;
        };
        if let Some(before) = memory.nodes.filter(|before| *before != nodes) {
            let resize = self.observation.trainer_resize.as_ref();
            let resize = resize.filter(|resize| resize.size == before && before < nodes);
            memory.overtaken = resize.map(|resize| resize.generation);
            memory.forget_evidence();
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
        memory.pause();
        if resize.is_confirmed {
            self.carry_out(resize, nodes, memory, reasons)
        } else {
            self.wait_for(resize, nodes, memory, reasons)
        }
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
