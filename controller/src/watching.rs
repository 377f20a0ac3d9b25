//! Reads the control keys every second while this controller leads, for everything that follows
//! them closely: silent agents, lifecycle actions, answers to drain requests.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_queue::client::{Backoff, WorkQueue};
use ebbtide_queue::control::ControlView;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::leader::Leadership;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Longest pause while the queue is away.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Longest time of one look: twice the limit of a call.
const LOOK_LIMIT: Duration = Duration::from_secs(4);

/// The newest look; none while another controller leads, and before the first.
pub(crate) type Views = watch::Receiver<Option<Arc<ControlView>>>;

/// Looks until `shutdown`. While the queue is away the last look stands.
pub(crate) async fn watch_while_leading(
    queue: WorkQueue,
    mut leadership: watch::Receiver<Option<Leadership>>,
    views: watch::Sender<Option<Arc<ControlView>>>,
    shutdown: CancellationToken,
) {
    let mut backoff = Backoff::new(LOOK_EVERY, PAUSE_MAX);
    loop {
        let leads = leadership
            .borrow_and_update()
            .is_some_and(|held| held.holds_for(LOOK_EVERY, Instant::now()));
        let mut pause = LOOK_EVERY;
        if !leads {
            views.send_if_modified(|view| view.take().is_some());
        } else if let Ok(Ok(view)) = timeout(LOOK_LIMIT, queue.view()).await {
            views.send_replace(Some(Arc::new(view)));
            backoff.reset();
        } else {
            pause = backoff.next_pause();
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(()) = leadership.changed(), if !leads => {}
            () = shutdown.cancelled() => return,
        }
    }
}
