//! vLLM (0.32 and later) over `/inference/v1/generate`: token ids in and out, always streamed.
//!
//! Facts behind this driver were recorded from a real engine (`agent/tests/goldens`): abort works
//! only by the prefixed id and its reply proves nothing, a dying engine ends the stream with an
//! error event under HTTP status 200, and weight versions come with the last event alone.

mod wire;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use reqwest::{Response, StatusCode};

use self::wire::{Chunk, GenerateBody};
use super::sse::EventBuffer;
use super::{Engine, EngineError, EngineFacts, GenerateCall, RequestId, StreamEvent, TokenStream};

/// What the server puts before the id of a token-in token-out call.
const REQUEST_ID_PREFIX: &str = "generate-tokens-";

/// Time limit of every short call.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// Time limit of a new connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Calls of one probe, which are made at the same time.
const PROBE_CALLS: usize = 3;

/// How long a connection is kept: less than the 5 s after which the engine's server (uvicorn)
/// closes it.
const KEPT_LIMIT: Duration = Duration::from_secs(3);

/// Bytes of an error body that are read.
const ERROR_BYTES: usize = 2000;

/// Event that ends a stream.
const DONE: &[u8] = b"[DONE]";

/// One vLLM server.
pub struct VllmEngine {
    /// For generations and aborts, each on a connection of its own.
    http: reqwest::Client,
    /// For probes, on kept connections.
    probes: reqwest::Client,
    address: String,
    /// Who it is, once told; asked again after a failed probe, when it may be another one.
    identity: Mutex<Option<Identity>>,
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
        let address = address.trim_end_matches('/').to_owned();
        let unable = |problem: String| EngineError::Unable { address: address.clone(), problem };
        let url = reqwest::Url::parse(&address)
            .map_err(|error| unable(format!("must be a URL like http://host:port: {error}")))?;
        if url.scheme() != "http" {
            return Err(unable(format!("must be an http URL, got {}", url.scheme())));
        }
        let client = |kept| {
            let client = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_LIMIT);
            let client = client.pool_max_idle_per_host(kept).pool_idle_timeout(KEPT_LIMIT).build();
            client.map_err(|error| unable(error.to_string()))
        };
        // A kept connection that the engine has closed meanwhile would look like a call that broke
        // off, which is a fault; a new one is refused, which is none.
        let http = client(0)?;
        // One failed probe condemns no engine.
        let probes = client(PROBE_CALLS)?;
        Ok(Self { http, probes, address, identity: Mutex::default() })
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        let request = self.probes.get(format!("{}{path}", self.address)).timeout(CALL_LIMIT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let body = self.accept(response).await?.bytes().await;
        let body = body.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&body).map_err(|_| EngineError::malformed(path, &body))
    }

    async fn check_health(&self) -> Result<(), EngineError> {
        let request = self.probes.get(format!("{}/health", self.address)).timeout(CALL_LIMIT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.accept(response).await.map(|_| ())
    }

    fn known_identity(&self) -> MutexGuard<'_, Option<Identity>> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn identity(&self) -> Result<Identity, EngineError> {
        if let Some(known) = self.known_identity().clone() {
            return Ok(known);
        }
        let version: wire::Version = self.read("/version").await?;
        let models: wire::Models = self.read("/v1/models").await?;
        let identity =
            Identity { name: format!("vllm/{}", version.version), models: models.names() };
        *self.known_identity() = Some(identity.clone());
        Ok(identity)
    }

    async fn facts(&self) -> Result<EngineFacts, EngineError> {
        let (health, weights, paused) = futures::join!(
            self.check_health(),
            self.read::<wire::WeightInfo>("/weight_info"),
            self.read::<wire::Paused>("/is_paused")
        );
        health?;
        let Identity { name, models } = self.identity().await?;
        // Without dev mode both routes are 404: then nobody can pause it, and nobody knows its
        // weights.
        let (weights, paused) = (unless_missing(weights)?, unless_missing(paused)?);
        Ok(EngineFacts {
            name,
            weights_label: weights.map(|info| info.weight_version),
            is_paused: paused.is_some_and(|paused| paused.is_paused),
            models,
        })
    }

    /// Passes good answers on and turns others into errors.
    async fn accept(&self, response: Response) -> Result<Response, EngineError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let problem = wire::error_text(&bounded_body(response).await);
        if status == StatusCode::FORBIDDEN {
            let problem =
                format!("start vLLM with --enable-scale-out (it answered 403: {problem})");
            return Err(EngineError::Unable { address: self.address.clone(), problem });
        }
        if status.is_server_error() {
            return Err(EngineError::Failed { code: status.as_u16(), problem });
        }
        Err(EngineError::Refused { status: status.as_u16(), problem })
    }

    fn unreachable(&self, error: &reqwest::Error) -> EngineError {
        EngineError::Unreachable { address: self.address.clone(), problem: explain(error) }
    }

    async fn send_abort(&self, path: &str, requests: &[RequestId]) -> Result<(), EngineError> {
        let ids: Vec<String> =
            requests.iter().map(|id| format!("{REQUEST_ID_PREFIX}{}", id.as_str())).collect();
        let request = self.http.post(format!("{}{path}", self.address)).timeout(CALL_LIMIT);
        let request = request.json(&serde_json::json!({ "request_ids": ids }));
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.accept(response).await.map(|_| ())
    }
}

