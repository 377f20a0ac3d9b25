//! IMDSv2 over HTTP: a session token for every read, and never a read without one.
//!
//! Bypasses every proxy, follows no redirect, bounds every request and every body. There is no
//! fallback to IMDSv1: the one request without a token only asks whether the service answers at
//! all, to name the likely cause when the token call hangs.

use std::time::Duration;

use reqwest::{Method, Response, StatusCode};
use thiserror::Error;
use tokio::time::{Instant, timeout};

use super::token::{TTL_SECONDS, Token, TokenStore};

const TOKEN_PATH: &str = "/latest/api/token";
const PROBE_PATH: &str = "/latest/meta-data/";
const TTL_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";

/// Time limit of a read with everything that goes with it: a refused one, a token call that hangs
/// and the question behind it, or a read that is answered slowly.
const CYCLE_LIMIT: Duration = Duration::from_millis(1900);

/// Time limit of a token call, which all reads may wait for. A read has what is left of its cycle.
const TOKEN_LIMIT: Duration = Duration::from_millis(800);

/// Time limit of the request that tells a hop limit from a dead service.
const PROBE_LIMIT: Duration = Duration::from_millis(300);

/// Longest body that is read. The largest documented one, the identity document, has about 500
/// bytes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Why something was not read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ImdsError {
    /// The endpoint is no URL.
    #[error("metadata endpoint must be a URL like http://169.254.169.254, got {endpoint:?}")]
    Endpoint {
        /// What was given.
        endpoint: String,
    },
    /// No answer in time, or no connection.
    #[error("metadata service does not answer: {problem}")]
    Unreachable {
        /// What went wrong.
        problem: String,
    },
    /// The token call hangs while reads are answered.
    #[error(
        "metadata service answers reads but not the token call: the hop limit is too low for a \
         container; run with hostNetwork, or set the instance's \
         HttpPutResponseHopLimit to 2"
    )]
    HopLimit,
    /// It refused, also with a new token.
    #[error("metadata service answered {status} to {path}")]
    Status {
        /// HTTP status.
        status: u16,
        /// What was asked.
        path: String,
    },
    /// The token call was answered by something else.
    #[error("metadata service answered the token call without a token: is it another service?")]
    NoToken,
    /// The body is too long.
    #[error("metadata body of {path} must be at most {BODY_BYTES_MAX} bytes")]
    TooLong {
        /// What was asked.
        path: String,
    },
}

/// A client of one instance's metadata service.
#[derive(Debug)]
pub struct ImdsClient {
    http: reqwest::Client,
    endpoint: String,
    tokens: TokenStore,
}

impl ImdsClient {
    /// A client of the service at `endpoint`, such as `http://169.254.169.254`. Nothing is sent.
    ///
    /// # Errors
    /// The endpoint is no HTTP URL.
    pub fn new(endpoint: &str) -> Result<Self, ImdsError> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let is_url = reqwest::Url::parse(&endpoint).is_ok_and(|url| url.scheme() == "http");
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(CYCLE_LIMIT)
            .build();
        match http {
            Ok(http) if is_url => Ok(Self { http, endpoint, tokens: TokenStore::default() }),
            _ => Err(ImdsError::Endpoint { endpoint }),
        }
    }

    /// Reads a resource; `None` when it does not exist, which means that nothing is planned.
    ///
    /// A token that is refused is replaced, and the read repeated, exactly once. It ends within two
    /// seconds.
    ///
    /// # Errors
    /// No answer, or one that is neither a value nor its absence.
    pub async fn read(&self, path: &str) -> Result<Option<String>, ImdsError> {
        match timeout(CYCLE_LIMIT, self.read_with_token(path)).await {
            Ok(read) => read,
            Err(_) => Err(ImdsError::Unreachable { problem: NO_ANSWER.to_owned() }),
        }
    }

    async fn read_with_token(&self, path: &str) -> Result<Option<String>, ImdsError> {
        let token = self.tokens.current(|| self.fetch_token()).await?;
        let mut response = self.request(path, &token).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.tokens.discard(&token);
            let token = self.tokens.current(|| self.fetch_token()).await?;
            response = self.request(path, &token).await?;
        }
        match response.status() {
            StatusCode::OK => body_of(response, path).await.map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(ImdsError::Status { status: status.as_u16(), path: path.to_owned() }),
        }
    }

    async fn request(&self, path: &str, token: &Token) -> Result<Response, ImdsError> {
        let request = self.http.get(self.url(path)).header(TOKEN_HEADER, token.text());
        request.send().await.map_err(|error| unreachable(&error))
    }

    async fn fetch_token(&self) -> Result<Token, ImdsError> {
        let request = self.http.request(Method::PUT, self.url(TOKEN_PATH)).timeout(TOKEN_LIMIT);
        let response = match request.header(TTL_HEADER, TTL_SECONDS).send().await {
            Ok(response) => response,
            Err(error) if error.is_timeout() && !error.is_connect() => {
                return Err(self.explain_hang(&error).await);
            }
            Err(error) => return Err(unreachable(&error)),
        };
        let status = response.status();
        if status != StatusCode::OK {
            return Err(ImdsError::Status { status: status.as_u16(), path: TOKEN_PATH.to_owned() });
        }
        let promised = response.headers().get(TTL_HEADER).cloned();
        let promised = promised.as_ref().and_then(|value| value.to_str().ok());
        let body = body_of(response, TOKEN_PATH).await?;
        Token::granted(&body, promised, Instant::now()).ok_or(ImdsError::NoToken)
    }

    /// A token call that hangs while a read without a token is refused at once: the reply to the
    /// call is lost on its way into the container.
    async fn explain_hang(&self, hang: &reqwest::Error) -> ImdsError {
        let probe = self.http.get(self.url(PROBE_PATH)).timeout(PROBE_LIMIT).send().await;
        match probe {
            Ok(response) if response.status() == StatusCode::UNAUTHORIZED => ImdsError::HopLimit,
            _ => unreachable(hang),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }
}

/// What is wrong with a service that is too slow.
const NO_ANSWER: &str = "no answer in time";

fn unreachable(error: &reqwest::Error) -> ImdsError {
    let problem = if error.is_timeout() {
        NO_ANSWER.to_owned()
    } else {
        let source = std::error::Error::source(error);
        source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
    };
    ImdsError::Unreachable { problem }
}

async fn body_of(mut response: Response, path: &str) -> Result<String, ImdsError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| unreachable(&error))? {
        if body.len() + piece.len() > BODY_BYTES_MAX {
            return Err(ImdsError::TooLong { path: path.to_owned() });
        }
        body.extend_from_slice(&piece);
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may unwrap")]
mod tests;
