//! The HTTP server of one engine: short calls with limits, long ones without, and what went wrong
//! in the agent's words.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use reqwest::{RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EngineError;

/// Time limit of every short call.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(2);

/// Time limit of a new connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Connections kept for short calls: those of one probe, which are made at the same time.
const KEPT_CONNECTIONS: usize = 4;

/// How long a connection is kept: less than the 5 s after which the engine's server (uvicorn)
/// closes it.
const KEPT_LIMIT: Duration = Duration::from_secs(3);

/// Largest JSON document: what SGLang says of how it was started is 20 KiB.
const DOCUMENT_BYTES_MAX: usize = 4 << 20;

/// Bytes of an error body that are read.
const ERROR_BYTES: usize = 2000;

/// Body of a generation, as it comes.
pub(super) type ByteStream = BoxStream<'static, Result<Bytes, EngineError>>;

/// See the module.
#[derive(Clone)]
pub(super) struct Server {
    /// For generations, each on a connection of its own.
    long: reqwest::Client,
    /// For short calls, on kept connections: none of them harms when it breaks off.
    short: reqwest::Client,
    address: String,
}

impl Server {
    /// The server at `address`, such as `http://10.0.0.7:8000`. Nothing is sent yet.
    ///
    /// # Errors
    /// The address is no HTTP URL.
    pub(super) fn at(address: &str) -> Result<Self, EngineError> {
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
        // A kept connection that the engine has closed meanwhile would look like a generation that
        // broke off, which is a fault; a new one is refused, which is none.
        let (long, short) = (client(0)?, client(KEPT_CONNECTIONS)?);
        Ok(Self { long, short, address })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Reads a JSON document.
    pub(super) async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineError> {
        let response = self.short_call(self.short.get(self.url(path))).await?;
        let body = self.document(response).await?;
        serde_json::from_slice(&body).map_err(|_| EngineError::malformed(path, &body))
    }

    /// A whole body, unless it is larger than any document of an engine.
    async fn document(&self, response: Response) -> Result<Vec<u8>, EngineError> {
        let mut body = Vec::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.map_err(|error| self.unreachable(&error))?);
            if body.len() > DOCUMENT_BYTES_MAX {
                let problem = format!("a document must be at most {DOCUMENT_BYTES_MAX} bytes");
                return Err(EngineError::Malformed { problem });
            }
        }
        Ok(body)
    }

    /// Reads a page piece by piece, as it may be large.
    pub(super) async fn page(&self, path: &str) -> Result<ByteStream, EngineError> {
        let response = self.short_call(self.short.get(self.url(path))).await?;
        Ok(pieces(response))
    }

    /// Looks whether `path` answers well; whatever it says is left unread.
    pub(super) async fn check(&self, path: &str) -> Result<(), EngineError> {
        self.short_call(self.short.get(self.url(path))).await.map(|_| ())
    }

    /// Sends a short call whose answer says nothing but that it was heard.
    pub(super) async fn post(&self, path: &str, body: &impl Serialize) -> Result<(), EngineError> {
        self.short_call(self.short.post(self.url(path)).json(body)).await.map(|_| ())
    }

    /// Sends a call that may take up to `limit`, and gives its answer.
    pub(super) async fn ask(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<Vec<u8>, EngineError> {
        let response = self.long.post(self.url(path)).json(body).timeout(limit).send().await;
        let response = accept(response.map_err(|error| self.unreachable(&error))?).await?;
        self.document(response).await
    }

    /// A generation call to `path`, to be completed and [opened](Self::open).
    pub(super) fn generation(&self, path: &str, body: &impl Serialize) -> RequestBuilder {
        self.long.post(self.url(path)).json(body)
    }

    /// Sends a generation call, however long it takes, and gives its body as it comes.
    pub(super) async fn open(&self, call: RequestBuilder) -> Result<ByteStream, EngineError> {
        let response = call.send().await.map_err(|error| {
            if error.is_connect() {
                return self.unreachable(&error);
            }
            EngineError::BrokenStream { problem: explain(&error) }
        })?;
        Ok(pieces(accept(response).await?))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    async fn short_call(&self, call: RequestBuilder) -> Result<Response, EngineError> {
        let response = call.timeout(CALL_LIMIT).send().await;
        accept(response.map_err(|error| self.unreachable(&error))?).await
    }

    fn unreachable(&self, error: &reqwest::Error) -> EngineError {
        let (address, problem) = (self.address.clone(), explain(error));
        if error.is_timeout() && !error.is_connect() {
            return EngineError::Silent { address, problem };
        }
        EngineError::Unreachable { address, problem }
    }

    /// The engine lacks something that a person must give it.
    pub(super) fn unable(&self, problem: impl Into<String>) -> EngineError {
        EngineError::Unable { address: self.address.clone(), problem: problem.into() }
    }
}

/// Whether an answer says that there is no such route, or that it is closed.
pub(super) fn is_closed<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Refused { status: 403..=405, .. }))
}

/// The answer of a route that not every server has.
pub(super) fn unless_missing<T>(answer: Result<T, EngineError>) -> Result<Option<T>, EngineError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(EngineError::Refused { status: 404, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn pieces(response: Response) -> ByteStream {
    let broken = |error| EngineError::BrokenStream { problem: explain(&error) };
    response.bytes_stream().map_err(broken).boxed()
}

/// Passes good answers on and turns others into errors.
async fn accept(response: Response) -> Result<Response, EngineError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let problem = error_text(&bounded_body(response).await);
    let code = status.as_u16();
    if status.is_server_error() {
        return Err(EngineError::Failed { code, problem });
    }
    Err(EngineError::Refused { status: code, problem })
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

/// What an error body says, in whichever shape it came: `{"error":{"message":…}}`,
/// `{"error":…}`, `{"message":…}` or anything else.
fn error_text(body: &[u8]) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let told = |path: &str| document.as_ref()?.pointer(path)?.as_str().map(str::to_owned);
    told("/error/message")
        .or_else(|| told("/error"))
        .or_else(|| told("/message"))
        .unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned())
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
mod tests {
    use std::future::IntoFuture;

    use super::*;

    #[test]
    fn error_bodies_of_all_shapes_are_read() {
        for (body, text) in [
            (r#"{"error":{"message":"too long","code":400}}"#, "too long"),
            (r#"{"error":"unknown field"}"#, "unknown field"),
            (r#"{"success":false,"message":"no such path"}"#, "no such path"),
            (r#"{"detail":"Not Found"}"#, r#"{"detail":"Not Found"}"#),
            (" Internal Server Error\n", "Internal Server Error"),
            ("", ""),
        ] {
            assert_eq!(error_text(body.as_bytes()), text);
        }
    }

    #[test]
    fn address_must_be_an_http_url() {
        for address in ["engine:8000", "https://engine:8000", ""] {
            assert!(matches!(Server::at(address), Err(EngineError::Unable { .. })), "{address}");
        }
        assert!(
            Server::at("http://engine:8000/").is_ok_and(|s| s.address() == "http://engine:8000")
        );
    }

    #[tokio::test]
    async fn document_that_does_not_end_is_given_up() {
        let endless = || async { "x".repeat(2 * DOCUMENT_BYTES_MAX) };
        let app = axum::Router::new().route("/version", axum::routing::get(endless));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(axum::serve(listener, app).into_future());
        let server = Server::at(&address).expect("a URL");
        let read = server.read::<serde_json::Value>("/version").await;
        let Err(EngineError::Malformed { problem }) = read else { panic!("{read:?}") };
        assert!(problem.contains("at most"), "{problem}");
    }
}
