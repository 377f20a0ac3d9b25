//! The routes: read, check, ask the agent, answer.
//!
//! A connection may outlive the agent, and then only to say that it is gone: the state behind it
//! is weak, and what is asked is carried out by the agent itself.

use std::sync::{Arc, Weak};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{Method, Uri, header};
use axum::response::{IntoResponse, Response};
use ebbtide_core::ids::{Holder, NodeName, PolicyVersion, ReplicaId, RunId, UnitId};
use ebbtide_core::time::whole_millis;
use ebbtide_queue::control::NodeState;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::OPENAPI;
use super::answers::{BatchAnswer, LeaseAnswer, TermsWords, millis_until};
use super::asks::{
    self, AppendItem, Batch, CompleteItem, FailItem, HandBackItem, Item, LeaseAsk, RenewItem,
    ScoreItem,
};
use super::body::{self, Body};
use super::refusal::{Code, Refusal};
use super::telling::{Clocks, StateWords, state_words};
use crate::meeting;
use crate::shared::Shared;
use crate::workers::{Answer, Job, LeaseOutcome, TAIL_LIMIT, WorkerName, view};

/// What the routes have in common.
#[derive(Clone)]
pub(super) struct Front {
    shared: Weak<Shared>,
    jobs: mpsc::Sender<Job>,
    large_bodies: Arc<Semaphore>,
}

impl Front {
    pub(super) fn new(shared: &Arc<Shared>, jobs: mpsc::Sender<Job>) -> Self {
        Self { shared: Arc::downgrade(shared), jobs, large_bodies: body::places() }
    }

    pub(super) fn shared(&self) -> Result<Arc<Shared>, Refusal> {
        self.shared.upgrade().ok_or_else(Refusal::ended)
    }

    pub(super) fn large_bodies(&self) -> Arc<Semaphore> {
        self.large_bodies.clone()
    }

    pub(super) fn shared_weakly(&self) -> Weak<Shared> {
        self.shared.clone()
    }

    /// Has a job carried out.
    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Result<T, Refusal> {
        let (sender, answer) = oneshot::channel();
        self.jobs.send(job(sender)).await.map_err(|_| Refusal::ended())?;
        answer.await.map_err(|_| Refusal::ended())
    }

    async fn write<T: Item>(&self, body: Body) -> Result<Response, Refusal> {
        let job = asks::read::<Batch<T>>(body.bytes())?.job()?;
        let units = job.writes.iter().map(|write| write.key.unit.clone()).collect();
        let answers = self.ask(|answer| Job::Write(job, answer)).await?;
        self.answer(units, answers)
    }

    fn answer(&self, units: Vec<UnitId>, answers: Vec<Answer>) -> Result<Response, Refusal> {
        let shared = self.shared()?;
        Ok(Json(BatchAnswer::new(units, answers, &shared)).into_response())
    }
}

pub(super) async fn lease(State(front): State<Front>, body: Body) -> Result<Response, Refusal> {
    let job = asks::read::<LeaseAsk>(body.bytes())?.job()?;
    let worker = job.call.worker.clone();
    let outcome = front.ask(|answer| Job::Lease(job, answer)).await?;
    let shared = front.shared()?;
    let keys = match outcome {
        LeaseOutcome::Granted(keys) => keys,
        LeaseOutcome::Empty => Vec::new(),
        LeaseOutcome::Closed => return Err(closed(&shared)),
        LeaseOutcome::Away(error) => return Err(error.into()),
        LeaseOutcome::Refused(limit) => return Err(limit.into()),
    };
    // The last look at the gate before the grants leave.
    let closed_for = (!shared.gate.is_open()).then(|| shared.leaving_why());
    let delivered = shared.workers.change(|workers| workers.deliver(&worker, &keys, closed_for));
    match delivered {
        Ok(grants) => Ok(Json(LeaseAnswer::new(&grants, &shared)).into_response()),
        Err(_) => Err(closed(&shared)),
    }
}

