//! The agent API for custom workers: HTTP over a unix socket on the node.
//!
//! For workers that are not a plain engine (multi-turn environments, tools, scorers). Here is only
//! the outside: what is asked is checked, handed to [`crate::workers`] as a job, and answered.
//! `agent/openapi.json` describes every route, `docs/custom-workers.md` how to use them.

mod answers;
mod asks;
mod body;
mod front;
mod listener;
mod notices;
mod refusal;
mod telling;

use std::future::pending;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{MethodRouter, get, post};
use tokio::sync::mpsc;

use crate::agent::AgentError;
use crate::shared::Shared;
use crate::workers::{self, BODY_BYTES_MAX};
use front::Front;

/// Jobs that wait to be begun; each connection has one at most.
const JOBS_WAITING: usize = 64;

/// The description of the API, as it is served.
pub(crate) const OPENAPI: &str = include_str!("../openapi.json");

/// Serves custom workers for as long as the future is polled; for ever nothing when the agent has
/// no socket.
///
/// # Errors
/// The socket cannot be made.
pub(crate) async fn serve(
    shared: &Arc<Shared>,
) -> Result<impl Future<Output = ()> + use<>, AgentError> {
    let listener = match &shared.config.socket {
        Some(path) => {
            Some(listener::bind(path).await.map_err(|problem| socket_error(path, problem))?)
        }
        None => None,
    };
    let (jobs, asked) = mpsc::channel(JOBS_WAITING);
    let router = router(Front::new(shared, jobs));
    let shared = shared.clone();
    Ok(async move {
        let Some(listener) = listener else { return pending().await };
        let answering = async {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "custom workers are no longer served");
            }
        };
        futures::join!(answering, workers::serve(shared, asked));
    })
}

fn socket_error(path: &Path, problem: String) -> AgentError {
    AgentError::Socket { path: path.to_owned(), problem }
}

/// Every route, with its method.
fn routes() -> Vec<(&'static str, &'static str, MethodRouter<Front>)> {
    vec![
        ("post", "/v1/lease", post(front::lease)),
        ("post", "/v1/append", post(front::append)),
        ("post", "/v1/complete", post(front::complete)),
        ("post", "/v1/score", post(front::score)),
        ("post", "/v1/hand-back", post(front::hand_back)),
        ("post", "/v1/fail", post(front::fail)),
        ("post", "/v1/renew", post(front::renew)),
        ("get", "/v1/notices", get(notices::notices)),
        ("get", "/v1/status", get(front::status)),
        ("get", "/v1/openapi.json", get(front::openapi)),
    ]
}

fn router(front: Front) -> Router {
    let all = routes().into_iter();
    all.fold(Router::new(), |router, (_, path, route)| router.route(path, route))
        .fallback(front::unknown_path)
        .method_not_allowed_fallback(front::wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(front)
}

#[cfg(test)]
mod tests;
