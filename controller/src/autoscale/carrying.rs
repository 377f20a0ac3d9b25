//! Carries out what was planned for a worker group, and takes note of what came of it.

use ebbtide_core::journal::{Outcome, RecordedAction};
use ebbtide_core::observation::{Observation, ReplicaView};
use ebbtide_core::scale::{Action, Role, ScaleMemory, ScalePlan, SizingTerms};
use tokio::time::Instant;

use super::{Autoscaler, HINTED_TICK_MIN, Past, Planned, Turn};
use crate::acting::Jobs;
use crate::actuate::ActuateError;
use crate::held::held_for;
use crate::protection::unprotected;

/// What became of a plan.
pub(super) struct Carried {
    /// Of each action of the plan.
    pub actions: Vec<RecordedAction>,
    /// Of actions of earlier plans that are answered now.
    pub answered: Vec<RecordedAction>,
}

impl Turn<'_> {
    /// Until when answers are waited for; a little in any case.
    fn until(&self) -> Instant {
        self.ends_at.max(Instant::now() + HINTED_TICK_MIN)
    }
}

impl Past {
    fn memory_mut(&mut self, role: Role) -> Option<&mut ScaleMemory> {
        match role {
            Role::Rollout => Some(&mut self.memory),
            service => self.services.memory_mut(service),
        }
    }
}

impl Autoscaler {
    /// Decides about the trainer's size, after everything else: a larger one must be paid beside.
    pub(super) async fn size_trainer(
        &self,
        turn: &Turn<'_>,
        seen: (&SizingTerms, &Observation, &ScalePlan),
        past: &mut Past,
    ) {
        let leads = self.leadership.borrow().is_some();
        let tools = self.tools(turn.policy, past.ticks);
        past.trainer.turn(turn.reads, seen, (leads, tools), turn.until()).await;
    }

    /// Carries out a plan as far as that is allowed.
    pub(super) async fn carry_out(
        &self,
        planned: Planned<'_>,
        turn: &Turn<'_>,
        past: &mut Past,
    ) -> Carried {
        let Planned { role, plan, observation, held } = &planned;
        let may = |action: &&Action| held_for(action, held.as_ref()).is_none();
        let jobs = Jobs {
            actions: plan.actions.iter().filter(may).cloned().collect(),
            unprotected: match held {
                None => unprotected(observation, turn.policy),
                Some(_) => Vec::new(),
            },
        };
        let tools = self.tools(turn.policy, past.ticks);
        let acted = past.acting.entry(*role).or_default();
        let acted = acted.carry_out(&tools, jobs, turn.until()).await;
        past.protection.entry(*role).or_default().note(acted.protected);
        let mut results = acted.results.into_iter();
        let mut actions = Vec::new();
        for action in &plan.actions {
            let result = if may(&action) { results.next() } else { None };
            let outcome = match result {
                None => Outcome::Recommended,
                Some(result) => self.conclude(action, result, &planned, past),
            };
            actions.push(RecordedAction { action: action.clone(), outcome });
        }
        let answered = acted.answered.into_iter().map(|(action, result)| {
            let outcome = self.conclude(&action, result, &planned, past);
            RecordedAction { action, outcome }
        });
        let answered = answered.collect();
        self.count_busy_terminations(&planned, &actions);
        Carried { actions, answered }
    }

    /// Takes note of what became of an action.
    fn conclude(
        &self,
        action: &Action,
        result: Result<(), ActuateError>,
        planned: &Planned<'_>,
        past: &mut Past,
    ) -> Outcome {
        past.retired.note(action, result.is_ok());
        let outcome = match result {
            Ok(()) => {
                self.metrics.count_decision(planned.role, action, &planned.plan.reasons);
                if action.is_decision() {
                    past.scale_decisions += 1;
                    past.last_decision = Some(action.to_string());
                }
                Outcome::Done
            }
            Err(error) => error.into_outcome(action),
        };
        if let (Some(result), Some(memory)) = (outcome.result(), past.memory_mut(planned.role)) {
            memory.note_outcome(action, result);
        }
        outcome
    }

    /// Counts what the planner's laws rule out, from what was really done.
    fn count_busy_terminations(&self, planned: &Planned<'_>, outcomes: &[RecordedAction]) {
        let replicas = planned.observation.replicas.known().map_or(&[][..], Vec::as_slice);
        for (action, outcome) in planned.plan.actions.iter().zip(outcomes) {
            let Action::Retire { replica, .. } = action else { continue };
            let is_idle =
                |view: &ReplicaView| view.id == *replica && view.leased.known() == Some(&0);
            if outcome.outcome == Outcome::Done && !replicas.iter().any(is_idle) {
                self.metrics.count_busy_termination(planned.role);
            }
        }
    }
}
