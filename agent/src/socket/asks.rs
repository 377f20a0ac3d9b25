//! What workers ask for: the bodies as they are written, and the jobs that they become. Everything
//! is checked here, before anything is done.

mod items;

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, IdError, PolicyVersion, UnitId};
use ebbtide_queue::command::{Stage, Waiting};
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub(super) use items::{AppendItem, CompleteItem, FailItem, HandBackItem, Item, ScoreItem};

use super::refusal::Refusal;
use crate::workers::{
    CALL_UNITS_MAX, LeaseCall, LeaseJob, RenewJob, WAIT_MAX, WorkerName, WriteJob,
};
use items::key;

/// Numbers from here on are not whole numbers to Redis.
const NUMBER_LIMIT: u64 = 1 << 53;

/// Longest name of a lease call, and of an engine, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Reads a body.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::bad(format!("body: {error}; GET /v1/openapi.json says what it must look like"))
    })
}

/// `POST /v1/lease`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a lease call")]
pub(super) struct LeaseAsk {
    worker: String,
    #[serde(default)]
    stage: StageWord,
    limit: usize,
    weights_version: Option<u64>,
    request_id: Option<String>,
    #[serde(default)]
    wait_ms: u64,
    engine: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StageWord {
    #[default]
    Generate,
    Reward,
}

impl LeaseAsk {
    pub(super) fn job(self) -> Result<LeaseJob, Refusal> {
        let worker = worker(&self.worker)?;
        within("limit", self.limit as u64, 1, CALL_UNITS_MAX as u64)?;
        within("wait_ms", self.wait_ms, 0, WAIT_MAX.as_millis() as u64)?;
        if let Some(id) = &self.request_id {
            text("request_id", id, 1, NAME_BYTES_MAX)?;
        }
        if let Some(engine) = &self.engine {
            text("engine", engine, 1, NAME_BYTES_MAX)?;
        }
        let (stage, version) = match (self.stage, self.weights_version) {
            (StageWord::Reward, _) => (Stage::Reward, PolicyVersion::default()),
            (StageWord::Generate, Some(number)) => {
                (Stage::Generate, version("weights_version", number)?)
            }
            (StageWord::Generate, None) => {
                return Err(Refusal::bad(
                    "weights_version must be given to generate: the policy version of the \
                     weights that this worker serves, a whole number",
                ));
            }
        };
        let engine = self.engine.unwrap_or_else(|| format!("worker/{worker}"));
        let (limit, request_id) = (self.limit, self.request_id);
        let call = LeaseCall { worker, stage, engine, version, limit, request_id };
        Ok(LeaseJob { call, wait: Duration::from_millis(self.wait_ms) })
    }
}

/// A body that names units.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with worker and units")]
pub(super) struct Batch<T> {
    worker: String,
    units: Vec<T>,
}

impl<T> Batch<T> {
    /// The worker, and what each unit becomes.
    fn convert<U>(
        self,
        convert: impl Fn(T) -> Result<U, String>,
    ) -> Result<(WorkerName, Vec<U>), Refusal> {
        let worker = worker(&self.worker)?;
        within("the number of units", self.units.len() as u64, 1, CALL_UNITS_MAX as u64)?;
        let units = self.units.into_iter().enumerate().map(|(place, item)| {
            convert(item).map_err(|problem| {
                Refusal::bad(format!("units[{place}]: {problem}; nothing was written"))
            })
        });
        Ok((worker, units.collect::<Result<_, _>>()?))
    }
}

impl<T: Item> Batch<T> {
    pub(super) fn job(self) -> Result<WriteJob, Refusal> {
        let (worker, writes) = self.convert(T::write)?;
        Ok(WriteJob { worker, writes })
    }
}

impl Batch<RenewItem> {
    pub(super) fn renew_job(self) -> Result<RenewJob, Refusal> {
        let (worker, leases) = self.convert(|item| {
            let waiting = match item.waiting {
                WaitingWord::Nothing => Waiting::Nothing,
                WaitingWord::Environment => Waiting::Environment,
            };
            Ok((key(item.unit, item.fencing_token), waiting))
        })?;
        Ok(RenewJob { worker, leases })
    }
}

/// `POST /v1/renew`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a unit to renew")]
pub(super) struct RenewItem {
    unit: UnitId,
    fencing_token: FencingToken,
    #[serde(default)]
    waiting: WaitingWord,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WaitingWord {
    #[default]
    Nothing,
    Environment,
}

pub(super) fn worker(name: &str) -> Result<WorkerName, Refusal> {
    name.parse().map_err(|error: IdError| Refusal::bad(error.to_string()))
}

fn version(field: &str, number: u64) -> Result<PolicyVersion, Refusal> {
    within(field, number, 0, NUMBER_LIMIT - 1)?;
    Ok(PolicyVersion(number))
}

fn within(field: &str, number: u64, least: u64, most: u64) -> Result<(), Refusal> {
    if (least..=most).contains(&number) {
        return Ok(());
    }
    Err(Refusal::bad(format!("{field} must be {least} to {most}, got {number}")))
}

fn text(field: &str, text: &str, least: usize, most: usize) -> Result<(), Refusal> {
    bytes(field, text, least, most).map_err(Refusal::bad)
}

fn bytes(field: &str, text: &str, least: usize, most: usize) -> Result<(), String> {
    if (least..=most).contains(&text.len()) {
        return Ok(());
    }
    Err(format!("{field} must have {least} to {most} bytes, got {}", text.len()))
}
