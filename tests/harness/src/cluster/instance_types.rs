//! Instance types that Karpenter may launch on a test's control plane.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::NodeSpec;

/// An instance type and where it is on offer.
///
/// Every offer has capacity: the provider overrides anything else in its file.
#[derive(Debug, Clone)]
pub struct InstanceType {
    name: String,
    resources: BTreeMap<String, String>,
    offerings: Vec<Value>,
}

impl InstanceType {
    /// As large as [`NodeSpec::gpu`]; on offer nowhere yet.
    #[must_use]
    pub fn gpu(name: &str) -> Self {
        Self::like(&NodeSpec::gpu(name))
    }

    /// As large as [`NodeSpec::cpu`]; on offer nowhere yet.
    #[must_use]
    pub fn cpu(name: &str) -> Self {
        Self::like(&NodeSpec::cpu(name))
    }

    /// Adds a Spot offer in a zone, with its price in dollars per hour.
    #[must_use]
    pub fn spot(self, zone: &str, dollars_per_hour: f64) -> Self {
        self.offer("spot", zone, dollars_per_hour)
    }

    /// Adds an on-demand offer in a zone, with its price in dollars per hour.
    #[must_use]
    pub fn on_demand(self, zone: &str, dollars_per_hour: f64) -> Self {
        self.offer("on-demand", zone, dollars_per_hour)
    }

    fn like(node: &NodeSpec) -> Self {
        Self {
            name: node.name().to_owned(),
            resources: node.capacity().clone(),
            offerings: Vec::new(),
        }
    }

    fn offer(mut self, capacity_type: &str, zone: &str, dollars_per_hour: f64) -> Self {
        let is =
            |key: &str, value: &str| json!({ "key": key, "operator": "In", "values": [value] });
        self.offerings.push(json!({
            "Price": dollars_per_hour,
            "Available": true,
            "Requirements": [
                is("karpenter.sh/capacity-type", capacity_type),
                is("topology.kubernetes.io/zone", zone),
            ],
        }));
        self
    }

    /// As the provider reads it from its file.
    pub(super) fn manifest(&self) -> Value {
        json!({
            "name": self.name,
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": self.resources,
            "offerings": self.offerings,
        })
    }
}
