//! Who is at work outside the replicas of a worker group.

use std::collections::HashSet;

use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::{InstanceId, OthersAtWork, Signal};
use ebbtide_core::scale::Role;

use super::Reads;

/// Nodes of other roles, by their records, and nodes that hold leases without a record.
pub(super) fn gather(reads: &Reads, role: Role) -> Signal<OthersAtWork> {
    let (view, status) = match (&reads.view, &reads.status) {
        (Ok(view), Ok(status)) => (view, status),
        (Err(why), _) | (_, Err(why)) => return Signal::unknown(why.clone()),
    };
    let mut others = OthersAtWork::default();
    for record in view.nodes.iter().filter(|record| record.role.sized() != Some(role)) {
        match &record.instance_id {
            Some(id) => others.instances.insert(InstanceId(id.clone())),
            None => others.nodes.insert(record.node.clone()),
        };
    }
    let recorded: HashSet<&NodeName> = view.nodes.iter().map(|record| &record.node).collect();
    let holders = status.leased_by_node.iter().filter(|(_, units)| **units > 0);
    let unrecorded = holders.map(|(node, _)| node).filter(|node| !recorded.contains(node));
    others.nodes.extend(unrecorded.cloned());
    Signal::fresh(others)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use ebbtide_queue::control::{ControlView, NodeRecord, NodeRole, NodeState};
    use ebbtide_queue::status::ShardStatus;

    use super::*;

    fn node(name: &str, role: NodeRole, instance: Option<&str>) -> NodeRecord {
        let holder = format!("{name}/boot/agent").parse().expect("valid");
        NodeRecord {
            role,
            instance_id: instance.map(str::to_owned),
            ..NodeRecord::new(holder, NodeState::Ready)
        }
    }

    #[test]
    fn other_roles_and_holders_without_a_record_are_at_work() {
        let nodes = vec![
            node("rollout", NodeRole::Rollout, Some("i-1")),
            node("trainer", NodeRole::Trainer, Some("i-2")),
            node("shy-trainer", NodeRole::Trainer, None),
        ];
        let mut status = ShardStatus::default();
        for (name, units) in [("rollout", 3), ("stranger", 1), ("idle-stranger", 0)] {
            status.leased_by_node.insert(name.parse().expect("valid"), units);
        }
        let mut reads = Reads {
            watched_for: Duration::ZERO,
            status: Ok(status),
            view: Ok(ControlView { nodes, ..ControlView::default() }),
            pools: Vec::new(),
            service_pools: BTreeMap::new(),
            trainer_pool: None,
            gone: BTreeSet::new(),
            problems: Vec::new(),
        };
        let others = gather(&reads, Role::Rollout);
        let others = others.known().expect("everything was read");
        assert_eq!(others.instances, BTreeSet::from([InstanceId("i-2".to_owned())]));
        let names: Vec<&str> = others.nodes.iter().map(|node| node.as_str()).collect();
        assert_eq!(names, ["shy-trainer", "stranger"]);
        // To scorers, the rollouts are others.
        let others = gather(&reads, Role::Reward);
        let instances = others.known().map(|others| others.instances.len());
        assert_eq!(instances, Some(2));
        reads.status = Err("away".to_owned());
        assert_eq!(gather(&reads, Role::Rollout), Signal::unknown("away"));
    }
}
