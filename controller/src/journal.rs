//! The journal: one JSON line for each decision, with what was seen and why it was decided so.
//!
//! A line is written when something changed since the last one, and otherwise now and then, so
//! that a quiet day is still told. The file is bounded: at its limit it is renamed to `<file>.1`,
//! which replaces the one before.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use ebbtide_core::bottleneck::IterationStage;
use ebbtide_core::observation::{Observation, Signal};
use ebbtide_core::scale::ScalePlan;
use ebbtide_core::time::{UnixMillis, whole_millis};
use serde::Serialize;
use serde_json::{Value, json};

/// Ticks after which an unchanged decision is written again. 60 × 5 s = five minutes.
const QUIET_TICKS: u64 = 60;

/// Largest journal file; with the one before it, twice that. 64 MiB are some 40,000 decisions.
const FILE_LIMIT_BYTES: u64 = 64 << 20;

/// One decision.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// When it was decided, on the controller's clock.
    pub at: UnixMillis,
    /// `observe` or `act`.
    pub mode: &'static str,
    /// The generation of leadership; 0 while passive.
    pub generation: u64,
    pub running: Option<u32>,
    pub wish: Option<u32>,
    pub desired: Option<u32>,
    /// Actions with their outcome.
    pub actions: Vec<Outcome>,
    pub reasons: Vec<String>,
    /// Why nothing was carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    pub observed: Value,
}

/// The outcome of an action that may not be carried out.
pub(crate) const RECOMMENDED: &str = "recommended";

/// What became of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    pub action: String,
    /// `done`, [`RECOMMENDED`] or `failed: …`.
    pub outcome: String,
}

/// Where lines go.
pub struct Journal {
    file: Option<PathBuf>,
    written: u64,
    last: Option<Gist>,
    unchanged_ticks: u64,
    was_failing: bool,
}

/// What makes a decision news.
#[derive(PartialEq)]
struct Gist {
    actions: Vec<Outcome>,
    desired: Option<u32>,
    held: Option<String>,
    generation: u64,
}

impl Journal {
    /// A journal in this file, or in the log when there is none.
    pub fn new(file: Option<PathBuf>) -> Self {
        let written = file.as_deref().map_or(0, length_of);
        Self { file, written, last: None, unchanged_ticks: 0, was_failing: false }
    }

    /// Writes an entry when it says something new. A journal that cannot be written is reported
    /// and does not stop the controller.
    pub(crate) fn record(&mut self, entry: &Entry) {
        let gist = Gist {
            actions: entry.actions.clone(),
            desired: entry.desired,
            held: entry.held.clone(),
            generation: entry.generation,
        };
        let has_acted = entry.actions.iter().any(|action| action.outcome != RECOMMENDED);
        let is_news = self.last.as_ref() != Some(&gist) || has_acted;
        self.unchanged_ticks += 1;
        if !is_news && self.unchanged_ticks < QUIET_TICKS {
            return;
        }
        self.last = Some(gist);
        self.unchanged_ticks = 0;
        let line = match serde_json::to_string(entry) {
            Ok(line) => line,
            Err(error) => return tracing::error!(%error, "decision cannot be written as json"),
        };
        let Some(file) = self.file.clone() else {
            tracing::info!(target: "ebbtide::journal", decision = %line, "decision");
            return;
        };
        let outcome = self.append(&file, &line);
        match &outcome {
            Err(error) if !self.was_failing => {
                tracing::error!(%error, file = %file.display(), "journal cannot be written");
            }
            Ok(()) if self.was_failing => {
                tracing::info!(file = %file.display(), "journal is written again");
            }
            _ => {}
        }
        self.was_failing = outcome.is_err();
    }

    fn append(&mut self, path: &Path, line: &str) -> std::io::Result<()> {
        let bytes = u64::try_from(line.len() + 1).unwrap_or(u64::MAX);
        if self.written > 0 && self.written.saturating_add(bytes) > FILE_LIMIT_BYTES {
            std::fs::rename(path, path.with_added_extension("1"))?;
            self.written = 0;
        }
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        self.written += bytes;
        Ok(())
    }
}

fn length_of(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(desired: u32, outcomes: &[&str]) -> Entry {
        let outcome = |outcome: &&str| Outcome {
            action: "raise pool spot from 0 to 1".to_owned(),
            outcome: (*outcome).to_owned(),
        };
        Entry {
            at: UnixMillis(1),
            mode: "act",
            generation: 1,
            running: Some(0),
            wish: Some(desired),
            desired: Some(desired),
            actions: outcomes.iter().map(outcome).collect(),
            reasons: vec!["pace is not measured yet".to_owned()],
            held: None,
            observed: json!({}),
        }
    }

    fn lines(file: &Path) -> usize {
        std::fs::read_to_string(file).expect("written").lines().count()
    }

    #[test]
    fn only_news_is_written_and_quiet_is_told_now_and_then() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("journal");
        let mut journal = Journal::new(Some(file.clone()));
        for _ in 0..10 {
            journal.record(&entry(3, &[RECOMMENDED]));
        }
        assert_eq!(lines(&file), 1, "a recommendation that stands is no news");
        for _ in 0..2 {
            journal.record(&entry(3, &["done"]));
        }
        assert_eq!(lines(&file), 3, "what was done is always told");
        for _ in 0..QUIET_TICKS {
            journal.record(&entry(3, &[]));
        }
        assert_eq!(lines(&file), 4);
        journal.record(&entry(3, &[]));
        assert_eq!(lines(&file), 5, "quiet is told as well");
    }

    #[test]
    fn full_file_moves_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("journal.jsonl");
        std::fs::write(&file, "earlier\n").expect("writable");
        let mut journal = Journal::new(Some(file.clone()));
        journal.written = FILE_LIMIT_BYTES;
        journal.record(&entry(1, &["done"]));
        assert_eq!(lines(&file), 1);
        assert_eq!(lines(&folder.path().join("journal.jsonl.1")), 1);
    }

    #[test]
    fn journal_that_cannot_be_written_stops_nothing() {
        let mut journal = Journal::new(Some(PathBuf::from("/proc/no/such/place")));
        journal.record(&entry(1, &["done"]));
        assert!(journal.was_failing);
    }
}
