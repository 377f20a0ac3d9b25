//! `ebbtide queue check`: says what does not hold, and has it mended.

use ebbtide_queue::client::WorkQueue;
use serde_json::{Value, json};

use super::examine::{self, Examination, Problem, Problems};
use crate::place::Answer;
use crate::table::Table;
use crate::words::{counted, flow};

/// Rounds of mending: a later one meets what only shows once an earlier one has mended the rest.
const MENDING_ROUNDS: usize = 3;
/// Characters of a line.
const WIDTH: usize = 96;

/// What became of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Found,
    Mended,
    NotMended,
}

/// Looks at everything and mends what it finds when `repair` says so; bad when something is left.
pub async fn check(queue: &WorkQueue, repair: bool) -> Answer {
    let seen = examine::examine_twice(queue).await;
    let (mut all, mut left) = (seen.problems.clone(), seen.problems.clone());
    for _ in 0..MENDING_ROUNDS {
        if !repair || left.is_empty() {
            break;
        }
        for problem in mend(queue).await {
            all.entry(problem.name()).or_insert(problem);
        }
        left = examine::examine_twice(queue).await.problems;
        for (name, problem) in &left {
            all.entry(name.clone()).or_insert_with(|| problem.clone());
        }
    }
    let outcomes = outcomes(all, &left, repair);
    Answer {
        is_good: outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Mended),
        text: to_text(&seen, &outcomes),
        json: to_json(&seen, &outcomes),
    }
}

/// Has everything mended that can be; gives what was found on the way.
async fn mend(queue: &WorkQueue) -> Vec<Problem> {
    let mut found = Vec::new();
    for shard in 0..queue.shard_count() {
        found.extend(examine::audit(queue, shard, true).await);
    }
    // A shard that is behind the published version is raised to it.
    let raised = match queue.view().await {
        Ok(view) => queue.set_version(view.version).await,
        Err(error) => Err(error),
    };
    if let Err(error) = raised {
        found.push(Problem::new("policy version", error));
    }
    found
}

fn outcomes(all: Problems, left: &Problems, repair: bool) -> Vec<(Problem, Outcome)> {
    let outcome = |name: &(String, String)| match (repair, left.contains_key(name)) {
        (false, _) => Outcome::Found,
        (true, false) => Outcome::Mended,
        (true, true) => Outcome::NotMended,
    };
    all.into_iter().map(|(name, problem)| (problem, outcome(&name))).collect()
}

impl Outcome {
    fn words(self) -> &'static str {
        match self {
            Self::Found => "",
            Self::Mended => "mended",
            Self::NotMended => "NOT MENDED",
        }
    }
}

/// For people.
pub(super) fn to_text(seen: &Examination, outcomes: &[(Problem, Outcome)]) -> String {
    let mut table = Table::new(["", "", ""]);
    for (problem, outcome) in outcomes {
        table.row([problem.subject.clone(), problem.text.clone(), outcome.words().to_owned()]);
    }
    let mut lines = table.to_lines();
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines.push(verdict(outcomes));
    let looked_at = [
        counted(seen.shards.into(), "shard"),
        counted(seen.groups, "group"),
        counted(seen.units, "unit"),
        counted(seen.tokens, "stored token"),
    ];
    lines.push(format!("looked at {}", looked_at.join(", ")));
    if !seen.busy_shards.is_empty() {
        let shards: Vec<String> = seen.busy_shards.iter().map(ToString::to_string).collect();
        let mut words = flow(&shards, ", ", WIDTH);
        lines.push("sums are not exact on shards that changed at every look:".to_owned());
        lines.append(&mut words);
    }
    lines.join("\n")
}

fn verdict(outcomes: &[(Problem, Outcome)]) -> String {
    let count = |wanted| outcomes.iter().filter(|(_, outcome)| *outcome == wanted).count() as u64;
    let (found, mended) = (count(Outcome::Found), count(Outcome::Mended));
    let not_mended = count(Outcome::NotMended);
    if found > 0 {
        return format!("{} found; --repair mends what can be", counted(found, "problem"));
    }
    match (mended, not_mended) {
        (0, 0) => "everything holds".to_owned(),
        (_, 0) => format!("{} found and mended", counted(mended, "problem")),
        _ => format!("{} mended, {not_mended} left", counted(mended, "problem")),
    }
}

/// For machines.
fn to_json(seen: &Examination, outcomes: &[(Problem, Outcome)]) -> Value {
    let problems: Vec<Value> = outcomes
        .iter()
        .map(|(problem, outcome)| {
            json!({
                "subject": problem.subject,
                "problem": problem.text,
                "repaired": *outcome == Outcome::Mended,
            })
        })
        .collect();
    json!({
        "ok": outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Mended),
        "problems": problems,
        "shards": seen.shards,
        "groups": seen.groups,
        "units": seen.units,
        "tokens": seen.tokens,
        "busyShards": seen.busy_shards,
    })
}
