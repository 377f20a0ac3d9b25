//! What this version runs of all that a policy may say.
//!
//! A policy that asks for more than is built must be refused or answered, never followed in part
//! and in silence.

use super::{FleetPolicy, Pool, Provider, ProviderKind, ScaledKind};

/// Providers that `ebbtide controller` has.
const BUILT: &[ProviderKind] =
    &[ProviderKind::Asg, ProviderKind::Fleet, ProviderKind::Scale, ProviderKind::Workers];

impl FleetPolicy {
    /// Why the controller of this version cannot size the worker groups of this policy; empty when
    /// it can.
    pub fn unsupported_sizing(&self) -> Vec<String> {
        let why_not = |pool: &Pool| why_not(pool, self.nodes_per_replica_in(&pool.name));
        self.sized_pools().filter_map(why_not).collect()
    }

    /// Keys that were set, are valid, and do nothing in this version.
    pub fn not_in_force(&self) -> Vec<&'static str> {
        let set = [("spec.trainer.legalSizes", !self.trainer.legal_sizes.is_empty())];
        set.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
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
