//! One call of an AWS API: its time limit, its retries, its errors in our words.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use aws_sdk_autoscaling::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

use crate::backoff::Backoff;
use crate::capacity::{CALL_LIMIT, CapacityError};
use crate::metrics::ApiCalls;

/// First and longest pause before a throttled call is sent again.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(200);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(3);

/// Most times that a throttled call is sent.
const TRIES: u32 = 4;

/// Sends a call, again with growing pauses while it is throttled, all within [`CALL_LIMIT`].
pub(super) async fn call<T, E, R, F>(
    what: &'static str,
    calls: &ApiCalls,
    send: impl Fn() -> F,
) -> Result<T, CapacityError>
where
    F: Future<Output = Result<T, SdkError<E, R>>>,
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: fmt::Debug,
{
    let attempts = async {
        let mut backoff = Backoff::new(RETRY_PAUSE_FIRST, RETRY_PAUSE_MAX);
        let mut tries_left = TRIES;
        loop {
            tries_left -= 1;
            let outcome = send().await.map_err(|error| explain(what, &error));
            calls.count(what, ApiCalls::code_of(&outcome));
            match outcome {
                Err(error @ CapacityError::Refused { .. })
                    if error.is_retriable() && tries_left > 0 =>
                {
                    tokio::time::sleep(backoff.pause()).await;
                }
                outcome => return outcome,
            }
        }
    };
    match tokio::time::timeout(CALL_LIMIT, attempts).await {
        Ok(outcome) => outcome,
        Err(_) => {
            calls.count(what, "unavailable");
            let problem = format!("no answer within {CALL_LIMIT:?}");
            Err(CapacityError::Unavailable { what: what.to_owned(), problem })
        }
    }
}

fn explain<E, R>(what: &str, error: &SdkError<E, R>) -> CapacityError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: fmt::Debug,
{
    let what = what.to_owned();
    match error {
        SdkError::ServiceError(service) => {
            let error = service.err();
            let code = error.code().unwrap_or("without a code").to_owned();
            let message = error.message().unwrap_or("without a message").to_owned();
            CapacityError::Refused { what, code, message }
        }
        other => {
            let problem = DisplayErrorContext(other).to_string();
            CapacityError::Unavailable { what, problem }
        }
    }
}
