//! Where nodes come from: what a capacity provider must offer.
//!
//! Sizes are raised by absolute numbers and lowered only by terminating named instances. Every
//! call ends within [`CALL_LIMIT`], whatever the provider does.

pub mod asg;
mod cluster;
mod ec2;
pub mod fleet;
pub mod local;
pub mod mixed;
pub mod scale;
pub mod workers;

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::observation::{FailureKind, InstanceId, PoolView};
use ebbtide_core::policy::Pool;
use ebbtide_queue::client::WorkQueue;
use thiserror::Error;
use tokio::sync::watch;

use crate::aws::AwsError;
use crate::leader::Leadership;

/// Longest time that one call may take, its retries included.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Longest time that a look of one provider may take: one call for the sizes (10 s) and the details
/// that follow (6 s).
pub const LOOK_LIMIT: Duration = Duration::from_secs(17);

/// Why a provider did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CapacityError {
    /// It did not answer, or in time.
    #[error("{what} did not answer: {problem}; it is asked again at the next tick")]
    Unavailable {
        /// Which call.
        what: String,
        /// What went wrong.
        problem: String,
    },
    /// It refused.
    #[error("{what} was refused: {code}: {message}")]
    Refused {
        /// Which call.
        what: String,
        /// The provider's error code.
        code: String,
        /// What the provider said.
        message: String,
    },
    /// A part of what was asked for came, and the rest did not.
    #[error("{came} nodes came, and of the others: {error}")]
    Partly {
        /// Nodes that came.
        came: u32,
        /// Why the others did not.
        error: Box<CapacityError>,
    },
    /// The pool is not as it was when the decision was made.
    #[error("pool {pool} must be at {expected} nodes to be raised, got {got}; nothing was written")]
    Moved {
        /// Which pool.
        pool: String,
        /// The size that the decision was made on.
        expected: u32,
        /// The size that was found.
        got: u32,
    },
    /// The controller runs without the provider of the pool.
    #[error("pool {pool} needs provider {provider}, which this controller runs without")]
    Absent {
        /// Which pool.
        pool: String,
        /// Which provider.
        provider: &'static str,
    },
    /// This provider does not know the pool.
    #[error("pool {pool} is not of this provider")]
    Foreign {
        /// Which pool.
        pool: String,
    },
}

impl From<AwsError> for CapacityError {
    fn from(error: AwsError) -> Self {
        match error {
            AwsError::Unavailable { what, problem } => {
                Self::Unavailable { what: what.to_owned(), problem }
            }
            AwsError::Refused { what, code, message } => {
                Self::Refused { what: what.to_owned(), code, message }
            }
        }
    }
}

impl CapacityError {
    /// The pool is at `got` nodes, and the decision was made on `expected`.
    pub(crate) fn moved(pool: &Pool, expected: u32, got: u32) -> Self {
        Self::Moved { pool: pool.name.to_string(), expected, got }
    }

    /// The pool is of another provider.
    pub(crate) fn foreign(pool: &Pool) -> Self {
        Self::Foreign { pool: pool.name.to_string() }
    }

    /// What a refusal says about its pool; `None` where nothing was refused.
    pub fn refusal(&self) -> Option<FailureKind> {
        match self {
            Self::Refused { code, message, .. } => {
                Some(FailureKind::of_text(&format!("{code}: {message}")))
            }
            Self::Partly { error, .. } => error.refusal(),
            Self::Unavailable { .. }
            | Self::Moved { .. }
            | Self::Foreign { .. }
            | Self::Absent { .. } => None,
        }
    }

    /// Nodes that came although not all did.
    pub fn came(&self) -> u32 {
        match self {
            Self::Partly { came, .. } => *came,
            _ => 0,
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Moved { .. } => true,
            Self::Partly { error, .. } => error.is_retriable(),
            Self::Refused { code, .. } => FailureKind::of_text(code) == FailureKind::Throttled,
            Self::Foreign { .. } | Self::Absent { .. } => false,
        }
    }
}

/// Where a provider keeps books that outlive this process: the store of the run, written to by who
/// leads.
#[derive(Clone)]
pub struct Desk {
    /// The run's queue.
    pub queue: WorkQueue,
    /// Whether this controller leads.
    pub leadership: watch::Receiver<Option<Leadership>>,
}

/// A capacity provider.
#[async_trait]
pub trait Capacity: Send + Sync {
    /// Tells where books may be kept, once there is a store and before anything else is asked.
    fn keep_books(&self, _: &Desk) {}

    /// Looks at the pools. A pool that cannot be read has an unknown size; its siblings are not
    /// affected.
    async fn observe(&self, pools: &[&Pool]) -> Vec<PoolView>;

    /// Which of these instances of nodes that once were in one of the pools do not exist any more,
    /// by the provider's own word.
    ///
    /// # Errors
    /// No answer: then none counts as gone.
    async fn find_gone(
        &self,
        pools: &[&Pool],
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError>;

    /// Asks for `to` nodes in all, where `from` were asked for when the decision was made. Never
    /// lowers. Where the provider can, it brings the `gang` nodes of a replica whole or not at all.
    ///
    /// # Errors
    /// The pool is at another size by now, or the provider refused or did not answer; what then
    /// holds is read at the next tick.
    async fn raise(&self, pool: &Pool, from: u32, to: u32, gang: u32) -> Result<(), CapacityError>;

    /// Keeps these instances from being chosen by the provider itself, where it chooses. Repeating
    /// it is harmless.
    ///
    /// # Errors
    /// The provider refused or did not answer; some may be protected.
    async fn protect(&self, _: &Pool, _: &[InstanceId]) -> Result<(), CapacityError> {
        Ok(())
    }

    /// Terminates exactly these instances and asks for as many fewer. Repeating it is harmless.
    ///
    /// # Errors
    /// The provider refused or did not answer; some may have been terminated.
    async fn terminate(&self, pool: &Pool, instances: &[InstanceId]) -> Result<(), CapacityError>;
}

/// Looks at the pools side by side; one that cannot be read says why, and the others do not.
async fn look_at_each<'a, L>(pools: &[&'a Pool], look: impl Fn(&'a Pool) -> L) -> Vec<PoolView>
where
    L: Future<Output = Result<PoolView, CapacityError>>,
{
    let views = futures::future::join_all(pools.iter().map(|pool| look(pool))).await;
    let read = |(view, pool): (Result<PoolView, CapacityError>, &&Pool)| {
        view.unwrap_or_else(|error| PoolView::unread(pool.name.clone(), error.to_string()))
    };
    views.into_iter().zip(pools).map(read).collect()
}

/// The pools, none of which could be read.
pub(crate) fn unread(pools: &[&Pool], why: &str) -> Vec<PoolView> {
    pools.iter().map(|pool| PoolView::unread(pool.name.clone(), why)).collect()
}
