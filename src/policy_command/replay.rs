//! `ebbtide policy replay`: recorded ticks, decided again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ebbtide_core::journal::{Record, Replay, Step};
use ebbtide_core::scale::{Role, SizingTerms};
use ebbtide_core::time::UnixMillis;
use serde_json::{Value, json};

use super::records::{self, Reading};
use crate::place::{Answer, Output};
use crate::setup::{self, LogFormat};
use crate::words::{counted, span};

/// How long a replay runs before it is compared, when it does not begin with the controller's own
/// start: until then it knows less than the controller did.
const WARM_UP: Duration = Duration::from_mins(15);

/// Differences that are told one by one.
const SHOWN_LIMIT: usize = 20;

const EXAMPLES: &str = "\
Examples:
  ebbtide policy replay journal.jsonl --policy policies/grpo-async.yaml
  ebbtide policy replay --policy changed.yaml --redis redis://10.0.0.5:6379

A journal is what `ebbtide controller --journal FILE` wrote, with the parts that have moved aside
(FILE.1 ...). Without one, the newest 32 MiB of it are read from the run's queue. What was seen is
as it was recorded: a replay tells what another policy would have decided on it, not what would then
have become of the run.

Exit code: 0 the same decisions; 1 others; 2 wrong usage, or nothing that can be read.";

/// `ebbtide policy replay …`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// What was recorded
    #[arg(value_name = "JOURNAL")]
    journal: Option<PathBuf>,
    /// The policy to decide by
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// The work queue of the policy's run, when there is no journal file
    #[arg(
        long,
        env = "EBBTIDE_REDIS",
        value_name = "URL",
        required_unless_present = "journal",
        hide_env_values = true
    )]
    redis: Option<String>,
    /// `json` prints one object: {ok, ticks, compared, differing, from, to, differences}
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Runs `ebbtide policy replay`.
///
/// # Errors
/// Policy or journal cannot be read, or there is no record in it.
pub async fn run(args: ReplayArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(LogFormat::Text, "off");
    let policy = setup::read_policy(&args.policy)?;
    let mut course = Course::new(SizingTerms::of_all(&policy));
    let reading = match (&args.journal, &args.redis) {
        (Some(path), _) => records::read_files(path, |record| course.step(&record))?,
        (None, Some(url)) => {
            let queue = records::connect(url, &policy.run).await?;
            records::read_whole_stream(&queue, |record| course.step(&record)).await?
        }
        (None, None) => anyhow::bail!("give a journal, or --redis"),
    };
    let verdict = course.verdict.context("there is no whole record in the journal")?;
    Ok(verdict.answer(&reading).tell(args.output))
}

/// What a replay came to.
struct Verdict {
    from: UnixMillis,
    to: UnixMillis,
    ticks: u64,
    compared: u64,
    differing: u64,
    /// Runs of ticks that differ in the same way.
    differences: Vec<Difference>,
}

/// Ticks in a row of which each was decided so, and is decided otherwise now.
#[derive(PartialEq)]
struct Difference {
    role: Role,
    at: UnixMillis,
    ticks: u64,
    recorded: Decided,
    now: Decided,
    reasons: Vec<String>,
}

/// Size and actions.
#[derive(Clone, PartialEq)]
struct Decided {
    desired: Option<u32>,
    actions: Vec<String>,
}

/// A replay under way, and what it has come to; nothing before the first record.
struct Course {
    replay: Replay,
    compared_from: ComparedFrom,
    verdict: Option<Verdict>,
}

/// From when on the replay of a worker group knows as much as the controller did.
#[derive(Default)]
struct ComparedFrom(BTreeMap<Role, UnixMillis>);

impl ComparedFrom {
    /// Whether the next tick of this group is compared. One that `is_first` began from nothing.
    fn includes(&mut self, role: Role, is_first: bool, at: UnixMillis) -> bool {
        if is_first {
            self.0.insert(role, at);
        }
        at >= *self.0.entry(role).or_insert(at.plus(WARM_UP))
    }
}

impl Course {
    fn new(terms: Vec<SizingTerms>) -> Self {
        let compared_from = ComparedFrom::default();
        Self { replay: Replay::new(terms), compared_from, verdict: None }
    }

    fn step(&mut self, record: &Record) {
        // What the policy does not size any more is no decision of its.
        let Some(step) = self.replay.step(record) else { return };
        let at = record.at();
        let verdict = self.verdict.get_or_insert_with(|| Verdict::begin(at));
        verdict.ticks += 1;
        verdict.to = at;
        if self.compared_from.includes(record.role, record.is_first, at) {
            verdict.compared += 1;
            if step.differs {
                verdict.note(record, &step);
            }
        }
    }
}

impl Verdict {
    fn begin(from: UnixMillis) -> Self {
        let differences = Vec::new();
        Self { from, to: from, ticks: 0, compared: 0, differing: 0, differences }
    }

