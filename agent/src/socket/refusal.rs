//! How a worker is told that something was not done: a status, a code out of a closed set, and a
//! text that says what, where, and what to do.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, extract::rejection::BytesRejection};
use ebbtide_queue::client::QueueError;
use serde::Serialize;

use crate::workers::{BODY_BYTES_MAX, TooMany};

/// After how long something that may pass by itself is worth another try.
const RETRY_AFTER_MS: u64 = 1_000;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    code: Code,
    message: String,
}

/// What kind of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Code {
    /// The request is wrong; nothing was done.
    BadRequest,
    /// No such path.
    NotFound,
    /// The path has another method.
    MethodNotAllowed,
    /// The request is too large; nothing was done.
    TooLarge,
    /// A limit is reached.
    TooMany,
    /// No work is leased now.
    GateClosed,
    /// The queue does not answer.
    QueueUnavailable,
    /// The agent ends.
    AgentEnded,
}

impl Code {
    #[cfg(test)]
    pub(super) const ALL: [Self; 8] = [
        Self::BadRequest,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::TooLarge,
        Self::TooMany,
        Self::GateClosed,
        Self::QueueUnavailable,
        Self::AgentEnded,
    ];

    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::GateClosed | Self::QueueUnavailable | Self::AgentEnded => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    fn may_pass(self) -> bool {
        self.status().is_server_error() || self == Self::TooMany
    }
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message)
    }

    pub(super) fn ended() -> Self {
        let message = "the agent ends: connect again, the next one of this node serves here too";
        Self::new(Code::AgentEnded, message)
    }

    #[cfg(test)]
    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

impl From<TooMany> for Refusal {
    fn from(limit: TooMany) -> Self {
        Self::new(Code::TooMany, limit.to_string())
    }
}

impl From<QueueError> for Refusal {
    fn from(error: QueueError) -> Self {
        Self::new(Code::QueueUnavailable, format!("{error}; ask again"))
    }
}

impl From<BytesRejection> for Refusal {
    fn from(rejection: BytesRejection) -> Self {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let message =
                format!("the body must have at most {BODY_BYTES_MAX} bytes: send less at a time");
            return Self::new(Code::TooLarge, message);
        }
        Self::bad(format!("the body cannot be read: {rejection}"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let retry_after_ms = self.code.may_pass().then_some(RETRY_AFTER_MS);
        let error = ErrorBody { code: self.code, message: &self.message, retry_after_ms };
        let mut response = (self.code.status(), Json(Envelope { error })).into_response();
        if retry_after_ms.is_some() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: Code,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}
