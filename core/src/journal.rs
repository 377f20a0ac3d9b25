//! The record of sizing: what was seen and decided at every tick, enough to decide it again.
//!
//! A record is written as the difference to the one before (`delta`), with a whole one now and
//! then, so that a reader can begin anywhere. Records are versioned: a reader refuses those of a
//! version that it does not know, and ignores fields that it does not know.

mod delta;
mod replay;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;

pub use self::replay::{Replay, Step};
use crate::observation::{FailureKind, Observation};
use crate::scale::{Action, ActionResult};
use crate::time::UnixMillis;

/// The version of records that this program writes and reads.
pub const RECORD_VERSION: u64 = 1;

/// Records from one whole one to the next: ten minutes at one every 5 s.
pub const WHOLE_EVERY: u32 = 120;

/// One tick of sizing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Whether it is the first tick of a process: nothing was remembered from earlier ones.
    #[serde(default)]
    pub is_first: bool,
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
    /// What was seen.
    pub observation: Observation,
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
    /// It was tried and refused.
    Refused {
        /// What that says about its pool.
        kind: FailureKind,
        /// What the provider said.
        why: String,
    },
    /// It was tried, and this is why it was not carried out.
    Failed(String),
}

impl Outcome {
    /// What the planner takes note of; `None` where nothing was tried.
    pub fn result(&self) -> Option<ActionResult> {
        match self {
            Self::Done => Some(ActionResult::Done),
            Self::Recommended => None,
            Self::Refused { kind, .. } => Some(ActionResult::Refused(*kind)),
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
    /// The version; absent in a difference.
    version: Option<u64>,
    whole: Option<Value>,
    change: Option<Value>,
}

/// A record as text, which several encoders share.
#[derive(Debug, Clone)]
pub struct RecordText(Arc<RawValue>);

impl RecordText {
    /// The text of a record.
    pub fn of(record: &Record) -> Self {
        Self(to_raw_value(record).unwrap_or_else(|_| RawValue::NULL.to_owned()).into())
    }
}

/// Writes records, each as the difference to the one before.
#[derive(Debug, Default)]
pub struct Encoder {
    last: Option<RecordText>,
    since_whole: u32,
}

impl Encoder {
    /// The record as one line of JSON, without a line break.
    pub fn encode(&mut self, text: &RecordText) -> String {
        self.since_whole += 1;
        let line = match self.last.as_ref().filter(|_| self.since_whole < WHOLE_EVERY) {
            Some(last) => {
                let change = delta::between(&last.0, &text.0);
                format!("{{\"change\":{}}}", change.as_deref().unwrap_or("{}"))
            }
            None => {
                self.since_whole = 0;
                format!("{{\"version\":{RECORD_VERSION},\"whole\":{}}}", text.0)
            }
        };
        self.last = Some(text.clone());
        line
    }

    /// Makes the next record a whole one: the one before may not have been written.
    pub fn begin_anew(&mut self) {
        self.last = None;
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
    #[error("line {line} has version {version}, this program reads version {RECORD_VERSION}")]
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
    last: Option<Value>,
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
        let base = self.last.take();
        let malformed = |problem: String| DecodeError::Malformed { line: number, problem };
        let line: Line =
            serde_json::from_str(line).map_err(|error| malformed(error.to_string()))?;
        if let Some(version) = line.version.filter(|version| *version != RECORD_VERSION) {
            return Err(DecodeError::OtherVersion { line: number, version });
        }
        let value = match (line.whole, line.change, base) {
            (Some(whole), ..) => whole,
            (None, Some(change), Some(base)) => delta::apply(base, &change),
            (None, Some(_), None) => return Ok(None),
            (None, None, _) => return Err(malformed("it has no content".to_owned())),
        };
        let record = Record::deserialize(&value);
        let record = record.map_err(|error| malformed(error.to_string()))?;
        self.last = Some(value);
        Ok(Some(record))
    }
}
