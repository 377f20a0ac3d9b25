//! Standing in for a silent agent: its node is cordoned and tainted by the controller.
//!
//! An agent whose heartbeat is young marks its own node. The contract gives it ten seconds; the
//! controller never marks the node of an agent that lives.

use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_core::scale::SILENCE_LIMIT;
use ebbtide_queue::control::{ControlView, DrainReason, DrainRecord, DrainState};
use tokio::time::timeout;

use super::places::{Place, record_of_node};
use crate::metrics::EventMetrics;
use crate::nodes::{ClusterNodes, NodeError};
use crate::status::{ControllerStatus, Topic};
use crate::watching::Views;

/// Longest time for the agent to take a drain up, or to be known as silent.
const ANSWER_LIMIT: Duration = Duration::from_secs(11);

/// Longest time for one mark; an API server was seen to take ten seconds.
const MARK_LIMIT: Duration = Duration::from_secs(10);

/// Marks nodes and tells what became of it; cheap to clone.
#[derive(Clone)]
pub(crate) struct Marker {
    pub nodes: std::sync::Arc<dyn ClusterNodes>,
    pub metrics: EventMetrics,
    pub status: ControllerStatus,
}

/// What the agent of a node has made of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Nothing yet; it lives.
    Awaited,
    /// It, or its replica's leader, has taken the drain up, or the drain was taken back.
    Given,
    /// It has been silent for too long, or has never reported.
    Silent,
}

impl Marker {
    /// Waits until the agent has taken the drain up; marks the node when the agent is silent.
    ///
    /// # Errors
    /// The node had to be marked and was not.
    pub(super) async fn cover(
        &self,
        place: &Place,
        drain: &DrainRecord,
        mut views: Views,
    ) -> Result<(), NodeError> {
        let answered = async {
            loop {
                let view = views.borrow_and_update().clone();
                let answer = view.map_or(Answer::Awaited, |view| answer_of(place, drain, &view));
                if answer != Answer::Awaited {
                    return answer;
                }
                if views.changed().await.is_err() {
                    // Nobody looks any more: the process ends.
                    std::future::pending::<()>().await;
                }
            }
        };
        match timeout(ANSWER_LIMIT, answered).await {
            Ok(Answer::Silent) => self.mark(&place.node, drain.reason).await,
            Ok(_) => Ok(()),
            Err(_) => {
                let (node, replica) = (place.node.as_str(), place.replica.as_str());
                tracing::warn!(node, replica, "agent reports but does not take its drain up");
                Ok(())
            }
        }
    }

    /// Marks a node.
    ///
    /// # Errors
    /// The API server refuses or does not answer; it was told.
    pub(super) async fn mark(&self, node: &NodeName, why: DrainReason) -> Result<(), NodeError> {
        let marked = timeout(MARK_LIMIT, self.nodes.mark(node, why.as_str())).await;
        let marked = marked.unwrap_or_else(|_| {
            let what = format!("cordon of node {node}");
            Err(NodeError::Unavailable {
                what,
                problem: format!("no answer within {MARK_LIMIT:?}"),
            })
        });
        match &marked {
            Ok(is_new) => {
                if *is_new {
                    let (node, reason) = (node.as_str(), why.as_str());
                    tracing::warn!(node, reason, "node of a silent agent cordoned and tainted");
                    self.metrics.cordoned();
                }
                self.status.clear_problem(Topic::Cordon);
            }
            Err(error) => self.status.set_problem(Topic::Cordon, error.to_string()),
        }
        marked.map(drop)
    }
}

fn answer_of(place: &Place, drain: &DrainRecord, view: &ControlView) -> Answer {
    if is_silent(view, &place.node) {
        return Answer::Silent;
    }
    let now = view.drains.iter().find(|other| other.replica == place.replica);
    let is_same = |other: &&DrainRecord| other.request_id == drain.request_id;
    let is_taken_up = now.filter(is_same).is_some_and(|now| now.state > DrainState::Requested);
    if is_taken_up { Answer::Given } else { Answer::Awaited }
}

fn is_silent(view: &ControlView, node: &NodeName) -> bool {
    let record = record_of_node(view, node);
    record.is_none_or(|record| view.now.since(record.heartbeat) > SILENCE_LIMIT)
}

/// A node that goes while its agent is silent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StandIn {
    pub node: NodeName,
    pub request_id: String,
}

/// The nodes with a record that are to be emptied while their agents are silent, with the reason.
/// A rehearsal empties nothing, and where the controller terminates there is nothing left to mark.
pub(super) fn plan_stand_ins(view: &ControlView) -> Vec<(StandIn, DrainReason)> {
    let is_real = |drain: &&DrainRecord| {
        drain.state < DrainState::Terminating && drain.reason != DrainReason::Drill
    };
    let drains = view.drains.iter().filter(is_real);
    let nodes = drains.flat_map(|drain| {
        let members = view.nodes.iter().filter(|record| record.replica == drain.replica);
        let goes = |node: &NodeName| drain.lost.is_empty() || drain.lost.0.contains(node);
        let silent = members
            .map(|record| &record.node)
            .filter(move |node| goes(node) && is_silent(view, node));
        silent.map(|node| {
            let (node, request_id) = (node.clone(), drain.request_id.clone());
            (StandIn { node, request_id }, drain.reason)
        })
    });
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use ebbtide_core::time::UnixMillis;
    use ebbtide_queue::control::{NodeNames, NodeRecord, NodeState};

    use super::*;

    const NOW: UnixMillis = UnixMillis(10_000_000);

    /// A node of EP group `g`, silent for so many seconds.
    fn node(name: &str, silence: u64) -> NodeRecord {
        let holder = format!("{name}/boot/agent").parse().expect("valid");
        NodeRecord {
            replica: "g".parse().expect("valid"),
            heartbeat: NOW.minus(Duration::from_secs(silence)),
            ..NodeRecord::new(holder, NodeState::Ready)
        }
    }

    /// The nodes that are marked while `g` drains like this, with one node silent and one alive.
    fn marked(reason: DrainReason, state: DrainState, lost: &[&str]) -> Vec<String> {
        let lost = lost.iter().map(|name| name.parse().expect("valid")).collect();
        let drain = DrainRecord {
            replica: "g".parse().expect("valid"),
            request_id: "event-1".to_owned(),
            generation: 1,
            reason,
            deadline: NOW,
            state,
            requested_at: NOW,
            lost: NodeNames(lost),
        };
        let nodes = vec![node("silent", 11), node("alive", 10), node("survivor", 11)];
        let view = ControlView { now: NOW, nodes, drains: vec![drain], ..ControlView::default() };
        plan_stand_ins(&view).into_iter().map(|(stand_in, _)| stand_in.node.to_string()).collect()
    }

    #[test]
    fn only_lost_nodes_of_silent_agents_are_marked() {
        let (notice, draining) = (DrainReason::Notice, DrainState::Draining);
        assert_eq!(marked(notice, draining, &["silent", "alive"]), ["silent"]);
        assert_eq!(marked(notice, draining, &[]), ["silent", "survivor"], "the whole replica goes");
        assert_eq!(marked(DrainReason::ScaleIn, DrainState::Requested, &[]).len(), 2);
    }

    #[test]
    fn rehearsals_and_drains_that_have_ended_mark_nothing() {
        for (reason, state) in [
            (DrainReason::Drill, DrainState::Draining),
            (DrainReason::Notice, DrainState::Cancelled),
            (DrainReason::ScaleIn, DrainState::Terminating),
        ] {
            assert!(marked(reason, state, &[]).is_empty(), "{reason:?} {state:?}");
        }
    }
}
