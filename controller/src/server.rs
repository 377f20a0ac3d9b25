//! `/healthz`, `/readyz`, `/metrics` and `/status` over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::status::ControllerStatus;

/// Longest time between two turns of a healthy loop, the time between ticks left out: every read
/// and write at its time limit, twice.
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// Says that the loop turns.
#[derive(Clone)]
pub(crate) struct Pulse {
    began_at: Instant,
    last_turn_ms: Arc<AtomicU64>,
}

impl Pulse {
    pub fn new() -> Self {
        Self { began_at: Instant::now(), last_turn_ms: Arc::default() }
    }

    pub fn beat(&self) {
        let since = u64::try_from(self.began_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_turn_ms.store(since, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.last_turn_ms.load(Ordering::Relaxed));
        self.began_at.elapsed().saturating_sub(last)
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
