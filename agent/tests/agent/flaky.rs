//! A way to the queue that fails as it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use ebbtide_queue::client::{Hint, QueueError, QueuePort};
use ebbtide_queue::command::Command;
use ebbtide_queue::control::{ControlCommand, ControlReply};
use ebbtide_queue::reply::Reply;

/// A way to the queue that can be cut, and that counts who claims through it.
pub struct FlakyPort {
    inner: Arc<dyn QueuePort>,
    is_down: AtomicBool,
    leases: AtomicU64,
    refused_writes: AtomicU64,
    /// Lease calls that will be carried out and not answered.
    unanswered_leases: AtomicU64,
    /// Whether reclaiming alone fails, and how often it did.
    keeps_from_reclaiming: AtomicBool,
    refused_reclaims: AtomicU64,
    /// Whether asking for a drain alone fails.
    keeps_from_draining: AtomicBool,
}

impl FlakyPort {
    /// A way to this queue.
    pub fn to(inner: Arc<dyn QueuePort>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            is_down: AtomicBool::new(false),
            leases: AtomicU64::new(0),
            unanswered_leases: AtomicU64::new(0),
            refused_writes: AtomicU64::new(0),
            keeps_from_reclaiming: AtomicBool::new(false),
            keeps_from_draining: AtomicBool::new(false),
            refused_reclaims: AtomicU64::new(0),
        })
    }

    /// Another way to the same queue.
    pub fn beside(&self) -> Arc<Self> {
        Self::to(self.inner.clone())
    }

    /// Lease calls that were made so far.
    pub fn leases(&self) -> u64 {
        self.leases.load(Ordering::SeqCst)
    }

    /// Lets the answers of the next lease calls get lost.
    pub fn lose_leases(&self, count: u64) {
        self.unanswered_leases.store(count, Ordering::SeqCst);
    }

    /// Cuts the way, or opens it again.
    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    /// Writes that were tried while the way was cut.
    pub fn refused_writes(&self) -> u64 {
        self.refused_writes.load(Ordering::SeqCst)
    }

    /// Lets calls fail that hand back what earlier agents held, and no others; or no more.
    pub fn keep_from_reclaiming(&self, keeps: bool) {
        self.keeps_from_reclaiming.store(keeps, Ordering::SeqCst);
    }

    /// Such calls that failed.
    pub fn refused_reclaims(&self) -> u64 {
        self.refused_reclaims.load(Ordering::SeqCst)
    }

    /// Lets calls fail that ask for a drain, and no others; or no more.
    pub fn keep_from_draining(&self, keeps: bool) {
        self.keeps_from_draining.store(keeps, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), QueueError> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(taken_away()),
            false => Ok(()),
        }
    }
}

fn taken_away() -> QueueError {
    let (what, problem) = ("the queue".to_owned(), "taken away".to_owned());
    QueueError::Unavailable { what, problem }
}

#[async_trait]
impl QueuePort for FlakyPort {
    fn shard_count(&self) -> u16 {
        self.inner.shard_count()
    }

    async fn call(&self, shard: u16, command: Command) -> Result<Reply, QueueError> {
        let is_write = matches!(command, Command::Write { .. });
        self.check().inspect_err(|_| {
            self.refused_writes.fetch_add(u64::from(is_write), Ordering::SeqCst);
        })?;
        let is_reclaim = matches!(command, Command::Reclaim { .. });
        if is_reclaim && self.keeps_from_reclaiming.load(Ordering::SeqCst) {
            self.refused_reclaims.fetch_add(1, Ordering::SeqCst);
            return Err(taken_away());
        }
        if matches!(command, Command::Lease(_)) {
            self.leases.fetch_add(1, Ordering::SeqCst);
            let one_less = |left: u64| left.checked_sub(1);
            let left = &self.unanswered_leases;
            if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
                self.inner.call(shard, command).await?;
                return Err(taken_away());
            }
        }
        self.inner.call(shard, command).await
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        self.check()?;
        let asks_for_drain = matches!(command, ControlCommand::RequestDrain(_));
        if asks_for_drain && self.keeps_from_draining.load(Ordering::SeqCst) {
            return Err(taken_away());
        }
        self.inner.control(command).await
    }

    async fn woken(&self, hint: Hint) {
        self.inner.woken(hint).await;
    }

    async fn wake(&self, hint: Hint) {
        self.inner.wake(hint).await;
    }
}
