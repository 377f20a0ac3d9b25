//! The leader returns expired leases to the queue, every second, on every shard, and says so.
//!
//! Recovery does not depend on it: leases are reaped by others when the controller is silent.

use std::time::Duration;

use ebbtide_queue::client::{Backoff, QueueError, WorkQueue};
use ebbtide_queue::command::COMMAND_UNITS_LIMIT;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::leader::Leadership;
use crate::metrics::Metrics;

/// Time between two rounds: idle agents take over after 3 s of silence.
const REAP_EVERY: Duration = Duration::from_secs(1);

/// Units that one round returns on each shard, as many as one command may carry.
const REAP_LIMIT: usize = COMMAND_UNITS_LIMIT;

/// Longest pause while the queue is away.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Reaps until `shutdown`, whenever this controller leads.
pub(crate) async fn reap_while_leading(
    queue: WorkQueue,
    leadership: watch::Receiver<Option<Leadership>>,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::new(REAP_EVERY, PAUSE_MAX);
    let mut was_away = false;
    loop {
        let leads =
            leadership.borrow().is_some_and(|held| held.holds_for(REAP_EVERY, Instant::now()));
        let outcome = if leads { reap(&queue).await } else { Ok(0) };
        let pause = match outcome {
            Ok(reaped) => {
                if was_away {
                    tracing::info!("expired leases are returned again");
                }
                if reaped > 0 {
                    tracing::info!(units = reaped, "expired leases returned to the queue");
                }
                metrics.units_reaped.inc_by(reaped);
                was_away = false;
                backoff.reset();
                REAP_EVERY
            }
            Err(error) => {
                if !was_away {
                    tracing::warn!(%error, "expired leases cannot be returned");
                }
                was_away = true;
                backoff.next_pause()
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn reap(queue: &WorkQueue) -> Result<u64, QueueError> {
    let reaped = queue.reap(REAP_LIMIT).await?;
    queue.beat_reaper().await?;
    Ok(reaped)
}
