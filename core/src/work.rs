//! Work as the trainer asks for it: prompt groups, and the units leased from them.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::{GroupId, PolicyVersion, UnitId};
use crate::time::UnixMillis;

/// Version of the wire layout of [`PromptGroup`].
pub const WORK_SCHEMA: u16 = 1;

/// Most samples in one prompt group. 1024 = four times the largest group size in public recipes.
pub const GROUP_SIZE_LIMIT: u16 = 1024;

/// Most bytes of opaque metadata on a prompt group.
pub const META_LIMIT_BYTES: usize = 4096;

/// Lowest and highest priority: twelve signed bits fit beside the sequence number in the score
/// of a Redis sorted set, which is a double.
pub const PRIORITY_RANGE: std::ops::RangeInclusive<i32> = -2048..=2047;

/// How a unit with tokens goes on when the weights have changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumePolicy {
    /// Go on under the newer weights; too old a first span makes the slot EXPIRED.
    #[default]
    ContinueMixed,
    /// Drop the tokens and start again when the version rose since the last token.
    RestartIfNewer,
    /// Go on; spans that became too old get loss mask 0 and no longer count for lag.
    MaskOld,
}

/// What a DEAD or EXPIRED slot does to its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDeadSlot {
    /// The group fails; slots that are not final become CANCELLED.
    #[default]
    Fail,
    /// The group seals with what it has, when at least this many samples are complete.
    Shrink {
        /// Fewest complete samples of a group that may still be sealed.
        min_samples: u16,
    },
}

/// Which log-probabilities the trainer wants, in the words of vLLM's `--logprobs-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogprobsMode {
    /// Before temperature and top-p.
    #[default]
    RawLogprobs,
    /// As sampled.
    ProcessedLogprobs,
}

/// How to sample. A closed schema: an unknown key is an error, because engines drop unknown keys
/// in silence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Most response tokens of one sample in all, over every holder that works on it.
    pub max_tokens: u32,
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus probability mass, in (0, 1].
    pub top_p: f32,
    /// Most candidates; -1 for all.
    pub top_k: i32,
    /// Least probability of a candidate relative to the best one.
    pub min_p: f32,
    /// Token ids that end a sample; the id itself is part of the response.
    pub stop_token_ids: Vec<i32>,
    /// Seed of the engine's sampler; the slot is added to it, so that siblings differ.
    pub seed: Option<i64>,
    /// Which log-probabilities to record.
    pub logprobs_mode: LogprobsMode,
    /// Go on past the end-of-sequence token up to `max_tokens`.
    pub ignore_eos: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_tokens: 1024,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            stop_token_ids: Vec::new(),
            seed: None,
            logprobs_mode: LogprobsMode::RawLogprobs,
            ignore_eos: false,
        }
    }
}

impl Sampling {
    /// The seed of one sample: siblings differ, and every holder of a unit uses the same.
    pub fn seed_of(&self, slot: u16) -> Option<i64> {
        self.seed.map(|seed| seed.wrapping_add(i64::from(slot)))
    }
}

/// The n samples of one prompt, as the trainer enqueues them: all or nothing, idempotent by id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptGroup {
    /// Wire layout; [`WORK_SCHEMA`].
    pub schema: u16,
    /// Unique within the run and data-set epoch.
    pub group_id: GroupId,
    /// Number of samples, n.
    pub group_size: u16,
    /// Final token ids with the chat template applied; never text.
    pub prompt_token_ids: Vec<i32>,
    /// How to sample.
    pub sampling: Sampling,
    /// The model the engine must serve; empty accepts any.
    #[serde(default)]
    pub model_id: String,
    /// 32 bytes as hex; an agent whose tokenizer differs refuses the unit. Empty accepts any.
    #[serde(default)]
    pub tokenizer_fingerprint: String,
    /// The trainer's version when it enqueued.
    #[serde(default)]
    pub enqueue_policy_version: PolicyVersion,
    /// Oldest weights that may start this group.
    #[serde(default)]
    pub min_policy_version: PolicyVersion,
    /// Staleness bound L, in policy versions. 0 is strictly on-policy.
    #[serde(default)]
    pub max_lag: u16,
    /// What happens to a partial when the weights change.
    #[serde(default)]
    pub resume_policy: ResumePolicy,
    /// What a lost slot does to the group.
    #[serde(default)]
    pub on_dead_slot: OnDeadSlot,
    /// Lower comes first; within [`PRIORITY_RANGE`].
    #[serde(default)]
    pub priority: i32,
    /// When slots that are not yet final become EXPIRED, on the queue's clock; `None` is never.
    #[serde(default)]
    pub expires_at: Option<UnixMillis>,
    /// Most model or engine faults of one unit before it is DEAD.
    #[serde(default = "default_max_attempts")]
    pub max_attempts: u16,
    /// Most lost holders of one unit before it is DEAD; 0 is unlimited, the default.
    #[serde(default)]
    pub max_infra_attempts: u16,
    /// Wall-clock limit of one lease in milliseconds; 0 is none: the guard is progress.
    #[serde(default)]
    pub max_leased_ms: u32,
    /// Opaque to Ebbtide, at most [`META_LIMIT_BYTES`].
    #[serde(default, with = "serde_bytes")]
    pub meta: Vec<u8>,
}