#[async_trait]
impl Engine for VllmEngine {
    async fn probe(&self) -> Result<EngineFacts, EngineError> {
        let answer = self.facts().await;
        if answer.is_err() {
            *self.known_identity() = None;
        }
        answer
    }

    async fn generate(&self, call: GenerateCall) -> Result<TokenStream, EngineError> {
        let request = self.http.post(format!("{}/inference/v1/generate", self.address));
        let response = request.json(&GenerateBody::of(&call)).send().await.map_err(|error| {
            if error.is_connect() {
                return self.unreachable(&error);
            }
            EngineError::BrokenStream { problem: explain(&error) }
        })?;
        let response = self.accept(response).await?;
        let bytes = response
            .bytes_stream()
            .map_err(|error| EngineError::BrokenStream { problem: explain(&error) });
        Ok(read_events(bytes.boxed()))
    }

    async fn abort(&self, requests: &[RequestId]) -> Result<(), EngineError> {
        // An empty list would abort everything on one of the two routes.
        if requests.is_empty() {
            return Ok(());
        }
        match self.send_abort("/inference/v1/abort_requests", requests).await {
            Err(EngineError::Refused { status: 404, .. } | EngineError::Unable { .. }) => {
                self.send_abort("/abort_requests", requests).await
            }
            answered => answered,
        }
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn kind(&self) -> &'static str {
        "vllm"
    }
}

fn unless_missing<T>(answer: Result<T, EngineError>) -> Result<Option<T>, EngineError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(EngineError::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns the body of a generation into events.
pub(super) fn read_events(bytes: BoxStream<'static, Result<Bytes, EngineError>>) -> TokenStream {
    let reader =
        Reader { bytes, buffer: EventBuffer::default(), ready: VecDeque::new(), has_ended: false };
    futures::stream::unfold(reader, |mut reader| async move {
        if reader.has_ended {
            return None;
        }
        let event = reader.next().await;
        reader.has_ended = matches!(&event, Err(_) | Ok(StreamEvent::End(_)));
        Some((event, reader))
    })
    .boxed()
}

struct Reader {
    bytes: BoxStream<'static, Result<Bytes, EngineError>>,
    buffer: EventBuffer,
    ready: VecDeque<Result<StreamEvent, EngineError>>,
    has_ended: bool,
}

impl Reader {
    async fn next(&mut self) -> Result<StreamEvent, EngineError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            if let Some(data) = self.buffer.next_event() {
                self.take_in(&data)?;
                continue;
            }
            match self.bytes.next().await {
                Some(bytes) => self.buffer.push(&bytes?)?,
                None => {
                    let problem = "it closed without a finish".to_owned();
                    return Err(EngineError::BrokenStream { problem });
                }
            }
        }
    }

    fn take_in(&mut self, data: &[u8]) -> Result<(), EngineError> {
        if data == DONE {
            let problem = "it said [DONE] without a finish".to_owned();
            return Err(EngineError::BrokenStream { problem });
        }
        let chunk: Chunk = serde_json::from_slice(data)
            .map_err(|_| EngineError::malformed("a generation event", data))?;
        // A finish is the proof that the sample is whole; a [DONE] after it adds nothing.
        self.ready.extend(chunk.read(data));
        Ok(())
    }
}

/// The beginning of an error body, however long or slow the rest is.
async fn bounded_body(response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    let mut bytes = response.bytes_stream();
    let read = async {
        while let Some(Ok(piece)) = bytes.next().await {
            body.extend_from_slice(&piece);
            if body.len() >= ERROR_BYTES {
                break;
            }
        }
    };
    // A body that does not come says nothing, which is all that is lost.
    let _ = tokio::time::timeout(CALL_LIMIT, read).await;
    body.truncate(ERROR_BYTES);
    body
}

/// The whole chain of causes, in which the useful part comes last.
fn explain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may unwrap")]
mod tests;
