//! One call of an AWS API: its time limit, its retries, its errors in our words.

use std::future::Future;
use std::time::Duration;

use aws_sdk_autoscaling::error::{ProvideErrorMetadata, SdkError};
use ebbtide_core::observation::FailureKind;
use ebbtide_queue::client::Backoff;
use thiserror::Error;

use crate::capacity::CALL_LIMIT;
use crate::metrics::ApiCalls;

/// First and longest pause before a throttled call is sent again.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(200);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(3);

/// Most times that a throttled call is sent.
const TRIES: u32 = 4;

/// Why AWS did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AwsError {
    /// It did not answer, or in time, or it says that the fault is its own.
    #[error("{what} did not answer: {problem}")]
    Unavailable {
        /// Which call.
        what: &'static str,
        /// What went wrong.
        problem: String,
    },
    /// It refused.
    #[error("{what} was refused: {code}: {message}")]
    Refused {
        /// Which call.
        what: &'static str,
        /// AWS's error code.
        code: String,
        /// What AWS said.
        message: String,
    },
}

impl AwsError {
    /// Whether the call was one too many.
    pub fn is_throttling(&self) -> bool {
        matches!(self, Self::Refused { code, .. }
            if FailureKind::of_text(code) == FailureKind::Throttled)
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Unavailable { .. }) || self.is_throttling()
    }

    /// The word in metrics; a closed set.
    fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Refused { .. } if self.is_throttling() => "throttled",
            Self::Refused { .. } => "refused",
        }
    }
}

/// Sends a call, again with growing pauses while it is throttled, all within [`CALL_LIMIT`].
pub(crate) async fn call<T, E, F>(
    what: &'static str,
    calls: &ApiCalls,
    send: impl Fn() -> F,
) -> Result<T, AwsError>
where
    F: Future<Output = Result<T, SdkError<E>>>,
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    call_within(CALL_LIMIT, what, calls, send).await
}

/// As [`call`], all within `limit`.
pub(crate) async fn call_within<T, E, F>(
    limit: Duration,
    what: &'static str,
    calls: &ApiCalls,
    send: impl Fn() -> F,
) -> Result<T, AwsError>
where
    F: Future<Output = Result<T, SdkError<E>>>,
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let attempts = async {
        let mut backoff = Backoff::new(RETRY_PAUSE_FIRST, RETRY_PAUSE_MAX);
        let mut tries_left = TRIES;
        loop {
            tries_left -= 1;
            let outcome = send().await.map_err(|error| explain(what, &error));
            calls.count(what, outcome.as_ref().err().map_or("ok", AwsError::code));
            match outcome {
                Err(error) if error.is_throttling() && tries_left > 0 => {
                    tokio::time::sleep(backoff.next_pause()).await;
                }
                outcome => return outcome,
            }
        }
    };
    match tokio::time::timeout(limit, attempts).await {
        Ok(outcome) => outcome,
        Err(_) => {
            calls.count(what, "unavailable");
            Err(AwsError::Unavailable { what, problem: format!("no answer within {limit:?}") })
        }
    }
}

fn explain<E>(what: &'static str, error: &SdkError<E>) -> AwsError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let SdkError::ServiceError(service) = error else {
        return AwsError::Unavailable { what, problem: with_causes(error) };
    };
    let code = service.err().code().unwrap_or_default().to_owned();
    let message = service.err().message().unwrap_or("without a message").to_owned();
    let refused = AwsError::Refused { what, code: code.clone(), message: message.clone() };
    let is_at_fault = service.raw().status().is_server_error() && !refused.is_throttling();
    if code.is_empty() || is_at_fault {
        let status = service.raw().status().as_u16();
        let problem = format!("status {status}: {code}: {message}");
        return AwsError::Unavailable { what, problem };
    }
    refused
}

/// An error with everything that caused it, in one line for people.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    let mut texts = vec![error.to_string()];
    for cause in causes.map(ToString::to_string) {
        if !texts.iter().any(|text| text.ends_with(&cause)) {
            texts.push(cause);
        }
    }
    texts.join(": ")
}
