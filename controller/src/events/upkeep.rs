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