    fn note(&mut self, record: &Record, step: &Step) {
        self.differing += 1;
        let of_trainer = record.trainer.as_ref().and_then(|recorded| recorded.action.as_ref());
        let actions = record.actions.iter().map(|done| done.action.to_string());
        let recorded = Decided {
            desired: record.desired,
            actions: actions.chain(of_trainer.map(ToString::to_string)).collect(),
        };
        let of_trainer = step.trainer.as_ref();
        let action = of_trainer.and_then(|plan| plan.action.as_ref()).map(ToString::to_string);
        let now = Decided {
            desired: step.plan.desired,
            actions: step.plan.actions.iter().map(ToString::to_string).chain(action).collect(),
        };
        let role = record.role;
        let same = self.differences.iter_mut().rfind(|last| last.role == role);
        if let Some(last) = same.filter(|last| last.recorded == recorded && last.now == now) {
            last.ticks += 1;
            return;
        }
        let of_trainer = of_trainer.iter().flat_map(|plan| &plan.reasons).map(ToString::to_string);
        let reasons = step.plan.reasons.iter().map(ToString::to_string);
        let reasons = reasons.chain(of_trainer).collect();
        let at = record.at();
        self.differences.push(Difference { role, at, ticks: 1, recorded, now, reasons });
    }

    fn answer(&self, found: &Reading) -> Answer {
        Answer {
            is_good: self.differing == 0,
            text: self.to_lines(found).join("\n"),
            json: self.to_json(found),
        }
    }

    fn to_lines(&self, found: &Reading) -> Vec<String> {
        let mut lines = Vec::new();
        for difference in self.differences.iter().take(SHOWN_LIMIT) {
            lines.extend(difference.to_lines());
        }
        let more = self.differences.len().saturating_sub(SHOWN_LIMIT);
        if more > 0 {
            lines.push(format!("and {more} more; --output json has all"));
        }
        lines.extend(found.problems.iter().map(|problem| format!("left out: {problem}")));
        if self.compared < self.ticks {
            lines.push(format!(
                "the journal does not begin with the controller's start: the first {} of a worker \
                 group are not compared",
                span(WARM_UP)
            ));
        }
        let took = span(self.to.since(self.from));
        let (ticks, compared) = (counted(self.ticks, "tick"), self.compared);
        let verdict = match self.differing {
            0 => "each is decided the same".to_owned(),
            number => format!("{number} are decided otherwise"),
        };
        lines
            .push(format!("{ticks} in {took}, from {}: {compared} compared, {verdict}", self.from));
        lines
    }

    fn to_json(&self, found: &Reading) -> Value {
        let differences: Vec<Value> = self.differences.iter().map(Difference::to_json).collect();
        json!({
            "ok": self.differing == 0,
            "from": self.from,
            "to": self.to,
            "ticks": self.ticks,
            "compared": self.compared,
            "differing": self.differing,
            "unreadable": found.unreadable,
            "differences": differences,
        })
    }
}

impl Difference {
    fn to_lines(&self) -> Vec<String> {
        let times = if self.ticks == 1 {
            String::new()
        } else {
            format!(", and {} after it", counted(self.ticks - 1, "tick"))
        };
        let role = if self.role.is_rollout() { String::new() } else { format!(" {}", self.role) };
        let mut lines = vec![format!("{}{role}{times}", self.at)];
        lines.push(format!("  recorded: {}", self.recorded.in_words()));
        lines.push(format!("  now:      {}", self.now.in_words()));
        lines.extend(self.reasons.iter().map(|reason| format!("    because: {reason}")));
        lines
    }

    fn to_json(&self) -> Value {
        let decided =
            |decided: &Decided| json!({ "desired": decided.desired, "actions": decided.actions });
        json!({
            "role": self.role,
            "at": self.at,
            "ticks": self.ticks,
            "recorded": decided(&self.recorded),
            "now": decided(&self.now),
            "reasons": self.reasons,
        })
    }
}

impl Decided {
    fn in_words(&self) -> String {
        let desired = self.desired.map_or("unknown".to_owned(), |number| number.to_string());
        match self.actions.is_empty() {
            true => format!("{desired} desired"),
            false => format!("{desired} desired; {}", self.actions.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_is_compared_from_when_the_replay_knows_what_the_controller_knew() {
        let mut compared_from = ComparedFrom::default();
        let minute = |minute: u64| UnixMillis(60_000 * minute);
        let table = [
            // The journal begins in the life of a controller.
            (Role::Rollout, false, 0, false),
            // The policy names scorers from now on.
            (Role::Reward, true, 1, true),
            (Role::Rollout, false, 1, false),
            (Role::Reward, false, 2, true),
            (Role::Rollout, false, 14, false),
            (Role::Rollout, false, 15, true),
            // What is seen of environments begins later than the journal does.
            (Role::Environment, false, 20, false),
            (Role::Environment, false, 34, false),
            (Role::Environment, false, 35, true),
        ];
        for (role, is_first, at, expected) in table {
            let found = compared_from.includes(role, is_first, minute(at));
            assert_eq!(found, expected, "{role} at minute {at}");
        }
        // Another controller begins from nothing, so that all is known of it.
        let mut compared_from = ComparedFrom::default();
        assert!(!compared_from.includes(Role::Rollout, false, minute(0)));
        assert!(compared_from.includes(Role::Rollout, true, minute(1)));
        assert!(compared_from.includes(Role::Rollout, false, minute(2)));
    }
}
