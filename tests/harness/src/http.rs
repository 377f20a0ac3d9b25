//! Plain HTTP to a service of ours on 127.0.0.1.

use std::time::Duration;

use crate::Error;

const REQUEST_LIMIT: Duration = Duration::from_secs(5);

fn client() -> Result<reqwest::Client, Error> {
    // No proxy: what is asked for is on this machine.
    reqwest::Client::builder()
        .no_proxy()
        .timeout(REQUEST_LIMIT)
        .build()
        .map_err(|error| Error::Unexpected(format!("HTTP client: {error}")))
}

/// Whether the address answers at all, whatever its status.
pub(crate) async fn answers(url: &str) -> bool {
    let Ok(client) = client() else { return false };
    client.get(url).send().await.is_ok()
}

/// Whether the address answers with a successful status.
pub(crate) async fn succeeds(url: &str) -> bool {
    let Ok(client) = client() else { return false };
    client.get(url).send().await.is_ok_and(|answer| answer.status().is_success())
}

/// An empty `POST` that must succeed.
pub(crate) async fn post(url: &str) -> Result<(), Error> {
    let sent = client()?.post(url).send().await;
    sent.and_then(reqwest::Response::error_for_status)
        .map(drop)
        .map_err(|error| Error::Unexpected(format!("POST {url}: {error}")))
}
