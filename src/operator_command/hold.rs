//! `ebbtide hold`: no actuation for a worker group, or for all, until a moment.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ebbtide_core::policy::duration::parse_duration;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::HoldRecord;
use serde_json::{Value, json};

use crate::place::{Answer, Place};
use crate::setup::{self, LogFormat};
use crate::table::Table;
use crate::words::span;

/// Longest hold: one that nobody remembers must not keep a fleet from being sized for ever.
const HOLD_MAX: Duration = Duration::from_hours(30 * 24);

/// Where the kernel tells the name of this host.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

const EXAMPLES: &str = "\
Examples:
  ebbtide hold rollout --for 2h --reason \"moving to new subnets\" --run grpo-7b
  ebbtide hold --list --run grpo-7b
  ebbtide hold rollout --release --run grpo-7b

While a hold lasts, the controller plans, journals and shows what it would do, and adds, drains and
terminates nothing of that worker group; the others go on. What AWS announces is acted on as ever,
by agents and controller.

Exit code: 0 done; 2 for wrong usage or a run out of reach.";

/// `ebbtide hold …`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct HoldArgs {
    /// The worker group
    #[arg(value_enum, default_value_t = Role::All)]
    role: Role,
    #[command(flatten)]
    place: Place,
    /// How long, such as 2h; at most 720h
    #[arg(
        long = "for",
        value_name = "TIME",
        value_parser = hold_time,
        required_unless_present_any = ["list", "release"]
    )]
    time: Option<Duration>,
    /// Why; others read it
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["list", "release"])]
    reason: Option<String>,
    /// Who asks for it [default: user@host]
    #[arg(long, env = "EBBTIDE_WHO", value_name = "NAME")]
    who: Option<String>,
    /// List the holds that last
    #[arg(long, conflicts_with_all = ["release", "time", "reason"])]
    list: bool,
    /// End the hold
    #[arg(long, conflicts_with_all = ["time", "reason"])]
    release: bool,
}

/// What may be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Rollout,
    Trainer,
    Reward,
    Environment,
    All,
}

impl Role {
    /// The word in the records.
    fn as_str(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Trainer => "trainer",
            Self::Reward => "reward",
            Self::Environment => "environment",
            Self::All => "all",
        }
    }
}

fn hold_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() || time > HOLD_MAX {
        return Err(format!("must be from 1ms to 720h, got {text}"));
    }
    Ok(time)
}

/// Runs `ebbtide hold`.
///
/// # Errors
/// The run is not reachable, or does not exist.
pub async fn run(args: HoldArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(LogFormat::Text, "off");
    let queue = args.place.connect().await?;
    let answer = match (args.time, args.reason) {
        _ if args.release => release(&queue, args.role).await?,
        (Some(time), Some(reason)) => {
            let who = args.who.unwrap_or_else(user_and_host);
            hold(&queue, args.role, time, reason, who).await?
        }
        _ => list(&queue).await?,
    };
    Ok(answer.tell(args.place.output))
}

async fn hold(
    queue: &WorkQueue,
    role: Role,
    time: Duration,
    reason: String,
    who: String,
) -> anyhow::Result<Answer> {
    let now = queue.view().await?.now;
    let hold = HoldRecord { role: role.as_str().to_owned(), until: now.plus(time), reason, who };
    queue.put_hold(hold.clone()).await?;
    let text = to_words(&hold, now);
    Ok(Answer { is_good: true, text, json: json!({ "ok": true, "hold": to_json(&hold, now) }) })
}

async fn release(queue: &WorkQueue, role: Role) -> anyhow::Result<Answer> {
    let view = queue.view().await?;
    let role = role.as_str();
    let was_held = view.holds.iter().any(|hold| hold.role == role);
    queue.remove_hold(role).await?;
    let head = if was_held {
        format!("the hold of {role} has ended")
    } else {
        format!("no hold of {role} stands: nothing was done")
    };
    let others: Vec<&HoldRecord> = view.holds.iter().filter(|hold| hold.role != role).collect();
    let others_words = others.iter().map(|hold| to_words(hold, view.now));
    let text = std::iter::once(head).chain(others_words).collect::<Vec<_>>().join("\n");
    let holds: Vec<Value> = others.iter().map(|hold| to_json(hold, view.now)).collect();
    let json = json!({ "ok": true, "released": was_held, "holds": holds });
    Ok(Answer { is_good: true, text, json })
}

async fn list(queue: &WorkQueue) -> anyhow::Result<Answer> {
    let view = queue.view().await?;
    let mut table = Table::new(["GROUP", "UNTIL", ">LEFT", "WHO", "WHY"]);
    for hold in &view.holds {
        let left = span(hold.until.remaining(view.now));
        let until = hold.until.to_string();
        table.row([hold.role.clone(), until, left, hold.who.clone(), hold.reason.clone()]);
    }
    let text = match view.holds.is_empty() {
        true => "nothing is on hold".to_owned(),
        false => table.to_lines().join("\n"),
    };
    let holds: Vec<Value> = view.holds.iter().map(|hold| to_json(hold, view.now)).collect();
    Ok(Answer { is_good: true, text, json: json!({ "ok": true, "holds": holds }) })
}

/// A hold in one line.
pub fn to_words(hold: &HoldRecord, now: UnixMillis) -> String {
    let left = span(hold.until.remaining(now));
    format!("{} is on hold for {left}, by {}: {}", hold.role, hold.who, hold.reason)
}

/// For machines.
pub fn to_json(hold: &HoldRecord, now: UnixMillis) -> Value {
    json!({
        "role": hold.role,
        "untilMs": hold.until,
        "secondsLeft": hold.until.remaining(now).as_secs_f64(),
        "reason": hold.reason,
        "who": hold.who,
    })
}

/// Whoever runs this command, and where.
#[allow(clippy::disallowed_methods, reason = "the edge, where the environment is read")]
fn user_and_host() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "somebody".to_owned());
    let host = std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
    match host.trim() {
        "" => user,
        host => format!("{user}@{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_lasts_between_a_moment_and_a_month() {
        assert_eq!(hold_time("2h"), Ok(Duration::from_hours(2)));
        assert_eq!(hold_time("720h"), Ok(HOLD_MAX));
        for text in ["0s", "721h", "2", "tomorrow"] {
            assert!(hold_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hold_is_told_with_its_end_who_and_why() {
        let now = UnixMillis(1_795_975_200_000);
        let hold = HoldRecord {
            role: "rollout".to_owned(),
            until: now.plus(Duration::from_mins(90)),
            reason: "new subnets".to_owned(),
            who: "ann@desk".to_owned(),
        };
        assert_eq!(to_words(&hold, now), "rollout is on hold for 90 min, by ann@desk: new subnets");
        assert_eq!(to_json(&hold, now)["secondsLeft"], 5400.0);
    }
}
