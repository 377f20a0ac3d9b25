//! What passes between agents and Redis: it can be stopped for a look, and is looked at itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use ebbtide_core::sample::Chunk;
use ebbtide_queue::client::{Hint, QueueError, QueuePort};
use ebbtide_queue::command::Command;
use ebbtide_queue::control::{ControlCommand, ControlReply};
use ebbtide_queue::redis::RedisPort;
use ebbtide_queue::reply::{Reply, WriteReply};
use tokio::sync::RwLock;

/// What all wires share.
#[derive(Default)]
pub struct Tap {
    /// Every call shares it; whoever has it alone stops all of them.
    pub calling: RwLock<()>,
    /// Tokens of writes that were answered with `AlreadyDone`: stored, if an answer was lost.
    pub doubtful_tokens: AtomicU64,
    /// Calls that will be carried out and not answered.
    pub unanswered: AtomicU64,
}

/// A connection of one client.
pub struct Wire {
    pub port: RedisPort,
    pub tap: Arc<Tap>,
}

#[async_trait]
impl QueuePort for Wire {
    fn shard_count(&self) -> u16 {
        self.port.shard_count()
    }

    async fn call(&self, shard: u16, command: Command) -> Result<Reply, QueueError> {
        let _calling = self.tap.calling.read().await;
        let tokens: Vec<u32> = match &command {
            Command::Write { writes, .. } => {
                writes.iter().map(|write| write.tail.iter().map(Chunk::len).sum()).collect()
            }
            _ => Vec::new(),
        };
        let reply = self.port.call(shard, command).await?;
        let one_less = |left: u64| left.checked_sub(1);
        let left = &self.tap.unanswered;
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            let (what, problem) = ("the queue".to_owned(), "its answer got lost".to_owned());
            return Err(QueueError::Unavailable { what, problem });
        }
        if let Reply::Writes(replies) = &reply {
            let doubtful = tokens.iter().zip(replies);
            let doubtful = doubtful.filter(|(_, reply)| **reply == WriteReply::AlreadyDone);
            let tokens = doubtful.map(|(tokens, _)| u64::from(*tokens)).sum();
            self.tap.doubtful_tokens.fetch_add(tokens, Ordering::Relaxed);
        }
        Ok(reply)
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        let _calling = self.tap.calling.read().await;
        self.port.control(command).await
    }

    async fn woken(&self, hint: Hint) {
        self.port.woken(hint).await;
    }

    async fn wake(&self, hint: Hint) {
        self.port.wake(hint).await;
    }
}