/// Attempts that a unit has by default.
pub fn default_max_attempts() -> u16 {
    3
}

/// Why a prompt group cannot be enqueued.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("prompt group {group}: {field} {expected}, got {got}")]
pub struct GroupError {
    group: GroupId,
    field: &'static str,
    expected: &'static str,
    got: String,
}

impl PromptGroup {
    /// A group of `group_size` samples of one prompt, everything else by default.
    pub fn new(group_id: GroupId, group_size: u16, prompt_token_ids: Vec<i32>) -> Self {
        Self {
            schema: WORK_SCHEMA,
            group_id,
            group_size,
            prompt_token_ids,
            sampling: Sampling::default(),
            model_id: String::new(),
            tokenizer_fingerprint: String::new(),
            enqueue_policy_version: PolicyVersion::default(),
            min_policy_version: PolicyVersion::default(),
            max_lag: 0,
            resume_policy: ResumePolicy::default(),
            on_dead_slot: OnDeadSlot::default(),
            priority: 0,
            expires_at: None,
            max_attempts: default_max_attempts(),
            max_infra_attempts: 0,
            max_leased_ms: 0,
            meta: Vec::new(),
        }
    }

    /// The unit of one slot.
    pub fn unit_id(&self, slot: u16) -> UnitId {
        UnitId { group: self.group_id.clone(), slot }
    }

    /// Every unit of the group, in the order of its slots.
    pub fn unit_ids(&self) -> impl Iterator<Item = UnitId> + '_ {
        (0..self.group_size).map(|slot| self.unit_id(slot))
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self) -> Result<(), GroupError> {
        let sampling = &self.sampling;
        let min_samples_fit = match self.on_dead_slot {
            OnDeadSlot::Fail => true,
            OnDeadSlot::Shrink { min_samples } => (1..=self.group_size).contains(&min_samples),
        };
        let rules = [
            (self.schema == WORK_SCHEMA, "schema", "must be 1", self.schema.to_string()),
            (
                (1..=GROUP_SIZE_LIMIT).contains(&self.group_size),
                "group_size",
                "must be 1 to 1024",
                self.group_size.to_string(),
            ),
            (
                !self.prompt_token_ids.is_empty(),
                "prompt_token_ids",
                "must not be empty",
                "none".to_owned(),
            ),
            (sampling.max_tokens > 0, "max_tokens", "must be at least 1", "0".to_owned()),
            (
                sampling.temperature.is_finite() && sampling.temperature >= 0.0,
                "temperature",
                "must be at least 0",
                sampling.temperature.to_string(),
            ),
            (
                sampling.top_p > 0.0 && sampling.top_p <= 1.0,
                "top_p",
                "must be above 0 and at most 1",
                sampling.top_p.to_string(),
            ),
            (
                PRIORITY_RANGE.contains(&self.priority),
                "priority",
                "must be -2048 to 2047",
                self.priority.to_string(),
            ),
            (self.max_attempts > 0, "max_attempts", "must be at least 1", "0".to_owned()),
            (
                self.meta.len() <= META_LIMIT_BYTES,
                "meta",
                "must be at most 4096 bytes",
                self.meta.len().to_string(),
            ),
            (
                min_samples_fit,
                "on_dead_slot.min_samples",
                "must be 1 up to group_size",
                format!("{:?}", self.on_dead_slot),
            ),
        ];
        match rules.into_iter().find(|(holds, ..)| !holds) {
            None => Ok(()),
            Some((_, field, expected, got)) => {
                Err(GroupError { group: self.group_id.clone(), field, expected, got })
            }
        }
    }
}
