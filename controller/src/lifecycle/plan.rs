//! What a lifecycle action needs now. Pure.

use std::fmt;
use std::time::Duration;

use ebbtide_core::scale::SILENCE_LIMIT;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{DrainRecord, LifecycleRecord, NodeRecord, NodeRole, NodeState};

/// Time limit of a hook that could not be asked: the least that AWS allows.
const LEAST_TIMEOUT: Duration = Duration::from_secs(30);

/// A heartbeat is sent when this part of the hook's time limit has passed since the last one.
const HEARTBEAT_SHARE: u32 = 2;

/// What is known of the node behind an action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum NodeSeen<'a> {
    /// It has a record.
    Record(&'a NodeRecord),
    /// It has none: it never worked, or is gone.
    Absent,
    /// The cluster could not be asked which node the instance is.
    Unclear,
}

/// Everything that the plan depends on. Moments are the Redis server's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LifecycleFacts<'a> {
    pub action: &'a LifecycleRecord,
    pub node: NodeSeen<'a>,
    /// The drain of its replica, unless it was cancelled.
    pub drain: Option<&'a DrainRecord>,
    /// Units leased to holders of the node by the queue's word, when it is known.
    pub leased: Option<u64>,
    /// Time limit of the hook, when it is known.
    pub hook_timeout: Option<Duration>,
    /// Time since this leader's last heartbeat; none before the first.
    pub since_heartbeat: Option<Duration>,
    /// Time that a drain has when nothing else says one.
    pub asg_deadline: Duration,
    pub now: UnixMillis,
}

/// What is to be done about an action, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecyclePlan {
    /// It is completed with `CONTINUE`.
    Complete(End),
    /// Its node is to be drained within this time: nobody asks for that, or no longer, since the
    /// drain that the action was part of was taken back.
    Drain { remaining: Duration },
    /// Its time limit begins anew.
    Heartbeat(Awaited),
    /// Nothing yet.
    Wait(Awaited),
}

/// Why an action may be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The node holds nothing and its pods have left.
    Drained,
    /// No node of the run has the instance.
    NodeUnknown,
    /// The agent is silent, and its leases are gone.
    SilentAndEmpty,
    /// The time is over: AWS goes on in any case.
    DeadlinePassed,
}

/// What an action waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Units or streams are still there.
    Drain { in_flight: u32 },
    /// Pods have to leave.
    Evictions { pods: u32 },
    /// It is not known yet which pods have to.
    Pods,
    /// Holders on the node have leases, or may have: of a silent agent, or of a worker that leases
    /// straight from the queue.
    Leases,
    /// Its agent is silent, and only that knows what it works on.
    Agent,
    /// It is not clear which node it is.
    Node,
}

/// Plans what an action needs at this moment.
pub(super) fn plan_lifecycle(facts: &LifecycleFacts<'_>) -> LifecyclePlan {
    let by_action = facts.action.seen_at.plus(facts.asg_deadline);
    let deadline = facts.drain.map_or(by_action, |drain| drain.deadline);
    let awaited = match facts.node {
        // An agent that has just begun, or whose records were lost, has time to report.
        NodeSeen::Absent if facts.now.since(facts.action.seen_at) > SILENCE_LIMIT => {
            return LifecyclePlan::Complete(End::NodeUnknown);
        }
        _ if facts.now >= deadline => return LifecyclePlan::Complete(End::DeadlinePassed),
        NodeSeen::Absent | NodeSeen::Unclear => Awaited::Node,
        NodeSeen::Record(node) => match judge_node(node, facts) {
            Ok(end) => return LifecyclePlan::Complete(end),
            Err(_) if facts.drain.is_none() => {
                return LifecyclePlan::Drain { remaining: by_action.remaining(facts.now) };
            }
            Err(awaited) => awaited,
        },
    };
    let every = facts.hook_timeout.unwrap_or(LEAST_TIMEOUT) / HEARTBEAT_SHARE;
    if facts.since_heartbeat.is_none_or(|since| since >= every) {
        LifecyclePlan::Heartbeat(awaited)
    } else {
        LifecyclePlan::Wait(awaited)
    }
}

