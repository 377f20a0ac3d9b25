//! Decisions in the log: one line for each that says something new, and now and then one that does
//! not, so that a quiet day is still told.

use std::collections::BTreeMap;

use ebbtide_core::bottleneck::IterationStage;
use ebbtide_core::journal::{Outcome, Record, RecordedAction};
use ebbtide_core::observation::{Observation, Signal};
use ebbtide_core::scale::{Role, ScalePlan};
use ebbtide_core::time::{UnixMillis, whole_millis};
use serde::Serialize;
use serde_json::{Value, json};

/// Ticks after which an unchanged decision is written again. 60 × 5 s = five minutes.
const QUIET_TICKS: u64 = 60;

/// One decision.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    /// When it was decided, on the controller's clock.
    at: UnixMillis,
    /// Which worker group it is about; none are the rollouts.
    #[serde(skip_serializing_if = "Role::is_rollout")]
    role: Role,
    /// `observe` or `act`.
    mode: &'a str,
    /// The generation of leadership; 0 while passive.
    generation: u64,
    running: Option<u32>,
    wish: Option<u32>,
    desired: Option<u32>,
    /// Actions with their outcome.
    actions: Vec<Shown>,
    /// What earlier ones were answered, that were not in their own tick.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    answered: Vec<Shown>,
    reasons: &'a [String],
    /// Why nothing was carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<&'a str>,
    observed: &'a Value,
}

/// What became of an action, in words.
#[derive(Debug, Clone, Serialize)]
struct Shown {
    action: String,
    outcome: String,
}

/// What makes a decision news.
#[derive(PartialEq)]
struct Gist {
    actions: Vec<(String, Outcome)>,
    desired: Option<u32>,
    held: Option<String>,
    generation: u64,
}

/// Tells news from what was said already.
#[derive(Default)]
pub(super) struct News {
    last: Option<Gist>,
    unchanged_ticks: u64,
}

impl News {
    /// The line of a decision, when it says something new.
    pub fn line(&mut self, record: &Record, observed: &Value) -> Option<String> {
        let actions = record.actions.iter();
        let gist = Gist {
            actions: actions.map(outcome_of).collect(),
            desired: record.desired,
            held: record.held.clone(),
            generation: record.generation,
        };
        let has_acted = gist.actions.iter().any(|(_, outcome)| *outcome != Outcome::Recommended);
        let is_answered = !record.answered.is_empty();
        let is_news = self.last.as_ref() != Some(&gist) || has_acted || is_answered;
        self.unchanged_ticks += 1;
        if !is_news && self.unchanged_ticks < QUIET_TICKS {
            return None;
        }
        let shown = |(action, outcome): &(String, Outcome)| Shown {
            action: action.clone(),
            outcome: outcome.to_string(),
        };
        let entry = Entry {
            at: record.at(),
            role: record.role,
            mode: &record.mode,
            generation: record.generation,
            running: record.running,
            wish: record.wish,
            desired: record.desired,
            actions: gist.actions.iter().map(shown).collect(),
            answered: record.answered.iter().map(|it| shown(&outcome_of(it))).collect(),
            reasons: &record.reasons,
            held: record.held.as_deref(),
            observed,
        };
        let line = serde_json::to_string(&entry).ok();
        self.last = Some(gist);
        self.unchanged_ticks = 0;
        line
    }
}

/// An action in words, and what became of it.
fn outcome_of(recorded: &RecordedAction) -> (String, Outcome) {
    (recorded.action.to_string(), recorded.outcome.clone())
}

/// What was seen, in few words; a signal that is unknown says why.
pub(crate) fn summarize(
    observation: &Observation,
    plan: &ScalePlan,
    states: &BTreeMap<&'static str, u64>,
) -> Value {
    let trainer = signal(&observation.trainer, |trainer| {
        let phase = format!("{:?}", trainer.phase).to_lowercase();
        json!({ "phase": phase, "step": trainer.step, "groupsPerStep": trainer.groups_per_step })
    });
    let pools: serde_json::Map<String, Value> = observation
        .pools
        .iter()
        .map(|pool| {
            let size = signal(&pool.size, |size| {
                let counted = size.counted().count();
                json!({ "desired": size.desired, "observed": counted })
            });
            (pool.name.to_string(), size)
        })
        .collect();
    let replicas = signal(&observation.replicas, |_| json!(states));
    let pace = plan.memory.pace().measured().map(|pace| {
        json!({
            "busySecondsPerStep": pace.busy_seconds_per_step,
            "inFlightSecondsPerSample": pace.in_flight_seconds_per_sample,
        })
    });
    json!({
        "ready": signal(&observation.ready, |units| json!(units)),
        "inFlight": signal(&observation.in_flight, |units| json!(units)),
        "bufferGroups": signal(&observation.buffer_groups, |groups| json!(groups)),
        "oldestReadyMs": signal(&observation.oldest_ready_age, |age| json!(whole_millis(*age))),
        "policyVersion": signal(&observation.policy_version, |version| json!(version.0)),
        "trainer": trainer,
        "replicas": replicas,
        "pools": pools,
        "pace": pace,
        "bottleneck": plan.bottleneck.stage.map(IterationStage::as_str),
        "startupP90Ms": plan.memory.startup().percentile(0.9).map(whole_millis),
    })
}

fn signal<T>(signal: &Signal<T>, show: impl Fn(&T) -> Value) -> Value {
    match signal {
        Signal::Known { value, .. } => show(value),
        Signal::Unknown { why } => json!({ "unknown": why }),
    }
}
