//! The four servers of the control plane and their flags.

use std::path::{Path, PathBuf};

use super::credentials::Credentials;
use crate::{
    EVENT_LIMIT, Error, Kubectl,
    folder::RunFolder,
    http, parts,
    port::free_port,
    process::{Launch, Service},
    report,
};

#[derive(Debug)]
pub(crate) struct Servers {
    // Dropped in this order: clients before the servers they talk to.
    scheduler: Service,
    controller_manager: Service,
    apiserver: Service,
    etcd: Service,
    scheduler_port: u16,
    controller_manager_port: u16,
    credentials: Credentials,
}

impl Servers {
    pub(crate) async fn start(folder: &RunFolder, kubectl: &Kubectl) -> Result<Self, Error> {
        let located = parts::CONTROL_PLANE.locate()?;
        let programs = located.path;
        let apiserver_port = free_port()?;
        let server_url = format!("https://127.0.0.1:{apiserver_port}");
        let credentials = Credentials::create(&folder.data(), server_url)?;
        let admin = kubectl.clone().with_kubeconfig(&credentials.admin_kubeconfig());

        let (etcd, etcd_url) = start_etcd(&programs).await?;
        let mut apiserver = start_apiserver(&programs, &credentials, apiserver_port, &etcd_url)?;
        apiserver_ready(&mut apiserver, &admin).await?;
        let (controller_manager_port, scheduler_port) = (free_port()?, free_port()?);
        let mut servers = Self {
            scheduler: start_scheduler(&programs, &credentials, scheduler_port)?,
            controller_manager: start_controller_manager(
                &programs,
                &credentials,
                controller_manager_port,
            )?,
            apiserver,
            etcd,
            scheduler_port,
            controller_manager_port,
            credentials,
        };
        servers.controllers_ready(&admin).await?;
        report::took_part(&parts::CONTROL_PLANE, &located.version);
        Ok(servers)
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub(crate) fn logs(&self) -> impl Iterator<Item = PathBuf> + '_ {
        [&self.apiserver, &self.controller_manager, &self.scheduler, &self.etcd]
            .into_iter()
            .map(Service::log)
    }

    pub(crate) async fn stop_apiserver(&mut self) -> Result<(), Error> {
        self.apiserver.terminate(EVENT_LIMIT).await
    }

    pub(crate) async fn start_apiserver(&mut self, admin: &Kubectl) -> Result<(), Error> {
        self.apiserver.spawn()?;
        apiserver_ready(&mut self.apiserver, admin).await
    }

    async fn controllers_ready(&mut self, admin: &Kubectl) -> Result<(), Error> {
        for (service, port) in [
            (&mut self.controller_manager, self.controller_manager_port),
            (&mut self.scheduler, self.scheduler_port),
        ] {
            let server = format!("--server=https://127.0.0.1:{port}");
            let arguments = [&server, "get", "--raw", "/healthz"];
            service
                .ready("/healthz to answer ok", EVENT_LIMIT, || async {
                    admin.run(&arguments).await.is_ok()
                })
                .await?;
        }
        Ok(())
    }
}

async fn start_etcd(programs: &Path) -> Result<(Service, String), Error> {
    let client_url = format!("http://127.0.0.1:{}", free_port()?);
    let peer_url = format!("http://127.0.0.1:{}", free_port()?);
    let launch = Launch::new("etcd", programs.join("etcd"))
        .arguments(["--data-dir", "etcd", "--unsafe-no-fsync", "--logger", "zap"])
        .arguments(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
        .arguments(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
        .arguments(["--initial-cluster", &format!("default={peer_url}")]);
    let mut etcd = Service::start(launch, RunFolder::create("etcd")?)?;
    let health_url = format!("{client_url}/health");
    etcd.ready("an answer over HTTP", EVENT_LIMIT, || http::answers(&health_url)).await?;
    Ok((etcd, client_url))
}

fn start_apiserver(
    programs: &Path,
    credentials: &Credentials,
    port: u16,
    etcd_url: &str,
) -> Result<Service, Error> {
    let launch = Launch::new("kube-apiserver", programs.join("kube-apiserver"))
        .arguments(["--bind-address=127.0.0.1", &format!("--secure-port={port}")])
        .arguments([&format!("--etcd-servers={etcd_url}")])
        .arguments(["--authorization-mode=Node,RBAC"])
        .arguments(["--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true"])
        .arguments(["--service-account-issuer=https://kubernetes.default.svc"])
        .arguments(["--requestheader-allowed-names=front-proxy"])
        // Otherwise the watches of the others keep a stopping server up for a minute.
        .arguments(["--shutdown-watch-termination-grace-period=1s"])
        .arguments([
            flag("--client-ca-file", &credentials.authority()),
            flag("--requestheader-client-ca-file", &credentials.authority()),
            flag("--tls-cert-file", &credentials.server_certificate()),
            flag("--tls-private-key-file", &credentials.server_key()),
            flag("--service-account-key-file", &credentials.account_public_key()),
            flag("--service-account-signing-key-file", &credentials.account_key()),
            flag("--token-auth-file", &credentials.tokens()),
        ]);
    Service::start(launch, RunFolder::create("kube-apiserver")?)
}

async fn apiserver_ready(apiserver: &mut Service, admin: &Kubectl) -> Result<(), Error> {
    apiserver
        .ready("/readyz to answer ok", EVENT_LIMIT, || async {
            admin.run(&["get", "--raw", "/readyz"]).await.is_ok()
        })
        .await
}

fn start_controller_manager(
    programs: &Path,
    credentials: &Credentials,
    port: u16,
) -> Result<Service, Error> {
    let launch = client_of_apiserver("kube-controller-manager", programs, credentials, port)
        .arguments(["--use-service-account-credentials=false"])
        // No kubelet here falls silent but for a machine that does too much else.
        .arguments(["--node-monitor-grace-period=10m"])
        .arguments([
            flag("--service-account-private-key-file", &credentials.account_key()),
            flag("--root-ca-file", &credentials.authority()),
        ]);
    Service::start(launch, RunFolder::create("kube-controller-manager")?)
}

fn start_scheduler(
    programs: &Path,
    credentials: &Credentials,
    port: u16,
) -> Result<Service, Error> {
    let launch = client_of_apiserver("kube-scheduler", programs, credentials, port);
    Service::start(launch, RunFolder::create("kube-scheduler")?)
}

fn client_of_apiserver(
    name: &'static str,
    programs: &Path,
    credentials: &Credentials,
    port: u16,
) -> Launch {
    let admin = credentials.admin_kubeconfig();
    Launch::new(name, programs.join(name))
        .arguments(["--bind-address=127.0.0.1", "--leader-elect=false"])
        .arguments([format!("--secure-port={port}")])
        // A managed control plane of a thousand nodes is not kept to 20 calls a second either.
        .arguments(["--kube-api-qps=500", "--kube-api-burst=1000"])
        .arguments([
            flag("--kubeconfig", &admin),
            flag("--authentication-kubeconfig", &admin),
            flag("--authorization-kubeconfig", &admin),
            flag("--tls-cert-file", &credentials.server_certificate()),
            flag("--tls-private-key-file", &credentials.server_key()),
        ])
}

fn flag(name: &str, file: &Path) -> String {
    format!("{name}={}", file.display())
}
