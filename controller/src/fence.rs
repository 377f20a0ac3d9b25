//! The fence around writes that nothing refuses to an older leader.
//!
//! Before each the leader must hold its lease for longer than the write may take, and must have
//! claimed (generation, action) in the queue, which refuses an older generation. AWS cannot refuse
//! one: between the claim and its call a window remains that is as long as the call's own limit.

use std::time::Duration;

use ebbtide_queue::client::{QueueError, WorkQueue};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::leader::Leadership;

/// How much longer than a call the leader lease must be held.
const LEASE_MARGIN: Duration = Duration::from_secs(2);

/// Why a write may not be made.
#[derive(Debug, Error)]
pub(crate) enum FenceError {
    #[error("the leader lease must be held for {needed:?} more and is not")]
    LeaseTooShort { needed: Duration },
    #[error("the claim was refused: another leader has claimed something newer")]
    ClaimRefused,
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// What makes claims.
pub(crate) struct Fence<'a> {
    pub queue: &'a WorkQueue,
    pub leadership: &'a watch::Receiver<Option<Leadership>>,
    /// Names this process among those of one generation.
    pub process: u32,
    /// Names this turn of the process.
    pub turn: u64,
}

impl Fence<'_> {
    /// Claims a write that takes `limit` at most, and answers the generation to write under. One
    /// turn claims a verb for a thing once.
    ///
    /// # Errors
    /// The write must not be made.
    pub async fn claim(&self, verb: &str, what: &str, limit: Duration) -> Result<u64, FenceError> {
        let needed = limit + LEASE_MARGIN;
        let held = *self.leadership.borrow();
        let held = held.filter(|held| held.holds_for(needed, Instant::now()));
        let generation = held.ok_or(FenceError::LeaseTooShort { needed })?.generation;
        let action = format!("{generation}.{:08x}.{}.{verb}.{what}", self.process, self.turn);
        let is_granted = self.queue.claim(generation, &action).await?;
        let still_holds =
            self.leadership.borrow().is_some_and(|held| held.holds_for(needed, Instant::now()));
        match (is_granted, still_holds) {
            (false, _) => Err(FenceError::ClaimRefused),
            (true, false) => Err(FenceError::LeaseTooShort { needed }),
            (true, true) => Ok(generation),
        }
    }
}
