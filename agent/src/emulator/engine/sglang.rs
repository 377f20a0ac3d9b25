//! The HTTP face of the emulated engine in the shape of SGLang 0.5.23: routes and their replies.
//!
//! Shapes follow the source (`agent/tests/goldens/sglang-0.5.23-from-source`), which nobody has
//! recorded yet. What is unlike vLLM: errors of a streaming call come as an event under status
//! 200, an abort takes every id that begins with one that is known, a pause makes `/ready` fail,
//! and `/health` takes a second because it waits for a token.

mod metrics;
mod reply;
mod request;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use serde_json::json;

use super::scheduler::{Scheduler, Selection};
use super::{BODY_BYTES_MAX, Engine, PauseMode, lock};
use request::Refusal;

/// Version reported, the one whose source was read.
const VERSION: &str = "0.5.23";

/// How long `/health` waits for its token before it looks.
const HEALTH_PAUSE: Duration = Duration::from_secs(1);

/// How long `/health` waits for its token in all.
const HEALTH_LIMIT: Duration = Duration::from_secs(20);

type Shared = State<Arc<Engine>>;

/// All routes.
pub(super) fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/ready", get(ready))
        .route("/health", get(health))
        .route("/health_generate", get(health))
        .route("/server_info", get(server_info))
        .route("/model_info", get(model_info))
        .route("/v1/models", get(models))
        .route("/metrics", get(metrics))
        .route("/generate", post(generate))
        .route("/abort_request", post(abort))
        .route("/pause_generation", post(pause))
        .route("/continue_generation", post(resume))
        .route("/update_weight_version", post(update_weight_version))
        .route("/update_weights_from_disk", post(update_weights_from_disk))
        .fallback(async || (StatusCode::NOT_FOUND, Json(json!({ "detail": "Not Found" }))))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(engine)
}

