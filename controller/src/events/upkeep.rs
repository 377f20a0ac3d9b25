//! What is to be done about drains that events asked for, some time afterwards. Pure.

use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::policy::DrainPolicy;
use ebbtide_queue::control::{ControlView, DrainReason, DrainRecord, DrainState};

use super::REQUEST_PREFIX;

/// How much longer than `rebalanceTtl` a recommendation counts here: the agent, which sees it by
/// itself and a little later, must not ask for the drain anew.
const REBALANCE_SLACK: Duration = Duration::from_secs(10);

/// How long after its deadline a drain is remembered of which no node ever reported.
const FORGET_AFTER: Duration = Duration::from_hours(1);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Upkeep {
    /// Nothing followed the recommendation: the replica returns to work.
    Cancel { replica: ReplicaId, request_id: String },
    /// Nobody will ever end this drain: its node is gone and had no agent.
    Forget { replica: ReplicaId },
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
    let is_over = view.now.since(drain.requested_at) >= terms.rebalance_ttl + REBALANCE_SLACK;
    let is_passing = drain.reason == DrainReason::Rebalance && !is_settled;
    let request_id = drain.request_id.clone();
    (is_passing && is_over).then_some(Upkeep::Cancel { replica, request_id })
}

#[cfg(test)]
mod tests {
    use ebbtide_core::policy::FleetPolicy;
    use ebbtide_core::time::UnixMillis;
    use ebbtide_queue::control::NodeNames;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_000_000_000);

    /// What is to be done about a drain of a replica without nodes, asked for so long ago.
    fn upkeep(request_id: &str, reason: DrainReason, state: DrainState, age: u64) -> Vec<Upkeep> {
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
        let view = ControlView { now: NOW, drains: vec![drain], ..ControlView::default() };
        plan_upkeep(&view, &terms)
    }

    #[test]
    fn recommendation_that_nothing_followed_is_taken_back_after_its_time() {
        let (reason, state) = (DrainReason::Rebalance, DrainState::Drained);
        assert!(upkeep("event-r", reason, state, 909).is_empty());
        let cancelled = upkeep("event-r", reason, state, 910);
        let expected = Upkeep::Cancel {
            replica: "n1".parse().expect("valid"),
            request_id: "event-r".to_owned(),
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
}
