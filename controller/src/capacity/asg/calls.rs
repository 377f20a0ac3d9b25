//! One call of an AWS API: its time limit, its retries, its errors in our words.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use aws_sdk_autoscaling::error::{ProvideErrorMetadata, SdkError};

use crate::capacity::{CALL_LIMIT, CapacityError};
use crate::metrics::ApiCalls;
use ebbtide_queue::client::Backoff;

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
    R: fmt::Debug + 'static,
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
                    tokio::time::sleep(backoff.next_pause()).await;
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
    R: fmt::Debug + 'static,
{
    let what = what.to_owned();
    match error {
        SdkError::ServiceError(service) => {
            let error = service.err();
            let Some(code) = error.code() else {
                let problem = "an error without a code".to_owned();
                return CapacityError::Unavailable { what, problem };
            };
            let message = error.message().unwrap_or("without a message").to_owned();
            CapacityError::Refused { what, code: code.to_owned(), message }
        }
        other => CapacityError::Unavailable { what, problem: with_causes(other) },
    }
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
