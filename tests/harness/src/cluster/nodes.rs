//! Nodes of the test cluster.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU16, Ordering},
};

use serde_json::{Value, json};

use crate::{EVENT_LIMIT, Error, Kubectl};

/// Nodes with this annotation are played by `kwok` on any cluster.
pub(super) const PLAYED_NODE_ANNOTATION: (&str, &str) = ("kwok.x-k8s.io/node", "fake");

/// A node to be added: by default as large as a p5en.48xlarge.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    name: String,
    labels: BTreeMap<String, String>,
    capacity: BTreeMap<String, String>,
    provider_id: Option<String>,
    address: Option<String>,
}

impl NodeSpec {
    /// 192 CPU, 2 TiB, 10 GiB of huge pages, 8 GPUs, 16 EFA interfaces.
    #[must_use]
    pub fn gpu(name: &str) -> Self {
        let devices = [("nvidia.com/gpu", "8"), ("vpc.amazonaws.com/efa", "16")];
        let base = [("cpu", "192"), ("memory", "2Ti"), ("hugepages-2Mi", "10Gi")];
        Self::with_capacity(name, base.into_iter().chain(devices))
    }

    /// 32 CPU, 64 GiB, no devices.
    #[must_use]
    pub fn cpu(name: &str) -> Self {
        Self::with_capacity(name, [("cpu", "32"), ("memory", "64Gi")])
    }

    /// `count` GPU nodes `PREFIX-0`, `PREFIX-1` … with the same labels.
    #[must_use]
    pub fn gpu_nodes(prefix: &str, count: usize, labels: &[(&str, &str)]) -> Vec<Self> {
        let node = |number| {
            let plain = Self::gpu(&format!("{prefix}-{number}"));
            labels.iter().fold(plain, |spec, (key, value)| spec.label(key, value))
        };
        (0..count).map(node).collect()
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets which instance it is, such as `aws:///us-east-1a/i-0123456789abcdef0`.
    #[must_use]
    pub fn provider_id(mut self, provider_id: &str) -> Self {
        self.provider_id = Some(provider_id.to_owned());
        self
    }

    /// Sets its address, for a test that plays what listens there; else nothing does.
    #[must_use]
    pub fn address(mut self, address: &str) -> Self {
        self.address = Some(address.to_owned());
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn capacity(&self) -> &BTreeMap<String, String> {
        &self.capacity
    }

    fn with_capacity<'a>(
        name: &str,
        amounts: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let always = [("pods", "110"), ("ephemeral-storage", "1Ti")];
        Self {
            name: name.to_owned(),
            labels: BTreeMap::from([("kubernetes.io/hostname".to_owned(), name.to_owned())]),
            capacity: always
                .into_iter()
                .chain(amounts)
                .map(|(resource, amount)| (resource.to_owned(), amount.to_owned()))
                .collect(),
            provider_id: None,
            address: None,
        }
    }

    fn manifest(&self) -> Value {
        let address = self.address.clone().unwrap_or_else(unused_address);
        let addresses = json!([
            { "type": "InternalIP", "address": address },
            { "type": "Hostname", "address": self.name },
        ]);
        let (annotation, value) = PLAYED_NODE_ANNOTATION;
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": self.labels,
                "annotations": { annotation: value },
            },
            "spec": { "providerID": self.provider_id },
            "status": {
                "capacity": self.capacity,
                "allocatable": self.capacity,
                "addresses": addresses,
            },
        })
    }
}

/// The next of 10.1.0.1 to 10.1.255.254; nothing listens there.
fn unused_address() -> String {
    static NEXT_HOST: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT_HOST.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    format!("10.1.{high}.{low}")
}

pub(super) async fn add(kubectl: &Kubectl, nodes: &[NodeSpec]) -> Result<(), Error> {
    if nodes.is_empty() {
        return Ok(());
    }
    let manifests: Vec<Value> = nodes.iter().map(NodeSpec::manifest).collect();
    kubectl.create(&json!({ "apiVersion": "v1", "kind": "List", "items": manifests })).await?;
    let names: Vec<String> = nodes.iter().map(|node| format!("node/{}", node.name)).collect();
    let limit = format!("--timeout={}s", EVENT_LIMIT.as_secs());
    let mut arguments = vec!["wait", "--for=condition=Ready", &limit];
    arguments.extend(names.iter().map(String::as_str));
    kubectl.run(&arguments).await.map(drop)
}
