//! The record of sizing: what was seen and decided at every tick, enough to decide it again.
//!
//! A record is written as the difference to the one before (`delta`), with a whole one now and
//! then, so that a reader can begin anywhere. Each worker group has a row of its own: the record
//! before is the one before of the same group. Records are versioned: a reader refuses those of a
//! version that it does not know, and ignores fields that it does not know.

mod delta;
mod packed;
mod replay;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;

use self::packed::PACKED_VERSION;
pub use self::packed::pack;
pub use self::replay::{Replay, Step};
use crate::observation::{FailureKind, Observation};
use crate::scale::{Action, ActionResult, Role, TrainerAction};
use crate::time::UnixMillis;

/// The newest version of lines that this program reads. It writes version 1 of the rollouts, which
/// readers of old know, version 2 of the services, and version 3 where lines are packed.
pub const RECORD_VERSION: u64 = PACKED_VERSION;

/// The version of records of services.
const SERVICES_VERSION: u64 = 2;

/// Records from one whole one to the next: ten minutes at one every 5 s.
pub const WHOLE_EVERY: u32 = 120;

/// One tick of sizing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Whether it is the first tick of a process: nothing was remembered from earlier ones.
    #[serde(default)]
    pub is_first: bool,
    /// Which worker group it is about.
    #[serde(default, skip_serializing_if = "Role::is_rollout")]
    pub role: Role,
    /// `observe` or `act`.
    pub mode: String,
    /// The generation of leadership; 0 while another controller led.
    pub generation: u64,
    /// Replicas that ran or were on their way; none while a size was unknown.
    #[serde(default)]
    pub running: Option<u32>,
    /// Replicas that the demand asked for.
    #[serde(default)]
    pub wish: Option<u32>,
    /// Replicas that there should be.
    #[serde(default)]
    pub desired: Option<u32>,
    /// What was to be done.
    #[serde(default)]
    pub actions: Vec<RecordedAction>,
    /// What earlier ones were answered, that were not in their own tick.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answered: Vec<RecordedAction>,
    /// Why, in words.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Which stage limited the iteration, with the evidence, in words.
    #[serde(default)]
    pub bottleneck: String,
    /// Why nothing was carried out, if so.
    #[serde(default)]
    pub held: Option<String>,
    /// What was decided about the trainer's size; none where nobody asks.
    #[serde(default)]
    pub trainer: Option<TrainerRecord>,
    /// What was seen.
    pub observation: Observation,
}

/// What was decided about the trainer's size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainerRecord {
    /// What was to be done.
    pub action: Option<TrainerAction>,
    /// What became of it.
    pub outcome: Option<Outcome>,
    /// Why, in words.
    pub reasons: Vec<String>,
}

/// An action and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedAction {
    /// The action.
    pub action: Action,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// It was shown and might not be carried out.
    Recommended,
    /// It was tried and refused, or not answered within the limit of its call (`timed_out`).
    Refused {
        /// What that says about its pool.
        kind: FailureKind,
        /// What the provider said.
        why: String,
        /// Nodes that came of it all the same: the rest was refused.
        #[serde(default, skip_serializing_if = "is_none")]
        came: u32,
    },
    /// It was tried, and this is why it was not carried out.
    Failed(String),
}

fn is_none(came: &u32) -> bool {
    *came == 0
}

