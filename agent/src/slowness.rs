//! Tells on the Kubernetes node that its replica is slower than its peers, as the controller found,
//! and when it no longer is. Nothing else follows from it here.

use std::sync::Arc;

use ebbtide_queue::control::StragglerRecord;

use crate::marks::{NodeEvent, NodeMarks};
use crate::operator::tell_event;
use crate::shared::Shared;

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
