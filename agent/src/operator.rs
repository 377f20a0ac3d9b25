//! Events on the node for an operator, beside those of the interruption flow.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::marks::{NodeEvent, NodeMarks};
use crate::shared::Shared;

/// Longest time for one event; an API server was seen to take ten seconds.
const TELL_LIMIT: Duration = Duration::from_secs(10);

/// Pause before an event that was not taken is tried again, and tries in all: it is a hint.
const TELL_PAUSE: Duration = Duration::from_secs(5);
const TELL_TRIES: u32 = 3;

/// Tells an event; gives up after a few tries.
pub(crate) async fn tell_event(shared: &Shared, marks: &dyn NodeMarks, event: NodeEvent) {
    for _ in 0..TELL_TRIES {
        match timeout(TELL_LIMIT, marks.tell(shared.config.node(), event.clone())).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::debug!(%error, "event not told"),
            Err(_) => tracing::debug!("event not answered"),
        }
        sleep(TELL_PAUSE).await;
    }
    shared.metrics.node_mark_failures.inc();
}
