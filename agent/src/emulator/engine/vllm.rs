//! The HTTP face of the emulated engine in the shape of vLLM 0.32: routes and their replies.
//!
//! Shapes follow recordings (`agent/tests/goldens/vllm-0.32`). Like the real server, it accepts
//! unknown keys in silence and counts ids given to an abort whether they are known or not.

mod completions;
mod metrics;
mod reply;
mod request;
mod wire;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::scheduler::{Emissions, Scheduler, Selection};
use super::sequence::GenerateCall;
use super::{BODY_BYTES_MAX, Engine, EngineCounts, PauseMode, lock};
use request::{Limits, Refusal};

/// What the server puts before the id of a token-in token-out call.
const REQUEST_ID_PREFIX: &str = "generate-tokens-";

/// Version reported, the one recorded.
const VERSION: &str = "0.32.0";

type Shared = State<Arc<Engine>>;

/// All routes. The control routes exist in dev mode only.
pub(super) fn router(engine: Arc<Engine>) -> Router {
    let mut routes = Router::new()
        .route("/health", get(health))
        .route("/version", get(async || Json(json!({ "version": VERSION }))))
        .route("/v1/models", get(models))
        .route("/metrics", get(metrics))
        .route("/inference/v1/generate", post(generate))
        .route("/inference/v1/abort_requests", post(abort_scale_out));
    if engine.config.completions {
        routes = routes.route("/v1/completions", post(complete));
    }
    if engine.config.dev_mode {
        routes = routes
            .route("/abort_requests", post(abort))
            .route("/pause", post(pause))
            .route("/resume", post(resume))
            .route("/is_paused", get(is_paused))
            .route("/collective_rpc", post(collective_rpc))
            .route("/reset_prefix_cache", post(reset_prefix_cache))
            .route("/update_weight_version", post(update_weight_version))
            .route("/weight_info", get(weight_info));
    }
    routes
        .fallback(async || (StatusCode::NOT_FOUND, Json(json!({ "detail": "Not Found" }))))
        .method_not_allowed_fallback(async || {
            (StatusCode::METHOD_NOT_ALLOWED, Json(json!({ "detail": "Method Not Allowed" })))
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(engine)
}

async fn health(State(engine): Shared) -> StatusCode {
    if lock(&engine.scheduler).is_core_dead() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    StatusCode::OK
}

async fn models(State(engine): Shared) -> Response {
    Json(wire::ModelList::of(&engine.config, engine.started_at.as_second())).into_response()
}

async fn metrics(State(engine): Shared) -> Response {
    let counts = engine.counts_now();
    let first_tokens = lock(&engine.scheduler).first_tokens();
    let (model, started_at) = (&engine.config.model_name, engine.started_at);
    let text = metrics::text(&counts, &first_tokens, model, started_at);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn generate(State(engine): Shared, body: Bytes) -> Result<Response, Refusal> {
    if !engine.config.scale_out {
        return Err(Refusal::scale_out_disabled());
    }
    let (call, form) = request::parse(&body, Limits::of(&engine.config))?;
    let emissions = submit(&engine, call)?;
    Ok(if form.is_stream {
        reply::stream(emissions, form, lock(&engine.faults).ends)
    } else {
        reply::whole(emissions, form, &engine.config.model_name).await
    })
}

/// Takes a good call, unless it is to fail.
fn submit(engine: &Engine, call: GenerateCall) -> Result<Emissions, Refusal> {
    if let Some(status) = lock(&engine.faults).take_failing_call() {
        return Err(Refusal::failing(status));
    }
    engine.change(|scheduler| scheduler.submit(call)).ok_or_else(Refusal::core_died)
}

async fn complete(
    State(engine): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let id = headers.get("X-Request-Id").and_then(|id| id.to_str().ok());
    let (call, form) = request::parse_completion(&body, id, Limits::of(&engine.config))?;
    let emissions = submit(&engine, call)?;
    let model = engine.config.model_name.clone();
    Ok(if form.is_stream {
        let ends = lock(&engine.faults).ends;
        completions::stream(emissions, form, model, ends)
    } else {
        completions::whole(emissions, form, model).await
    })
}

#[derive(Default, Deserialize)]
struct AbortBody {
    request_ids: Option<Vec<String>>,
}

/// The control route: no ids means all.
async fn abort(State(engine): Shared, body: Bytes) -> Result<Response, Refusal> {
    let body: AbortBody =
        if body.is_empty() { AbortBody::default() } else { request::read(&body)? };
    let selection = match body.request_ids {
        Some(ids) if !ids.is_empty() => Selection::Ids(ids),
        _ => Selection::All,
    };
    let aborted = engine.change(|scheduler| scheduler.abort(&selection));
    Ok(Json(wire::Aborted { status: "aborted", aborted }).into_response())
}

/// The route of the scale-out interface: ids are needed, nothing is told.
async fn abort_scale_out(State(engine): Shared, body: Bytes) -> Result<StatusCode, Refusal> {
    if !engine.config.scale_out {
        return Err(Refusal::scale_out_disabled());
    }
    let ids = request::read::<AbortBody>(&body)?.request_ids;
    let ids = ids.ok_or_else(|| Refusal::missing_field(&body, "request_ids"))?;
    engine.change(|scheduler| scheduler.abort(&Selection::Ids(ids)));
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
struct PauseQuery {
    mode: Option<String>,
}

/// Replies when the pause is complete, as the real route does.
async fn pause(
    State(engine): Shared,
    Query(query): Query<PauseQuery>,
) -> Result<Response, Refusal> {
    let mode = match query.mode.as_deref() {
        None | Some("abort") => PauseMode::Abort,
        Some("wait") => PauseMode::Wait,
        Some("keep") => PauseMode::Keep,
        Some(other) => return Err(Refusal::unknown_pause_mode(other)),
    };
    let mut counts = engine.counts.subscribe();
    engine.change(|scheduler| scheduler.pause(mode));
    let is_complete = |counts: &EngineCounts| {
        // A resume from elsewhere ends the wait too.
        !counts.is_paused || counts.is_frozen && (mode != PauseMode::Abort || counts.is_idle())
    };
    // The sender lives in the engine, so the wait cannot end with an error.
    let _ = counts.wait_for(is_complete).await;
    Ok(Json(json!({ "status": "paused" })).into_response())
}

async fn resume(State(engine): Shared) -> Response {
    engine.change(Scheduler::resume);
    Json(json!({ "status": "resumed" })).into_response()
}

/// A method of the workers; there is one here. The core is deaf meanwhile, as the real one is. One
/// that fails has taken the weights apart: the real core stays well until the next generation.
async fn collective_rpc(State(engine): Shared, body: Bytes) -> Result<Response, Refusal> {
    let WorkerCall { method, kwargs } = request::read(&body)?;
    let place = kwargs.and_then(|kwargs| kwargs.weights_path);
    if method != "reload_weights" {
        return Ok(worker_failure(&format!("no method {method}")));
    }
    let place = place.unwrap_or_else(|| engine.model_path());
    let loaded = engine.load_weights(&place).await;
    engine.change(|scheduler| scheduler.set_hollow(loaded.is_err()));
    Ok(match loaded {
        Ok(()) => Json(json!({ "results": [null] })).into_response(),
        // The real one takes it for a name.
        Err(_) => worker_failure(&format!(
            "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{place}'. Use \
             `repo_type` argument if needed."
        )),
    })
}

fn worker_failure(why: &str) -> Response {
    let message = format!(
        "Call to collective_rpc method failed: Worker failed with error '{why}', please check the \
         stack trace above for the root cause"
    );
    let error = WorkerFailure { message, kind: "InternalServerError", param: (), code: 500 };
    (StatusCode::INTERNAL_SERVER_ERROR, Json(Failed { error })).into_response()
}

#[derive(Serialize)]
struct Failed {
    error: WorkerFailure,
}

/// In the order of the real one.
#[derive(Serialize)]
struct WorkerFailure {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: (),
    code: u16,
}

#[derive(Deserialize)]
struct WorkerCall {
    method: String,
    kwargs: Option<WorkerArguments>,
}

#[derive(Deserialize)]
struct WorkerArguments {
    weights_path: Option<String>,
}

/// Fails while streams hold blocks of it.
async fn reset_prefix_cache(State(engine): Shared) -> Response {
    let success = engine.counts_now().is_idle();
    Json(json!({ "success": success })).into_response()
}

async fn is_paused(State(engine): Shared) -> Response {
    let _core = engine.loading.lock().await;
    let is_paused = lock(&engine.scheduler).is_paused();
    Json(json!({ "is_paused": is_paused })).into_response()
}

#[derive(Deserialize)]
struct NewVersion {
    new_version: String,
}

async fn update_weight_version(State(engine): Shared, body: Bytes) -> Result<Response, Refusal> {
    let NewVersion { new_version } = request::read(&body)?;
    engine.take_label(&new_version);
    Ok(Json(wire::LabelTaken { success: true, new_version }).into_response())
}

async fn weight_info(State(engine): Shared) -> Response {
    let _core = engine.loading.lock().await;
    let label = lock(&engine.scheduler).label();
    Json(json!({ "weight_version": &*label })).into_response()
}
