//! What is to be done about drains that events asked for, some time afterwards. Pure.

use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::policy::DrainPolicy;
use ebbtide_core::scale::SILENCE_LIMIT;
use ebbtide_queue::control::{ControlView, DrainReason, DrainRecord, DrainState, NodeRecord};

use super::REQUEST_PREFIX;

/// How much longer than `rebalanceTtl` a recommendation counts here: the agent, which sees it by
/// itself and a little later, must not ask for the drain anew.
const REBALANCE_SLACK: Duration = Duration::from_secs(10);

/// How long after its deadline a node has outlived what was announced for it: EC2 is late by less.
const OUTLIVED_AFTER: Duration = Duration::from_mins(10);

/// How long after its deadline a drain is remembered of which no node ever reported.
const FORGET_AFTER: Duration = Duration::from_hours(1);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Upkeep {
    /// The replica returns to work.
    Cancel { replica: ReplicaId, request_id: String, why: Over },
    /// Nobody will ever end this drain: its node is gone and had no agent.
    Forget { replica: ReplicaId },
}

/// Why a drain is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Nothing followed the recommendation.
    NotFollowed,
    /// Its nodes live, and nothing is announced for them any more: they were rebooted, stopped or
    /// hibernated and are back, or are others of the same names.
    Outlived,
}

impl Over {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::NotFollowed => "nothing followed the recommendation",
            Self::Outlived => "its nodes have outlived what was announced",
        }
    }
}

/// Judges the drains that events asked for.
pub(super) fn plan_upkeep(view: &ControlView, terms: &DrainPolicy) -> Vec<Upkeep> {
    let ours = view.drains.iter().filter(|drain| drain.request_id.starts_with(REQUEST_PREFIX));
    ours.filter_map(|drain| judge(drain, view, terms)).collect()
}

fn judge(drain: &DrainRecord, view: &ControlView, terms: &DrainPolicy) -> Option<Upkeep> {
    let replica = drain.replica.clone();
    let has_nodes = view.nodes.iter().any(|node| node.replica == replica);
    if !has_nodes && view.now.since(drain.deadline) >= FORGET_AFTER {
        return Some(Upkeep::Forget { replica });
    }
    let is_settled = matches!(drain.state, DrainState::Cancelled | DrainState::Terminating);
    let why = why_over(drain, view, terms).filter(|_| !is_settled)?;
    Some(Upkeep::Cancel { replica, request_id: drain.request_id.clone(), why })
}

fn why_over(drain: &DrainRecord, view: &ControlView, terms: &DrainPolicy) -> Option<Over> {
    let age = view.now.since(drain.requested_at);
    match drain.reason {
        DrainReason::Rebalance => {
            (age >= terms.rebalance_ttl + REBALANCE_SLACK).then_some(Over::NotFollowed)
        }
        DrainReason::Notice | DrainReason::Maintenance | DrainReason::Lifecycle => {
            let is_late = view.now.since(drain.deadline) >= OUTLIVED_AFTER;
            (is_late && is_outlived(drain, view)).then_some(Over::Outlived)
        }
        _ => None,
    }
}

/// Whether every node that was to go reports and has no notice, and no hook holds it.
fn is_outlived(drain: &DrainRecord, view: &ControlView) -> bool {
    let goes = |node: &&NodeRecord| drain.lost.is_empty() || drain.lost.0.contains(&node.node);
    let is_held = |node: &NodeRecord| {
        let instance = node.instance_id.as_ref();
        view.lifecycles.iter().any(|action| instance == Some(&action.instance_id))
    };
    let lives = |node: &NodeRecord| {
        let is_heard = view.now.since(node.heartbeat) <= SILENCE_LIMIT;
        is_heard && node.notice_kind.is_none() && !is_held(node)
    };
    let mut nodes = view.nodes.iter().filter(|node| node.replica == drain.replica).filter(goes);
    let is_any = nodes.clone().next().is_some();
    is_any && nodes.all(lives)
}