/// Whether the node may go, or what it waits for.
fn judge_node(node: &NodeRecord, facts: &LifecycleFacts<'_>) -> Result<End, Awaited> {
    let is_silent = is_silent(node, facts.now);
    let is_empty = facts.leased == Some(0);
    match (node.state, node.pods_left) {
        // Leases are not all that others work on: a checkpoint, or sessions of an environment.
        _ if is_silent && node.role != NodeRole::Rollout => Err(Awaited::Agent),
        _ if is_silent && is_empty => Ok(End::SilentAndEmpty),
        _ if is_silent => Err(Awaited::Leases),
        (NodeState::Drained, None) => Err(Awaited::Pods),
        (NodeState::Drained, Some(pods @ 1..)) => Err(Awaited::Evictions { pods }),
        // The word of an agent is its own: a worker may have leased since then.
        (NodeState::Drained, Some(0)) if !is_empty => Err(Awaited::Leases),
        (NodeState::Drained, Some(0)) => Ok(End::Drained),
        _ => Err(Awaited::Drain { in_flight: node.in_flight }),
    }
}

/// Whether it matters for this node what the queue has leased to it.
pub(super) fn depends_on_leases(node: &NodeRecord, now: UnixMillis) -> bool {
    is_silent(node, now) || node.state == NodeState::Drained
}