impl Outcome {
    /// What the planner takes note of; `None` where nothing was tried.
    pub fn result(&self) -> Option<ActionResult> {
        match self {
            Self::Done => Some(ActionResult::Done),
            Self::Recommended => None,
            Self::Refused { kind, came: 0, .. } => Some(ActionResult::Refused(*kind)),
            Self::Refused { kind, came, .. } => {
                Some(ActionResult::Partly { kind: *kind, came: *came })
            }
            Self::Failed(_) => Some(ActionResult::Failed),
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Recommended => f.write_str("recommended"),
            Self::Refused { why, .. } | Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl Record {
    /// When it was, on the controller's clock.
    pub fn at(&self) -> UnixMillis {
        self.observation.now
    }
}

/// A record as it lies in a journal, whole or as a difference.
#[derive(Debug, Deserialize)]
struct Line {
    /// The version; absent in a difference of the rollouts.
    version: Option<u64>,
    #[serde(default)]
    role: Role,
    whole: Option<Value>,
    change: Option<Value>,
    /// Another line, packed.
    packed: Option<String>,
}

/// A record as text, which several encoders share.
#[derive(Debug, Clone)]
pub struct RecordText {
    role: Role,
    text: Arc<RawValue>,
}

impl RecordText {
    /// The text of a record.
    pub fn of(record: &Record) -> Self {
        let text = to_raw_value(record).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { role: record.role, text: text.into() }
    }
}

/// Writes records, each as the difference to the one before.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The last one of each group, and how many there were since a whole one.
    last: BTreeMap<Role, (RecordText, u32)>,
}

impl Encoder {
    /// The record as one line of JSON, without a line break.
    pub fn encode(&mut self, text: &RecordText) -> String {
        let last = self.last.get(&text.role).map(|(last, since)| (last, since + 1));
        let last = last.filter(|(_, since)| *since < WHOLE_EVERY);
        let since_whole = last.map_or(0, |(_, since)| since);
        // Those who do not know of services are to refuse these lines, differences included.
        let head = match text.role {
            Role::Rollout => String::new(),
            role => format!("\"version\":{SERVICES_VERSION},\"role\":\"{role}\","),
        };
        let line = match last {
            Some((last, _)) => {
                let change = delta::between(&last.text, &text.text);
                format!("{{{head}\"change\":{}}}", change.as_deref().unwrap_or("{}"))
            }
            None if head.is_empty() => format!("{{\"version\":1,\"whole\":{}}}", text.text),
            None => format!("{{{head}\"whole\":{}}}", text.text),
        };
        self.last.insert(text.role, (text.clone(), since_whole));
        line
    }

    /// Makes the next record of each group a whole one: the one before may not have been written.
    pub fn begin_anew(&mut self) {
        self.last.clear();
    }
}

/// Why a line is no record.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// It is not the JSON of a record.
    #[error("line {line} is not a record: {problem}")]
    Malformed {
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// Another version of the program wrote it.
    #[error("line {line} has version {version}, this program reads up to {RECORD_VERSION}")]
    OtherVersion {
        /// Counted from 1.
        line: u64,
        /// Its version.
        version: u64,
    },
}

/// Reads what an [`Encoder`] wrote.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The last one of each group.
    last: BTreeMap<Role, Value>,
    lines: u64,
}

impl Decoder {
    /// The record of a line; `None` for differences before the first whole record, whose base is
    /// not there.
    ///
    /// # Errors
    /// It is no record of this version. The next whole record can be read again.
    pub fn decode(&mut self, line: &str) -> Result<Option<Record>, DecodeError> {
        self.lines += 1;
        let number = self.lines;
        // Nobody knows what a line was about that cannot be read: nothing is based on what was.
        let mut bases = std::mem::take(&mut self.last);
        let malformed = |problem: String| DecodeError::Malformed { line: number, problem };
        let parse = |line: &str| -> Result<Line, DecodeError> {
            serde_json::from_str(line).map_err(|error| malformed(error.to_string()))
        };
        let mut line = parse(line)?;
        if let Some(packed) = &line.packed {
            line = parse(&packed::unpack(packed).map_err(malformed)?)?;
        }
        if let Some(version) = line.version.filter(|version| *version > RECORD_VERSION) {
            return Err(DecodeError::OtherVersion { line: number, version });
        }
        let role = line.role;
        let base = bases.remove(&role);
        self.last = bases;
        let value = match (line.whole, line.change, base) {
            (Some(whole), ..) => whole,
            (None, Some(change), Some(base)) => delta::apply(base, &change),
            (None, Some(_), None) => return Ok(None),
            (None, None, _) => return Err(malformed("it has no content".to_owned())),
        };
        let record = Record::deserialize(&value);
        let record = record.map_err(|error| malformed(error.to_string()))?;
        self.last.insert(role, value);
        Ok(Some(record))
    }
}
