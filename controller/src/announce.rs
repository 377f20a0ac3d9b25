//! Tells the queue at once that this controller leads: from then on it refuses whatever an older
//! leader writes, also before this one has anything to write itself.

use std::time::Duration;

use ebbtide_queue::client::{Backoff, WorkQueue};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::actuate::QUEUE_WRITE_LIMIT;
use crate::fence::{Fence, FenceError};
use crate::leader::Leadership;
use crate::status::{ControllerStatus, Topic};

/// Bounds of the pause while the queue is away.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What is told of a leadership that the queue does not accept.
const OUTRANKED: &str = "it leads, and carries nothing out: the queue has accepted a newer leader. \
                         Another controller leads beside it, or led with a clock that was ahead";

/// Claims every leadership as soon as it begins, until `shutdown`.
pub(crate) async fn announce_leadership(
    queue: WorkQueue,
    mut leadership: watch::Receiver<Option<Leadership>>,
    (process, status): (u32, ControllerStatus),
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    let (mut announced, mut turn) = (None, 0);
    loop {
        let generation = leadership.borrow_and_update().map(|held| held.generation);
        let mut pause = None;
        if generation.is_some() && generation != announced {
            turn += 1;
            let fence = Fence { queue: &queue, leadership: &leadership, process, turn };
            match fence.claim("lead", "all", QUEUE_WRITE_LIMIT).await {
                Ok(claimed) => {
                    announced = Some(claimed);
                    status.clear_problem(Topic::Leadership);
                    backoff.reset();
                }
                // Who is followed already has nothing to announce.
                Err(FenceError::ClaimRefused) => {
                    announced = generation;
                    status.set_problem(Topic::Leadership, OUTRANKED.to_owned());
                }
                Err(FenceError::LeaseTooShort { .. } | FenceError::Queue(_)) => {
                    pause = Some(backoff.next_pause());
                }
            }
        }
        let pause = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = leadership.changed() => if changed.is_err() { return },
            () = pause => {}
            () = shutdown.cancelled() => return,
        }
    }
}