#[cfg(test)]
mod tests {
    use ebbtide_core::ids::NodeName;
    use ebbtide_core::policy::FleetPolicy;
    use ebbtide_core::time::UnixMillis;
    use ebbtide_queue::control::{LifecycleRecord, NodeNames, NodeState};

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000_000);

    /// What is to be done about a drain of a replica without nodes, asked for so long ago.
    fn upkeep(request_id: &str, reason: DrainReason, state: DrainState, age: u64) -> Vec<Upkeep> {
        upkeep_of(request_id, reason, state, age, |_| {})
    }

    /// The same, in a view that is changed before the look.
    fn upkeep_of(
        request_id: &str,
        reason: DrainReason,
        state: DrainState,
        age: u64,
        change: impl FnOnce(&mut ControlView),
    ) -> Vec<Upkeep> {
        let requested_at = NOW.minus(Duration::from_secs(age));
        let drain = DrainRecord {
            replica: "n1".parse().expect("valid"),
            request_id: request_id.to_owned(),
            generation: 1,
            reason,
            deadline: requested_at,
            state,
            requested_at,
            lost: NodeNames::default(),
        };
        let text = "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run}
spec:
  drain: {rebalanceTtl: 15m}
  trainer: {groupsPerStep: 2, groupSize: 1}
  rollout: {minReplicas: 0, maxReplicas: 4, concurrencyPerReplica: 2, pools: [p]}
  pools: [{name: p, provider: local, market: spot, maxNodes: 8}]
";
        let terms = FleetPolicy::parse(text, "test").expect("valid").drain.clone();
        let mut view = ControlView { now: NOW, drains: vec![drain], ..ControlView::default() };
        change(&mut view);
        plan_upkeep(&view, &terms)
    }

    fn node(silence: u64, notice_kind: Option<&str>) -> NodeRecord {
        NodeRecord {
            instance_id: Some("i-1".to_owned()),
            heartbeat: NOW.minus(Duration::from_secs(silence)),
            notice_kind: notice_kind.map(str::to_owned),
            ..NodeRecord::new("n1/boot/agent".parse().expect("valid"), NodeState::Drained)
        }
    }

    #[test]
    fn recommendation_that_nothing_followed_is_taken_back_after_its_time() {
        let (reason, state) = (DrainReason::Rebalance, DrainState::Drained);
        assert!(upkeep("event-r", reason, state, 909).is_empty());
        let cancelled = upkeep("event-r", reason, state, 910);
        let expected = Upkeep::Cancel {
            replica: "n1".parse().expect("valid"),
            request_id: "event-r".to_owned(),
            why: Over::NotFollowed,
        };
        assert_eq!(cancelled, [expected]);
        assert!(upkeep("notice-n1-7", reason, state, 910).is_empty(), "that is the agent's");
        assert!(upkeep("event-r", DrainReason::Notice, state, 910).is_empty(), "it was followed");
        assert!(upkeep("event-r", reason, DrainState::Terminating, 910).is_empty());
    }

    #[test]
    fn drain_of_a_node_that_never_reported_is_forgotten_an_hour_after_its_deadline() {
        let forgotten = |age| upkeep("event-s", DrainReason::Notice, DrainState::Requested, age);
        assert!(forgotten(3599).is_empty());
        assert_eq!(forgotten(3600), [Upkeep::Forget { replica: "n1".parse().expect("valid") }]);
    }
    /// After a reboot, a hibernation, or when the name went to another instance.
    #[test]
    fn node_that_has_outlived_what_was_announced_returns_to_work() {
        let outlived = |reason, state, age, node: NodeRecord| {
            let plan = upkeep_of("event-s", reason, state, age, |view| view.nodes.push(node));
            matches!(plan[..], [Upkeep::Cancel { why: Over::Outlived, .. }])
        };
        let (notice, drained) = (DrainReason::Notice, DrainState::Drained);
        for reason in [notice, DrainReason::Maintenance, DrainReason::Lifecycle] {
            assert!(outlived(reason, drained, 600, node(1, None)), "{reason:?}");
            assert!(outlived(reason, DrainState::Requested, 600, node(1, None)), "{reason:?}");
        }
        assert!(!outlived(notice, drained, 599, node(1, None)), "EC2 may be late");
        assert!(!outlived(notice, drained, 600, node(11, None)), "it is gone");
        assert!(!outlived(notice, drained, 600, node(1, Some("maintenance"))), "it is to go");
        assert!(!outlived(notice, DrainState::Terminating, 600, node(1, None)));
        assert!(!outlived(DrainReason::Operator, drained, 600, node(1, None)));
    }

    #[test]
    fn instance_that_a_hook_holds_has_not_outlived_anything() {
        let action = LifecycleRecord {
            instance_id: "i-1".to_owned(),
            group: "rollout-a".to_owned(),
            hook: "drain".to_owned(),
            token: None,
            seen_at: NOW,
        };
        let (reason, state) = (DrainReason::Lifecycle, DrainState::Drained);
        let plan = upkeep_of("event-s", reason, state, 600, |view| {
            view.nodes.push(node(1, None));
            view.lifecycles.push(action);
        });
        assert!(plan.is_empty(), "{plan:?}");
    }

    #[test]
    fn only_nodes_that_were_to_go_have_to_be_back() {
        let plan = |lost: &str| {
            upkeep_of("event-s", DrainReason::Notice, DrainState::Drained, 600, |view| {
                let gone = NodeRecord { node: "n2".parse().expect("valid"), ..node(900, None) };
                let replica = node(1, None).replica;
                view.nodes.extend([node(1, None), NodeRecord { replica, ..gone }]);
                view.drains[0].lost = lost.parse::<NodeName>().expect("valid").into();
            })
        };
        assert_eq!(plan("n1").len(), 1);
        assert!(plan("n2").is_empty());
    }
}
