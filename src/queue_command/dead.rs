//! `ebbtide queue dead`: what has failed, and what an operator makes of it.

use std::collections::BTreeSet;

use ebbtide_core::ids::GroupId;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::reply::{Failure, WriteReply};
use serde_json::{Value, json};

use super::arguments::Choice;
use super::failures;
use crate::place::Answer;
use crate::table::Table;
use crate::words::counted;

/// All records that could be read.
struct Records {
    failures: Vec<Failure>,
    missing: Vec<(u16, QueueError)>,
}

async fn read_all(queue: &WorkQueue) -> Records {
    let mut records = Records { failures: Vec::new(), missing: Vec::new() };
    for shard in 0..queue.shard_count() {
        match failures::read_shard(queue, shard).await {
            Ok(found) => records.failures.extend(found),
            Err(error) => records.missing.push((shard, error)),
        }
    }
    records.failures.sort_by_key(|failure| failure.failed_at);
    records
}

impl Records {
    fn complaints(&self) -> Vec<String> {
        let missing = self.missing.iter();
        missing.map(|(shard, error)| format!("shard {shard} does not answer: {error}")).collect()
    }
}

/// Lists the records, oldest first; bad when a shard does not answer.
pub async fn list(queue: &WorkQueue, is_verbose: bool) -> Answer {
    let records = read_all(queue).await;
    // Without a clock the records are listed without their age.
    let now = queue.view().await.map(|view| view.now).unwrap_or_default();
    let text = list_text(&records, now, is_verbose);
    let failures: Vec<Value> = records.failures.iter().map(failures::to_json).collect();
    let is_good = records.missing.is_empty();
    let json = json!({ "ok": is_good, "failures": failures, "errors": records.complaints() });
    Answer { is_good, text, json }
}

fn list_text(records: &Records, now: UnixMillis, is_verbose: bool) -> String {
    let mut lines = records.complaints();
    for failure in &records.failures {
        lines.extend(failures::to_lines(failure, now));
        if is_verbose {
            lines.extend(failures::details(failure));
        }
    }
    if records.failures.is_empty() {
        lines.push("no failure record stands".to_owned());
    } else {
        let groups = records.failures.iter().filter(|failure| failure.ends_group).count();
        let units = records.failures.len() - groups;
        lines.push(String::new());
        lines.push(format!(
            "{} failed, {} died in groups that go on",
            counted(groups as u64, "group"),
            counted(units as u64, "unit"),
        ));
    }
    lines.join("\n")
}

/// Enqueues failed groups again; bad when one could not be.
pub async fn retry(queue: &WorkQueue, choice: &Choice, reason: Option<&str>) -> Answer {
    let records = read_all(queue).await;
    let ended = records.failures.iter().filter(|failure| failure.ends_group);
    let has_reason = |failure: &&Failure| reason.is_none_or(|reason| failure.reason == reason);
    let chosen: Vec<&Failure> =
        ended.filter(has_reason).filter(|failure| choice.includes(&failure.group)).collect();
    let mut outcomes = Vec::new();
    for failure in &chosen {
        let outcome = meaning_of_retry(&queue.retry(failure).await);
        outcomes.push((failure.group.clone(), outcome));
    }
    conclude(&records, choice, outcomes, "enqueued again")
}

fn meaning_of_retry(reply: &Result<WriteReply, QueueError>) -> (bool, String) {
    match reply {
        Ok(WriteReply::Ok) => (true, "enqueued again".to_owned()),
        Ok(WriteReply::AlreadyDone) => (true, "is in the queue already".to_owned()),
        Ok(WriteReply::Unknown) => (false, "its record is gone".to_owned()),
        Ok(WriteReply::Busy) => (false, "redis is short of memory: try later".to_owned()),
        Ok(other) => (false, format!("unexpected answer: {other:?}")),
        Err(error) => (false, error.to_string()),
    }
}

/// Deletes records; bad when one could not be.
///
/// # Errors
/// All are to be dropped, and that was not confirmed.
pub async fn drop(
    queue: &WorkQueue,
    choice: &Choice,
    is_confirmed: bool,
) -> anyhow::Result<Answer> {
    let records = read_all(queue).await;
    anyhow::ensure!(
        !choice.all || is_confirmed,
        "nothing was done: this deletes {}, with the prompts in them; add --yes to really do it",
        counted(records.failures.len() as u64, "record"),
    );
    let mut outcomes = Vec::new();
    for failure in records.failures.iter().filter(|failure| choice.includes(&failure.group)) {
        let outcome = match queue.drop_failure(failure).await {
            Ok(true) => (true, "record dropped".to_owned()),
            Ok(false) => (true, "its record was gone already".to_owned()),
            Err(error) => (false, error.to_string()),
        };
        outcomes.push((failure.group.clone(), outcome));
    }
    Ok(conclude(&records, choice, outcomes, "dropped"))
}

impl Choice {
    fn includes(&self, group: &GroupId) -> bool {
        self.all || self.groups.contains(group)
    }
}

type Outcome = (GroupId, (bool, String));

/// Tells what became of each; a group that was named and has no record is bad.
fn conclude(records: &Records, choice: &Choice, mut outcomes: Vec<Outcome>, done: &str) -> Answer {
    let found: BTreeSet<GroupId> = outcomes.iter().map(|(group, _)| group.clone()).collect();
    for group in choice.groups.iter().filter(|group| !found.contains(group)) {
        outcomes.push((group.clone(), (false, "has no such failure record".to_owned())));
    }
    let is_good = records.missing.is_empty() && outcomes.iter().all(|(_, (is_right, _))| *is_right);
    let mut table = Table::new(["", ""]);
    for (group, (_, words)) in &outcomes {
        table.row([group.to_string(), words.clone()]);
    }
    let mut lines = records.complaints();
    lines.extend(table.to_lines());
    if outcomes.is_empty() {
        lines.push("no such failure record".to_owned());
    }
    if choice.all && !outcomes.is_empty() {
        let count = outcomes.iter().filter(|(_, (is_right, _))| *is_right).count();
        let all = counted(outcomes.len() as u64, "record");
        lines.push(format!("{count} of {all} {done}"));
    }
    let groups: Vec<Value> = outcomes
        .iter()
        .map(|(group, (is_right, words))| {
            json!({ "group": group, "ok": is_right, "message": words })
        })
        .collect();
    let json = json!({ "ok": is_good, "groups": groups, "errors": records.complaints() });
    Answer { is_good, text: lines.join("\n"), json }
}
