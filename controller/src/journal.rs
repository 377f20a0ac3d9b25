//! The journal: one JSON line for each decision, with what was seen and why it was decided so.
//!
//! A line is written when something changed since the last one, and otherwise now and then, so
//! that a quiet day is still told. The file is bounded: at its limit it is renamed to `<file>.1`,
//! which replaces the one before.

use std::io::Write;
use std::path::{Path, PathBuf};

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

/// What became of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    pub action: String,
    /// `done`, `recommended`, `refused: …` or `failed: …`.
    pub outcome: String,
}

/// Where lines go.
pub struct Journal {
    file: Option<PathBuf>,
    written: u64,
    last: Option<(Vec<Outcome>, Option<u32>, Option<String>, u64)>,
    unchanged_ticks: u64,
    was_failing: bool,
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
        let key = (entry.actions.clone(), entry.desired, entry.held.clone(), entry.generation);
        let is_news = self.last.as_ref() != Some(&key) || !entry.actions.is_empty();
        self.unchanged_ticks += 1;
        if !is_news && self.unchanged_ticks < QUIET_TICKS {
            return;
        }
        self.last = Some(key);
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
pub(crate) fn summarize(observation: &Observation, plan: &ScalePlan) -> Value {
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
    let replicas = signal(&observation.replicas, |replicas| {
        let mut states = std::collections::BTreeMap::<&str, u64>::new();
        for replica in replicas {
            *states.entry(replica.state.as_str()).or_default() += 1;
        }
        json!(states)
    });
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
    })
}

fn signal<T>(signal: &Signal<T>, show: impl Fn(&T) -> Value) -> Value {
    match signal {
        Signal::Known { value, .. } => show(value),
        Signal::Unknown { why } => json!({ "unknown": why }),
    }
}
