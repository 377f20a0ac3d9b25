//! SGLang (0.5.23) over `/generate`: token ids in and out, always streamed.
//!
//! Nobody has recorded this engine yet: every fact behind this driver was read in its source
//! (`docs/engines.md` lists them). Streams come in two forms, which are told apart by what they
//! hold (`wire.rs`). `/health` generates a token, waits at least a second, and marks a paused
//! engine unhealthy; so probes ask `/ready` and `/model_info`, which cost nothing.

mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt};

use self::wire::{Decoder, GenerateBody};
use super::load::{self, EngineLoad};
use super::server::{Server, unless_missing};
use super::stream::read_events;
use super::{
    Engine, EngineError, EngineFacts, EngineKind, GenerateCall, Lack, RequestId, TokenStream,
    WeightsAt,
};

/// Aborts that are under way at once: the engine takes one id a call.
const ABORTS_AT_ONCE: usize = 16;

/// One SGLang server.
pub struct SglangEngine {
    server: Server,
    /// Who it is, once told; asked again after a failed probe, when it may be another one.
    identity: Mutex<Option<Identity>>,
}

#[derive(Debug, Clone)]
struct Identity {
    /// Kind and version.
    name: String,
    /// Names of the model since the start; an update from disk gives it another.
    models: Vec<String>,
    /// Longest prompt and response together, in tokens.
    context_length: Option<u32>,
    /// Whether streams carry new tokens alone.
    is_incremental: bool,
    /// Whether it took work at any time.
    has_been_ready: bool,
}

impl SglangEngine {
    /// A driver of the server at `address`, such as `http://10.0.0.7:30000`. Nothing is sent yet.
    ///
    /// # Errors
    /// The address is no HTTP URL.
    pub fn new(address: &str) -> Result<Self, EngineError> {
        Ok(Self::of(Server::at(address)?))
    }

    pub(super) fn of(server: Server) -> Self {
        Self { server, identity: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Option<Identity>> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn identity(&self) -> Result<Identity, EngineError> {
        if let Some(known) = self.known().clone() {
            return Ok(known);
        }
        let (server, models) = futures::join!(
            self.server.read::<wire::ServerInfo>("/server_info"),
            self.server.read::<wire::Models>("/v1/models")
        );
        let (server, models) = (server?, models?);
        let identity = Identity {
            name: format!("sglang/{}", server.version),
            context_length: models.context_length(),
            models: models.names().chain(server.served_model_name).collect(),
            is_incremental: server.incremental_streaming_output,
            has_been_ready: false,
        };
        *self.known() = Some(identity.clone());
        Ok(identity)
    }

    async fn facts(&self) -> Result<EngineFacts, EngineError> {
        let (ready, model) = futures::join!(
            self.server.check("/ready"),
            self.server.read::<wire::ModelInfo>("/model_info")
        );
        let model = model?;
        let mut identity = self.identity().await?;
        if !model.is_generation {
            return Err(self.server.unable("it serves a model that does not generate"));
        }
        let is_ready = match ready {
            Err(EngineError::Failed { code: 503, .. }) => false,
            // Older servers have no such route.
            other => unless_missing(other).map(|_| true)?,
        };
        if is_ready && !identity.has_been_ready {
            identity.has_been_ready = true;
            *self.known() = Some(identity.clone());
        }
        if !identity.has_been_ready {
            let problem = "its /ready says no: it starts, is paused or shuts down".to_owned();
            return Err(EngineError::Failed { code: 503, problem });
        }
        let mut models = identity.models;
        models.extend(model.served_model_name);
        models.sort();
        models.dedup();
        let lacks = if identity.is_incremental { None } else { Some(Lack::IncrementalStreaming) };
        Ok(EngineFacts {
            name: identity.name,
            weights_label: model.weight_version,
            // The one reason that comes and goes. One that shuts down holds no stream back, and
            // is given none.
            is_paused: !is_ready,
            models,
            lacks: lacks.into_iter().collect(),
        })
    }
}

#[async_trait]
impl Engine for SglangEngine {
    async fn probe(&self) -> Result<EngineFacts, EngineError> {
        let answer = self.facts().await;
        let is_starting = |error: &EngineError| matches!(error, EngineError::Failed { .. });
        if answer.as_ref().is_err_and(|error| !is_starting(error)) {
            *self.known() = None;
        }
        answer
    }

    async fn load(&self) -> Result<EngineLoad, EngineError> {
        load::read_page(self.server.page("/metrics").await?, load::SGLANG).await
    }

    async fn generate(&self, call: GenerateCall) -> Result<TokenStream, EngineError> {
        let context_length = self.known().as_ref().and_then(|identity| identity.context_length);
        let body = GenerateBody::of(&call, context_length);
        let bytes = self.server.open(self.server.generation("/generate", &body)).await?;
        let mut decoder = Decoder::default();
        Ok(read_events(bytes, call.sampling.max_tokens, move |data| decoder.read(data)))
    }

    async fn abort(&self, requests: &[RequestId]) -> Result<(), EngineError> {
        let aborts = requests.iter().map(|request| async {
            self.server.post("/abort_request", &wire::AbortBody::of(request)).await
        });
        // Collected first: the closure of a stream that is built lazily is not general enough.
        let aborts: Vec<_> = aborts.collect();
        // One that fails keeps no other from being sent.
        let answers: Vec<_> = stream::iter(aborts).buffer_unordered(ABORTS_AT_ONCE).collect().await;
        answers.into_iter().collect()
    }

    async fn load_weights(&self, weights: &WeightsAt, limit: Duration) -> Result<(), EngineError> {
        let body = wire::LoadBody::of(weights);
        self.server.ask("/update_weights_from_disk", &body, limit).await.map(|_| ())
    }

    fn address(&self) -> &str {
        self.server.address()
    }

    fn kind(&self) -> &'static str {
        EngineKind::Sglang.as_str()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may unwrap")]
mod tests;
