//! Which EP group the node serves, by the labels that LeaderWorkerSet puts on its engine pod.

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::time::UnixMillis;

use super::pod::{SeenPod, StayReason, Tier};

/// The place of a node in an EP group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The group: `<LeaderWorkerSet>-<group index>`.
    pub replica: ReplicaId,
    /// Whether this node has the group's leader.
    pub leads: bool,
    /// When the engine pod was created, on the API server's clock; `None` when no pod says so.
    pub since: Option<UnixMillis>,
}

/// The group of the engine pods on a node. `None` when there is none, or when they belong to
/// several: then nobody can say what the node is drained with.
///
/// A pod on its way out counts as long as it is there, unless a successor is there as well.
pub(crate) fn membership_of(pods: &[SeenPod]) -> Option<Membership> {
    let engines = || pods.iter().filter(is_engine);
    let has_successor = engines().any(|pod| pod.termination.is_none());
    let mut memberships = engines()
        .filter(|pod| pod.termination.is_none() || !has_successor)
        .filter_map(membership_of_pod);
    let first = memberships.next()?;
    memberships.try_fold(first, |known, other| {
        let leads = known.leads || other.leads;
        let since = known.since.min(other.since);
        (known.replica == other.replica).then_some(Membership { leads, since, ..known })
    })
}

/// Whether all engine pods of a node are on their way out.
pub(crate) fn engines_leave(pods: &[SeenPod]) -> bool {
    let mut engines = pods.iter().filter(is_engine).peekable();
    engines.peek().is_some() && engines.all(|pod| pod.termination.is_some())
}

/// The engine pod of the node, when there is one alone.
pub(crate) fn engine_pod_of(pods: &[SeenPod]) -> Option<&SeenPod> {
    let mut engines = pods.iter().filter(is_engine).filter(|pod| pod.termination.is_none());
    engines.next().filter(|_| engines.next().is_none())
}

fn is_engine(pod: &&SeenPod) -> bool {
    pod.tier == Tier::Engine && pod.stays != Some(StayReason::Finished)
}

fn membership_of_pod(pod: &SeenPod) -> Option<Membership> {
    let group = pod.group.as_ref()?;
    let replica = format!("{}-{}", group.name, group.group_index).parse().ok()?;
    Some(Membership { replica, leads: group.worker_index == 0, since: pod.created })
}

#[cfg(test)]
mod tests {
    use ebbtide_core::time::UnixMillis;

    use super::super::pod::{GroupLabels, Termination};
    use super::*;

    fn engine(uid: &str, name: &str, group_index: u32, worker_index: u32) -> SeenPod {
        let group = Some(GroupLabels { name: name.to_owned(), group_index, worker_index });
        SeenPod { tier: Tier::Engine, group, ..SeenPod::ordinary("rl", uid, uid) }
    }

    fn going(pod: SeenPod) -> SeenPod {
        let termination = Termination { by: UnixMillis(1), grace: std::time::Duration::ZERO };
        SeenPod { termination: Some(termination), ..pod }
    }

    fn membership(replica: &str, leads: bool) -> Option<Membership> {
        Some(Membership { replica: replica.parse().expect("valid"), leads, since: None })
    }

    #[test]
    fn group_and_index_name_the_replica_and_worker_zero_leads() {
        assert_eq!(membership_of(&[engine("a", "ep", 2, 0)]), membership("ep-2", true));
        assert_eq!(membership_of(&[engine("a", "ep", 2, 7)]), membership("ep-2", false));
        let both = [engine("a", "ep", 2, 1), engine("b", "ep", 2, 0)];
        assert_eq!(membership_of(&both), membership("ep-2", true), "two of them on one node");
    }

    #[test]
    fn pods_without_group_or_of_several_groups_say_nothing() {
        assert_eq!(membership_of(&[]), None);
        let plain = SeenPod { group: None, ..engine("a", "ep", 0, 0) };
        assert_eq!(membership_of(&[plain]), None);
        let other_role = SeenPod { tier: Tier::Ordinary, ..engine("a", "ep", 0, 0) };
        assert_eq!(membership_of(&[other_role]), None);
        assert_eq!(membership_of(&[engine("a", "ep", 0, 0), engine("b", "ep", 1, 0)]), None);
        let ended = SeenPod { stays: Some(StayReason::Finished), ..engine("a", "ep", 0, 0) };
        assert_eq!(membership_of(&[ended]), None);
        assert_eq!(membership_of(&[engine("a", &"x".repeat(300), 0, 0)]), None, "not a valid id");
    }

    #[test]
    fn group_is_as_old_as_the_oldest_of_its_pods_on_the_node() {
        let born = |uid, at| SeenPod { created: Some(UnixMillis(at)), ..engine(uid, "ep", 0, 0) };
        let since = |pods: &[SeenPod]| membership_of(pods).and_then(|group| group.since);
        assert_eq!(since(&[born("a", 7), born("b", 5)]), Some(UnixMillis(5)));
        assert_eq!(since(&[born("a", 7), engine("b", "ep", 0, 1)]), None, "one does not say");
    }

    #[test]
    fn successor_counts_before_the_pod_that_goes() {
        let old = going(engine("a", "ep", 0, 1));
        assert_eq!(membership_of(std::slice::from_ref(&old)), membership("ep-0", false));
        assert!(engines_leave(std::slice::from_ref(&old)) && !engines_leave(&[]));
        let both = [old, engine("b", "ep", 4, 0)];
        assert_eq!(membership_of(&both), membership("ep-4", true));
        assert!(!engines_leave(&both));
    }
}
