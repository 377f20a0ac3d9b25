//! The Kubernetes lane: marks on the node, and events. Nothing ever waits for it.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_queue::client::Backoff;
use futures::FutureExt;
use tokio::time::{Instant, timeout};

use super::{Event, Lanes};
use crate::marks::{MarkError, NodeEvent, NodeMarks};

/// Bounds of the pause after a failed call.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Time limit of one call; an API server was seen to take ten seconds.
const CALL_LIMIT: Duration = Duration::from_secs(15);

/// Tries to tell an operator; an event is worth no more.
const TELL_TRIES: u32 = 3;

/// What stands on the node, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// An earlier process may have left marks.
    Unknown,
    /// Marked with this reason, or free of our marks.
    Known(Option<&'static str>),
}

/// See the module.
pub(super) struct NodeLane {
    marks: Arc<dyn NodeMarks>,
    node: NodeName,
    standing: Standing,
    is_calling: bool,
    try_at: Option<Instant>,
    backoff: Backoff,
}

impl NodeLane {
    pub(super) fn new(marks: Arc<dyn NodeMarks>, node: NodeName) -> Self {
        Self {
            marks,
            node,
            standing: Standing::Unknown,
            is_calling: false,
            try_at: None,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
        }
    }

    /// Marks the node with `reason`, or clears it, if that is not how it stands.
    ///
    /// `is_certain`: whether it is known that nobody asks for a drain. Until then marks that an
    /// earlier process may have left stay.
    pub(super) fn steer(
        &mut self,
        reason: Option<&'static str>,
        is_certain: bool,
        lanes: &Lanes,
        now: Instant,
    ) {
        let is_as_wanted = self.standing == Standing::Known(reason);
        let must_wait = self.is_calling || self.try_at.is_some_and(|at| at > now);
        if must_wait {
            return;
        }
        self.try_at = None;
        if is_as_wanted || (reason.is_none() && !is_certain) {
            return;
        }
        self.is_calling = true;
        let (marks, node) = (self.marks.clone(), self.node.clone());
        let call = async move {
            let marked = async {
                match reason {
                    Some(reason) => marks.mark(&node, reason).await,
                    None => marks.clear(&node).await,
                }
            };
            let limited = timeout(CALL_LIMIT, marked).await;
            limited.unwrap_or_else(|_| {
                let problem = format!("no answer within {} s", CALL_LIMIT.as_secs());
                Err(MarkError { node: node.clone(), problem })
            })
        };
        lanes.push(call.map(move |answer| Event::NodeMarked(reason, answer)).boxed());
    }

    pub(super) fn take_answer(
        &mut self,
        reason: Option<&'static str>,
        answer: &Result<(), MarkError>,
        now: Instant,
    ) {
        self.is_calling = false;
        match answer {
            Ok(()) => {
                match reason {
                    Some(reason) => tracing::info!(reason, "node cordoned and tainted"),
                    None => tracing::debug!("node is free of our marks"),
                }
                self.standing = Standing::Known(reason);
                self.try_at = None;
                self.backoff.reset();
            }
            Err(error) => {
                if self.backoff.failures() == 0 {
                    tracing::warn!(%error, "trying again, handing back goes on meanwhile");
                }
                // What stands now is anybody's guess.
                self.standing = Standing::Unknown;
                self.try_at = Some(now + self.backoff.next_pause());
            }
        }
    }

    /// Tells an operator; a few tries, nobody waits.
    pub(super) fn tell(&self, event: NodeEvent, lanes: &Lanes) {
        let (marks, node) = (self.marks.clone(), self.node.clone());
        let telling = async move {
            let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
            while backoff.failures() < TELL_TRIES {
                match timeout(CALL_LIMIT, marks.tell(&node, event.clone())).await {
                    Ok(Ok(())) => break,
                    _ => tokio::time::sleep(backoff.next_pause()).await,
                }
            }
            Event::Told
        };
        lanes.push(telling.boxed());
    }

    /// When a failed call is repeated.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.try_at.filter(|_| !self.is_calling)
    }
}
