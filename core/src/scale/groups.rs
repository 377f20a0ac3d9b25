//! EP groups that lack a node.
//!
//! Such a group serves nothing and counts as no capacity. Its pool completes it, with one node;
//! when that takes longer than `rollout.gangTimeout` the nodes that are left are released: a whole
//! group is ordered elsewhere, and waiting nodes cost as much as working ones.

use std::collections::BTreeMap;

use super::arrivals::Arrivals;
use super::census::Census;
use super::plan::{Action, LeaveReason};
use super::reason::{CapacityReason, Reason};
use super::terms::SizingTerms;
use crate::ids::ReplicaId;
use crate::observation::{DrainPurpose, ReplicaView};
use crate::time::UnixMillis;

/// Since when each group lacks a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PartialGroups {
    since: BTreeMap<ReplicaId, UnixMillis>,
}

impl PartialGroups {
    /// Waits for groups that lack a node, and releases those that have waited for too long.
    pub fn plan(
        &mut self,
        terms: &SizingTerms,
        census: &Census<'_>,
        arrivals: &Arrivals,
        now: UnixMillis,
        actions: &mut Vec<Action>,
        reasons: &mut Vec<Reason>,
    ) {
        let mut since = BTreeMap::new();
        let mut left = terms.max_changes_per_tick;
        for replica in census.replicas {
            let nodes = census.counted_instances(replica).len();
            let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
            if nodes == 0 || nodes >= terms.gang() || is_leaving(replica) {
                continue;
            }
            let began_at = self.since.get(&replica.id).copied().unwrap_or(now);
            since.insert(replica.id.clone(), began_at);
            let remaining = began_at.plus(terms.gang_timeout).remaining(now);
            let (id, of) = (replica.id.clone(), terms.gang());
            reasons.push(
                CapacityReason::PartialGroup { replica: id.clone(), nodes, of, remaining }.into(),
            );
            let is_being_completed =
                replica.pool.as_ref().is_some_and(|pool| arrivals.is_awaited_in(pool, now));
            let is_asked = actions.iter().any(|action| action.asks_to_drain(&replica.id));
            let is_free = replica.drain.is_none() && !replica.has_notice && !is_asked;
            if remaining.is_zero() && !is_being_completed && is_free && left > 0 {
                left -= 1;
                actions.push(Action::RequestDrain { replica: id, why: LeaveReason::Partial });
            }
        }
        self.since = since;
    }
}

fn is_leaving(replica: &ReplicaView) -> bool {
    replica.drain.as_ref().is_some_and(|drain| drain.purpose == DrainPurpose::Sizing)
}
