//! vLLM (0.32 and later): token ids in and out, always streamed, over `/inference/v1/generate`, or
//! over `/v1/completions` where the server was started without `--enable-scale-out`.
//!
//! Facts behind this driver were recorded from a real engine (`agent/tests/goldens`): abort works
//! only by the prefixed id and its reply proves nothing, a dying engine ends the stream with an
//! error event under HTTP status 200, and weight versions come with the last event alone. By
//! `/v1/completions` they do not come at all: tokens then carry the label that probes have read.

mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use self::wire::{CompletionBody, GenerateBody};
use super::load::{self, EngineLoad};
use super::server::{CALL_LIMIT, Server, is_closed, unless_missing};
use super::stream::read_events;
use super::{
    Engine, EngineError, EngineFacts, EngineKind, GenerateCall, Lack, RequestId, TokenStream,
    WeightsAt,
};

/// Generation with token ids in and out, and weight versions.
const GENERATE: &str = "/inference/v1/generate";

/// Generation that every server has: token ids in and out, no weight versions.
const COMPLETIONS: &str = "/v1/completions";

/// One vLLM server.
pub struct VllmEngine {
    server: Server,
    /// What is known of it; asked again after a failed probe, when it may be another one.
    known: Mutex<Known>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    identity: Option<Identity>,
    /// It takes no work by [`GENERATE`].
    is_scale_out_off: bool,
}

#[derive(Debug, Clone)]
struct Identity {
    /// Kind and version.
    name: String,
    /// Served names of the model.
    models: Vec<String>,
}

impl VllmEngine {
    /// A driver of the server at `address`, such as `http://10.0.0.7:8000`. Nothing is sent yet.
    ///
    /// # Errors
    /// The address is no HTTP URL.
    pub fn new(address: &str) -> Result<Self, EngineError> {
        Ok(Self::of(Server::at(address)?))
    }

