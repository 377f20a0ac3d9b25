//! The units that a call names: what is written to each.

use ebbtide_core::ids::{FencingToken, PolicyVersion, UnitId};
use ebbtide_core::sample::{Finish, FinishReason, Score, StopReason};
use ebbtide_core::work::META_LIMIT_BYTES;
use ebbtide_queue::command::{HandBackCause, Then};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{NUMBER_LIMIT, bytes};
use crate::workers::{LeaseKey, NewTokens, TAIL_TOKENS_MAX, WorkerWrite};

/// Longest text of a fault, in bytes; as much as the queue keeps of it.
const PROBLEM_BYTES_MAX: usize = 4096;

/// What can be written to a unit.
pub(in crate::socket) trait Item: DeserializeOwned {
    /// The write.
    ///
    /// # Errors
    /// What is wrong, without its place in the batch.
    fn write(self) -> Result<WorkerWrite, String>;
}

/// `POST /v1/append`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "tokens of a unit")]
pub(in crate::socket) struct AppendItem {
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
pub(in crate::socket) struct CompleteItem {
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
pub(in crate::socket) struct ScoreItem {
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
pub(in crate::socket) struct HandBackItem {
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
pub(in crate::socket) struct FailItem {
    unit: UnitId,
    fencing_token: FencingToken,
    problem: String,
    offset: Option<u32>,
    token_ids: Option<Vec<i32>>,
    logprobs: Option<Vec<Option<f32>>>,
    weights_version: Option<u64>,
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
        Ok(WorkerWrite { key, tokens, then: Then::HandBack(cause.into()) })
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

pub(super) fn key(unit: UnitId, fencing_token: FencingToken) -> LeaseKey {
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
