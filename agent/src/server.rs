//! The agent's own HTTP: `/healthz`, `/readyz`, `/metrics` and `/drained`.
//!
//! Connections outlive the agent only to say that it is gone: the state behind them is weak.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus::{Registry, TextEncoder};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::hosting::Condition;
use crate::shared::Shared;

/// Silence of the queue after which the agent is not ready.
const QUEUE_SILENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Front {
    shared: Weak<Shared>,
    registry: Registry,
}

/// Serves on `listener` for as long as it is polled.
pub(crate) async fn serve(listener: TcpListener, shared: &Arc<Shared>, registry: Registry) {
    let front = Front { shared: Arc::downgrade(shared), registry };
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/drained", get(drained))
        .with_state(front);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "agent no longer serves its probes");
    }
    std::future::pending().await
}

/// Binds the address.
///
/// # Errors
/// The address is taken or not this machine's.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// The loops turn.
async fn healthz(State(front): State<Front>) -> Response {
    let Some(shared) = front.shared.upgrade() else { return gone() };
    let stalled = shared.pulses.stalled(shared.config.pace.silence_limit, Instant::now());
    answer(stalled.is_empty(), json!({ "stalled": stalled }))
}

/// It can do its work: the queue answers and an engine may be given work.
async fn readyz(State(front): State<Front>) -> Response {
    let Some(shared) = front.shared.upgrade() else { return gone() };
    let answered_at = *shared.queue_answered_at.borrow();
    let is_silent = answered_at.is_none_or(|at| at.elapsed() > QUEUE_SILENCE);
    let trouble = || shared.queue_trouble.borrow().clone();
    let queue =
        is_silent.then(|| trouble().unwrap_or_else(|| "the queue has not answered yet".to_owned()));
    let reasons: Vec<String> = queue.into_iter().chain(engine_troubles(&shared)).collect();
    answer(reasons.is_empty(), json!({ "reasons": reasons }))
}

/// Why no engine may be given work; empty when one may, or when the node has none.
fn engine_troubles(shared: &Shared) -> Vec<String> {
    let mut troubles = Vec::new();
    if shared.engines.is_awaited() {
        troubles.push("no pod with an engine was seen to run yet".to_owned());
    }
    for slot in shared.engines_in_service() {
        let why = match slot.condition() {
            Condition::Ready(_) => return Vec::new(),
            Condition::Starting(None) => "it has not answered yet".to_owned(),
            Condition::Starting(Some(why)) => why,
            Condition::Loading(why) | Condition::NotReady(why) => why,
        };
        troubles.push(format!("engine {}: {why}", slot.engine.address()));
    }
    troubles
}

/// Nothing is held: an engine's `preStop` may let it go. During a drain that is so once workers
/// that lease straight from the queue hold nothing either; it may be their engine. And on a node of
/// an EP group once the whole group is drained: its engine runs on this node, too.
async fn drained(State(front): State<Front>) -> Response {
    let Some(shared) = front.shared.upgrade() else { return gone() };
    let drain = shared.standing.borrow().drain;
    let held_directly = drain.map_or(Some(0), |drain| drain.held_directly);
    let awaits_leader = drain.is_some_and(|drain| drain.awaits_leader);
    let is_drained = shared.is_empty() && held_directly == Some(0) && !awaits_leader;
    let held = shared.held();
    let body = json!({
        "held": held, "held_directly": held_directly, "awaits_leader": awaits_leader,
    });
    answer(is_drained, body)
}

async fn metrics(State(front): State<Front>) -> Response {
    match TextEncoder::new().encode_to_string(&front.registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn answer(is_good: bool, body: serde_json::Value) -> Response {
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

fn gone() -> Response {
    answer(false, json!({ "reasons": ["the agent has ended"] }))
}
