//! `/healthz`, `/readyz`, `/metrics` and `/status` over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use ebbtide_core::time::whole_millis;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::status::ControllerStatus;

/// Longest turn of a healthy loop, the time between ticks left out: every read at its time limit
/// and three writes at theirs.
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// Says that the loop turns.
#[derive(Clone)]
pub(crate) struct Pulse {
    began_at: Instant,
    /// When the next turn is due to begin, in milliseconds since `began_at`.
    due_ms: Arc<AtomicU64>,
}

impl Pulse {
    pub fn new() -> Self {
        Self { began_at: Instant::now(), due_ms: Arc::default() }
    }

    /// The loop has turned, and turns again after `pause`.
    pub fn beat(&self, pause: Duration) {
        self.due_ms.store(whole_millis(self.began_at.elapsed() + pause), Ordering::Relaxed);
    }

    /// For how long a turn is overdue or going on.
    fn silence(&self) -> Duration {
        let due = Duration::from_millis(self.due_ms.load(Ordering::Relaxed));
        self.began_at.elapsed().saturating_sub(due)
    }
}

/// What the handlers read.
#[derive(Clone)]
pub(crate) struct Shown {
    pub metrics: Metrics,
    pub status: ControllerStatus,
    pub pulse: Pulse,
}

/// Serves until `shutdown`; requests that run then are finished.
pub(crate) async fn serve(listener: TcpListener, shown: Shown, shutdown: CancellationToken) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(shown);
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(async move { shutdown.cancelled().await });
    if let Err(error) = served.await {
        tracing::error!(%error, "http server ended");
    }
}

async fn healthz(State(shown): State<Shown>) -> Response {
    let silence = shown.pulse.silence();
    if silence <= TURN_LIMIT {
        return (StatusCode::OK, "ok\n").into_response();
    }
    let text = format!("the loop must turn every {TURN_LIMIT:?}, it has not for {silence:?}\n");
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// Ready: a tick has ended, and the last one could read everything. A passive controller is ready.
async fn readyz(State(shown): State<Shown>) -> Response {
    let snapshot = shown.status.snapshot();
    if snapshot.ticks > 0 && snapshot.problems.is_empty() {
        return (StatusCode::OK, "ok\n").into_response();
    }
    let mut text = snapshot.problems.join("\n");
    if snapshot.ticks == 0 && text.is_empty() {
        "the first tick has not ended".clone_into(&mut text);
    }
    (StatusCode::SERVICE_UNAVAILABLE, text + "\n").into_response()
}

async fn metrics(State(shown): State<Shown>) -> Response {
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (content_type, shown.metrics.render()).into_response()
}

async fn status(State(shown): State<Shown>) -> Response {
    Json(&*shown.status.snapshot()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 60, the controller's part.
    #[tokio::test(start_paused = true)]
    async fn loop_that_stands_still_fails_the_liveness_check_until_it_turns_again() {
        let shown = Shown {
            metrics: Metrics::new().expect("names differ"),
            status: ControllerStatus::default(),
            pulse: Pulse::new(),
        };
        let is_alive = async || healthz(State(shown.clone())).await.status() == StatusCode::OK;
        let pause = Duration::from_secs(15);
        shown.pulse.beat(pause);
        tokio::time::advance(pause + TURN_LIMIT).await;
        assert!(is_alive().await, "a turn may take that long");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!is_alive().await);
        shown.pulse.beat(pause);
        assert!(is_alive().await);
    }
}
