//! The queue of one process, for the demo and for tests: shards in memory behind locks.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use ebbtide_core::time::{UnixMillis, whole_millis};

use super::{Hint, Hints, QueueError, QueuePort};
use crate::command::Command;
use crate::control::{ControlCommand, ControlReply, MemoryControl};
use crate::memory::{MemoryShard, ShardSettings};
use crate::reply::Reply;

/// Reads this machine's clock. The only place in this crate that does.
#[allow(clippy::disallowed_methods, reason = "the adapter that reads the clock for the port")]
pub fn wall_clock_now() -> UnixMillis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    UnixMillis(whole_millis(since_epoch))
}

/// A queue that lives as long as this process.
pub struct MemoryPort {
    shards: Vec<Mutex<MemoryShard>>,
    control: Mutex<MemoryControl>,
    hints: Hints,
    now: fn() -> UnixMillis,
}

impl MemoryPort {
    /// An empty queue of `shard_count` shards on the clock `now`.
    pub fn new(shard_count: u16, settings: ShardSettings, now: fn() -> UnixMillis) -> Self {
        let shard = || Mutex::new(MemoryShard::new(settings));
        let shards = (0..shard_count.max(1)).map(|_| shard()).collect();
        Self { shards, control: Mutex::default(), hints: Hints::default(), now }
    }
}

#[async_trait]
impl QueuePort for MemoryPort {
    fn shard_count(&self) -> u16 {
        u16::try_from(self.shards.len()).unwrap_or(u16::MAX)
    }

    async fn call(&self, shard: u16, command: Command) -> Result<Reply, QueueError> {
        let shard = &self.shards[usize::from(shard)];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(shard.apply(&command, (self.now)()))
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(control.apply(&command, (self.now)()))
    }

    async fn woken(&self, hint: Hint) {
        self.hints.woken(hint).await;
    }

    async fn wake(&self, hint: Hint) {
        self.hints.wake(hint);
    }
}
