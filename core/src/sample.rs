//! Work as it comes back: chunks of tokens in transfer, and the samples that they become.

use serde::{Deserialize, Serialize};

use crate::fabric::FabricVerdict;
use crate::ids::{FencingToken, Holder, PolicyVersion, UnitId};
use crate::time::UnixMillis;
use crate::work::ResumePolicy;

/// A run of tokens in transfer: made by one holder under one weight version.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Index of the first token within the response.
    pub offset: u32,
    /// The weights that made every token of the chunk.
    pub weight_version: PolicyVersion,
    /// The generated token ids.
    pub token_ids: Vec<i32>,
    /// One log-probability for each token.
    pub logprobs: Vec<f32>,
    /// Where and when the tokens were made.
    pub origin: Origin,
}

/// Where and when tokens were made. The queue itself sets the holder and the fencing token when it
/// stores a chunk: they are those of the lease under which it was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The holder that received them from its engine.
    pub holder: Holder,
    /// The lease under which they were made.
    pub fencing_token: FencingToken,
    /// Engine and version, such as `vllm/0.32.0`.
    pub engine: String,
    /// The fabric verdict of the node at that time.
    pub fabric: FabricVerdict,
    /// When the first token of the chunk arrived, on the node's clock.
    pub started_at: UnixMillis,
    /// When the last token of the chunk arrived, on the node's clock.
    pub ended_at: UnixMillis,
}

impl Chunk {
    /// Number of tokens.
    pub fn len(&self) -> u32 {
        u32::try_from(self.token_ids.len()).unwrap_or(u32::MAX)
    }

    /// Whether the chunk carries no token.
    pub fn is_empty(&self) -> bool {
        self.token_ids.is_empty()
    }

    /// Index one past the last token within the response.
    pub fn end(&self) -> u32 {
        self.offset.saturating_add(self.len())
    }
}

/// Why a sample ended. An aborted or failed generation is never a finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token or the end of the sequence.
    Stop,
    /// The token limit.
    Length,
    /// The engine's repetition detector.
    Repetition,
}

/// What stopped a sample, when it was neither the end of the sequence nor the length.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopReason {
    /// A stop token.
    Token(i32),
    /// A stop string.
    Text(String),
}

/// The end of a sample as its holder reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finish {
    /// Why the sample ended.
    pub reason: FinishReason,
    /// What exactly stopped it.
    pub stop_reason: Option<StopReason>,
}

/// What a scorer says of a finished response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The reward.
    pub value: f64,
    /// Which scorer, in which version.
    pub scorer_version: String,
    /// Opaque to Ebbtide, at most [`META_LIMIT_BYTES`](crate::work::META_LIMIT_BYTES).
    #[serde(default, with = "serde_bytes")]
    pub metadata: Vec<u8>,
}

/// One finished completion, with everything that made it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The slot that the sample fills.
    pub unit: UnitId,
    /// Why it ended.
    pub finish: Finish,
    /// The whole response in the order of its offsets; contiguous from 0.
    pub chunks: Vec<Chunk>,
    /// What the scorer says; `None` in a run without a reward stage.
    pub score: Option<Score>,
    /// Model, engine and scorer faults on the way.
    pub attempts: u16,
    /// Holders lost on the way.
    pub infra_attempts: u16,
    /// Times it was handed back on the way.
    pub hand_backs: u16,
}

impl Sample {
    /// The whole response.
    pub fn token_ids(&self) -> Vec<i32> {
        self.chunks.iter().flat_map(|chunk| chunk.token_ids.iter().copied()).collect()
    }

    /// Number of response tokens.
    pub fn len(&self) -> u32 {
        self.chunks.last().map_or(0, Chunk::end)
    }

    /// Whether the response has no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The loss mask when the trainer takes the sample: 1 for each token that counts.
    ///
    /// Only [`ResumePolicy::MaskOld`] masks: tokens whose lag at `current` is above `max_lag`.
    pub fn loss_mask(
        &self,
        policy: ResumePolicy,
        current: PolicyVersion,
        max_lag: u16,
    ) -> Vec<bool> {
        let counts = |chunk: &Chunk| {
            policy != ResumePolicy::MaskOld
                || crate::staleness::lag(current, chunk.weight_version) <= u64::from(max_lag)
        };
        self.chunks
            .iter()
            .flat_map(|chunk| std::iter::repeat_n(counts(chunk), chunk.token_ids.len()))
            .collect()
    }
}
