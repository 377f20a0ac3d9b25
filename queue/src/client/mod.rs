//! The typed client of the queue: routes each call to its shard, keeps calls within the limits of
//! one command, and repeats what may be repeated.
//!
//! A shard that is away never stops the others: reads and leases go on with those that answer.

mod backoff;
mod hints;
mod holding;
mod inspecting;
mod leading;
mod leasing;
mod meeting;
mod memory_port;
mod training;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use ebbtide_core::ids::GroupId;
use thiserror::Error;

pub use backoff::Backoff;
pub use hints::Hint;
pub(crate) use hints::Hints;
pub use leasing::{LeaseTerms, Leased};
pub use memory_port::{MemoryPort, wall_clock_now};
pub use training::EnqueueError;

use crate::command::Command;
use crate::control::{ControlCommand, ControlReply};
use crate::reply::Reply;

/// Pages that a walk through one shard reads at most. 200,000 × 64 groups = thirteen million.
const SCAN_PAGES_LIMIT: usize = 200_000;

/// Why a call to the queue gave no reply.
#[derive(Debug, Clone, Error)]
pub enum QueueError {
    /// The store did not answer; the same call may be sent again.
    #[error("{what} is not reachable: {problem}; retrying helps once it is back")]
    Unavailable {
        /// Which part, such as `redis 127.0.0.1:6379`.
        what: String,
        /// What went wrong.
        problem: String,
    },
    /// Nobody has begun the run yet.
    #[error(
        "there is no run {run} on {name}: check the name, or begin it with a fleet policy (the \
         controller, an agent or the trainer does that)"
    )]
    NotBegun {
        /// The run.
        run: String,
        /// Where it was looked for.
        name: String,
    },
    /// The store answered something that the contract does not know.
    #[error("unexpected answer from the queue: {problem}")]
    Protocol {
        /// What was expected and what came.
        problem: String,
    },
    /// The store is not fit for the queue; an operator has to change it.
    #[error("{problem}")]
    Unsuitable {
        /// What is wrong and what to do.
        problem: String,
    },
}

impl QueueError {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::NotBegun { .. })
    }

    pub(crate) fn no_reply() -> Self {
        Self::Protocol { problem: "a write was not answered".to_owned() }
    }

    /// The writer's leadership is over.
    pub(crate) fn outdated() -> Self {
        let problem = "a newer leader has taken over; nothing was written".to_owned();
        Self::Protocol { problem }
    }

    pub(crate) fn unexpected(wanted: &str, got: &impl std::fmt::Debug) -> Self {
        Self::Protocol { problem: format!("wanted {wanted}, got {got:?}") }
    }
}

/// Where the queue's state lives: Redis, or this process.
#[async_trait]
pub trait QueuePort: Send + Sync {
    /// Number of shards, at least 1.
    fn shard_count(&self) -> u16;

    /// Carries out one command on one shard.
    ///
    /// # Errors
    /// No answer within the port's time limit, or one that makes no sense.
    async fn call(&self, shard: u16, command: Command) -> Result<Reply, QueueError>;

    /// Carries out one command on the control keys.
    ///
    /// # Errors
    /// As [`QueuePort::call`].
    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError>;

    /// Waits until something of this kind may have changed: a hint, never the truth. May wait for
    /// ever.
    async fn woken(&self, hint: Hint);

    /// Tells everybody that something has changed; losing it does no harm.
    async fn wake(&self, hint: Hint);
}

/// A client of one run's queue; cheap to clone.
#[derive(Clone)]
pub struct WorkQueue {
    port: Arc<dyn QueuePort>,
    /// Numbers requests.
    requests: Arc<AtomicU64>,
    /// Chooses the shard that comes first: another one at each call, and at random to begin with,
    /// so that not all clients ask the same shard first.
    shard_turns: Arc<AtomicU64>,
    /// How far each worker's leasing is.
    lease_places: Arc<Mutex<HashMap<leasing::LeasePlace, leasing::LeaseProgress>>>,
    /// Whether the last lease call brought nothing.
    found_nothing: Arc<AtomicBool>,
}

impl WorkQueue {
    /// A client of the queue behind `port`.
    pub fn new(port: Arc<dyn QueuePort>) -> Self {
        let random = RandomState::new().hash_one(0_u8);
        Self {
            port,
            requests: Arc::default(),
            shard_turns: Arc::new(AtomicU64::new(random)),
            lease_places: Arc::default(),
            found_nothing: Arc::default(),
        }
    }

    /// Number of shards of the run.
    pub fn shard_count(&self) -> u16 {
        self.port.shard_count()
    }

    /// The shard of a group: CRC-32 (IEEE) of its id modulo the number of shards.
    pub fn shard_of(&self, group: &GroupId) -> u16 {
        let checksum = crc32fast::hash(group.as_str().as_bytes());
        u16::try_from(checksum % u32::from(self.shard_count())).unwrap_or(0)
    }

    /// Waits until something of this kind may have changed, or for ever.
    pub async fn woken(&self, hint: Hint) {
        self.port.woken(hint).await;
    }

    /// All shards, beginning with another one at each call.
    fn shards_in_turn(&self) -> impl Iterator<Item = u16> {
        let count = self.shard_count();
        let first =
            u16::try_from(self.shard_turns.fetch_add(1, Ordering::Relaxed) % u64::from(count));
        let first = first.unwrap_or(0);
        (first..count).chain(0..first)
    }
}

/// What a call over all shards brought together.
#[derive(Debug, Default)]
pub struct Gathered<T> {
    /// The answers of the shards that gave one.
    pub answers: Vec<T>,
    /// The shards that gave none, with the reason.
    pub missing: Vec<(u16, QueueError)>,
}

impl<T> Gathered<T> {
    /// All answers; the first error when a shard gave none.
    ///
    /// # Errors
    /// The first shard's error.
    pub fn complete(mut self) -> Result<Vec<T>, QueueError> {
        if self.missing.is_empty() { Ok(self.answers) } else { Err(self.missing.remove(0).1) }
    }
}
