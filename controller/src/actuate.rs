//! Carries out the actions of a plan, one by one, each fenced.
//!
//! Nothing is decided here. Each write is claimed first ([`Fence`]).

mod together;

use std::fmt::Display;
use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::journal::Outcome;
use ebbtide_core::observation::{FailureKind, InstanceId};
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_core::scale::{Action, LeaveReason};
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::control::{DrainProgress, DrainReason, DrainRequest, DrainState, NodeNames};
use thiserror::Error;
use tokio::time::Instant;

pub(crate) use self::together::count_together;
use crate::capacity::{CALL_LIMIT, Capacity, CapacityError};
use crate::fence::{Fence, FenceError};

/// Longest time that one write to the queue takes.
pub(crate) const QUEUE_WRITE_LIMIT: Duration = Duration::from_secs(4);

/// Why an action was not carried out.
#[derive(Debug, Error)]
pub(crate) enum ActuateError {
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error("drain of {replica} must be {expected} and is {got}")]
    DrainMoved { replica: ReplicaId, expected: &'static str, got: String },
    #[error("what was asked for earlier has not been answered yet")]
    Unanswered,
    #[error("the trainer has started again, is silent, or took its word back: nothing goes")]
    NotReleased,
    #[error("{what} was not answered within {CALL_LIMIT:?}")]
    Hung { what: &'static str },
    #[error("its turn ended before it was begun; what is needed then is decided anew")]
    TurnEnded,
    #[error("pool {0} is not in the policy any more")]
    NoSuchPool(PoolName),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Capacity(#[from] CapacityError),
}

impl ActuateError {
    /// What a refusal of the provider says about its pool; `None` where it did not refuse.
    fn refusal(&self) -> Option<FailureKind> {
        match self {
            Self::Capacity(error) => error.refusal(),
            Self::Hung { .. } => Some(FailureKind::TimedOut),
            _ => None,
        }
    }

    /// Nodes that came although not all did.
    fn came(&self) -> u32 {
        match self {
            Self::Capacity(error) => error.came(),
            _ => 0,
        }
    }

    /// What goes on record of an action that was not carried out; it is told in the log, too.
    pub fn into_outcome(self, action: &impl Display) -> Outcome {
        tracing::warn!(error = %self, %action, "action was not carried out");
        let why = self.to_string();
        match self.refusal() {
            Some(kind) => Outcome::Refused { kind, why, came: self.came() },
            None => Outcome::Failed(why),
        }
    }
}

/// Everything that carrying out needs.
pub(crate) struct Actuator<'a> {
    pub queue: &'a WorkQueue,
    pub fence: Fence<'a>,
    pub capacity: &'a dyn Capacity,
    pub policy: &'a FleetPolicy,
}

impl Actuator<'_> {
    /// Carries out one action.
    pub async fn carry_out(&self, action: &Action) -> Result<(), ActuateError> {
        match action {
            Action::Raise { pool, from, to } => {
                let gang = self.policy.nodes_per_replica_in(pool).into();
                self.raise(pool, (*from, *to), gang).await
            }
            Action::RequestDrain { replica, why } => self.request_drain(replica, *why).await,
            Action::CancelDrain { replica, request_id } => {
                self.report(replica, request_id, DrainState::Cancelled).await
            }
            Action::Retire { replica, request_id, pool, instances } => {
                self.report(replica, request_id, DrainState::Terminating).await?;
                self.terminate(pool, instances).await
            }
            Action::Discard { pool, instances } => self.terminate(pool, instances).await,
            Action::Forget { replica, nodes, ends_drain } => {
                let generation =
                    self.fence.claim("forget", replica.as_str(), QUEUE_WRITE_LIMIT).await?;
                // The drain first: once the nodes are gone nothing would remind us of it.
                if *ends_drain {
                    self.queue.remove_drain(generation, replica).await?;
                }
                for node in nodes {
                    self.queue.remove_node(generation, node).await?;
                }
                Ok(())
            }
        }
    }

    /// Asks a pool for more nodes, those of a replica whole or not at all.
    pub async fn raise(
        &self,
        name: &PoolName,
        (from, to): (u32, u32),
        gang: u32,
    ) -> Result<(), ActuateError> {
        let pool = self.policy.pool(name).ok_or_else(|| ActuateError::NoSuchPool(name.clone()))?;
        self.fence.claim("raise", &format!("{name}.{from}-{to}"), CALL_LIMIT).await?;
        within_limit("raise", self.capacity.raise(pool, from, to, gang)).await
    }

    /// Protects instances from the scale-in of their own group.
    pub async fn protect(
        &self,
        name: &PoolName,
        instances: &[InstanceId],
    ) -> Result<(), ActuateError> {
        let pool = self.policy.pool(name).ok_or_else(|| ActuateError::NoSuchPool(name.clone()))?;
        self.fence.claim("protect", name.as_str(), CALL_LIMIT).await?;
        within_limit("protect", self.capacity.protect(pool, instances)).await
    }

    /// Terminates exactly these instances.
    pub async fn terminate(
        &self,
        name: &PoolName,
        instances: &[InstanceId],
    ) -> Result<(), ActuateError> {
        self.terminate_if(name, instances, |_| std::future::ready(Ok(()))).await
    }

    /// As [`Self::terminate`], unless `may` refuses. It is asked last of all, under the generation
    /// of the claim and within its time.
    pub async fn terminate_if<F>(
        &self,
        name: &PoolName,
        instances: &[InstanceId],
        may: impl FnOnce(u64) -> F,
    ) -> Result<(), ActuateError>
    where
        F: Future<Output = Result<(), ActuateError>>,
    {
        let pool = self.policy.pool(name).ok_or_else(|| ActuateError::NoSuchPool(name.clone()))?;
        let what = instances.iter().map(|id| id.0.as_str()).collect::<Vec<_>>().join("+");
        let generation = self.fence.claim("terminate", &what, CALL_LIMIT).await?;
        let terminate = async {
            may(generation).await?;
            Ok::<_, ActuateError>(self.capacity.terminate(pool, instances).await?)
        };
        within_limit("terminate", terminate).await
    }

    async fn request_drain(
        &self,
        replica: &ReplicaId,
        why: LeaveReason,
    ) -> Result<(), ActuateError> {
        let (reason, word) = match why {
            LeaveReason::ScaleIn => (DrainReason::ScaleIn, "scale-in"),
            LeaveReason::Swap => (DrainReason::Swap, "swap"),
            LeaveReason::Partial => (DrainReason::ScaleIn, "partial"),
            LeaveReason::Silent => (DrainReason::ScaleIn, "silent"),
            LeaveReason::ReservationEnds => (DrainReason::ScaleIn, "reservation"),
            LeaveReason::Budget => (DrainReason::ScaleIn, "budget"),
        };
        let generation = self.fence.claim("drain", replica.as_str(), QUEUE_WRITE_LIMIT).await?;
        let request = DrainRequest {
            replica: replica.clone(),
            request_id: format!(
                "{word}-{generation}-{:08x}-{}",
                self.fence.process, self.fence.turn
            ),
            generation,
            reason,
            remaining: self.policy.drain.request_deadline,
            lost: NodeNames::default(),
        };
        self.queue.request_drain(request).await?;
        Ok(())
    }

    /// Moves a drain to `state` and checks that it got there.
    async fn report(
        &self,
        replica: &ReplicaId,
        request_id: &str,
        state: DrainState,
    ) -> Result<(), ActuateError> {
        let word = if state == DrainState::Cancelled { "cancelled" } else { "terminating" };
        let generation = self.fence.claim(word, replica.as_str(), QUEUE_WRITE_LIMIT).await?;
        let (replica, request_id) = (replica.clone(), request_id.to_owned());
        let progress = DrainProgress {
            replica: replica.clone(),
            request_id: request_id.clone(),
            generation,
            state,
        };
        let record = self.queue.report_drain(progress).await?;
        match record {
            Some(record) if record.request_id == request_id && record.state == state => {
                // A notice that came in between makes the node AWS's to take.
                if state == DrainState::Terminating && record.reason == DrainReason::Notice {
                    let got = "for a notice".to_owned();
                    return Err(ActuateError::DrainMoved {
                        replica,
                        expected: "for scale-in",
                        got,
                    });
                }
                Ok(())
            }
            other => {
                let got = other.map_or("gone".to_owned(), |record| format!("{:?}", record.state));
                Err(ActuateError::DrainMoved { replica, expected: word, got })
            }
        }
    }
}

/// Gives up a call of the provider when the claimed time is over.
async fn within_limit<E>(
    what: &'static str,
    call: impl Future<Output = Result<(), E>>,
) -> Result<(), ActuateError>
where
    ActuateError: From<E>,
{
    let ends_at = Instant::now() + CALL_LIMIT;
    let Ok(outcome) = tokio::time::timeout_at(ends_at, call).await else {
        return Err(ActuateError::Hung { what });
    };
    match outcome.map_err(ActuateError::from) {
        // A call within it has the same limit, and may be the first to notice.
        Err(ActuateError::Capacity(CapacityError::Unavailable { .. }))
            if Instant::now() >= ends_at =>
        {
            Err(ActuateError::Hung { what })
        }
        outcome => outcome,
    }
}
