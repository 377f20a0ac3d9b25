//! The real LeaderWorkerSet controller, with its webhooks.
//!
//! The API server calls the webhooks at 127.0.0.1, with its own certificate's authority. They see
//! LeaderWorkerSets and the pods of these; every other pod of the control plane is left alone, as
//! in an installation of the controller.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::{Deserializer, Value, json};

use super::{ControlPlane, crds, credentials::Credentials};
use crate::{
    EVENT_LIMIT, Error, Kubectl,
    folder::RunFolder,
    parts,
    port::free_port,
    process::{Launch, Service},
    report,
};

/// On every pod of a LeaderWorkerSet, from the controller or from the webhook.
const SET_NAME_LABEL: &str = "leaderworkerset.sigs.k8s.io/name";

/// The LeaderWorkerSet controller of one control plane; ended with it.
#[derive(Debug)]
pub struct LwsController {
    service: Service,
}

impl LwsController {
    /// Starts it (4 s) and waits until a LeaderWorkerSet can be created.
    ///
    /// A control plane has one, started by the first test that asks: two would work against each
    /// other. So the shared control plane will do; each test looks at the sets of its own
    /// namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not installed, and on a cluster that the harness did not
    /// start, whose API server could not call the webhooks; others, with the end of its log, when
    /// it does not get ready. The next test that asks tries again.
    pub async fn start(cluster: &ControlPlane) -> Result<&Self, Error> {
        cluster.lws.get_or_try_init(|| Self::start_on(cluster)).await
    }

    /// The file that it logs to.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.service.log()
    }

    async fn start_on(cluster: &ControlPlane) -> Result<Self, Error> {
        let located = parts::LEADER_WORKER_SET.locate()?;
        let credentials = cluster.own_servers()?.credentials();
        let kubectl = cluster.kubectl();
        crds::apply(kubectl, &located.crds()).await?;

        let folder = RunFolder::create("leaderworkerset")?;
        let data = folder.data();
        let port = free_port()?;
        let configuration = data.join("configuration.json");
        let settings = manager_settings(&data, port).to_string();
        fs::write(&configuration, settings).map_err(Error::io("write", &configuration))?;
        link_certificate(credentials, &data)?;
        let launch = Launch::new("leaderworkerset", located.path.clone())
            .arguments(["--config".as_ref(), configuration.as_os_str()])
            .variable("KUBECONFIG", &cluster.kubeconfig().display().to_string());
        let mut service = Service::start(launch, folder)?;

        register_webhooks(kubectl, &located.webhooks(), port).await?;
        let probe = data.join("probe.json");
        fs::write(&probe, smallest_set().to_string()).map_err(Error::io("write", &probe))?;
        service
            .ready("the defaults of a LeaderWorkerSet", EVENT_LIMIT, || {
                gets_defaults(kubectl, &probe)
            })
            .await?;
        report::took_part(&parts::LEADER_WORKER_SET, &located.version);
        Ok(Self { service })
    }
}

/// Everything on 127.0.0.1, and only one of it, so nothing to elect.
fn manager_settings(certificate_folder: &Path, webhook_port: u16) -> Value {
    json!({
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": { "leaderElect": false },
        "internalCertManagement": { "enable": false },
        "metrics": { "bindAddress": "0" },
        "health": { "healthProbeBindAddress": "0" },
        "webhook": { "host": "127.0.0.1", "port": webhook_port, "certDir": certificate_folder },
    })
}

/// The manager asks for these names. The certificate is the API server's, for 127.0.0.1.
fn link_certificate(credentials: &Credentials, folder: &Path) -> Result<(), Error> {
    for (file, name) in
        [(credentials.server_certificate(), "tls.crt"), (credentials.server_key(), "tls.key")]
    {
        let link = folder.join(name);
        symlink(file, &link).map_err(Error::io("link", &link))?;
    }
    Ok(())
}

async fn register_webhooks(kubectl: &Kubectl, manifest: &Path, port: u16) -> Result<(), Error> {
    let misread = |what: &str| Error::Unexpected(format!("kubectl answered no {what}"));
    let manifest = manifest.display().to_string();
    // kubectl turns the YAML into JSON, one object after the other.
    let convert = ["create", "--dry-run=client", "--output", "json", "--filename", &manifest];
    let text = kubectl.run(&convert).await?;
    let configurations: Result<Vec<Value>, _> = Deserializer::from_str(&text).into_iter().collect();
    let view = ["config", "view", "--raw", "--flatten", "--output", "json"];
    let kubeconfig: Value =
        serde_json::from_str(&kubectl.run(&view).await?).map_err(|_| misread("kubeconfig"))?;
    let authority = &kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"];

    let mut configurations = configurations.map_err(|_| misread("webhook configurations"))?;
    for configuration in &mut configurations {
        for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
            call_at(webhook, &format!("https://127.0.0.1:{port}"), authority);
        }
    }
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": configurations });
    kubectl.apply(&list).await
}

/// An address in place of the service, which nobody plays here; and of all pods only those of a
/// LeaderWorkerSet, as the module's own installation restricts it.
fn call_at(webhook: &mut Value, address: &str, authority: &Value) {
    let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default();
    let url = format!("{address}{path}");
    webhook["clientConfig"] = json!({ "url": url, "caBundle": authority });
    let rules = webhook["rules"].as_array().into_iter().flatten();
    let mut resources = rules.flat_map(|rule| rule["resources"].as_array().into_iter().flatten());
    if resources.any(|resource| resource == "pods") {
        webhook["objectSelector"] =
            json!({ "matchExpressions": [{ "key": SET_NAME_LABEL, "operator": "Exists" }] });
    }
}

fn smallest_set() -> Value {
    let containers = json!([{ "name": "probe", "image": "played" }]);
    json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": { "name": "probe", "namespace": "default" },
        "spec": { "leaderWorkerTemplate": {
            "workerTemplate": { "spec": { "containers": containers } },
        } },
    })
}

/// Whether the server would create it with a default that only the webhook sets. The manager
/// serves its webhooks last, so its controllers watch by then.
async fn gets_defaults(kubectl: &Kubectl, probe: &Path) -> bool {
    let probe = probe.display().to_string();
    let create = ["create", "--dry-run=server", "--output", "json", "--filename", &probe];
    let Ok(text) = kubectl.run(&create).await else { return false };
    serde_json::from_str::<Value>(&text)
        .is_ok_and(|set| set["spec"]["networkConfig"]["subdomainPolicy"] == "Shared")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_for_pods_sees_only_those_of_a_leader_worker_set() {
        let webhook = |resource: &str| {
            let mut webhook = json!({
                "name": "a",
                "clientConfig": { "service": { "name": "b", "path": "/mutate" } },
                "rules": [{ "resources": [resource] }],
            });
            call_at(&mut webhook, "https://127.0.0.1:1", &json!("Zm9v"));
            webhook
        };
        let for_pods = webhook("pods");
        let expected = json!({ "url": "https://127.0.0.1:1/mutate", "caBundle": "Zm9v" });
        assert_eq!(for_pods["clientConfig"], expected);
        assert_eq!(for_pods["objectSelector"]["matchExpressions"][0]["key"], SET_NAME_LABEL);
        assert!(webhook("leaderworkersets").get("objectSelector").is_none());
    }
}
