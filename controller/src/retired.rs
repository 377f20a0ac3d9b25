//! The end of drains whose replicas are gone while their nodes stay.
//!
//! Where an instance is a pod, its node outlives it, and the next group may bear the same name. A
//! drain that stayed `terminating` would keep both out of work for ever. Once what was terminated
//! is gone, the leader takes the drain back; agents then let the node work again.

use std::collections::{BTreeMap, BTreeSet};

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::observation::{InstanceId, PoolView};
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_core::scale::{Action, Role, SILENCE_LIMIT};
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

/// What the pools of a worker group show.
struct Shown<'a> {
    ids: BTreeSet<&'a InstanceId>,
    nodes: BTreeSet<&'a NodeName>,
}

impl<'a> Shown<'a> {
    /// What these show; `None` while the size of one is unknown.
    fn of(pools: &'a [PoolView]) -> Option<Self> {
        let sizes = pools.iter().map(|pool| pool.size.known()).collect::<Option<Vec<_>>>()?;
        let instances = || sizes.iter().flat_map(|size| &size.instances);
        Some(Self {
            ids: instances().map(|instance| &instance.id).collect(),
            nodes: instances().filter_map(|instance| instance.node.as_ref()).collect(),
        })
    }
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

    /// Takes drains that are over out of what was read, and answers how to take each back, by
    /// worker group.
    pub fn take_ended(&mut self, reads: &mut Reads, policy: &FleetPolicy) -> Vec<(Role, Action)> {
        let mut ended = Vec::new();
        if let Ok(view) = &reads.view {
            self.terminated.retain(|id, _| view.drains.iter().any(|it| it.request_id == *id));
            for role in Role::ALL {
                let Some(shown) = Shown::of(reads.pools_of(role)) else { continue };
                let outlived = pools_that_nodes_outlive(policy, role);
                let own =
                    view.drains.iter().filter(|drain| self.role_of(drain, view, policy) == role);
                let over = own.filter(|drain| self.is_over(drain, view, &shown, &outlived));
                ended.extend(over.map(|drain| (role, drain.clone())));
            }
        }
        if let Ok(view) = &mut reads.view {
            view.drains.retain(|drain| !ended.iter().any(|(_, over)| over == drain));
        }
        let take_back = |(role, drain): (Role, DrainRecord)| {
            let (replica, request_id) = (drain.replica, drain.request_id);
            (role, Action::CancelDrain { replica, request_id })
        };
        ended.into_iter().map(take_back).collect()
    }

    /// The worker group of the replica that drains: by its pool, where this process has terminated
    /// it, or by its nodes' word. Of what nobody tells the rollouts are the first to look.
    fn role_of(&self, drain: &DrainRecord, view: &ControlView, policy: &FleetPolicy) -> Role {
        let terminated = self.terminated.get(&drain.request_id);
        let by_pool = terminated.and_then(|terminated| policy.role_of(&terminated.pool));
        let told = || members(view, &drain.replica).find_map(|record| record.role.sized());
        by_pool.or_else(told).unwrap_or_default()
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

/// Pools of a worker group whose instances are pods.
fn pools_that_nodes_outlive(policy: &FleetPolicy, role: Role) -> BTreeSet<&PoolName> {
    let pools = policy.pools_of(role).filter(|pool| pool.provider.kind().takes_pods());
    pools.map(|pool| &pool.name).collect()
}

#[cfg(test)]
mod tests;
