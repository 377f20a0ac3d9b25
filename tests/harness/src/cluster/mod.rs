//! A real Kubernetes control plane: etcd, API server, controller manager and scheduler, with `kwok`
//! playing the kubelets.
//!
//! Pods on it "run" as soon as they are scheduled, but no container is ever started. Everything
//! else is real: RBAC, admission, eviction and disruption budgets, defaults, conflicts, garbage
//! collection, node leases. With `EBBTIDE_TEST_KUBECONFIG` the tests use that cluster instead, and
//! `kwok` plays only the nodes that tests add to it.
//!
//! Two controllers can be added to a control plane: that of LeaderWorkerSets, and Karpenter.

mod crds;
mod credentials;
mod instance_types;
mod karpenter;
mod kwok;
mod lws;
mod nodes;
mod servers;

use std::{
    env,
    ops::Deref,
    path::{Path, PathBuf},
    process, thread,
};

use serde_json::json;
use tokio::sync::OnceCell;

pub use credentials::NARROW_USERS;
pub use instance_types::InstanceType;
pub use karpenter::Karpenter;
pub use kwok::PATIENT_POD_ANNOTATION;
pub use lws::LwsController;
pub use nodes::NodeSpec;

use crate::{
    EVENT_LIMIT, Error, Helm, Kubectl, folder::RunFolder, parts, process::Service, report, until,
};
use servers::Servers;

/// A control plane; ended on drop.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: clients before the servers they talk to.
    lws: OnceCell<LwsController>,
    kwok: Service,
    servers: Option<Servers>,
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    folder: RunFolder,
}

impl ControlPlane {
    /// Starts one of this test's own (1.5 to 5 s), for tests that stop its API server.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when a part is missing; others when a server does not get ready.
    pub async fn start() -> Result<Self, Error> {
        let kubectl = Kubectl::find()?;
        let kwok = parts::KWOK.locate()?;
        let folder = RunFolder::create("cluster")?;
        let (servers, kubeconfig) = match env::var_os("EBBTIDE_TEST_KUBECONFIG") {
            Some(own) => (None, PathBuf::from(own)),
            None => {
                let servers = Servers::start(&folder, &kubectl).await?;
                let kubeconfig = servers.credentials().admin_kubeconfig();
                (Some(servers), kubeconfig)
            }
        };
        let kubectl = kubectl.with_kubeconfig(&kubeconfig);
        let kwok_service = kwok::start(&kwok.path, &kubeconfig, servers.is_some()).await?;
        report::took_part(&parts::KWOK, &kwok.version);
        let lws = OnceCell::new();
        let cluster = Self { lws, kwok: kwok_service, servers, kubectl, kubeconfig, folder };
        cluster.default_account_exists("default").await?;
        Ok(cluster)
    }

    /// The one control plane of this test process, started by the first test that asks.
    ///
    /// Tests share it by namespace and by node names of their own. It ends with the process.
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; the next test that asks tries again.
    pub async fn shared() -> Result<SharedControlPlane, Error> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await.map(SharedControlPlane)
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// kubectl as administrator.
    #[must_use]
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Helm as administrator.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] when it is not installed.
    pub fn helm(&self) -> Result<Helm, Error> {
        Ok(Helm::find()?.with_kubeconfig(&self.kubeconfig))
    }

    /// Kubeconfig of one of [`NARROW_USERS`], who may do nothing but what a test binds to them.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] on a cluster that the harness did not start.
    pub fn narrow_kubeconfig(&self, user: &str) -> Result<PathBuf, Error> {
        let file = self.own_servers()?.credentials().kubeconfig_of(user);
        if file.exists() {
            return Ok(file);
        }
        Err(Error::Unexpected(format!("{user} is none of {NARROW_USERS:?}")))
    }

    /// Kubeconfig of a service account, with a token the API server minted for it.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when there is no such account.
    pub async fn account_kubeconfig(&self, space: &str, name: &str) -> Result<PathBuf, Error> {
        let token = self.kubectl.run(&["create", "token", "--namespace", space, name]).await?;
        let view = ["config", "view", "--raw", "--minify", "--flatten", "--output", "json"];
        let content = self.kubectl.run(&view).await?;
        let file = self.folder.data().join(format!("{space}.{name}.kubeconfig"));
        credentials::write_for_token(&file, &content, token.trim())?;
        Ok(file)
    }

    /// A name for a namespace or node that no other test process uses on the same cluster.
    #[must_use]
    pub fn unique_name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", process::id())
    }

    /// Creates a namespace and waits until pods can be created in it.
    ///
    /// # Errors
    ///
    /// When the server refuses it, or no default service account appears within 30 s.
    pub async fn create_namespace(&self, name: &str) -> Result<(), Error> {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.kubectl.create(&namespace).await?;
        self.default_account_exists(name).await
    }

    /// Creates nodes and waits until each is Ready.
    ///
    /// # Errors
    ///
    /// When the server refuses one, or one is not Ready within 60 s.
    pub async fn add_nodes(&self, nodes: &[NodeSpec]) -> Result<(), Error> {
        nodes::add(&self.kubectl, nodes).await
    }

    /// Deletes nodes, as happens when their instances are terminated.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] when one does not exist.
    pub async fn remove_nodes(&self, names: &[&str]) -> Result<(), Error> {
        self.kubectl.run(&[&["delete", "node"], names].concat()).await.map(drop)
    }

    /// Ends the API server and waits for that; its port refuses connections afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] on a cluster that the harness did not start.
    pub async fn stop_apiserver(&mut self) -> Result<(), Error> {
        self.own_servers_mut()?.stop_apiserver().await
    }

    /// Starts the API server again, on the same port and data.
    ///
    /// # Errors
    ///
    /// When it does not get ready; [`Error::Missing`] on a cluster that the harness did not start.
    pub async fn start_apiserver(&mut self) -> Result<(), Error> {
        let kubectl = self.kubectl.clone();
        self.own_servers_mut()?.start_apiserver(&kubectl).await
    }

    fn own_servers(&self) -> Result<&Servers, Error> {
        self.servers.as_ref().ok_or_else(not_ours)
    }

    fn own_servers_mut(&mut self) -> Result<&mut Servers, Error> {
        self.servers.as_mut().ok_or_else(not_ours)
    }

    /// Until the controller manager has made it, admission refuses every pod of the namespace.
    async fn default_account_exists(&self, space: &str) -> Result<(), Error> {
        let what = format!("the default service account of namespace {space}");
        until(&what, EVENT_LIMIT, || async {
            let arguments = ["get", "serviceaccount", "default", "--namespace", space];
            self.kubectl.run(&arguments).await.ok()
        })
        .await
        .map(drop)
    }
}

fn not_ours() -> Error {
    let how = "this test needs the harness's own; unset EBBTIDE_TEST_KUBECONFIG";
    Error::missing(parts::CONTROL_PLANE.name, how)
}

/// The shared control plane, in the hands of one test.
#[derive(Debug)]
pub struct SharedControlPlane(&'static ControlPlane);

impl Deref for SharedControlPlane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        self.0
    }
}

impl Drop for SharedControlPlane {
    fn drop(&mut self) {
        if thread::panicking() {
            let Some(servers) = &self.0.servers else { return };
            eprintln!("logs of the shared control plane:");
            let lws = self.0.lws.get().map(LwsController::log);
            for log in servers.logs().chain([self.0.kwok.log()]).chain(lws) {
                eprintln!("  {}", log.display());
            }
        }
    }
}
