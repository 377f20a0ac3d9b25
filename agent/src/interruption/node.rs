//! The Kubernetes lane: marks on the node, its condition, events. Nothing ever waits for it.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_queue::client::Backoff;
use futures::FutureExt;
use tokio::time::{Instant, timeout};

use super::upkeep::{PAUSE_MAX, PAUSE_MIN, Upkeep};
use super::{Event, Lanes};
use crate::marks::{MarkError, NodeEvent, NodeMarks};

/// Time limit of one change: it takes two requests, more when others write too, and an API server
/// was seen to take ten seconds for each.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);

/// Tries to tell an operator; an event is worth no more.
const TELL_TRIES: u32 = 3;

/// What of the node is kept as wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Cordon and taints.
    Marks,
    /// The condition.
    Condition,
}

/// See the module.
pub(super) struct NodeLane {
    api: Arc<dyn NodeMarks>,
    node: NodeName,
    marks: Upkeep,
    condition: Upkeep,
}

impl NodeLane {
    pub(super) fn new(api: Arc<dyn NodeMarks>, node: NodeName) -> Self {
        Self { api, node, marks: Upkeep::new(), condition: Upkeep::new() }
    }

    /// Marks the node with `reason`, or clears it, if that is not how it stands; the same for its
    /// condition.
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
        if self.marks.begin(reason, is_certain, now) {
            self.change(Part::Marks, reason, lanes);
        }
        if self.condition.begin(reason, is_certain, now) {
            self.change(Part::Condition, reason, lanes);
        }
    }

    fn change(&self, part: Part, reason: Option<&'static str>, lanes: &Lanes) {
        let (api, node) = (self.api.clone(), self.node.clone());
        let call = async move {
            let changed = async {
                match (part, reason) {
                    (Part::Marks, Some(reason)) => api.mark(&node, reason).await,
                    (Part::Marks, None) => api.clear(&node).await,
                    (Part::Condition, reason) => api.show_condition(&node, reason).await,
                }
            };
            timeout(CHANGE_LIMIT, changed).await.unwrap_or_else(|_| {
                let problem = format!("no answer within {} s", CHANGE_LIMIT.as_secs());
                Err(MarkError { node: node.clone(), problem })
            })
        };
        lanes.push(call.map(move |answer| Event::NodeMarked(part, reason, answer)).boxed());
    }

    pub(super) fn take_answer(
        &mut self,
        part: Part,
        reason: Option<&'static str>,
        answer: &Result<(), MarkError>,
        now: Instant,
    ) {
        let upkeep = match part {
            Part::Marks => &mut self.marks,
            Part::Condition => &mut self.condition,
        };
        let is_first_failure = upkeep.end(reason, answer, now);
        if let Err(error) = answer
            && is_first_failure
        {
            tracing::warn!(%error, ?part, "trying again, handing back goes on meanwhile");
        }
    }

    /// Whether the node is cordoned by what we know.
    pub(super) fn is_marked(&self) -> bool {
        self.marks.stands()
    }

    /// Tells an operator; a few tries, nobody waits.
    pub(super) fn tell(&self, event: NodeEvent, lanes: &Lanes) {
        let (api, node) = (self.api.clone(), self.node.clone());
        let telling = async move {
            let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
            while backoff.failures() < TELL_TRIES {
                match timeout(CHANGE_LIMIT, api.tell(&node, event.clone())).await {
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
        [self.marks.next_due(), self.condition.next_due()].into_iter().flatten().min()
    }
}