fn is_silent(node: &NodeRecord, now: UnixMillis) -> bool {
    now.since(node.heartbeat) > SILENCE_LIMIT
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drained => "its node is drained",
            Self::NodeUnknown => "no node of the run has the instance",
            Self::SilentAndEmpty => "its agent is silent and holds no lease",
            Self::DeadlinePassed => "its time is over",
        })
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain { in_flight } => write!(f, "{in_flight} units are in flight"),
            Self::Evictions { pods } => write!(f, "{pods} pods have to leave"),
            Self::Pods => write!(f, "its agent has not seen its pods yet"),
            Self::Leases => write!(f, "the queue has leases of it, or does not say"),
            Self::Agent => write!(f, "its agent is silent, and may have work that is not leased"),
            Self::Node => write!(f, "it is not clear which node it is"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ebbtide_queue::control::{DrainReason, DrainState, NodeNames};

    use super::*;

    const NOW: UnixMillis = UnixMillis(10_000_000);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn action() -> LifecycleRecord {
        LifecycleRecord {
            instance_id: "i-0a".to_owned(),
            group: "rollout-a".to_owned(),
            hook: "drain".to_owned(),
            token: None,
            seen_at: NOW.minus(seconds(20)),
        }
    }

    fn node(state: NodeState, pods_left: Option<u32>, silence: u64) -> NodeRecord {
        NodeRecord {
            instance_id: Some("i-0a".to_owned()),
            in_flight: 3,
            tokens_per_second: 1.0,
            pods_left,
            heartbeat: NOW.minus(seconds(silence)),
            ..NodeRecord::new("n1/boot/agent".parse().expect("valid"), state)
        }
    }

    fn drain(left: u64) -> DrainRecord {
        DrainRecord {
            replica: "n1".parse().expect("valid"),
            request_id: "event-1".to_owned(),
            generation: 1,
            reason: DrainReason::Lifecycle,
            deadline: NOW.plus(seconds(left)),
            state: DrainState::Draining,
            requested_at: NOW,
            lost: NodeNames::default(),
        }
    }

    fn plan_of(node: &NodeRecord, change: impl FnOnce(&mut LifecycleFacts<'_>)) -> LifecyclePlan {
        let (action, drain) = (action(), drain(60));
        let mut facts = LifecycleFacts {
            action: &action,
            node: NodeSeen::Record(node),
            drain: Some(&drain),
            leased: Some(0),
            hook_timeout: Some(seconds(40)),
            since_heartbeat: Some(seconds(1)),
            asg_deadline: seconds(120),
            now: NOW,
        };
        change(&mut facts);
        plan_lifecycle(&facts)
    }

    #[test]
    fn action_is_completed_once_the_node_is_drained_and_its_pods_have_left() {
        let drained = |pods| plan_of(&node(NodeState::Drained, pods, 1), |_| {});
        assert_eq!(drained(Some(0)), LifecyclePlan::Complete(End::Drained));
        let evicting = LifecyclePlan::Wait(Awaited::Evictions { pods: 2 });
        assert_eq!(drained(Some(2)), evicting);
        assert_eq!(drained(None), LifecyclePlan::Wait(Awaited::Pods), "there may be some");
        let draining = plan_of(&node(NodeState::Draining, Some(0), 1), |_| {});
        assert_eq!(draining, LifecyclePlan::Wait(Awaited::Drain { in_flight: 3 }));
    }

    #[test]
    fn drained_node_does_not_go_over_the_leases_of_a_worker_that_its_agent_does_not_know() {
        let drained = node(NodeState::Drained, Some(0), 1);
        for leased in [Some(1), None] {
            let plan = plan_of(&drained, |facts| facts.leased = leased);
            assert_eq!(plan, LifecyclePlan::Wait(Awaited::Leases), "{leased:?}");
        }
        let late = plan_of(&drained, |facts| {
            (facts.leased, facts.now) = (Some(1), NOW.plus(seconds(60)));
        });
        assert_eq!(late, LifecyclePlan::Complete(End::DeadlinePassed));
    }

    #[test]
    fn heartbeat_is_sent_at_once_and_then_at_half_the_time_limit_of_the_hook() {
        let busy = node(NodeState::Draining, None, 1);
        let heartbeat = LifecyclePlan::Heartbeat(Awaited::Drain { in_flight: 3 });
        let wait = LifecyclePlan::Wait(Awaited::Drain { in_flight: 3 });
        for (since, timeout, expected) in [
            (None, Some(40), heartbeat),
            (Some(19), Some(40), wait),
            (Some(20), Some(40), heartbeat),
            (Some(14), None, wait),
            (Some(15), None, heartbeat),
        ] {
            let plan = plan_of(&busy, |facts| {
                facts.since_heartbeat = since.map(seconds);
                facts.hook_timeout = timeout.map(seconds);
            });
            assert_eq!(plan, expected, "{since:?} of {timeout:?}");
        }
    }

    #[test]
    fn deadline_of_the_drain_ends_the_waiting_and_that_of_the_policy_without_one() {
        let busy = node(NodeState::Draining, None, 1);
        let over = LifecyclePlan::Complete(End::DeadlinePassed);
        let late = drain(0);
        // The record of a plan outlives its facts only as far as the closure: compare here.
        let (action, early) = (action(), drain(1));
        let facts = |drain, asg_deadline| LifecycleFacts {
            action: &action,
            node: NodeSeen::Record(&busy),
            drain,
            leased: None,
            hook_timeout: None,
            since_heartbeat: Some(Duration::ZERO),
            asg_deadline: seconds(asg_deadline),
            now: NOW,
        };
        assert_eq!(plan_lifecycle(&facts(Some(&late), 120)), over);
        assert_ne!(plan_lifecycle(&facts(Some(&early), 20)), over);
        assert_eq!(plan_lifecycle(&facts(None, 20)), over);
        assert_ne!(plan_lifecycle(&facts(None, 21)), over);
    }

    #[test]
    fn node_that_nobody_drains_is_to_be_drained_in_the_time_that_is_left() {
        let busy = node(NodeState::Ready, None, 1);
        let plan = plan_of(&busy, |facts| facts.drain = None);
        // 120 s, of which 20 have passed.
        assert_eq!(plan, LifecyclePlan::Drain { remaining: seconds(100) });
    }

    #[test]
    fn unknown_node_holds_nothing_up_and_an_unclear_one_waits() {
        let busy = node(NodeState::Ready, None, 1);
        let absent = plan_of(&busy, |facts| facts.node = NodeSeen::Absent);
        assert_eq!(absent, LifecyclePlan::Complete(End::NodeUnknown));
        let unclear = plan_of(&busy, |facts| facts.node = NodeSeen::Unclear);
        assert_eq!(unclear, LifecyclePlan::Wait(Awaited::Node));
        let young = plan_of(&busy, |facts| {
            (facts.node, facts.now) = (NodeSeen::Absent, NOW.minus(seconds(10)));
        });
        assert_eq!(young, LifecyclePlan::Wait(Awaited::Node), "its agent may be about to report");
    }

    /// A checkpoint and the sessions of an environment are no leases.
    #[test]
    fn silent_node_whose_work_is_not_leased_waits_for_its_agent_or_the_deadline() {
        for role in [NodeRole::Trainer, NodeRole::Environment, NodeRole::Reward] {
            let silent = NodeRecord { role, ..node(NodeState::Draining, Some(0), 60) };
            assert_eq!(plan_of(&silent, |_| {}), LifecyclePlan::Wait(Awaited::Agent), "{role:?}");
            let late = plan_of(&silent, |facts| facts.now = NOW.plus(seconds(60)));
            assert_eq!(late, LifecyclePlan::Complete(End::DeadlinePassed));
        }
    }

    #[test]
    fn silent_node_goes_once_its_leases_are_gone() {
        let silent = node(NodeState::Ready, Some(4), 11);
        for (leased, expected) in [
            (Some(0), LifecyclePlan::Complete(End::SilentAndEmpty)),
            (Some(2), LifecyclePlan::Wait(Awaited::Leases)),
            (None, LifecyclePlan::Wait(Awaited::Leases)),
        ] {
            assert_eq!(plan_of(&silent, |facts| facts.leased = leased), expected, "{leased:?}");
        }
    }
}
