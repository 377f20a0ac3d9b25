//! Protection from scale-in: an Auto Scaling group that is lowered by somebody else, or evens out
//! its zones, must not choose a busy node.
//!
//! Every instance in service is protected while its replica works. The protection is tagged as
//! ours, and lifted before the instance is terminated; one that somebody else set is never touched.

use std::collections::BTreeSet;

use ebbtide_core::observation::{InstanceId, InstanceState, InstanceView, Observation};
use ebbtide_core::policy::{FleetPolicy, PoolName, ProviderKind};

/// Instances that are to be protected, by pool.
pub(crate) fn unprotected(
    observation: &Observation,
    policy: &FleetPolicy,
) -> Vec<(PoolName, Vec<InstanceId>)> {
    // Nobody knows who leaves.
    let Some(replicas) = observation.replicas.known() else { return Vec::new() };
    let leaving = replicas.iter().filter(|replica| replica.drain.is_some());
    let leaving: BTreeSet<InstanceId> = leaving.flat_map(|replica| replica.instances()).collect();
    let is_free = |instance: &&InstanceView| {
        let serves = instance.state == InstanceState::InService;
        serves && !instance.is_protected && !leaving.contains(&instance.id)
    };
    let groups = policy.rollout_pools().filter(|pool| pool.provider.kind() == ProviderKind::Asg);
    let found = groups.filter_map(|pool| {
        let view = observation.pools.iter().find(|view| view.name == pool.name)?;
        let instances = view.size.known()?.instances.iter();
        let ids: Vec<InstanceId> = instances.filter(is_free).map(|one| one.id.clone()).collect();
        (!ids.is_empty()).then(|| (pool.name.clone(), ids))
    });
    found.collect()
}
