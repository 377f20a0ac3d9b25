//! Follows up drains while this controller leads: nodes of silent agents are marked, whoever asked
//! for the drain; recommendations that nothing followed are taken back, and so are drains that
//! nodes have outlived.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_queue::client::{Backoff, QueueError, WorkQueue};
use ebbtide_queue::control::{ControlView, DrainProgress, DrainReason, DrainState};
use futures::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::stand_in::{Marker, StandIn, plan_stand_ins};
use super::upkeep::{Upkeep, plan_upkeep};
use crate::leader::Leadership;
use crate::policy_source::PolicyState;
use crate::watching::Views;

/// Bounds of the pause before a mark that failed is tried again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The parts that following up works with.
pub(crate) struct Follower {
    pub queue: WorkQueue,
    pub marker: Marker,
    pub views: Views,
    pub leadership: watch::Receiver<Option<Leadership>>,
    pub policy: watch::Receiver<PolicyState>,
}

/// How far the mark of a node is.
struct Attempt {
    backoff: Backoff,
    /// None once it is marked.
    try_at: Option<Instant>,
}

impl Follower {
    /// Looks at every new view until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut attempts = BTreeMap::new();
        loop {
            tokio::select! {
                changed = self.views.changed() => if changed.is_err() { return },
                () = shutdown.cancelled() => return,
            }
            let view = self.views.borrow_and_update().clone();
            let (Some(view), Some(held)) = (view, *self.leadership.borrow()) else { continue };
            self.stand_in(&view, &mut attempts).await;
            if let Err(error) = self.keep_up(&view, held.generation).await {
                tracing::warn!(%error, "drains of events not followed up");
            }
        }
    }

    /// Marks what is due. A node that was marked is left alone until its drain is another one.
    async fn stand_in(&self, view: &ControlView, attempts: &mut BTreeMap<StandIn, Attempt>) {
        let planned = plan_stand_ins(view);
        attempts.retain(|known, _| planned.iter().any(|(planned, _)| planned == known));
        let now = Instant::now();
        let is_due = |stand_in: &StandIn| {
            attempts.get(stand_in).is_none_or(|known| known.try_at.is_some_and(|at| at <= now))
        };
        let due = planned.into_iter().filter(|(stand_in, _)| is_due(stand_in));
        let marks = due.map(async |(stand_in, reason): (StandIn, DrainReason)| {
            let marked = self.marker.mark(&stand_in.node, reason).await;
            (stand_in, marked)
        });
        for (stand_in, marked) in join_all(marks).await {
            let attempt = attempts.entry(stand_in).or_insert_with(|| Attempt {
                backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
                try_at: None,
            });
            attempt.try_at = marked.err().map(|error| {
                if attempt.backoff.failures() == 0 {
                    tracing::error!(%error, "node of a silent agent not marked, trying again");
                }
                Instant::now() + attempt.backoff.next_pause()
            });
        }
    }

    async fn keep_up(&self, view: &ControlView, generation: u64) -> Result<(), QueueError> {
        let policy = self.policy.borrow().policy.clone();
        for upkeep in plan_upkeep(view, &policy.drain) {
            match upkeep {
                Upkeep::Cancel { replica, request_id, why } => {
                    let state = DrainState::Cancelled;
                    tracing::info!(%replica, why = why.as_str(), "drain cancelled");
                    let progress = DrainProgress { replica, request_id, generation, state };
                    self.queue.report_drain(progress).await?;
                }
                Upkeep::Forget { replica } => {
                    tracing::info!(%replica, "drain of a node that never reported is forgotten");
                    self.queue.remove_drain(generation, &replica).await?;
                }
            }
        }
        Ok(())
    }
}
