//! `kwok`, which plays the kubelets with the stages in `stages.yaml`.

use std::{fs, path::Path};

use super::nodes::PLAYED_NODE_ANNOTATION;
use crate::{
    EVENT_LIMIT, Error,
    folder::RunFolder,
    http,
    port::free_port,
    process::{Launch, Service},
};

/// A pod with this annotation, whatever its value, stays for its grace when it is deleted, as one
/// does whose containers take that long to end. They end sooner by `kubectl delete
/// --grace-period=0 --force`, which is what a kubelet does then. Other pods are gone at once.
pub const PATIENT_POD_ANNOTATION: &str = "kwok.x-k8s.io/patient";

/// For nodes that were created without an address; nothing listens there.
const ADDRESS_OF_OTHER_NODES: &str = "10.0.0.1";

/// On a control plane of ours it plays every node; elsewhere only those the tests have added.
pub(super) async fn start(
    program: &Path,
    kubeconfig: &Path,
    plays_all_nodes: bool,
) -> Result<Service, Error> {
    let folder = RunFolder::create("kwok")?;
    let stages = folder.data().join("stages.yaml");
    fs::write(&stages, include_str!("stages.yaml")).map_err(Error::io("write", &stages))?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let played_nodes = if plays_all_nodes {
        // Our own control plane is patient, and a thousand leases are work for it.
        vec!["--manage-all-nodes=true".to_owned(), "--node-lease-duration-seconds=200".to_owned()]
    } else {
        let (key, value) = PLAYED_NODE_ANNOTATION;
        vec![format!("--manage-nodes-with-annotation-selector={key}={value}")]
    };
    let launch = Launch::new("kwok", program)
        .arguments(["--kubeconfig".as_ref(), kubeconfig.as_os_str()])
        .arguments(["--config".as_ref(), stages.as_os_str()])
        .arguments(played_nodes)
        .arguments(["--server-address", &address])
        .arguments(["--node-ip", ADDRESS_OF_OTHER_NODES, "--cidr", "10.2.0.1/16"]);
    let mut kwok = Service::start(launch, folder)?;
    let health_url = format!("http://{address}/healthz");
    kwok.ready("an answer over HTTP", EVENT_LIMIT, || http::answers(&health_url)).await?;
    Ok(kwok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_ask_for_the_annotation_of_patient_pods() {
        let stages = include_str!("stages.yaml");
        assert_eq!(stages.matches(&format!("[\"{PATIENT_POD_ANNOTATION}\"]")).count(), 2);
    }
}
