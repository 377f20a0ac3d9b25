//! Whether a drain is over because its replica was made anew. Pure.

use std::time::Duration;

use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{DrainReason, DrainRecord, DrainState};

use crate::kubernetes::Membership;

/// Creation times of pods are cut to seconds.
const CREATION_STEP: Duration = Duration::from_secs(1);

/// Whether the engine of the one who leads belongs to a group that was made after the drain was
/// asked for, and the work of the group before is handed back. What was asked of the replica,
/// whatever it runs on, holds for every group of its name.
///
/// This compares a moment of the API server with one of the store. A group needs minutes to load:
/// the clocks would have to differ by more than that before work could be lost by it.
pub(super) fn is_made_anew(membership: &Membership, record: &DrainRecord) -> bool {
    let is_for_its_nodes = match record.reason {
        DrainReason::Notice
        | DrainReason::Rebalance
        | DrainReason::Maintenance
        | DrainReason::Lifecycle
        | DrainReason::Foreign => true,
        DrainReason::ScaleIn | DrainReason::Swap | DrainReason::Operator | DrainReason::Drill => {
            false
        }
    };
    let is_newer = |since: UnixMillis| since.plus(CREATION_STEP) > record.requested_at;
    let is_over = record.state == DrainState::Drained;
    membership.leads && is_for_its_nodes && is_over && membership.since.is_some_and(is_newer)
}

#[cfg(test)]
mod tests {
    use ebbtide_queue::control::NodeNames;

    use super::*;

    const ASKED: UnixMillis = UnixMillis(5_000_400);

    fn leader_of_pods_from(since: Option<u64>) -> Membership {
        let since = since.map(UnixMillis);
        Membership { replica: "ep-0".parse().expect("valid"), leads: true, since }
    }

    fn drain(reason: DrainReason, state: DrainState) -> DrainRecord {
        DrainRecord {
            replica: "ep-0".parse().expect("valid"),
            request_id: "any".to_owned(),
            generation: 0,
            reason,
            deadline: ASKED.plus(Duration::from_secs(120)),
            state,
            requested_at: ASKED,
            lost: NodeNames::default(),
        }
    }

    #[test]
    fn group_is_new_when_its_leader_was_made_after_the_request() {
        let drained = drain(DrainReason::Notice, DrainState::Drained);
        let is_new = |since| is_made_anew(&leader_of_pods_from(since), &drained);
        assert!(is_new(Some(5_000_000)), "within the second that its time is cut to");
        assert!(is_new(Some(5_004_000)));
        assert!(!is_new(Some(4_999_000)));
        assert!(!is_new(None));
        let member = Membership { leads: false, ..leader_of_pods_from(Some(5_004_000)) };
        assert!(!is_made_anew(&member, &drained), "the leader speaks for it");
    }

    #[test]
    fn drain_is_over_only_when_the_old_group_has_handed_back() {
        let new = leader_of_pods_from(Some(5_004_000));
        for state in [DrainState::Requested, DrainState::Draining, DrainState::Terminating] {
            assert!(!is_made_anew(&new, &drain(DrainReason::Notice, state)), "{state:?}");
        }
    }

    #[test]
    fn what_is_asked_of_the_replica_holds_for_every_group_of_its_name() {
        let new = leader_of_pods_from(Some(5_004_000));
        for (reason, expected) in [
            (DrainReason::Notice, true),
            (DrainReason::Lifecycle, true),
            (DrainReason::Foreign, true),
            (DrainReason::ScaleIn, false),
            (DrainReason::Operator, false),
            (DrainReason::Drill, false),
        ] {
            let drained = drain(reason, DrainState::Drained);
            assert_eq!(is_made_anew(&new, &drained), expected, "{reason:?}");
        }
    }
}
