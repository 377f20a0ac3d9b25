//! The real Karpenter, with the provider that makes Node objects instead of instances.
//!
//! It takes nodes away as well as it makes them, and its cluster state covers every node and pod.
//! So it gets a control plane of the test's own and never the shared one.
//!
//! Its health and its metrics are served on all addresses of the machine, not only on 127.0.0.1:
//! Karpenter has no setting for it.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::{ControlPlane, InstanceType, crds};
use crate::{
    EVENT_LIMIT, Error,
    folder::RunFolder,
    http, parts,
    port::free_port,
    process::{Launch, Service},
    report,
};

/// Karpenter on one control plane; killed on drop.
#[derive(Debug)]
pub struct Karpenter {
    service: Service,
}

impl Karpenter {
    /// Starts it (2 s) and waits until it has seen the cluster.
    ///
    /// It launches only these types, and for pods that a node pool allows; see
    /// [`Self::node_pool`]. What it launches is played by `kwok` like every node. The control
    /// plane is borrowed alone for the start, because [`ControlPlane::shared`] will not do.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not installed, and on a cluster that the harness did not
    /// start; others, with the end of its log, when it does not get ready.
    pub async fn start(
        cluster: &mut ControlPlane,
        instance_types: &[InstanceType],
    ) -> Result<Self, Error> {
        let located = parts::KARPENTER.locate()?;
        cluster.own_servers()?;
        crds::apply(cluster.kubectl(), &located.crds()).await?;

        let folder = RunFolder::create("karpenter")?;
        let types_file = folder.data().join("instance-types.json");
        let types: Value = instance_types.iter().map(InstanceType::manifest).collect();
        fs::write(&types_file, types.to_string()).map_err(Error::io("write", &types_file))?;
        let health_port = free_port()?;
        let launch = Launch::new("karpenter", located.path)
            .variable("KUBECONFIG", &cluster.kubeconfig().display().to_string())
            .variable("INSTANCE_TYPES_FILE_PATH", &types_file.display().to_string())
            .variable("HEALTH_PROBE_PORT", &health_port.to_string())
            .variable("METRICS_PORT", &free_port()?.to_string())
            .variable("SYSTEM_NAMESPACE", "kube-system")
            .variable("DISABLE_LEADER_ELECTION", "true");
        let mut service = Service::start(launch, folder)?;
        let ready_url = format!("http://127.0.0.1:{health_port}/readyz");
        service.ready("/readyz to answer ok", EVENT_LIMIT, || http::succeeds(&ready_url)).await?;
        report::took_part(&parts::KARPENTER, &located.version);
        Ok(Self { service })
    }

    /// The manifest of a node pool and its node class, both with this name, for all instance types.
    ///
    /// It leaves nodes in peace: none expires and none is consolidated. A change of the template
    /// drifts them, and any number may then be disrupted at once.
    #[must_use]
    pub fn node_pool(name: &str) -> Value {
        let class = json!({
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": { "name": name },
        });
        let class_reference =
            json!({ "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": name });
        let any_market = json!({
            "key": "karpenter.sh/capacity-type",
            "operator": "In",
            "values": ["spot", "on-demand"],
        });
        let pool = json!({
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": { "name": name },
            "spec": {
                "template": { "spec": {
                    "nodeClassRef": class_reference,
                    "requirements": [any_market],
                    "expireAfter": "Never",
                } },
                "disruption": {
                    "consolidationPolicy": "WhenEmpty",
                    "consolidateAfter": "Never",
                    "budgets": [{ "nodes": "100%" }],
                },
            },
        });
        json!({ "apiVersion": "v1", "kind": "List", "items": [class, pool] })
    }

    /// The file that it logs to.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.service.log()
    }
}
