//! Protection from scale-in: an Auto Scaling group that is lowered by somebody else, or evens out
//! its zones, must not choose a busy node.
//!
//! Every instance in service is protected while its replica works. The protection is tagged as
//! ours, and lifted before the instance is terminated; one that somebody else set is never touched.

use std::collections::BTreeSet;

use ebbtide_core::observation::{InstanceId, InstanceState, InstanceView, Observation};
use ebbtide_core::policy::{FleetPolicy, PoolName, ProviderKind};

use crate::actuate::ActuateError;

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
    let pools = policy.sized_pools().chain(policy.resized_trainer_pool());
    let groups = pools.filter(|pool| pool.provider.kind() == ProviderKind::Asg);
    // What is about a service leaves the trainer to what is about the rollouts.
    let trainer = observation.trainer_pool.as_ref().filter(|_| observation.service.is_none());
    let views = observation.pools.iter().chain(trainer);
    let found = groups.filter_map(|pool| {
        let view = views.clone().find(|view| view.name == pool.name)?;
        let instances = view.size.known()?.instances.iter();
        let ids: Vec<InstanceId> = instances.filter(is_free).map(|one| one.id.clone()).collect();
        (!ids.is_empty()).then(|| (pool.name.clone(), ids))
    });
    found.collect()
}

/// What was last known of protections.
#[derive(Default)]
pub(crate) struct Protection {
    problem: Option<String>,
}

impl Protection {
    /// Takes note of protections that were answered; without any nothing is known anew.
    pub fn note(&mut self, protected: Vec<Result<(), ActuateError>>) {
        if protected.is_empty() {
            return;
        }
        let problem = protected.into_iter().find_map(Result::err).map(|error| error.to_string());
        if let Some(error) = problem.as_ref().filter(|_| problem != self.problem) {
            tracing::warn!(%error, "nodes are not protected from scale-in");
        }
        self.problem = problem;
    }
}