/// Why no work is leased, and what to do.
fn closed(shared: &Shared) -> Refusal {
    let reasons: Vec<&str> = shared.gate.closed_for().iter().map(|why| why.as_str()).collect();
    let left = view(shared, None).notice.and_then(|notice| notice.deadline);
    let left = left.map_or(String::new(), |deadline| {
        format!(", {} ms left", millis_until(deadline, Instant::now()))
    });
    let message = format!(
        "no work is leased on this node now ({}{left}): finish or hand back what you hold, and \
         ask again later; GET /v1/notices says when",
        reasons.join(", ")
    );
    Refusal::new(Code::GateClosed, message)
}

pub(super) async fn append(State(front): State<Front>, body: Body) -> Result<Response, Refusal> {
    front.write::<AppendItem>(body).await
}

pub(super) async fn complete(State(front): State<Front>, body: Body) -> Result<Response, Refusal> {
    front.write::<CompleteItem>(body).await
}

pub(super) async fn score(State(front): State<Front>, body: Body) -> Result<Response, Refusal> {
    front.write::<ScoreItem>(body).await
}

pub(super) async fn hand_back(State(front): State<Front>, body: Body) -> Result<Response, Refusal> {
    front.write::<HandBackItem>(body).await
}

pub(super) async fn fail(State(front): State<Front>, body: Body) -> Result<Response, Refusal> {
    front.write::<FailItem>(body).await
}

pub(super) async fn renew(State(front): State<Front>, body: Body) -> Result<Response, Refusal> {
    let job = asks::read::<Batch<RenewItem>>(body.bytes())?.renew_job()?;
    let units = job.leases.iter().map(|(key, _)| key.unit.clone()).collect();
    let answers = front.ask(|answer| Job::Renew(job, answer)).await?;
    front.answer(units, answers)
}

/// Whose units `GET /v1/status` lists.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asking {
    worker: Option<String>,
}

#[derive(Debug, Serialize)]
struct StatusWords {
    run: RunId,
    node: NodeName,
    replica: ReplicaId,
    holder: Holder,
    node_state: NodeState,
    policy_version: PolicyVersion,
    /// Units held on the node, for engines and for custom workers.
    held: usize,
    terms: TermsWords,
    tail_limit_ms: u64,
    workers: Vec<WorkerWords>,
    #[serde(flatten)]
    state: StateWords,
}

#[derive(Debug, Serialize)]
struct WorkerWords {
    worker: String,
    units: usize,
    streams: usize,
}

pub(super) async fn status(
    State(front): State<Front>,
    query: Result<Query<Asking>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|error| {
        Refusal::bad(format!("{error}: ask for /v1/status or /v1/status?worker=NAME"))
    })?;
    let worker = query.worker.as_deref().map(asks::worker).transpose()?;
    let shared = front.shared()?;
    let state = view(&shared, worker.as_ref());
    let clocks = Clocks { now: Instant::now(), wall: (shared.wall_clock)() };
    let census = shared.workers.workers().census();
    let words = |(worker, units, streams): (WorkerName, usize, usize)| WorkerWords {
        worker: worker.to_string(),
        units,
        streams,
    };
    let config = &shared.config;
    let status = StatusWords {
        run: config.run.clone(),
        node: config.node().clone(),
        replica: config.replica.clone(),
        holder: config.holder.clone(),
        node_state: meeting::node_state(&shared),
        policy_version: *shared.run_version.borrow(),
        held: shared.held(),
        terms: TermsWords::of(&shared),
        tail_limit_ms: whole_millis(TAIL_LIMIT),
        workers: census.into_iter().map(words).collect(),
        state: state_words(&state, clocks),
    };
    Ok(Json(status).into_response())
}

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

pub(super) async fn unknown_path(uri: Uri) -> Refusal {
    let path: String = uri.path().chars().take(100).collect();
    let message = format!("there is no {path}; GET /v1/openapi.json lists what there is");
    Refusal::new(Code::NotFound, message)
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> Refusal {
    let message =
        format!("{} does not take {method}; GET /v1/openapi.json says what it takes", uri.path());
    Refusal::new(Code::MethodNotAllowed, message)
}
