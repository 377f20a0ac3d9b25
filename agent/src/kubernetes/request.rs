//! One request to the API server: with a time limit, and with a plain account of what went wrong.

use std::time::Duration;

use kube::core::Status;
use thiserror::Error;
use tokio::time::timeout;

/// Time limit of one request; an API server was seen to take ten seconds.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(15);

/// Why a request brought nothing.
#[derive(Debug, Error)]
pub(crate) enum RequestError {
    /// The server answered, and refused.
    #[error("{} ({} {})", .0.message, .0.code, .0.reason)]
    Refused(Box<Status>),
    /// It did not answer in time.
    #[error("no answer within {} s", REQUEST_LIMIT.as_secs())]
    Silent,
    /// It was not reached, or what came is no answer.
    #[error("{0}")]
    Away(kube::Error),
}

/// Makes one request.
///
/// # Errors
/// The server refuses, hangs, or is away.
pub(crate) async fn request<T>(
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestError> {
    match timeout(REQUEST_LIMIT, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(RequestError::Refused(status)),
        Ok(Err(error)) => Err(RequestError::Away(error)),
        Err(_) => Err(RequestError::Silent),
    }
}
