//! The other nodes of a replica, as the agent that speaks for them has to know them: whether they
//! still hold something of a drain. Pure.
//!
//! Custom workers lease through the agent of their own node, wherever the engine is. So a replica
//! is drained when every agent has said of its node that it is, for this very request. Who has not
//! may hold units, or be about to lease some. Who has been silent for longer than its leases last
//! holds none: they have expired.

use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_queue::control::{NodeRecord, NodeState, ReplicaView};
use tokio::time::Instant;

/// What the other nodes of the replica are not done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct OthersHold {
    /// Nodes that are not known to be drained.
    pub(super) nodes: u32,
    /// Units that they hold, by their own last word.
    pub(super) units: u64,
}

impl OthersHold {
    /// As long as no record was read: somebody may hold something.
    pub(super) const UNREAD: Self = Self { nodes: 1, units: 0 };

    pub(super) fn is_nothing(self) -> bool {
        self.nodes == 0
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self { nodes: self.nodes + other.nodes, units: self.units + other.units }
    }
}

/// What was seen of the other nodes in the course of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OthersSeen {
    /// They held no unit.
    Idle,
    /// They hold some.
    Busy,
    /// They held some, and were all seen to be done at this moment.
    Done(Instant),
}

impl OthersSeen {
    /// What is known after another look.
    pub(super) fn then(self, hold: OthersHold, now: Instant) -> Self {
        match self {
            _ if hold.units > 0 => Self::Busy,
            Self::Busy if hold.is_nothing() => Self::Done(now),
            other => other,
        }
    }

    /// The latest moment of their last hand-back.
    pub(super) fn done_at(self) -> Option<Instant> {
        match self {
            Self::Done(at) => Some(at),
            Self::Idle | Self::Busy => None,
        }
    }
}

/// What the nodes of the replica other than `own` still hold of the drain that `request_id` names;
/// without a name none of them knows of it. `silence_limit`: see [`silence_limit`].
pub(super) fn others_hold(
    view: &ReplicaView,
    own: &NodeName,
    request_id: Option<&str>,
    silence_limit: Duration,
) -> OthersHold {
    let Some(members) = &view.members else { return OthersHold::UNREAD };
    let is_other = |node: &&NodeRecord| node.node != *own;
    let is_heard = |node: &&NodeRecord| view.now.since(node.heartbeat) <= silence_limit;
    let is_done = |node: &NodeRecord| {
        let is_told = request_id.is_some() && node.drained_for.as_deref() == request_id;
        is_told && node.state == NodeState::Drained
    };
    let others = members.iter().filter(is_other).filter(is_heard);
    others.filter(|node| !is_done(node)).fold(OthersHold::default(), |sum, node| OthersHold {
        nodes: sum.nodes + 1,
        units: sum.units + u64::from(node.in_flight),
    })
}

/// Silence after which an agent has no lease any more: it may have renewed until its next report
/// was due.
pub(super) fn silence_limit(lease_ttl: Duration, report_every: Duration) -> Duration {
    lease_ttl + report_every.min(lease_ttl)
}

#[cfg(test)]
mod tests {
    use ebbtide_core::time::UnixMillis;
    use ebbtide_queue::control::ControlView;

    use super::*;

    const NOW: UnixMillis = UnixMillis(5_000_000);
    const LIMIT: Duration = Duration::from_secs(16);

    fn node(name: &str, state: NodeState, drained_for: Option<&str>) -> NodeRecord {
        let holder = format!("{name}/b/agent-p").parse().expect("valid");
        NodeRecord {
            replica: "ep-0".parse().expect("valid"),
            in_flight: 2,
            heartbeat: NOW,
            drained_for: drained_for.map(str::to_owned),
            ..NodeRecord::new(holder, state)
        }
    }

    fn held(nodes: Vec<NodeRecord>, request_id: Option<&str>) -> (u32, u64) {
        let view = ControlView { now: NOW, nodes, ..ControlView::default() };
        let view = view.into_replica("ep-0".parse().expect("valid"));
        let hold = others_hold(&view, &"n0".parse().expect("valid"), request_id, LIMIT);
        (hold.nodes, hold.units)
    }

    #[test]
    fn node_is_done_once_it_says_so_for_this_very_request() {
        for (state, drained_for, asked, expected) in [
            (NodeState::Drained, Some("r1"), Some("r1"), (0, 0)),
            (NodeState::Drained, Some("r0"), Some("r1"), (1, 2)),
            (NodeState::Drained, None, Some("r1"), (1, 2)),
            (NodeState::Draining, Some("r1"), Some("r1"), (1, 2)),
            (NodeState::Ready, None, Some("r1"), (1, 2)),
            (NodeState::Drained, None, None, (1, 2)),
        ] {
            let found = held(vec![node("n1", state, drained_for)], asked);
            assert_eq!(found, expected, "{state:?} for {drained_for:?}, asked for {asked:?}");
        }
    }

    #[test]
    fn silent_nodes_and_those_of_other_replicas_hold_nothing_up() {
        let late =
            NodeRecord { heartbeat: NOW.minus(LIMIT), ..node("n1", NodeState::Draining, None) };
        let silent = NodeRecord {
            heartbeat: NOW.minus(LIMIT + Duration::from_millis(1)),
            ..node("n2", NodeState::Draining, None)
        };
        let elsewhere = NodeRecord {
            replica: "ep-1".parse().expect("valid"),
            ..node("n3", NodeState::Ready, None)
        };
        let own = node("n0", NodeState::Draining, None);
        assert_eq!(held(vec![late], Some("r1")), (1, 2));
        assert_eq!(held(vec![silent, elsewhere, own], Some("r1")), (0, 0));
    }

    #[test]
    fn others_are_done_when_none_is_left_after_one_was_busy() {
        let now = Instant::now();
        let hold = |nodes, units| OthersHold { nodes, units };
        let seen = OthersSeen::Idle.then(hold(1, 0), now).then(hold(0, 0), now);
        assert_eq!(seen.done_at(), None, "no unit was seen");
        let busy = seen.then(hold(2, 3), now).then(hold(1, 0), now);
        assert_eq!(busy, OthersSeen::Busy, "one has not said that it is done");
        let done = busy.then(hold(0, 0), now);
        let later = done.then(hold(0, 0), now + Duration::from_secs(9));
        assert_eq!(later.done_at(), Some(now), "the first time counts");
    }

    #[test]
    fn silence_counts_from_the_last_renewal_that_was_possible() {
        let seconds = Duration::from_secs;
        assert_eq!(silence_limit(seconds(15), seconds(1)), seconds(16));
        assert_eq!(silence_limit(seconds(2), seconds(600)), seconds(4));
    }
}
