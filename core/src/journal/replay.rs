//! Decides recorded ticks again.

use super::Record;
use crate::scale::{ScaleMemory, ScalePlan, SizingTerms, plan_scale};

/// Feeds recorded observations through the planner, one after the other.
///
/// The world of a record followed what was decided then. So under other terms a replay says what
/// would have been decided on what was seen, not what would have become of it.
#[derive(Debug)]
pub struct Replay {
    terms: SizingTerms,
    memory: ScaleMemory,
}

/// A recorded tick, decided again.
#[derive(Debug)]
pub struct Step {
    /// What is decided now.
    pub plan: ScalePlan,
    /// Whether that is another size, or other actions.
    pub differs: bool,
}

impl Replay {
    /// A replay under these terms that remembers nothing yet.
    pub fn new(terms: SizingTerms) -> Self {
        Self { terms, memory: ScaleMemory::default() }
    }

    /// Decides the next tick of the journal again.
    pub fn step(&mut self, record: &Record) -> Step {
        if record.is_first {
            self.memory = ScaleMemory::default();
        }
        let plan = plan_scale(&self.terms, &record.observation, &self.memory);
        self.memory = plan.memory.clone();
        // What was asked for then is what the pools show next, whatever is decided now.
        for recorded in record.actions.iter().chain(&record.answered) {
            if let Some(result) = recorded.outcome.result() {
                self.memory.note_outcome(&recorded.action, result);
            }
        }
        if record.generation == 0 {
            self.memory.forget_writes();
        }
        let recorded = record.actions.iter().map(|recorded| &recorded.action);
        let differs = plan.desired != record.desired || !recorded.eq(&plan.actions);
        Step { plan, differs }
    }
}
