//! Tells on the Kubernetes node that its replica is slower than its peers, as the controller found,
//! and when it no longer is. Nothing else follows from it here.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_queue::control::StragglerRecord;
use tokio::time::{sleep, timeout};

use crate::marks::{NodeEvent, NodeMarks};
use crate::shared::Shared;

/// Longest time for one event; an API server was seen to take ten seconds.
const TELL_LIMIT: Duration = Duration::from_secs(10);

/// Pause before an event that was not taken is tried again, and tries in all: it is a hint.
const TELL_PAUSE: Duration = Duration::from_secs(5);
const TELL_TRIES: u32 = 3;

/// Tells every change, for as long as it is polled. The agent that speaks for the replica does.
pub(crate) async fn tell(shared: &Shared, marks: Arc<dyn NodeMarks>) {
    let mut found = shared.straggler.subscribe();
    let mut was_slow = false;
    loop {
        // The sender lives in `shared`, so the wait cannot end with an error.
        let _ = found.wait_for(|found| found.is_some() != was_slow).await;
        let straggler = shared.straggler.borrow().clone();
        was_slow = straggler.is_some();
        if shared.membership().leads {
            tell_event(shared, &*marks, describe(straggler.as_ref())).await;
        }
    }
}

async fn tell_event(shared: &Shared, marks: &dyn NodeMarks, event: NodeEvent) {
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

fn describe(straggler: Option<&StragglerRecord>) -> NodeEvent {
    match straggler {
        Some(StragglerRecord { replica, share, .. }) => NodeEvent {
            reason: "SlowReplica",
            message: format!(
                "Replica {replica} makes {:.0} % of the tokens of its peers at an equal batch; \
                 `ebbtide drain` hands its work back before it is replaced.",
                share * 100.0
            ),
            is_warning: true,
        },
        None => NodeEvent {
            reason: "ReplicaNoLongerSlow",
            message: "The replica is about as fast as its peers again.".to_owned(),
            is_warning: false,
        },
    }
}
