//! The end of drains whose replicas are gone while their nodes stay.
//!
//! Where an instance is a pod, its node outlives it, and the next group may bear the same name. A
//! drain that stayed `terminating` would keep both out of work for ever. Once what was terminated
//! is gone, the leader takes the drain back; agents then let the node work again.

use std::collections::{BTreeMap, BTreeSet};

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_core::scale::{Action, SILENCE_LIMIT};
use ebbtide_queue::control::{ControlView, DrainReason, DrainRecord, DrainState, NodeRecord};

use crate::observe::Reads;

/// What this process has terminated.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// By the drain's request.
    terminated: BTreeMap<String, Terminated>,
}

#[derive(Debug)]
struct Terminated {
    pool: PoolName,
    instances: Vec<InstanceId>,
}

/// What the pools show.
struct Shown<'a> {
    ids: BTreeSet<&'a InstanceId>,
    nodes: BTreeSet<&'a NodeName>,
}

impl Retired {
    /// Takes note of what became of an action.
    pub fn note(&mut self, action: &Action, is_done: bool) {
        let Action::Retire { request_id, pool, instances, .. } = action else { return };
        if is_done {
            let terminated = Terminated { pool: pool.clone(), instances: instances.clone() };
            self.terminated.insert(request_id.clone(), terminated);
        }
    }

    /// Takes drains that are over out of what was read, and answers how to take each back.
    pub fn take_ended(&mut self, reads: &mut Reads, policy: &FleetPolicy) -> Vec<Action> {
        let sizes = reads.pools.iter().chain(reads.service_pools.values().flatten());
        let sizes = sizes.map(|pool| pool.size.known()).collect::<Option<Vec<_>>>();
        let Ok(view) = &mut reads.view else { return Vec::new() };
        self.terminated.retain(|id, _| view.drains.iter().any(|drain| drain.request_id == *id));
        let Some(sizes) = sizes else { return Vec::new() };
        let instances = || sizes.iter().flat_map(|size| &size.instances);
        let shown = Shown {
            ids: instances().map(|instance| &instance.id).collect(),
            nodes: instances().filter_map(|instance| instance.node.as_ref()).collect(),
        };
        let outlived = pools_that_nodes_outlive(policy);
        let is_over = |drain: &DrainRecord| self.is_over(drain, view, &shown, &outlived);
        let ended: Vec<DrainRecord> =
            view.drains.iter().filter(|drain| is_over(drain)).cloned().collect();
        view.drains.retain(|drain| !ended.contains(drain));
        let take_back = |drain: DrainRecord| Action::CancelDrain {
            replica: drain.replica,
            request_id: drain.request_id,
        };
        ended.into_iter().map(take_back).collect()
    }

    fn is_over(
        &self,
        drain: &DrainRecord,
        view: &ControlView,
        shown: &Shown<'_>,
        outlived: &BTreeSet<&PoolName>,
    ) -> bool {
        let is_sizing = matches!(drain.reason, DrainReason::ScaleIn | DrainReason::Swap);
        if !is_sizing || drain.state != DrainState::Terminating {
            return false;
        }
        if let Some(terminated) = self.terminated.get(&drain.request_id) {
            let is_outlived = outlived.contains(&terminated.pool);
            return is_outlived && !terminated.instances.iter().any(|id| shown.ids.contains(id));
        }
        // Another process terminated it. Nodes that are silent may be gone with it.
        let stays = |record: &NodeRecord| {
            let id = record.instance_id.clone().map(InstanceId);
            let is_shown = id.is_some_and(|id| shown.ids.contains(&id));
            let is_heard = view.now.since(record.heartbeat) <= SILENCE_LIMIT;
            is_heard && !is_shown && !shown.nodes.contains(&record.node)
        };
        !outlived.is_empty() && members(view, &drain.replica).all(stays)
    }
}

fn members<'a>(
    view: &'a ControlView,
    replica: &'a ReplicaId,
) -> impl Iterator<Item = &'a NodeRecord> {
    view.nodes.iter().filter(move |record| record.replica == *replica)
}

/// Pools whose instances are pods.
fn pools_that_nodes_outlive(policy: &FleetPolicy) -> BTreeSet<&PoolName> {
    let pools = policy.sized_pools().filter(|pool| pool.provider.kind().takes_pods());
    pools.map(|pool| &pool.name).collect()
}

#[cfg(test)]
mod tests;