    pub(super) fn of(server: Server) -> Self {
        Self { server, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn identity(&self) -> Result<Identity, EngineError> {
        if let Some(identity) = self.known().identity.clone() {
            return Ok(identity);
        }
        let version: wire::Version = self.server.read("/version").await?;
        let models: wire::Models = self.server.read("/v1/models").await?;
        let is_scale_out_off = self.is_scale_out_off().await?;
        let identity =
            Identity { name: format!("vllm/{}", version.version), models: models.names() };
        *self.known() = Known { identity: Some(identity.clone()), is_scale_out_off };
        Ok(identity)
    }

    /// Asks for a generation that every server refuses, and looks how it does.
    async fn is_scale_out_off(&self) -> Result<bool, EngineError> {
        let answer = self.server.post(GENERATE, &wire::no_generation()).await;
        match &answer {
            Ok(()) | Err(EngineError::Refused { .. }) => Ok(is_closed(&answer)),
            Err(error) => Err(error.clone()),
        }
    }

    async fn facts(&self) -> Result<EngineFacts, EngineError> {
        let (health, weights, paused) = futures::join!(
            self.server.check("/health"),
            self.server.read::<wire::WeightInfo>("/weight_info"),
            self.server.read::<wire::Paused>("/is_paused")
        );
        health?;
        let Identity { name, models } = self.identity().await?;
        // Without dev mode both routes are 404: then nobody can pause it, and nobody knows its
        // weights.
        let (weights, paused) = (unless_missing(weights)?, unless_missing(paused)?);
        let mut lacks = Vec::new();
        if self.known().is_scale_out_off {
            lacks.push(Lack::ScaleOut);
        }
        if weights.is_none() {
            lacks.push(Lack::DevMode);
        }
        Ok(EngineFacts {
            name,
            weights_label: weights.map(|info| info.weight_version),
            is_paused: paused.is_some_and(|paused| paused.is_paused),
            models,
            lacks,
        })
    }

    /// Generates by the route that every server has.
    async fn complete(&self, call: &GenerateCall) -> Result<TokenStream, EngineError> {
        let models = self.known().identity.clone().map(|identity| identity.models);
        let model = models.as_ref().and_then(|models| models.first());
        let body = CompletionBody::of(call, model.map(String::as_str));
        let request = self.server.generation(COMPLETIONS, &body);
        let opened = self.server.open(request.header("X-Request-Id", call.request.as_str())).await;
        if is_closed(&opened) {
            return Err(self.server.unable(format!(
                "it takes work neither by {GENERATE} nor by {COMPLETIONS}: start vLLM with \
                 --enable-scale-out"
            )));
        }
        Ok(read_events(opened?, call.sampling.max_tokens, wire::read_event))
    }

    /// What the cache holds was computed by the weights before.
    async fn empty_prefix_cache(&self) -> Result<(), EngineError> {
        let answer = self.server.ask("/reset_prefix_cache", &(), CALL_LIMIT).await?;
        match serde_json::from_slice(&answer) {
            Ok(wire::Done { success: true }) => Ok(()),
            _ => Err(EngineError::malformed("success: true of /reset_prefix_cache", &answer)),
        }
    }

    async fn send_abort(&self, path: &str, ids: &[String]) -> Result<(), EngineError> {
        self.server.post(path, &serde_json::json!({ "request_ids": ids })).await
    }
}

#[async_trait]
impl Engine for VllmEngine {
    async fn probe(&self) -> Result<EngineFacts, EngineError> {
        let answer = self.facts().await;
        if answer.is_err() {
            *self.known() = Known::default();
        }
        answer
    }

    async fn load(&self) -> Result<EngineLoad, EngineError> {
        load::read_page(self.server.page("/metrics").await?, load::VLLM).await
    }

    async fn generate(&self, call: GenerateCall) -> Result<TokenStream, EngineError> {
        if self.known().is_scale_out_off {
            return self.complete(&call).await;
        }
        let request = self.server.generation(GENERATE, &GenerateBody::of(&call));
        let opened = self.server.open(request).await;
        if is_closed(&opened) {
            // It was started anew, otherwise than before, or was not probed yet.
            self.known().is_scale_out_off = true;
            return self.complete(&call).await;
        }
        Ok(read_events(opened?, call.sampling.max_tokens, wire::read_event))
    }

    async fn abort(&self, requests: &[RequestId]) -> Result<(), EngineError> {
        // An empty list would abort everything on one of the two routes.
        if requests.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<String> = requests.iter().map(wire::completion_id).collect();
        if !self.known().is_scale_out_off {
            let generations: Vec<String> = requests.iter().map(wire::generation_id).collect();
            let answer = self.send_abort("/inference/v1/abort_requests", &generations).await;
            if !is_closed(&answer) {
                return answer;
            }
            // By which route they were opened is no longer known after a failed probe.
            ids.extend(generations);
        }
        let answer = self.send_abort("/abort_requests", &ids).await;
        if is_closed(&answer) {
            let problem = "it has no route for aborts: start vLLM with VLLM_SERVER_DEV_MODE=1 \
                           (streams are closed instead)";
            return Err(self.server.unable(problem));
        }
        answer
    }

    /// The label comes last: without a load it would be a lie.
    async fn load_weights(&self, weights: &WeightsAt, limit: Duration) -> Result<(), EngineError> {
        let reload = wire::reload_weights(&weights.place);
        let answer = self.server.ask("/collective_rpc", &reload, limit).await;
        if is_closed(&answer) {
            return Err(self.server.unable(
                "it has no call that loads weights: start vLLM with VLLM_SERVER_DEV_MODE=1",
            ));
        }
        answer?;
        self.empty_prefix_cache().await?;
        let label = serde_json::json!({ "new_version": weights.version.to_string() });
        self.server.post("/update_weight_version", &label).await
    }

    fn address(&self) -> &str {
        self.server.address()
    }

    fn kind(&self) -> &'static str {
        EngineKind::Vllm.as_str()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may unwrap")]
mod tests;
