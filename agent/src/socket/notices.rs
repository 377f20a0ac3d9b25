//! `GET /v1/notices`: server-sent events for one worker, for as long as it listens.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Weak;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::sse::{Event as SseEvent, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use futures::stream;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::asks;
use super::front::Front;
use super::refusal::Refusal;
use super::telling::{Clocks, Event, events};
use crate::gate::GateChanges;
use crate::shared::{NodeStanding, Shared};
use crate::workers::{View, WorkerName, view};

/// Between two signs of life on a stream on which nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Who listens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listening {
    worker: String,
}

pub(super) async fn notices(
    State(front): State<Front>,
    query: Result<Query<Listening>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|error| {
        Refusal::bad(format!("{error}: ask for /v1/notices?worker=NAME, and nothing else"))
    })?;
    let shared = front.shared()?;
    let worker = asks::worker(&query.worker)?;
    let (forget_after, now) = (shared.config.lease.ttl, Instant::now());
    shared.workers.workers().open_stream(&worker, forget_after, now)?;
    let told = Teller::new(front.shared_weakly(), &shared, worker);
    let stream = stream::unfold(told, |mut teller| async {
        let event = teller.next().await?;
        Some((Ok::<_, Infallible>(written(&event)), teller))
    });
    let alive = KeepAlive::new().interval(HEARTBEAT).text("heartbeat");
    Ok(Sse::new(stream).keep_alive(alive).into_response())
}

fn written(event: &Event) -> SseEvent {
    let data = serde_json::to_string(event).unwrap_or_default();
    SseEvent::default().event(event.name()).data(data)
}

/// One stream.
struct Teller {
    shared: Weak<Shared>,
    worker: WorkerName,
    /// What was told last.
    told: Option<View>,
    /// What is to be told before anything is looked at again.
    pending: VecDeque<Event>,
    changes: watch::Receiver<()>,
    standing: watch::Receiver<NodeStanding>,
    gate: GateChanges,
}

impl Teller {
    fn new(weak: Weak<Shared>, shared: &Shared, worker: WorkerName) -> Self {
        Self {
            shared: weak,
            worker,
            told: None,
            pending: VecDeque::new(),
            changes: shared.workers.subscribe(),
            standing: shared.standing.subscribe(),
            gate: shared.gate.subscribe(),
        }
    }

    /// The next event; none when the agent has ended.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            // Seen from here on: what changes while it is looked at is looked at again.
            self.changes.mark_unchanged();
            self.standing.mark_unchanged();
            self.look()?;
            if !self.pending.is_empty() {
                continue;
            }
            tokio::select! {
                changed = self.changes.changed() => changed.ok()?,
                changed = self.standing.changed() => changed.ok()?,
                () = self.gate.changed() => {}
            }
        }
    }

    fn look(&mut self) -> Option<()> {
        let shared = self.shared.upgrade()?;
        let view = view(&shared, Some(&self.worker));
        if view.is_over {
            return None;
        }
        if view.is_settling {
            return Some(());
        }
        let clocks = Clocks { now: Instant::now(), wall: (shared.wall_clock)() };
        self.pending.extend(events(self.told.as_ref(), &view, clocks));
        self.told = Some(view);
        Some(())
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.workers.workers().close_stream(&self.worker);
        }
    }
}
