//! Replicas that have been silent for long although their instances run: kubelet, agent or machine
//! hangs, and nobody heals it.
//!
//! They count as running for as long as they may be at work, which is until their leases are gone.
//! After [`SILENT_LIMIT`] such a one is asked to go like any other; as it does not answer, it is
//! terminated by its name once its drain counts as answered, and what is missing then is ordered.
//! Where no replica is heard at all it may be the reports that are missing, and nothing goes.

use std::time::Duration;

use super::arrivals::JOIN_LIMIT;
use super::census::Census;
use super::leaving::SILENCE_LIMIT;
use super::plan::{Action, LeaveReason};
use super::reason::{CapacityReason, Reason};
use super::terms::SizingTerms;
use crate::observation::{ReplicaState, ReplicaView};

/// How long a replica may be silent, with nothing leased to it: as long as a new one may be.
const SILENT_LIMIT: Duration = JOIN_LIMIT;

/// Asks those to go that have been silent for too long.
pub(super) fn leave_silent(
    terms: &SizingTerms,
    census: &Census<'_>,
    actions: &mut Vec<Action>,
    reasons: &mut Vec<Reason>,
) {
    // Only of rollouts is known by their leases what they work on.
    let is_any_heard = census.replicas.iter().any(|it| it.silence() <= SILENCE_LIMIT);
    if !terms.role.is_rollout() || !is_any_heard {
        return;
    }
    let mut spare: Vec<u32> = census.pools.iter().map(|pool| pool.spare).collect();
    let mut left = terms.max_changes_per_tick;
    for replica in census.replicas.iter().filter(|replica| is_given_up(census, replica)) {
        let id = replica.id.clone();
        reasons.push(CapacityReason::LongSilent { replica: id.clone() }.into());
        let Some(spare) = spare.get_mut(census.rank(replica.pool.as_ref())) else { continue };
        let is_asked = actions.iter().any(|action| action.asks_to_drain(&id));
        if *spare > 0 && left > 0 && !is_asked {
            (*spare, left) = (*spare - 1, left - 1);
            actions.push(Action::RequestDrain { replica: id, why: LeaveReason::Silent });
        }
    }
}

fn is_given_up(census: &Census<'_>, replica: &ReplicaView) -> bool {
    replica.state == ReplicaState::Unknown
        && replica.nodes.iter().all(|node| node.heartbeat_age >= SILENT_LIMIT)
        && replica.leased.known() == Some(&0)
        && replica.drain.is_none()
        && !replica.has_notice
        && !census.counted_instances(replica).is_empty()
}
