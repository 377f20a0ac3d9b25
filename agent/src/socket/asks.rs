//! What workers ask for: the bodies as they are written, and the jobs that they become. Everything
//! is checked here, before anything is done.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, PolicyVersion, UnitId};
use ebbtide_core::sample::{Finish, FinishReason, Score, StopReason};
use ebbtide_core::work::META_LIMIT_BYTES;
use ebbtide_queue::command::{HandBackCause, Stage, Then, Waiting};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::refusal::Refusal;
use crate::workers::{
    CALL_UNITS_MAX, LeaseCall, LeaseJob, LeaseKey, NewTokens, RenewJob, TAIL_TOKENS_MAX, WAIT_MAX,
    WorkerName, WorkerWrite, WriteJob,
};

/// Numbers from here on are not whole numbers to Redis.
const NUMBER_LIMIT: u64 = 1 << 53;

/// Longest name of a lease call, and of an engine, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Longest text of a fault, in bytes; as much as the queue keeps of it.
const PROBLEM_BYTES_MAX: usize = 4096;

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

/// What can be written to a unit.
pub(super) trait Item: DeserializeOwned {
    /// The write.
    ///
    /// # Errors
    /// What is wrong, without its place in the batch.
    fn write(self) -> Result<WorkerWrite, String>;
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

/// `POST /v1/append`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "tokens of a unit")]
pub(super) struct AppendItem {
    unit: UnitId,
    fencing_token: FencingToken,
    offset: u32,
    token_ids: Vec<i32>,
    logprobs: Vec<Option<f32>>,
    weights_version: Option<u64>,
}

/// `POST /v1/complete`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the end of a unit")]
pub(super) struct CompleteItem {
    unit: UnitId,
    fencing_token: FencingToken,
    finish: FinishWords,
    offset: Option<u32>,
    token_ids: Option<Vec<i32>>,
    logprobs: Option<Vec<Option<f32>>>,
    weights_version: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a finish")]
struct FinishWords {
    reason: FinishReason,
    stop_reason: Option<StopReason>,
}

/// `POST /v1/score`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a score of a unit")]
pub(super) struct ScoreItem {
    unit: UnitId,
    fencing_token: FencingToken,
    value: f64,
    scorer_version: String,
    #[serde(default)]
    metadata: String,
}

/// `POST /v1/hand-back`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a unit to hand back")]
pub(super) struct HandBackItem {
    unit: UnitId,
    fencing_token: FencingToken,
    #[serde(default)]
    cause: CauseWord,
    offset: Option<u32>,
    token_ids: Option<Vec<i32>>,
    logprobs: Option<Vec<Option<f32>>>,
    weights_version: Option<u64>,
}

/// Why a worker gives a unit back by itself; during a drain that is the reason.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CauseWord {
    #[default]
    Engine,
    Weights,
}

/// `POST /v1/fail`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a unit and its problem")]
pub(super) struct FailItem {
    unit: UnitId,
    fencing_token: FencingToken,
    problem: String,
    offset: Option<u32>,
    token_ids: Option<Vec<i32>>,
    logprobs: Option<Vec<Option<f32>>>,
    weights_version: Option<u64>,
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

impl Item for AppendItem {
    fn write(self) -> Result<WorkerWrite, String> {
        let tokens = tokens(self.offset, self.token_ids, self.logprobs, self.weights_version)?;
        let key = key(self.unit, self.fencing_token);
        Ok(WorkerWrite { key, tokens: Some(tokens), then: Then::Continue })
    }
}

impl Item for CompleteItem {
    fn write(self) -> Result<WorkerWrite, String> {
        let tokens = tail(self.offset, self.token_ids, self.logprobs, self.weights_version)?;
        let FinishWords { reason, stop_reason } = self.finish;
        let then = Then::Complete(Finish { reason, stop_reason });
        Ok(WorkerWrite { key: key(self.unit, self.fencing_token), tokens, then })
    }
}

impl Item for ScoreItem {
    fn write(self) -> Result<WorkerWrite, String> {
        bytes("scorer_version", &self.scorer_version, 0, META_LIMIT_BYTES)?;
        bytes("metadata", &self.metadata, 0, META_LIMIT_BYTES)?;
        let (value, scorer_version) = (self.value, self.scorer_version);
        let score = Score { value, scorer_version, metadata: self.metadata.into_bytes() };
        let key = key(self.unit, self.fencing_token);
        Ok(WorkerWrite { key, tokens: None, then: Then::Score(score) })
    }
}

impl Item for HandBackItem {
    fn write(self) -> Result<WorkerWrite, String> {
        let tokens = tail(self.offset, self.token_ids, self.logprobs, self.weights_version)?;
        let cause = match self.cause {
            CauseWord::Engine => HandBackCause::Engine,
            CauseWord::Weights => HandBackCause::Weights,
        };
        let key = key(self.unit, self.fencing_token);
        Ok(WorkerWrite { key, tokens, then: Then::HandBack(cause) })
    }
}

impl Item for FailItem {
    fn write(self) -> Result<WorkerWrite, String> {
        bytes("problem", &self.problem, 1, PROBLEM_BYTES_MAX)?;
        let tokens = tail(self.offset, self.token_ids, self.logprobs, self.weights_version)?;
        let key = key(self.unit, self.fencing_token);
        Ok(WorkerWrite { key, tokens, then: Then::Fault(self.problem) })
    }
}

fn key(unit: UnitId, fencing_token: FencingToken) -> LeaseKey {
    LeaseKey { unit, fencing_token }
}

/// Tokens that may be missing: all of the three fields, or none.
fn tail(
    offset: Option<u32>,
    token_ids: Option<Vec<i32>>,
    logprobs: Option<Vec<Option<f32>>>,
    weights_version: Option<u64>,
) -> Result<Option<NewTokens>, String> {
    match (offset, token_ids, logprobs) {
        (None, None, None) => Ok(None),
        // What is left of a response may be nothing.
        (_, Some(ids), logprobs)
            if ids.is_empty() && logprobs.as_ref().is_none_or(Vec::is_empty) =>
        {
            Ok(None)
        }
        (Some(offset), Some(token_ids), Some(logprobs)) => {
            tokens(offset, token_ids, logprobs, weights_version).map(Some)
        }
        _ => Err("offset, token_ids and logprobs must come together".to_owned()),
    }
}

fn tokens(
    offset: u32,
    token_ids: Vec<i32>,
    logprobs: Vec<Option<f32>>,
    weights_version: Option<u64>,
) -> Result<NewTokens, String> {
    let (ids, probabilities) = (token_ids.len(), logprobs.len());
    if ids != probabilities {
        return Err(format!(
            "logprobs must have one number for each token, got {probabilities} for {ids} tokens"
        ));
    }
    if !(1..=TAIL_TOKENS_MAX).contains(&ids) {
        return Err(format!(
            "token_ids must have 1 to {TAIL_TOKENS_MAX} tokens, got {ids}; send more in several \
             calls"
        ));
    }
    let weight_version = match weights_version {
        Some(number) if number >= NUMBER_LIMIT => {
            return Err(format!("weights_version must be below 2^53, got {number}"));
        }
        number => number.map(PolicyVersion),
    };
    // JSON has no infinity: null is the logarithm of zero.
    let logprobs = logprobs.into_iter().map(|p| p.unwrap_or(f32::NEG_INFINITY)).collect();
    Ok(NewTokens { offset, weight_version, token_ids, logprobs })
}

pub(super) fn worker(name: &str) -> Result<WorkerName, Refusal> {
    name.parse().map_err(|error: ebbtide_core::ids::IdError| Refusal::bad(error.to_string()))
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
