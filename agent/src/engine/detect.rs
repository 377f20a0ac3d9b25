//! Finds out which engine answers under an address, and drives it.
//!
//! Another engine may come up under the same address: which one it is is asked again after every
//! probe that failed, and whenever it does not answer as its kind does. Until then the known driver
//! stays, as one failed probe says little and streams are still to be ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;

use super::server::{Server, unless_missing};
use super::{
    Engine, EngineError, EngineFacts, EngineKind, EngineLoad, GenerateCall, RequestId,
    SglangEngine, TokenStream, VllmEngine, WeightsAt,
};

/// A route that vLLM alone has.
const OF_VLLM: &str = "/version";

/// A route that SGLang alone has.
const OF_SGLANG: &str = "/model_info";

/// An engine of either kind, told apart by what it answers.
pub struct DetectedEngine {
    server: Server,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    driver: Option<(EngineKind, Arc<dyn Engine>)>,
    /// It may be another one than the driver is for.
    is_in_doubt: bool,
}

/// Any JSON object.
#[derive(Deserialize)]
struct Anything {}

impl DetectedEngine {
    /// The engine at `address`, such as `http://10.0.0.7:8000`. Nothing is sent yet.
    ///
    /// # Errors
    /// The address is no HTTP URL.
    pub fn new(address: &str) -> Result<Self, EngineError> {
        Ok(Self { server: Server::at(address)?, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver that is known, right or not.
    fn driver(&self) -> Result<Arc<dyn Engine>, EngineError> {
        let driver = self.known().driver.as_ref().map(|(_, driver)| driver.clone());
        driver.ok_or_else(|| EngineError::Unreachable {
            address: self.server.address().to_owned(),
            problem: "it has not said yet which engine it is".to_owned(),
        })
    }

    /// The driver of the engine that answers now.
    async fn detect(&self) -> Result<Arc<dyn Engine>, EngineError> {
        if !self.known().is_in_doubt
            && let Ok(driver) = self.driver()
        {
            return Ok(driver);
        }
        let kind = self.ask_kind().await?;
        let mut known = self.known();
        known.is_in_doubt = false;
        match &known.driver {
            // One of the same kind may be the same: its driver asks who it is by itself.
            Some((known_kind, driver)) if *known_kind == kind => Ok(driver.clone()),
            _ => {
                let server = self.server.clone();
                let driver: Arc<dyn Engine> = match kind {
                    EngineKind::Vllm => Arc::new(VllmEngine::of(server)),
                    EngineKind::Sglang => Arc::new(SglangEngine::of(server)),
                };
                known.driver = Some((kind, driver.clone()));
                Ok(driver)
            }
        }
    }

    async fn ask_kind(&self) -> Result<EngineKind, EngineError> {
        for (route, kind) in [(OF_VLLM, EngineKind::Vllm), (OF_SGLANG, EngineKind::Sglang)] {
            if unless_missing(self.server.read::<Anything>(route).await)?.is_some() {
                return Ok(kind);
            }
        }
        Err(self.server.unable(format!(
            "it is neither vLLM, which answers {OF_VLLM}, nor SGLang, which answers {OF_SGLANG}"
        )))
    }

    fn doubt_if(&self, is_in_doubt: bool) {
        self.known().is_in_doubt |= is_in_doubt;
    }
}

#[async_trait]
impl Engine for DetectedEngine {
    async fn probe(&self) -> Result<EngineFacts, EngineError> {
        let answer = self.detect().await?.probe().await;
        // A server of another kind tells no weights.
        self.doubt_if(answer.as_ref().map_or(true, |facts| facts.weights_label.is_none()));
        answer
    }

    async fn load(&self) -> Result<EngineLoad, EngineError> {
        self.detect().await?.load().await
    }

    async fn generate(&self, call: GenerateCall) -> Result<TokenStream, EngineError> {
        let stream = self.driver()?.generate(call).await;
        let is_odd = |error: &EngineError| !error.is_about_the_unit();
        self.doubt_if(stream.as_ref().err().is_some_and(is_odd));
        stream
    }

    async fn abort(&self, requests: &[RequestId]) -> Result<(), EngineError> {
        self.driver()?.abort(requests).await
    }

    async fn load_weights(&self, weights: &WeightsAt, limit: Duration) -> Result<(), EngineError> {
        self.driver()?.load_weights(weights, limit).await
    }

    fn address(&self) -> &str {
        self.server.address()
    }

    fn kind(&self) -> &'static str {
        self.known().driver.as_ref().map_or("unknown", |(kind, _)| kind.as_str())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may unwrap")]
mod tests;
