//! Decides recorded ticks again.

use std::collections::BTreeMap;

use super::Record;
use crate::scale::{
    Role, ScaleMemory, ScalePlan, SizingTerms, TrainerMemory, TrainerPlan, plan_scale, plan_trainer,
};

/// Feeds recorded observations through the planner, one after the other.
///
/// The world of a record followed what was decided then. So under other terms a replay says what
/// would have been decided on what was seen, not what would have become of it.
#[derive(Debug)]
pub struct Replay {
    groups: BTreeMap<Role, (SizingTerms, ScaleMemory)>,
    trainer: TrainerMemory,
}

/// A recorded tick, decided again.
#[derive(Debug)]
pub struct Step {
    /// What is decided now.
    pub plan: ScalePlan,
    /// What is decided about the trainer's size, where the record is about the rollouts.
    pub trainer: Option<TrainerPlan>,
    /// Whether that is another size, or other actions.
    pub differs: bool,
}

impl Replay {
    /// A replay under these terms, one for each worker group, that remembers nothing yet.
    pub fn new(terms: impl IntoIterator<Item = SizingTerms>) -> Self {
        let group = |terms: SizingTerms| (terms.role, (terms, ScaleMemory::default()));
        let groups = terms.into_iter().map(group).collect();
        Self { groups, trainer: TrainerMemory::default() }
    }

    /// Decides the next tick of the journal again; `None` when it is about a group for which there
    /// are no terms.
    pub fn step(&mut self, record: &Record) -> Option<Step> {
        let (terms, memory) = self.groups.get_mut(&record.role)?;
        if record.is_first {
            *memory = ScaleMemory::default();
        }
        let plan = plan_scale(terms, &record.observation, memory);
        *memory = plan.memory.clone();
        let trainer = record.role.is_rollout().then(|| {
            if record.is_first {
                self.trainer = TrainerMemory::default();
            }
            plan_trainer(terms, &record.observation, &plan, &self.trainer)
        });
        if let Some(trainer) = &trainer {
            self.trainer = trainer.memory.clone();
        }
        // What was asked for then is what the pools show next, whatever is decided now. Of a pool
        // that had not answered nothing more was asked: its answer is the older one.
        for recorded in record.answered.iter().chain(&record.actions) {
            if let Some(result) = recorded.outcome.result() {
                memory.note_outcome(&recorded.action, result);
            }
        }
        if record.generation == 0 {
            memory.forget_writes();
        }
        let recorded = record.actions.iter().map(|recorded| &recorded.action);
        let of_trainer = record.trainer.as_ref().and_then(|recorded| recorded.action.as_ref());
        let differs = plan.desired != record.desired
            || !recorded.eq(&plan.actions)
            || of_trainer != trainer.as_ref().and_then(|plan| plan.action.as_ref());
        Some(Step { plan, trainer, differs })
    }
}
