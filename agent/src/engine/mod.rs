//! Inference engines as the agent drives them: generate as a stream, abort, probe.
//!
//! One trait, one driver per engine kind. Drivers know HTTP and JSON; what a stream's end means
//! for a unit is decided elsewhere (`hosting/verdict.rs`).

mod abilities;
mod detect;
mod errors;
mod load;
mod server;
mod sglang;
mod sse;
mod stream;
mod vllm;

use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::ids::{FencingToken, PolicyVersion, UnitId};
use ebbtide_core::sample::{FinishReason, StopReason};
use ebbtide_core::work::Sampling;
use futures::stream::BoxStream;

pub use abilities::Lack;
pub use detect::DetectedEngine;
pub use errors::EngineError;
pub use load::{EngineLoad, Mean};
pub use sglang::SglangEngine;
pub use vllm::VllmEngine;

/// One engine. The real one speaks HTTP; the shipped fake is an emulator behind the same HTTP.
#[async_trait]
pub trait Engine: Send + Sync {
    /// What the engine says about itself now.
    ///
    /// # Errors
    /// It does not answer, or says that it is not healthy.
    async fn probe(&self) -> Result<EngineFacts, EngineError>;

    /// What the engine's own metrics say about its load now; by default nothing.
    ///
    /// # Errors
    /// It does not answer, or not with metrics.
    async fn load(&self) -> Result<EngineLoad, EngineError> {
        Ok(EngineLoad::default())
    }

    /// Begins to generate. Dropping the stream tells the engine to stop.
    ///
    /// # Errors
    /// The engine is away or refuses the call.
    async fn generate(&self, call: GenerateCall) -> Result<TokenStream, EngineError>;

    /// Asks to end streams. The end of each stream is the only proof that it was heard.
    ///
    /// # Errors
    /// The engine is away or refuses the call.
    async fn abort(&self, requests: &[RequestId]) -> Result<(), EngineError>;

    /// Has the engine load weights by itself; by default it has no call for that. Nothing may run
    /// on it, and its label is the only proof that it did.
    ///
    /// # Errors
    /// The engine is away, refuses the call, or has not loaded within `limit`. What it has then may
    /// be neither the old weights nor the new ones.
    async fn load_weights(
        &self,
        _weights: &WeightsAt,
        _limit: Duration,
    ) -> Result<(), EngineError> {
        let problem = "it has no call that loads weights".to_owned();
        Err(EngineError::Unable { address: self.address().to_owned(), problem })
    }

    /// Base URL, for the trainer and for messages.
    fn address(&self) -> &str;

    /// `vllm` or `sglang`; `unknown` while it has not said.
    fn kind(&self) -> &'static str;
}

/// The engines that there are drivers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineKind {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
}

impl EngineKind {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }
}

/// Events of one stream; it ends after [`StreamEvent::End`] or an error.
pub type TokenStream = BoxStream<'static, Result<StreamEvent, EngineError>>;

/// What an engine calls one generation: `<unit>.<fencing token>.`.
///
/// The token has a fixed width and the dot ends the name, so that no name begins with another:
/// engines abort by prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(String);

impl RequestId {
    /// The name of the work on `unit` under `token`; each lease has its own.
    pub fn new(unit: &UnitId, token: FencingToken) -> Self {
        Self(format!("{unit}.{:016x}.", token.0))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One generation.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateCall {
    /// Its name.
    pub request: RequestId,
    /// Prompt, followed by the tokens that earlier holders stored.
    pub token_ids: Vec<i32>,
    /// How to sample; `max_tokens` is what is left.
    pub sampling: Sampling,
}

/// Weights, where the engine itself can read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsAt {
    /// The policy version that they are.
    pub version: PolicyVersion,
    /// A path in the engine's container, or a URL that it can load from.
    pub place: String,
}

/// What an engine says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineFacts {
    /// Kind and version, such as `vllm/0.32.0`.
    pub name: String,
    /// The label of its weights; `None` when it does not tell.
    pub weights_label: Option<String>,
    /// Whether it holds all streams.
    pub is_paused: bool,
    /// Names under which it serves its model.
    pub models: Vec<String>,
    /// Abilities that it was started without.
    pub lacks: Vec<Lack>,
}

/// What comes out of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// New tokens, as many ids as log-probabilities.
    Tokens {
        /// Token ids.
        ids: Vec<i32>,
        /// Log-probabilities of these tokens.
        logprobs: Vec<f32>,
    },
    /// The stream has ended.
    End(StreamEnd),
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamEnd {
    /// Why.
    pub reason: EndReason,
    /// Which weights made which tokens of this stream's output.
    pub spans: Vec<WeightSpan>,
}

/// Why a stream ended.
#[derive(Debug, Clone, PartialEq)]
pub enum EndReason {
    /// The sample is finished.
    Finished {
        /// Why.
        reason: FinishReason,
        /// The stop token or string.
        stop: Option<StopReason>,
    },
    /// Somebody aborted it, or the engine takes no new work. Never a finish.
    Aborted,
}

/// Tokens made under one weights label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSpan {
    /// The label.
    pub label: String,
    /// First token, counted from the start of this stream's output.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
}

#[cfg(test)]
mod driver_tests;
#[cfg(test)]
mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 13 of rollouts.
    #[test]
    fn no_request_begins_with_another() {
        let unit = |text: &str| text.parse::<UnitId>().expect("valid");
        let names: Vec<RequestId> = ["u1.0000", "u1.0001", "u10.0000", "u.0000"]
            .iter()
            .flat_map(|text| [1, 2, 0x10, 0x12, u64::MAX].map(|n| (unit(text), FencingToken(n))))
            .map(|(unit, token)| RequestId::new(&unit, token))
            .collect();
        for (index, name) in names.iter().enumerate() {
            for (other_index, other) in names.iter().enumerate() {
                let is_prefix = other.as_str().starts_with(name.as_str());
                assert!(!is_prefix || index == other_index, "{name:?} {other:?}");
            }
        }
    }
}
