//! The last decision of a running controller, in words.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::journal::{Record, RecordedAction, TrainerRecord, WHOLE_EVERY};
use ebbtide_core::ledger::Ledger;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::scale::Role;
use serde_json::{Value, json};

use super::records;
use crate::words::span;

/// A decision that is older tells of a controller that is away.
const FRESH_LIMIT: Duration = Duration::from_mins(1);

/// A decision, and how old it is.
pub struct Decision {
    record: Record,
    /// The last of each service.
    services: Vec<Record>,
    age: Duration,
    /// Longest age of a controller that is there.
    limit: Duration,
    /// What the run has cost, once a controller has counted.
    ledger: Option<Ledger>,
}

/// What the queue says about the last decision.
pub enum Asked {
    /// It has one.
    Decision(Box<Decision>),
    /// No controller has led the run.
    Nothing,
    /// The run is not reachable or does not exist, and this is why.
    OutOfReach(String),
}

/// Asks for the last decision of the run's controller.
pub async fn ask(url: &str, policy: &FleetPolicy) -> Asked {
    match decision(url, policy).await {
        Ok(Some(decision)) => Asked::Decision(Box::new(decision)),
        Ok(None) => Asked::Nothing,
        Err(error) => Asked::OutOfReach(format!("{error:#}")),
    }
}

async fn decision(url: &str, policy: &FleetPolicy) -> anyhow::Result<Option<Decision>> {
    let queue = records::connect(url, &policy.run).await?;
    // From the last whole record on.
    let lines = 2 * WHOLE_EVERY as usize * Role::ALL.len();
    let newest = queue.journal(1).await?.pop();
    let mut last = BTreeMap::new();
    records::read_stream(&queue, lines, |newer| _ = last.insert(newer.role, newer)).await?;
    let record = last.remove(&Role::Rollout);
    // A service that the policy had once is none.
    let last = last.into_values().filter(|it| policy.service(it.role).is_some());
    let services: Vec<Record> = last.collect();
    let view = queue.view().await?;
    let limit = FRESH_LIMIT.max(3 * policy.rollout.tick);
    Ok(newest.zip(record).map(|(line, record)| {
        let age = view.now.since(line.at);
        Decision { record, services, age, limit, ledger: view.ledger }
    }))
}

impl Asked {
    /// The answer as it follows a policy in words.
    pub fn in_words(&self) -> String {
        let head = "\n\nlast decision";
        match self {
            Self::Decision(decision) => decision.in_words(head),
            Self::Nothing => {
                format!("{head}\n  none is on record: no controller has led this run")
            }
            Self::OutOfReach(problem) => format!("{head}\n  out of reach: {problem}"),
        }
    }
}

impl Decision {
    fn in_words(&self, head: &str) -> String {
        let indented = |lines: Vec<String>| -> String {
            lines.iter().map(|line| format!("\n  {line}")).collect()
        };
        let mut text = format!("{head}, {} ago{}", span(self.age), indented(self.to_lines()));
        if let Some(ledger) = &self.ledger {
            text.push_str(&format!("\n\ncost{}", indented(ledger.to_lines())));
        }
        text
    }

    fn to_lines(&self) -> Vec<String> {
        let record = &self.record;
        let mut lines = decided(record);
        lines.push(record.bottleneck.clone());
        lines.extend(record.trainer.iter().flat_map(of_trainer));
        if self.age > self.limit {
            lines.insert(0, "no newer one: the controller may be away".to_owned());
        }
        for service in &self.services {
            let said = decided(service).into_iter();
            lines.extend(said.map(|line| format!("{}: {line}", service.role)));
        }
        lines
    }

    /// For machines.
    pub fn to_json(&self) -> Value {
        let record = &self.record;
        let mut all = in_json(record);
        all["at"] = json!(record.at());
        all["ageSeconds"] = json!(self.age.as_secs_f64());
        all["mode"] = json!(record.mode);
        all["generation"] = json!(record.generation);
        all["bottleneck"] = json!(record.bottleneck);
        all["trainer"] = record.trainer.as_ref().map(trainer_in_json).into();
        all["ledger"] = json!(self.ledger);
        all["services"] = self.services.iter().map(in_json).collect();
        all
    }
}

