//! What other handlers say about the node: their marks on it, and the deletion of its engine pods.
//! No I/O: time is an argument.
//!
//! A mark counts from its first sight for as long as it stands. An administrator's cordon is no
//! mark: it changes nothing for running work.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::notice::{NoticeKind, SPOT_LEAD_MAX};
use ebbtide_core::time::UnixMillis;
use tokio::time::Instant;

use super::notices::{Emptying, News};
use crate::config::DrainTerms;
use crate::kubernetes::{NodeSight, SeenPod, SeenTaint, StayReason, Tier};

/// What another handler says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    /// Karpenter's taint: the node is being disrupted.
    Karpenter,
    /// Cluster Autoscaler's taint: the node is being scaled down.
    ClusterAutoscaler,
    /// aws-node-termination-handler saw a Spot notice.
    HandlerSpot,
    /// It saw the node's Auto Scaling group take it out.
    HandlerLifecycle,
    /// It saw a scheduled maintenance.
    HandlerMaintenance,
    /// It saw a rebalance recommendation.
    HandlerRebalance,
    /// Somebody says that the node is down.
    OutOfService,
    /// The node object is being deleted.
    NodeDeletion,
    /// An engine pod of this UID is being deleted.
    EngineDeletion(String),
}

impl Mark {
    fn of_taint(key: &str) -> Option<Self> {
        Some(match key {
            // The second one is what it was called before version 1.
            "karpenter.sh/disrupted" | "karpenter.sh/disruption" => Self::Karpenter,
            "ToBeDeletedByClusterAutoscaler" => Self::ClusterAutoscaler,
            "aws-node-termination-handler/spot-itn" => Self::HandlerSpot,
            "aws-node-termination-handler/asg-lifecycle-termination" => Self::HandlerLifecycle,
            "aws-node-termination-handler/scheduled-maintenance" => Self::HandlerMaintenance,
            "aws-node-termination-handler/rebalance-recommendation" => Self::HandlerRebalance,
            "node.kubernetes.io/out-of-service" => Self::OutOfService,
            _ => return None,
        })
    }

    fn kind(&self) -> NoticeKind {
        match self {
            Self::HandlerRebalance => NoticeKind::Rebalance,
            Self::EngineDeletion(_) => NoticeKind::EngineDeleted,
            _ => NoticeKind::Foreign,
        }
    }
}

/// A mark that stands.
#[derive(Debug, Clone, Copy)]
struct Standing {
    first_seen: Instant,
    /// When the node must be empty; only ever earlier. None for a rebalance recommendation.
    deadline: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ForeignMarks {
    terms: DrainTerms,
    /// Whether node and pods were seen, so that the absence of a mark means something.
    is_known: bool,
    standing: BTreeMap<Mark, Standing>,
}

impl ForeignMarks {
    pub(super) fn new(terms: DrainTerms) -> Self {
        Self { terms, is_known: false, standing: BTreeMap::new() }
    }

    /// Takes in what was seen at `wall`, on the monotonic clock at `at`. `is_own` tells the pods
    /// whose deletion is this agent's own doing.
    pub(super) fn see(
        &mut self,
        sight: &NodeSight,
        is_own: impl Fn(&SeenPod) -> bool,
        wall: UnixMillis,
        at: Instant,
    ) -> Vec<News> {
        let (Some(node), Some(pods)) = (&sight.node, &sight.pods) else { return Vec::new() };
        self.is_known = true;
        let taints = node.taints.iter().filter_map(|taint| self.read_taint(taint, wall));
        let deletion = node.is_being_deleted.then_some((Mark::NodeDeletion, self.asked()));
        let engines = pods.iter().filter(|pod| !is_own(pod)).filter_map(|pod| read_pod(pod, wall));
        let seen: BTreeMap<Mark, Option<Duration>> =
            taints.chain(deletion).chain(engines).collect();
        let mut news = self.drop_absent(&seen);
        for (mark, left) in seen {
            let deadline = left.map(|left| at + left);
            if let Some(known) = self.standing.get_mut(&mark) {
                known.deadline = known.deadline.min(deadline);
            } else {
                news.push(News::Announced(mark.kind()));
                self.standing.insert(mark, Standing { first_seen: at, deadline });
            }
        }
        news
    }

    fn drop_absent(&mut self, seen: &BTreeMap<Mark, Option<Duration>>) -> Vec<News> {
        let gone = self.standing.extract_if(.., |mark, _| !seen.contains_key(mark));
        gone.map(|(mark, _)| News::Withdrawn(mark.kind())).collect()
    }

    /// The mark that a taint is, and the time that it leaves from now.
    fn read_taint(&self, taint: &SeenTaint, wall: UnixMillis) -> Option<(Mark, Option<Duration>)> {
        let mark = Mark::of_taint(&taint.key)?;
        let left = match mark {
            Mark::HandlerSpot => Some(SPOT_LEAD_MAX),
            Mark::HandlerLifecycle => Some(self.terms.asg_deadline),
            Mark::HandlerRebalance => None,
            Mark::OutOfService => Some(Duration::ZERO),
            Mark::ClusterAutoscaler => Some(self.left_since(&taint.value, wall)),
            _ => self.asked(),
        };
        Some((mark, left))
    }

    /// Time for a drain that no notice caused.
    fn asked(&self) -> Option<Duration> {
        Some(self.terms.request_deadline)
    }

    /// The same, counted from a moment in Unix seconds; whole when that is none, or lies ahead.
    fn left_since(&self, seconds: &str, wall: UnixMillis) -> Duration {
        let whole = self.terms.request_deadline;
        let Ok(seconds) = seconds.parse::<u64>() else { return whole };
        whole.saturating_sub(wall.since(UnixMillis(seconds.saturating_mul(1000))))
    }

    /// What empties the node, with the earliest deadline of all that do.
    pub(super) fn emptying(&self) -> impl Iterator<Item = Emptying> {
        self.standing.iter().filter_map(|(mark, standing)| {
            Some(Emptying { kind: mark.kind(), deadline: standing.deadline? })
        })
    }

    /// When another handler's rebalance recommendation was seen first, if it stands.
    pub(super) fn rebalance_since(&self) -> Option<Instant> {
        self.standing.get(&Mark::HandlerRebalance).map(|standing| standing.first_seen)
    }

    /// Whether it is certain that nobody else empties the node.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_known && self.emptying().next().is_none()
    }
}

/// The deletion of an engine pod, and the time that it leaves from now: until its end, but never
/// longer than the grace it was given, whatever the clocks say.
fn read_pod(pod: &SeenPod, wall: UnixMillis) -> Option<(Mark, Option<Duration>)> {
    let is_engine = pod.tier == Tier::Engine && pod.stays != Some(StayReason::Finished);
    let termination = pod.termination.filter(|_| is_engine)?;
    let left = termination.by.remaining(wall).min(termination.grace);
    Some((Mark::EngineDeletion(pod.id.uid.clone()), Some(left)))
}

#[cfg(test)]
mod tests;
