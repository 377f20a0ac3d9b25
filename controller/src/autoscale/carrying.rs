//! Carries out what was planned for a worker group, and takes note of what came of it.

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::journal::{Outcome, RecordedAction};
use ebbtide_core::observation::Observation;
use ebbtide_core::scale::{Action, Reason, Role, ScaleMemory, ScalePlan, SizingTerms};
use tokio::time::Instant;

use super::{Autoscaler, HINTED_TICK_MIN, Past, Planned, Turn};
use crate::acting::{Jobs, Order};
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
        let tools = self.tools(turn.policy, past.ticks);
        past.trainer.turn(turn.reads, seen, (turn.led.is_some(), tools), turn.until()).await;
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
        let orders: Vec<Order> =
            plan.actions.iter().filter(may).map(|action| planned.order(action)).collect();
        let jobs = Jobs {
            orders: orders.clone(),
            unprotected: match held {
                None => unprotected(observation, turn.policy),
                Some(_) => Vec::new(),
            },
        };
        let tools = self.tools(turn.policy, past.ticks);
        let acted = past.acting.entry(*role).or_default();
        let acted = acted.carry_out(&tools, jobs, turn.until()).await;
        past.protection.entry(*role).or_default().note(acted.protected);
        let answered = acted.answered.into_iter();
        let answered =
            answered.map(|(order, result)| self.conclude(*role, order, result, past)).collect();
        let mut results = orders.into_iter().zip(acted.results);
        let mut actions = Vec::new();
        for action in &plan.actions {
            let result = if may(&action) { results.next() } else { None };
            actions.push(match result {
                Some((order, result)) => self.conclude(*role, order, result, past),
                None => RecordedAction { action: action.clone(), outcome: Outcome::Recommended },
            });
        }
        Carried { actions, answered }
    }

    /// Takes note of what became of an order.
    fn conclude(
        &self,
        role: Role,
        order: Order,
        result: Result<(), ActuateError>,
        past: &mut Past,
    ) -> RecordedAction {
        let Order { action, because, ends_work } = order;
        past.retired.note(&action, result.is_ok());
        let outcome = match result {
            Ok(()) => {
                self.metrics.count_decision(role, &action, because);
                if ends_work {
                    self.metrics.count_busy_termination(role);
                }
                if action.is_decision() {
                    past.scale_decisions += 1;
                    past.last_decision = Some(action.to_string());
                }
                Outcome::Done
            }
            Err(error) => error.into_outcome(&action),
        };
        if let (Some(result), Some(memory)) = (outcome.result(), past.memory_mut(role)) {
            memory.note_outcome(&action, result);
        }
        RecordedAction { action, outcome }
    }
}

impl Planned<'_> {
    /// What carrying out an action of the plan is counted as. Work ends where the planner's laws
    /// rule it out, by what was seen of the replica; one that was not seen may have been busy.
    fn order(&self, action: &Action) -> Order {
        let replicas = self.observation.replicas.known().map_or(&[][..], Vec::as_slice);
        let is_idle = |id: &ReplicaId| {
            replicas.iter().any(|view| view.id == *id && view.is_known_idle(self.role))
        };
        Order {
            action: action.clone(),
            because: self.plan.reasons.iter().find_map(Reason::demand).unwrap_or("unknown"),
            ends_work: matches!(action, Action::Retire { replica, .. } if !is_idle(replica)),
        }
    }
}
