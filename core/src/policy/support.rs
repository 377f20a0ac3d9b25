//! What this version runs of all that a policy may say.
//!
//! A policy that asks for more than is built must be refused or answered, never followed in part
//! and in silence.

use super::{FleetPolicy, FleetSpec, Pool, Provider, ProviderKind, ScaledKind};

/// Providers that `ebbtide controller` has.
const BUILT: &[ProviderKind] =
    &[ProviderKind::Asg, ProviderKind::Fleet, ProviderKind::Scale, ProviderKind::Workers];

impl FleetSpec {
    /// The pool of the trainer, when its size is to be chosen among several.
    pub fn resized_trainer_pool(&self) -> Option<&Pool> {
        let is_resized = self.trainer.legal_sizes.len() > 1;
        self.trainer.pool.as_ref().filter(|_| is_resized).and_then(|name| self.pool(name))
    }
}

impl FleetPolicy {
    /// Why the controller of this version cannot size the worker groups of this policy; empty when
    /// it can.
    pub fn unsupported_sizing(&self) -> Vec<String> {
        let why_not = |pool: &Pool| why_not(pool, self.nodes_per_replica_in(&pool.name));
        let groups = self.sized_pools().filter_map(why_not);
        groups.chain(self.resized_trainer_pool().and_then(why_not_for_trainer)).collect()
    }
}

/// Why the controller cannot resize the trainer in this pool, if so: its nodes are one gang, which
/// grows by single nodes and gives up exactly those that the trainer has left.
fn why_not_for_trainer(pool: &Pool) -> Option<String> {
    let name = &pool.name;
    match pool.provider.kind() {
        ProviderKind::Asg | ProviderKind::Scale => None,
        other => Some(format!(
            "pool {name} of spec.trainer must have provider asg or scale when spec.trainer.\
             legalSizes has several sizes, got {}",
            other.as_str()
        )),
    }
}

/// Why the controller cannot add replicas of so many nodes to this pool, if so.
fn why_not(pool: &Pool, nodes: u16) -> Option<String> {
    let name = &pool.name;
    if !BUILT.contains(&pool.provider.kind()) {
        let words: Vec<&str> = BUILT.iter().map(|kind| kind.as_str()).collect();
        let words = words.join(" or ");
        return Some(format!("pool {name} must have provider {words} in this version"));
    }
    let single = match &pool.provider {
        Provider::Asg(_) => "provider asg",
        Provider::Scale(target) => match target.kind {
            ScaledKind::LeaderWorkerSet => return None,
            ScaledKind::StatefulSet => "a StatefulSet",
            ScaledKind::Deployment => "a Deployment",
        },
        Provider::Fleet(_) | Provider::Workers(_) | Provider::Local => return None,
    };
    (nodes != 1).then(|| {
        format!(
            "pool {name} adds single nodes ({single}), and spec.rollout.nodesPerReplica is \
             {nodes}: take provider fleet, workers, or scale of a LeaderWorkerSet"
        )
    })
}
