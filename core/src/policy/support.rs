//! What this version runs of all that a policy may say.
//!
//! A policy that asks for more than is built must be refused or answered, never followed in part
//! and in silence.

use super::{FleetPolicy, Provider};

impl FleetPolicy {
    /// Why the controller of this version cannot size the rollouts of this policy; empty when it
    /// can.
    pub fn unsupported_sizing(&self) -> Vec<String> {
        let nodes = self.rollout.nodes_per_replica;
        let grouped = (nodes != 1).then(|| {
            format!(
                "spec.rollout.nodesPerReplica must be 1 in this version of the controller, got \
                 {nodes}: it does not add or remove groups of nodes yet"
            )
        });
        let is_other = |provider: &Provider| !matches!(provider, Provider::Asg(_));
        let pools = self.rollout_pools().filter(|pool| is_other(&pool.provider)).map(|pool| {
            format!("pool {} must have provider asg in this version of the controller", pool.name)
        });
        grouped.into_iter().chain(pools).collect()
    }

    /// Keys that were set, are valid, and do nothing in this version.
    pub fn not_in_force(&self) -> Vec<&'static str> {
        let set = [
            ("spec.environment", self.environment.is_some()),
            ("spec.trainer.legalSizes", !self.trainer.legal_sizes.is_empty()),
        ];
        set.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
    }
}