/// What was decided for one worker group, in words.
fn decided(record: &Record) -> Vec<String> {
    let mut lines = vec![sizes(record)];
    let actions = record.actions.iter();
    lines.extend(actions.map(|done| format!("do: {} ({})", done.action, done.outcome)));
    let answered = record.answered.iter();
    lines
        .extend(answered.map(|done| format!("answered since: {} ({})", done.action, done.outcome)));
    lines.extend(record.held.iter().map(|why| format!("nothing is carried out: {why}")));
    lines.extend(record.reasons.iter().map(|reason| format!("because: {reason}")));
    lines
}

/// What was decided about the trainer's size, in words.
fn of_trainer(record: &TrainerRecord) -> Vec<String> {
    let action = record.action.iter().zip(&record.outcome);
    let action = action.map(|(action, outcome)| format!("trainer: do: {action} ({outcome})"));
    let reasons = record.reasons.iter().map(|reason| format!("trainer: because: {reason}"));
    action.chain(reasons).collect()
}

/// The same for machines.
fn in_json(record: &Record) -> Value {
    let shown = |actions: &[RecordedAction]| -> Vec<Value> {
        let shown = actions.iter().map(|done| {
            let (action, outcome) = (done.action.to_string(), done.outcome.to_string());
            json!({ "action": action, "outcome": outcome })
        });
        shown.collect()
    };
    json!({
        "role": record.role,
        "running": record.running,
        "wish": record.wish,
        "desired": record.desired,
        "actions": shown(&record.actions),
        "answered": shown(&record.answered),
        "held": record.held,
        "reasons": record.reasons,
    })
}

fn trainer_in_json(record: &TrainerRecord) -> Value {
    json!({
        "action": record.action.as_ref().map(ToString::to_string),
        "outcome": record.outcome.as_ref().map(ToString::to_string),
        "reasons": record.reasons,
    })
}

/// The numbers of a decision in one line.
pub fn sizes(record: &Record) -> String {
    let shown = |count: Option<u32>| count.map_or("unknown".to_owned(), |n| n.to_string());
    let (running, desired) = (shown(record.running), shown(record.desired));
    let wish = shown(record.wish);
    format!("{running} replicas run, {desired} are desired, the demand asks for {wish}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A raise that was answered after its tick, and a step of the trainer's resize.
    #[test]
    fn what_was_answered_later_and_the_trainer_are_told() {
        let action = json!({ "raise": { "pool": "spot", "from": 0, "to": 4 } });
        let trainer = json!({
            "action": { "request": { "from": 4, "to": 2 } },
            "outcome": "done",
            "reasons": ["too fast"],
        });
        let unknown = json!({ "unknown": "nobody looked" });
        let mut observation = json!({
            "now": 1_000, "pools": [], "gone": [],
            "othersAtWork": { "is": { "instances": [], "nodes": [] }, "ageMs": 0 },
        });
        for signal in [
            "ready",
            "inFlight",
            "environmentWaiting",
            "rewardReady",
            "rewardInFlight",
            "completed",
            "bufferGroups",
            "bufferTaken",
            "oldestReadyAge",
            "trainer",
            "policyVersion",
            "replicas",
        ] {
            observation[signal] = unknown.clone();
        }
        let record = json!({
            "mode": "act", "generation": 3, "answered": [{ "action": action, "outcome": "done" }],
            "trainer": trainer, "observation": observation,
        });
        let record: Record = serde_json::from_value(record).expect("a record");
        let decision = Decision {
            record,
            services: Vec::new(),
            age: Duration::ZERO,
            limit: Duration::from_secs(60),
            ledger: None,
        };
        let said = decision.to_lines().join("\n");
        for line in [
            "answered since: raise pool spot from 0 to 4 (done)",
            "trainer: do: ask the trainer to run on 2 nodes instead of 4 (done)",
            "trainer: because: too fast",
        ] {
            assert!(said.contains(line), "{said}");
        }
        let shown = decision.to_json();
        assert_eq!(shown["answered"][0]["outcome"], "done");
        assert_eq!(shown["trainer"]["outcome"], "done");
    }
}
