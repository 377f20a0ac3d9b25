//! What workers are answered, as it is written.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, GroupId, PolicyVersion, UnitId};
use ebbtide_core::sample::{Chunk, Finish};
use ebbtide_core::time::{UnixMillis, whole_millis};
use ebbtide_core::work::{ResumePolicy, Sampling};
use ebbtide_queue::command::Stage;
use ebbtide_queue::reply::{Grant, WriteReply};
use serde::Serialize;
use tokio::time::Instant;

use crate::shared::Shared;
use crate::workers::{Answer, Grants};

/// To `POST /v1/lease`.
#[derive(Debug, Serialize)]
pub(super) struct LeaseAnswer<'a> {
    grants: Vec<GrantWords<'a>>,
    /// `granted` or `empty`.
    reason: &'static str,
    policy_version: PolicyVersion,
    terms: TermsWords,
}

/// What the holder of a lease has to keep to.
#[derive(Debug, Serialize)]
pub(super) struct TermsWords {
    lease_ms: u64,
    renew_every_ms: u64,
    progress_limit_ms: u64,
    environment_limit_ms: u64,
}

#[derive(Debug, Serialize)]
struct GrantWords<'a> {
    unit: &'a UnitId,
    fencing_token: FencingToken,
    slot: u16,
    seed: Option<i64>,
    tokens_left: u32,
    attempts: u16,
    group: GroupWords<'a>,
    partial: PartialWords,
    finish: Option<&'a Finish>,
}

#[derive(Debug, Serialize)]
struct GroupWords<'a> {
    group_id: &'a GroupId,
    group_size: u16,
    prompt_token_ids: &'a [i32],
    sampling: &'a Sampling,
    model_id: &'a str,
    tokenizer_fingerprint: &'a str,
    min_policy_version: PolicyVersion,
    max_lag: u16,
    resume_policy: ResumePolicy,
    expires_at_ms: Option<UnixMillis>,
    max_leased_ms: u32,
    meta_hex: String,
}

/// Tokens that are stored: to go on from, or to score.
#[derive(Debug, Serialize)]
struct PartialWords {
    offset: u32,
    token_ids: Vec<i32>,
    logprobs: Vec<f32>,
    weights_version: Option<PolicyVersion>,
}

/// To every call that names units.
#[derive(Debug, Serialize)]
pub(super) struct BatchAnswer {
    replies: Vec<ReplyWords>,
    policy_version: PolicyVersion,
}

#[derive(Debug, Serialize)]
struct ReplyWords {
    unit: UnitId,
    reply: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    release_in_ms: Option<u64>,
}

impl<'a> LeaseAnswer<'a> {
    pub(super) fn new(grants: &'a Grants, shared: &Shared) -> Self {
        Self {
            grants: grants.iter().map(|grant| grant_words(grant)).collect(),
            reason: if grants.is_empty() { "empty" } else { "granted" },
            policy_version: *shared.run_version.borrow(),
            terms: TermsWords::of(shared),
        }
    }
}

impl TermsWords {
    pub(super) fn of(shared: &Shared) -> Self {
        let lease = shared.config.lease;
        Self {
            lease_ms: whole_millis(lease.ttl),
            renew_every_ms: whole_millis(lease.renew_every),
            progress_limit_ms: whole_millis(lease.progress.idle),
            environment_limit_ms: whole_millis(lease.progress.environment),
        }
    }
}

fn grant_words(grant: &Grant) -> GrantWords<'_> {
    let group = &grant.group;
    let partial = partial_words(&grant.partial);
    GrantWords {
        unit: &grant.unit,
        fencing_token: grant.fencing_token,
        slot: grant.unit.slot,
        seed: group.sampling.seed_of(grant.unit.slot),
        tokens_left: group.sampling.max_tokens.saturating_sub(partial.offset),
        attempts: grant.attempts,
        group: GroupWords {
            group_id: &group.group_id,
            group_size: group.group_size,
            prompt_token_ids: &group.prompt_token_ids,
            sampling: &group.sampling,
            model_id: &group.model_id,
            tokenizer_fingerprint: &group.tokenizer_fingerprint,
            min_policy_version: group.min_policy_version,
            max_lag: group.max_lag,
            resume_policy: group.resume_policy,
            expires_at_ms: group.expires_at,
            max_leased_ms: group.max_leased_ms,
            meta_hex: group.meta.iter().map(|byte| format!("{byte:02x}")).collect(),
        },
        partial,
        finish: grant.finish.as_ref(),
    }
}

fn partial_words(chunks: &[Chunk]) -> PartialWords {
    PartialWords {
        offset: chunks.last().map_or(0, Chunk::end),
        token_ids: chunks.iter().flat_map(|chunk| &chunk.token_ids).copied().collect(),
        logprobs: chunks.iter().flat_map(|chunk| &chunk.logprobs).copied().collect(),
        weights_version: chunks.last().map(|chunk| chunk.weight_version),
    }
}

impl BatchAnswer {
    /// The answers, in the order of the units that were named.
    pub(super) fn new(units: Vec<UnitId>, answers: Vec<Answer>, shared: &Shared) -> Self {
        let now = Instant::now();
        let reply = |(unit, answer)| reply_words(unit, answer, now);
        let policy_version = *shared.run_version.borrow();
        Self { replies: units.into_iter().zip(answers).map(reply).collect(), policy_version }
    }
}

fn reply_words(unit: UnitId, answer: Answer, now: Instant) -> ReplyWords {
    let stored_tokens = match answer.reply {
        Ok(WriteReply::Offset(stored)) => Some(stored),
        _ => None,
    };
    let problem = answer.reply.as_ref().err().map(ToString::to_string);
    ReplyWords {
        unit,
        reply: answer.reply.map_or("UNANSWERED", word_of),
        stored_tokens,
        problem,
        release_in_ms: answer.release_by.map(|by| millis_until(by, now)),
    }
}

/// The queue's word.
pub(super) fn word_of(reply: WriteReply) -> &'static str {
    match reply {
        WriteReply::Ok => "OK",
        WriteReply::AlreadyDone => "ALREADY_DONE",
        WriteReply::Fenced => "FENCED",
        WriteReply::Offset(_) => "OFFSET",
        WriteReply::Unknown => "UNKNOWN",
        WriteReply::Busy => "BUSY",
        WriteReply::BadVersion => "BAD_VERSION",
        WriteReply::WrongStage => "WRONG_STAGE",
    }
}

/// Whole milliseconds that are left; zero when the moment has passed.
pub(super) fn millis_until(moment: Instant, now: Instant) -> u64 {
    whole_millis(left_until(moment, now))
}

pub(super) fn left_until(moment: Instant, now: Instant) -> Duration {
    moment.saturating_duration_since(now)
}

/// A stage as others are told.
pub(super) fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Generate => "generate",
        Stage::Reward => "reward",
    }
}
