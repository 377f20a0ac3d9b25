//! The one place where tests wait: for an event, with a bound.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use crate::Error;

/// Bound of a wait for an event. It ends a test that hangs and costs the others nothing: machines
/// that do much else were seen to take a minute for what takes 5 s alone.
pub const EVENT_LIMIT: Duration = Duration::from_secs(300);

/// How often an event is looked for: short against a service's start (1 s), long against one check.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Asks `check` again and again until it answers `Some`, for at most `limit` of real time.
///
/// `what` completes the sentence "waited in vain for …".
///
/// # Errors
///
/// [`Error::Elapsed`] when the bound has passed.
pub async fn until<T, Check, Answer>(
    what: &str,
    limit: Duration,
    mut check: Check,
) -> Result<T, Error>
where
    Check: FnMut() -> Answer,
    Answer: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(value) = check().await {
            return Ok(value);
        }
        if started.elapsed() >= limit {
            return Err(Error::Elapsed { waited_for: what.to_owned(), limit, log: String::new() });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