/// Whether new calls are welcome: not while paused, nor when it is to end. A dead scheduler is not
/// noticed here; the whole server ends soon after.
async fn ready(State(engine): Shared) -> StatusCode {
    let scheduler = lock(&engine.scheduler);
    let is_away = scheduler.is_paused() || scheduler.is_draining();
    if is_away { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

/// Waits for a token, which a paused or hung engine does not make.
async fn health(State(engine): Shared) -> StatusCode {
    let is_going_on = || {
        let scheduler = lock(&engine.scheduler);
        !(scheduler.is_paused() || scheduler.is_hung() || scheduler.is_core_dead())
    };
    if lock(&engine.scheduler).is_draining() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let mut waited = Duration::ZERO;
    while waited < HEALTH_LIMIT {
        tokio::time::sleep(HEALTH_PAUSE).await;
        waited += HEALTH_PAUSE;
        if is_going_on() {
            return StatusCode::OK;
        }
    }
    StatusCode::SERVICE_UNAVAILABLE
}

/// How it was started.
async fn server_info(State(engine): Shared) -> Response {
    let config = &engine.config;
    Json(json!({
        "version": VERSION,
        "served_model_name": config.model_name,
        "model_path": format!("/models/{}", config.model_name),
        "incremental_streaming_output": config.incremental_streaming,
        "context_length": config.context_length,
        "internal_states": [{}],
    }))
    .into_response()
}

/// What changes while it runs.
async fn model_info(State(engine): Shared) -> Response {
    let label = lock(&engine.scheduler).label();
    Json(json!({
        "model_path": engine.model_path(),
        "served_model_name": engine.served_model_name(),
        "is_generation": true,
        "weight_version": &*label,
    }))
    .into_response()
}

async fn models(State(engine): Shared) -> Response {
    let name = engine.served_model_name();
    Json(json!({
        "object": "list",
        "data": [{
            "id": name, "object": "model", "created": engine.started_at.as_second(),
            "owned_by": "sglang", "root": name, "parent": null,
            "max_model_len": engine.config.context_length,
        }],
    }))
    .into_response()
}

async fn metrics(State(engine): Shared) -> Response {
    let counts = engine.counts_now();
    let (first_tokens, speed) = {
        let scheduler = lock(&engine.scheduler);
        (scheduler.first_tokens(), scheduler.throughput())
    };
    let text = metrics::text(&counts, &first_tokens, speed, &engine.served_model_name());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn generate(State(engine): Shared, body: Bytes) -> Result<Response, Refusal> {
    let asked: request::Generate = request::read(&body)?;
    let ends = lock(&engine.faults).ends;
    if let Some(status) = lock(&engine.faults).take_failing_call() {
        return Err(Refusal::failing(status));
    }
    let is_stream = asked.stream;
    let submitted = request::check(asked, &engine.config).and_then(|(call, form)| {
        let emissions = engine.change(|scheduler| {
            (!scheduler.is_live(&call.request_id)).then(|| scheduler.submit(call))
        });
        match emissions {
            Some(Some(emissions)) => Ok((emissions, form)),
            Some(None) => Err("the scheduler is gone".to_owned()),
            None => Err(format!("Duplicate request ID detected: {}", form.request_id)),
        }
    });
    match submitted {
        Ok((emissions, form)) if is_stream => Ok(reply::stream(emissions, form, ends)),
        Ok((emissions, form)) => Ok(reply::whole(emissions, form).await),
        Err(problem) if is_stream => Ok(reply::refused(&problem)),
        Err(problem) => Err(Refusal::bad_value(&problem)),
    }
}

/// Nothing is told, whether the id is known or not; an empty one is passed over.
async fn abort(State(engine): Shared, body: Bytes) -> Result<StatusCode, Refusal> {
    let asked: request::Abort = request::read(&body)?;
    let rid = asked.rid.unwrap_or_default();
    if asked.abort_all {
        engine.change(|scheduler| scheduler.abort(&Selection::All));
    } else if !rid.is_empty() {
        engine.change(|scheduler| scheduler.abort(&Selection::Prefix(rid)));
    }
    Ok(StatusCode::OK)
}

/// Replies when the pause is complete, as the real route does.
async fn pause(State(engine): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request::Pause { mode } = request::read(&body)?;
    let mode = match mode.as_deref() {
        None | Some("abort") => PauseMode::Abort,
        Some("retract") => PauseMode::Retract,
        Some("in_place") => PauseMode::Keep,
        Some(other) => return Err(Refusal::bad_field(&format!("mode {other}"))),
    };
    let mut counts = engine.counts.subscribe();
    engine.change(|scheduler| scheduler.pause(mode));
    if mode == PauseMode::Abort {
        // The sender lives in the engine, so the wait cannot end with an error.
        let _ = counts.wait_for(|counts| !counts.is_paused || counts.is_idle()).await;
    }
    Ok(said("Generation paused successfully."))
}

async fn resume(State(engine): Shared) -> Response {
    engine.change(Scheduler::resume);
    said("Generation continued successfully.")
}

fn said(message: &str) -> Response {
    Json(json!({ "message": message, "status": "ok" })).into_response()
}

/// Aborts everything unless the caller says that it must not.
async fn update_weight_version(State(engine): Shared, body: Bytes) -> Result<Response, Refusal> {
    let asked: request::NewVersion = request::read(&body)?;
    if asked.abort_all_requests {
        engine.change(|scheduler| scheduler.abort(&Selection::All));
    }
    engine.take_label(&asked.new_version);
    let message = format!("Weight version updated to {}", asked.new_version);
    let reply = json!({ "success": true, "message": message, "new_version": asked.new_version });
    Ok(Json(reply).into_response())
}

/// Waits until no call runs, unless it is paused. Nothing is loaded; the label is taken over, and
/// the model is called as its path from then on.
async fn update_weights_from_disk(State(engine): Shared, body: Bytes) -> Result<Response, Refusal> {
    let asked: request::NewWeights = request::read(&body)?;
    if asked.abort_all_requests {
        engine.change(|scheduler| scheduler.abort(&Selection::All));
    }
    let mut counts = engine.counts.subscribe();
    // The sender lives in the engine, so the wait cannot end with an error.
    let _ = counts.wait_for(|counts| counts.is_paused || counts.is_idle()).await;
    if let Err(problem) = engine.load_weights(&asked.model_path).await {
        return Ok(load_failed(&problem));
    }
    let mut message = "Succeeded to update model weights.".to_owned();
    if let Some(label) = asked.weight_version {
        engine.take_label(&label);
        message.push_str(&format!(" Weight version updated to {label}."));
    }
    let reply = json!({ "success": true, "message": message, "num_paused_requests": 0 });
    Ok(Json(reply).into_response())
}

fn load_failed(problem: &str) -> Response {
    let message = format!("Failed to get weights iterator: {problem}.");
    let reply = json!({ "success": false, "message": message, "num_paused_requests": 0 });
    (StatusCode::BAD_REQUEST, Json(reply)).into_response()
}

#[cfg(test)]
mod tests;
