//! Who is at work outside the rollout's replicas.

use std::collections::BTreeSet;

use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::{InstanceId, OthersAtWork, Signal};
use ebbtide_queue::control::NodeRole;

use super::Reads;

/// Nodes of other roles, by their records, and nodes that hold leases without a record.
pub(super) fn gather(reads: &Reads) -> Signal<OthersAtWork> {
    let (view, status) = match (&reads.view, &reads.status) {
        (Ok(view), Ok(status)) => (view, status),
        (Err(why), _) | (_, Err(why)) => return Signal::unknown(why.clone()),
    };
    let mut others = OthersAtWork::default();
    for record in view.nodes.iter().filter(|record| record.role != NodeRole::Rollout) {
        match &record.instance_id {
            Some(id) => others.instances.insert(InstanceId(id.clone())),
            None => others.nodes.insert(record.node.clone()),
        };
    }
    let recorded: BTreeSet<&NodeName> = view.nodes.iter().map(|record| &record.node).collect();
    let holders = status.leased_by_node.iter().filter(|(_, units)| **units > 0);
    let unrecorded = holders.map(|(node, _)| node).filter(|node| !recorded.contains(node));
    others.nodes.extend(unrecorded.cloned());
    Signal::fresh(others)
}
