//! `ebbtide queue trace`: everything that is known of a unit or a group.

use ebbtide_core::ids::{GroupId, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::Stage;
use ebbtide_queue::reply::Failure;
use ebbtide_queue::state::{GroupTrace, SlotState, UnitSnapshot, UnitTrace};
use serde_json::{Value, json};

use super::arguments::Subject;
use super::{failures, life};
use crate::place::Answer;
use crate::words::{counted, span, thousands};

/// What was found out.
pub(super) struct Findings {
    pub subject: Subject,
    pub trace: GroupTrace,
    pub failures: Vec<Failure>,
    pub now: UnixMillis,
}

/// Reads and tells; bad when nothing is known.
///
/// # Errors
/// The shard does not answer, or stored tokens cannot be read.
pub async fn trace(queue: &WorkQueue, subject: &Subject) -> anyhow::Result<Answer> {
    let group = subject.group();
    let trace = queue.trace(group).await?;
    let mut failures = failures::read_shard(queue, queue.shard_of(group)).await?;
    failures.retain(|failure| failure.group == *group);
    let now = queue.view().await?.now;
    Ok(Findings { subject: subject.clone(), trace, failures, now }.answer())
}

impl Subject {
    fn group(&self) -> &GroupId {
        match self {
            Self::Unit(unit) => &unit.group,
            Self::Group(group) => group,
        }
    }

    fn includes(&self, unit: &UnitId) -> bool {
        match self {
            Self::Unit(wanted) => wanted == unit,
            Self::Group(group) => *group == unit.group,
        }
    }
}

impl Findings {
    /// What is said of them.
    pub fn answer(&self) -> Answer {
        let units: Vec<&UnitTrace> =
            self.trace.units.iter().filter(|unit| self.subject.includes(&unit.unit.unit)).collect();
        let has_ended = self.trace.spec.is_none()
            && (self.trace.forgotten_at.is_some() || !self.failures.is_empty());
        let is_good = !units.is_empty() || has_ended;
        Answer { is_good, text: self.to_text(&units), json: self.to_json(&units, is_good) }
    }

    fn to_text(&self, units: &[&UnitTrace]) -> String {
        let group = self.subject.group();
        let mut lines = vec![match &self.trace.spec {
            Some(spec) => terms(spec),
            None => self.epitaph(),
        }];
        if self.trace.spec.is_some() && units.is_empty() {
            lines.push(format!("{group} has no such unit"));
        }
        for unit in units {
            lines.push(String::new());
            lines.extend(life_lines(unit, self.now));
        }
        for failure in &self.failures {
            lines.push(String::new());
            lines.extend(failures::to_lines(failure, self.now));
            lines.extend(failures::details(failure));
        }
        lines.join("\n")
    }

    fn epitaph(&self) -> String {
        let group = self.subject.group();
        let failure = if self.failures.is_empty() { "no failure record" } else { "it has failed" };
        match self.trace.forgotten_at {
            Some(until) => {
                format!(
                    "{group} has ended ({failure}); it is remembered until {}",
                    life::clock(until)
                )
            }
            None if self.failures.is_empty() => {
                format!("{group} is not known here: never enqueued, or ended and forgotten")
            }
            None => format!("{group} has failed and is forgotten but for its record"),
        }
    }

    fn to_json(&self, units: &[&UnitTrace], is_good: bool) -> Value {
        let units: Vec<Value> = units
            .iter()
            .map(|trace| {
                let unit = &trace.unit;
                json!({
                    "unit": unit.unit.to_string(),
                    "state": failures::state_word(unit.state),
                    "stage": stage_word(unit.stage),
                    "isSealed": unit.is_sealed,
                    "tokens": unit.tokens,
                    "enqueuedAtMs": unit.enqueued_at,
                    "leasedAtMs": unit.leased_at,
                    "leaseDeadlineMs": unit.lease_deadline,
                    "holder": unit.holder.as_ref().map(ToString::to_string),
                    "fencingToken": unit.fencing_token,
                    "attempts": unit.attempts,
                    "holdersLost": unit.infra_attempts,
                    "handBacks": unit.hand_backs,
                    "life": life::steps(trace).iter().map(life::Step::to_json).collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "ok": is_good,
            "group": self.subject.group(),
            "isThere": self.trace.spec.is_some(),
            "units": units,
            "rememberedUntilMs": self.trace.forgotten_at,
            "failures": self.failures.iter().map(failures::to_json).collect::<Vec<_>>(),
        })
    }
}

fn terms(spec: &PromptGroup) -> String {
    format!(
        "{}: {}, {} of prompt, at most {} each, lag at most {}, priority {}",
        spec.group_id,
        counted(spec.group_size.into(), "sample"),
        counted(spec.prompt_token_ids.len() as u64, "token"),
        thousands(spec.sampling.max_tokens.into()),
        spec.max_lag,
        spec.priority,
    )
}

/// A unit's life, with a line for each day on which something happened.
fn life_lines(trace: &UnitTrace, now: UnixMillis) -> Vec<String> {
    let unit = &trace.unit;
    let mut lines = vec![format!(
        "{}  {}, {}",
        unit.unit,
        failures::state_word(unit.state),
        counted(unit.tokens.into(), "token"),
    )];
    let mut day = String::new();
    let mut add = |at: UnixMillis, words: String| {
        let moment = life::clock(at);
        let (date, time) = moment.split_once(' ').unwrap_or(("", &moment));
        if date != day {
            lines.push(format!("  {date}"));
            date.clone_into(&mut day);
        }
        lines.push(format!("  {time}  {words}"));
    };
    add(unit.enqueued_at, "enqueued".to_owned());
    for step in life::steps(trace) {
        add(step.at(), step.words());
    }
    lines.push(format!("  now           {}", standing(unit, now)));
    lines
}

fn standing(unit: &UnitSnapshot, now: UnixMillis) -> String {
    let work = match unit.stage {
        Stage::Generate => "generated",
        Stage::Reward => "scored",
    };
    match unit.state {
        SlotState::Enqueued => format!("ready to be {work}"),
        SlotState::Leased | SlotState::Streaming => {
            let holder = unit.holder.as_ref().map_or("nobody".to_owned(), ToString::to_string);
            let since =
                unit.leased_at.map_or(String::new(), |at| format!(" for {}", span(now.since(at))));
            let lease = match unit.lease_deadline {
                Some(deadline) if deadline > now => {
                    format!("ends in {}", span(deadline.remaining(now)))
                }
                Some(deadline) => format!("ran out {} ago", span(now.since(deadline))),
                None => "is unknown".to_owned(),
            };
            format!(
                "being {work}{since}, lease {} {lease}\n  holder        {holder}",
                unit.fencing_token
            )
        }
        SlotState::Completed if unit.is_sealed => "complete, its group is sealed".to_owned(),
        SlotState::Completed => "complete, its group is not sealed yet".to_owned(),
        SlotState::Dead => "dead; its group goes on without it".to_owned(),
        SlotState::Expired => "expired; its group goes on without it".to_owned(),
        SlotState::Cancelled => "cancelled".to_owned(),
    }
}

fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Generate => "generate",
        Stage::Reward => "reward",
    }
}
