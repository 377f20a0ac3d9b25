//! The trainer's size: one decision each tick, carried out by the resize protocol.
//!
//! Nothing is decided here; see `core/src/scale/trainer.rs`. Everything that another leader must
//! know stands in the trainer's record, which takes nothing from an older leader.

use ebbtide_core::journal::{Outcome, TrainerRecord};
use ebbtide_core::observation::Observation;
use ebbtide_core::scale::{
    ScalePlan, SizingTerms, TrainerAction, TrainerMemory, TrainerPlan, plan_trainer,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::acting::Tools;
use crate::actuate::{ActuateError, Actuator, QUEUE_WRITE_LIMIT};
use crate::held::why_held;
use crate::metrics::Metrics;
use crate::observe::{Reads, TRAINER_SILENCE_LIMIT};

/// Nodes of the trainer come and go one by one, whatever the rollouts' replicas are.
const SINGLE: u32 = 1;

/// What this process knows of the trainer's size.
#[derive(Debug, Default)]
pub(crate) struct TrainerSizing {
    memory: TrainerMemory,
    plan: Option<TrainerPlan>,
    outcome: Option<Outcome>,
    /// A step that has not been answered yet: the loop waits for none longer than its turn.
    step: JoinSet<Outcome>,
}

impl TrainerSizing {
    /// Decides about the trainer's size, and does the one thing that follows, where this controller
    /// may: it leads, the mode is `act`, and the trainer is not on hold.
    pub async fn turn(
        &mut self,
        reads: &Reads,
        (terms, observation, plan): (&SizingTerms, &Observation, &ScalePlan),
        (leads, tools): (bool, Tools),
        until: Instant,
    ) {
        let plan = plan_trainer(terms, observation, plan, &self.memory);
        self.memory = plan.memory.clone();
        let may_act = why_held(leads, &tools.policy, reads, "trainer").is_none();
        self.outcome = match &plan.action {
            Some(action) if may_act => Some(self.take(action.clone(), tools, until).await),
            Some(_) => Some(Outcome::Recommended),
            None => None,
        };
        self.plan = Some(plan);
    }

    /// Takes a step, one at a time. What is answered after its turn shows in what is seen then.
    async fn take(&mut self, action: TrainerAction, tools: Tools, until: Instant) -> Outcome {
        while self.step.try_join_next().is_some() {}
        if self.step.is_empty() {
            self.step.spawn(async move { carry_out(&tools.actuator(), &action).await });
            if let Ok(Some(Ok(outcome))) = timeout_at(until, self.step.join_next()).await {
                return outcome;
            }
        }
        Outcome::Failed(ActuateError::Unanswered.to_string())
    }

    /// What goes into the journal; `None` where nobody asks for another size.
    pub fn record(&self) -> Option<TrainerRecord> {
        let plan = self.plan.as_ref()?;
        let is_news = plan.action.is_some() || !plan.reasons.is_empty();
        is_news.then(|| TrainerRecord {
            action: plan.action.clone(),
            outcome: self.outcome.clone(),
            reasons: plan.reasons.iter().map(ToString::to_string).collect(),
        })
    }

    /// What it is, one statement a line.
    pub fn to_lines(&self) -> Vec<String> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let size = plan.nodes.map(|nodes| match plan.asked {
            Some(asked) if asked != nodes => {
                format!("runs on {}, and is asked to run on {asked}", counted(nodes))
            }
            _ => format!("runs on {}", counted(nodes)),
        });
        let action = plan.action.iter().zip(&self.outcome);
        let action = action.map(|(action, outcome)| format!("{action}: {outcome}"));
        let reasons = plan.reasons.iter().map(ToString::to_string);
        size.into_iter().chain(action).chain(reasons).collect()
    }

    /// Shows it in the metrics.
    pub fn show(&self, metrics: &Metrics) {
        let Some(plan) = &self.plan else { return };
        let done = plan.action.as_ref().filter(|_| self.outcome == Some(Outcome::Done));
        metrics.trainer.show(plan.nodes, plan.asked, done);
    }
}

fn counted(nodes: u32) -> String {
    format!("{nodes} node{}", if nodes == 1 { "" } else { "s" })
}

async fn carry_out(actuator: &Actuator<'_>, action: &TrainerAction) -> Outcome {
    match actuator.resize(action).await {
        Ok(()) => {
            tracing::info!(%action, "trainer's size");
            Outcome::Done
        }
        Err(error) => error.into_outcome(action),
    }
}

impl Actuator<'_> {
    /// Carries out one step of a resize.
    async fn resize(&self, action: &TrainerAction) -> Result<(), ActuateError> {
        match action {
            TrainerAction::Request { to, .. } => {
                let generation = self.claim_resize("request", *to).await?;
                self.queue.request_resize(generation, *to).await?;
            }
            TrainerAction::Raise { pool, from, to } => {
                self.raise(pool, (*from, *to), SINGLE).await?;
            }
            TrainerAction::Release { generation: request, pool, instances } => {
                let may = |leader| self.may_release(leader, *request);
                self.terminate_if(pool, instances, may).await?;
            }
            TrainerAction::End { generation: request, size, how, gone } => {
                let generation = self.claim_resize("end", *size).await?;
                // The nodes first: once the request has ended nothing would remind us of them.
                for node in gone {
                    self.queue.remove_node(generation, node).await?;
                }
                self.queue.end_resize(generation, *request, how.as_str()).await?;
            }
        }
        Ok(())
    }

    /// What was seen at the beginning of the turn may be over: a trainer that starts again may do
    /// so on the nodes that it had left.
    async fn may_release(&self, leader: u64, request: u64) -> Result<(), ActuateError> {
        let may = self.queue.may_release(leader, request, TRAINER_SILENCE_LIMIT).await?;
        may.then_some(()).ok_or(ActuateError::NotReleased)
    }

    async fn claim_resize(&self, verb: &str, size: u32) -> Result<u64, ActuateError> {
        Ok(self
            .fence
            .claim(&format!("resize-{verb}"), &size.to_string(), QUEUE_WRITE_LIMIT)
            .await?)
    }
}

#[cfg(test)]
mod tests;
