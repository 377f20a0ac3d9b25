//! The way to the queue: open from the start, or opened by retries while everything else runs.
//!
//! A store that is away at the start stops nothing: until the connection stands, every call is
//! answered as unavailable, so IMDS is watched, probes are answered and `/readyz` says why the
//! agent is not ready. There is no exit and no crash loop.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_queue::client::{Backoff, Hint, QueueError, QueuePort, WorkQueue};
use ebbtide_queue::command::Command;
use ebbtide_queue::control::{ControlCommand, ControlReply};
use ebbtide_queue::redis::{RedisOptions, RedisPort};
use ebbtide_queue::reply::Reply;
use futures::future::BoxFuture;
use tokio::sync::watch;

/// Bounds of the pause between two tries to connect.
const CONNECT_PAUSE_MIN: Duration = Duration::from_millis(100);
const CONNECT_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Connects once; called again after a failure.
pub type Connector =
    Box<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn QueuePort>, QueueError>> + Send + Sync>;

/// How the agent reaches the queue.
pub enum QueueAccess {
    /// It is open.
    Open(WorkQueue),
    /// It is opened while the agent runs, with retries.
    Connecting(Connector),
}

impl QueueAccess {
    /// The queue of a run on Redis.
    pub fn redis(options: RedisOptions) -> Self {
        Self::Connecting(Box::new(move || {
            let options = options.clone();
            Box::pin(async move {
                let port = RedisPort::connect(options).await?;
                Ok(Arc::new(port) as Arc<dyn QueuePort>)
            })
        }))
    }

    /// A client that works as soon as the connection stands, and what has to run until then.
    pub(crate) fn into_queue(self) -> (WorkQueue, Option<(Connector, Arc<LatePort>)>) {
        match self {
            Self::Open(queue) => (queue, None),
            Self::Connecting(connector) => {
                let port = Arc::new(LatePort::default());
                (WorkQueue::new(port.clone()), Some((connector, port)))
            }
        }
    }
}

/// Connects, however long that takes: tries again after every failure, with bounded pauses, and
/// tells each failure to `on_failure`.
pub async fn connect_with_retries(
    connector: &Connector,
    on_failure: impl Fn(QueueError),
) -> Arc<dyn QueuePort> {
    let mut backoff = Backoff::new(CONNECT_PAUSE_MIN, CONNECT_PAUSE_MAX);
    loop {
        match connector().await {
            Ok(port) => {
                tracing::info!(failures = backoff.failures(), "queue connected");
                return port;
            }
            Err(error) => {
                let pause = backoff.next_pause();
                let retry_in_ms = pause.as_millis() as u64;
                tracing::warn!(%error, retry_in_ms, "queue not connected yet");
                on_failure(error);
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// A port that answers why it cannot until the real one stands behind it.
#[derive(Default)]
pub(crate) struct LatePort {
    port: watch::Sender<Option<Arc<dyn QueuePort>>>,
    /// The last failure to connect.
    failure: Mutex<Option<QueueError>>,
}

impl LatePort {
    pub(crate) fn open(&self, port: Arc<dyn QueuePort>) {
        self.port.send_replace(Some(port));
    }

    pub(crate) fn note_failure(&self, error: QueueError) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn port(&self) -> Result<Arc<dyn QueuePort>, QueueError> {
        let failure = || self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.port.borrow().clone().ok_or_else(|| {
            failure().unwrap_or_else(|| QueueError::Unavailable {
                what: "the queue".to_owned(),
                problem: "not connected yet".to_owned(),
            })
        })
    }
}

#[async_trait]
impl QueuePort for LatePort {
    fn shard_count(&self) -> u16 {
        self.port.borrow().as_ref().map_or(1, |port| port.shard_count())
    }

    async fn call(&self, shard: u16, command: Command) -> Result<Reply, QueueError> {
        let port = self.port()?;
        port.call(shard, command).await
    }

    async fn control(&self, command: ControlCommand) -> Result<ControlReply, QueueError> {
        let port = self.port()?;
        port.control(command).await
    }

    async fn woken(&self, hint: Hint) {
        let connected = self.port.subscribe().wait_for(Option::is_some).await.map(|p| p.clone());
        match connected {
            Ok(Some(port)) => port.woken(hint).await,
            _ => std::future::pending().await,
        }
    }

    async fn wake(&self, hint: Hint) {
        if let Ok(port) = self.port() {
            port.wake(hint).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use ebbtide_queue::client::{MemoryPort, wall_clock_now};
    use ebbtide_queue::memory::ShardSettings;

    use super::*;

    #[tokio::test]
    async fn calls_before_the_connection_are_unavailable_and_work_after_it() {
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        let connector: Connector = Box::new(move || {
            let attempt = counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                if attempt < 2 {
                    let (what, problem) = ("redis".to_owned(), "refused".to_owned());
                    return Err(QueueError::Unavailable { what, problem });
                }
                Ok(Arc::new(MemoryPort::new(3, ShardSettings::default(), wall_clock_now))
                    as Arc<dyn QueuePort>)
            })
        });
        let (queue, connecting) = QueueAccess::Connecting(connector).into_queue();
        let (connector, late) = connecting.expect("it has to be connected");
        assert!(queue.view().await.is_err_and(|error| error.is_retriable()));
        let connected = connect_with_retries(&connector, |error| late.note_failure(error)).await;
        let while_away = queue.view().await.expect_err("not open yet").to_string();
        assert!(while_away.starts_with("redis is not reachable: refused"), "{while_away}");
        late.open(connected);
        assert_eq!(tries.load(Ordering::Relaxed), 3);
        assert_eq!(queue.shard_count(), 3);
        assert!(queue.view().await.is_ok());
    }
}
