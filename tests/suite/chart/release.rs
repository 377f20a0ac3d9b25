//! One release of the chart in a namespace of its own.
//!
//! It also has nodes of its own, so that no agent lands on the nodes of another test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ebbtide_harness::{ControlPlane, Error, Helm, Kubectl, NodeSpec, SharedControlPlane};
use serde_json::{Value, json};

pub(super) const AGENT: &str = "agent";
pub(super) const TRAINER_AGENT: &str = "trainer-agent";
pub(super) const CONTROLLER: &str = "controller";

/// The run of the shipped policy that is installed.
pub(super) const RUN: &str = "grpo-async";

/// The leader lease of that run.
pub(super) const LEASE: &str = "ebbtide-grpo-async";

/// The label of the nodes of one test.
pub(super) const NODES_OF: &str = "chart-test";

pub(super) fn chart() -> String {
    root().join("charts/ebbtide").display().to_string()
}

pub(super) fn shipped_policy() -> PathBuf {
    root().join("policies/grpo-async.yaml")
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Values that a release needs at least.
pub(super) fn least_values() -> Value {
    let policy = fs::read_to_string(shipped_policy()).unwrap();
    json!({ "policy": policy, "redis": { "url": "redis://redis:6379" } })
}

/// A file for Helm or kubectl to read.
pub(super) fn temporary_file(folder: &str, name: &str, content: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(name);
    fs::write(&file, content).unwrap();
    file.display().to_string()
}

pub(super) struct Release {
    cluster: SharedControlPlane,
    helm: Helm,
    /// Of the namespace.
    name: String,
    /// Of the first namespace that has a release of this name.
    release_name: String,
    /// Of the nodes for this test.
    nodes: Vec<String>,
    folder: String,
    values: String,
}

impl Release {
    pub(super) async fn new(cluster: SharedControlPlane, prefix: &str) -> Result<Self, Error> {
        let name = cluster.unique_name(prefix);
        Self::with_names(cluster, name.clone(), name).await
    }

    /// A release of the same name in another namespace, without nodes to run on.
    pub(super) async fn neighbour(&self) -> Result<Self, Error> {
        let name = format!("neighbour-{}", std::process::id());
        Self::with_names(ControlPlane::shared().await?, name, self.release_name.clone()).await
    }

    async fn with_names(
        cluster: SharedControlPlane,
        name: String,
        release_name: String,
    ) -> Result<Self, Error> {
        let helm = cluster.helm()?;
        cluster.create_namespace(&name).await?;
        let mut values = least_values();
        for part in [AGENT, CONTROLLER] {
            values[part] = json!({ "nodeSelector": { NODES_OF: name } });
        }
        let values = temporary_file(&name, "values.json", &values.to_string());
        let folder = Path::new(&values).parent().unwrap().display().to_string();
        Ok(Self { cluster, helm, name, release_name, nodes: Vec::new(), folder, values })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn release_name(&self) -> &str {
        &self.release_name
    }

    pub(super) fn admin(&self) -> &Kubectl {
        self.cluster.kubectl()
    }

    pub(super) fn in_space(&self) -> [&str; 2] {
        ["--namespace", &self.name]
    }

    pub(super) fn folder(&self) -> &str {
        &self.folder
    }

    pub(super) fn file(&self, name: &str, content: &str) -> String {
        temporary_file(&self.name, name, content)
    }

    pub(super) async fn add_nodes(&mut self, count: usize) -> Vec<String> {
        let nodes = NodeSpec::gpu_nodes(&self.name, count, &[(NODES_OF, &self.name)]);
        self.cluster.add_nodes(&nodes).await.unwrap();
        self.nodes = nodes.iter().map(|node| node.name().to_owned()).collect();
        self.nodes.clone()
    }

    /// Nodes of this release beside [`Self::add_nodes`], with more labels.
    pub(super) async fn add_nodes_with(&mut self, names: &[String], labels: &[(&str, &str)]) {
        let of_release = (NODES_OF, self.name.clone());
        let node = |name: &String| {
            let node = NodeSpec::gpu(name).label(of_release.0, &of_release.1);
            labels.iter().fold(node, |node, (key, value)| node.label(key, value))
        };
        let nodes: Vec<NodeSpec> = names.iter().map(node).collect();
        self.cluster.add_nodes(&nodes).await.unwrap();
        self.nodes.extend(names.iter().cloned());
    }

    pub(super) fn cluster(&self) -> &ControlPlane {
        &self.cluster
    }

    pub(super) async fn install(&self, options: &[&str]) {
        let chart = chart();
        self.helm(&self.arguments("install", &chart, options)).await;
    }

    pub(super) async fn upgrade(&self, options: &[&str]) {
        self.upgrade_to(&chart(), options).await;
    }

    pub(super) async fn upgrade_to(&self, chart: &str, options: &[&str]) {
        self.helm(&self.arguments("upgrade", chart, options)).await;
    }

    pub(super) async fn render(&self, options: &[&str]) -> String {
        let chart = chart();
        self.helm.run(&self.arguments("template", &chart, options)).await.unwrap()
    }

    pub(super) async fn helm(&self, arguments: &[&str]) {
        self.helm.run(arguments).await.unwrap();
    }

    pub(super) async fn kubectl(&self, arguments: &[&str]) {
        self.admin().run(arguments).await.unwrap();
    }

    /// A kubeconfig with a token of the account of one part.
    pub(super) async fn account(&self, part: &str) -> PathBuf {
        self.cluster.account_kubeconfig(&self.name, &self.object(part)).await.unwrap()
    }

    /// The name of the release's objects for a part.
    pub(super) fn object(&self, part: &str) -> String {
        format!("{}-ebbtide-{part}", self.release_name)
    }

    pub(super) async fn get(&self, kind: &str, part: &str) -> Value {
        let object = self.object(part);
        self.admin().get(&[&[kind, &object], &self.in_space()[..]].concat()).await.unwrap()
    }

    pub(super) async fn pods(&self, part: &str) -> Vec<Value> {
        let selector = format!("--selector=app.kubernetes.io/component={part}");
        let arguments = [&["pods", &selector], &self.in_space()[..]].concat();
        let mut list = self.admin().get(&arguments).await.unwrap();
        list["items"].as_array_mut().map(std::mem::take).unwrap()
    }

    /// All objects of the cluster that are in this namespace or named after it, as `KIND SPACE
    /// NAME`; none when the server cannot answer just now.
    pub(super) async fn inventory(&self) -> Option<BTreeSet<String>> {
        let listed = ["api-resources", "--verbs=list", "--output=name"];
        let kinds = self.admin().run(&listed).await.ok()?;
        // Events stay for an hour, whatever happens to what they tell of.
        let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
        let columns = "custom-columns=:.kind,:.metadata.namespace,:.metadata.name";
        let all = ["get", &kinds.join(","), "--all-namespaces", "--no-headers", "-o", columns];
        let found = self.admin().run(&all).await.ok()?;
        let ours = found.lines().filter(|line| line.contains(&self.name));
        Some(ours.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect())
    }

    /// Removes what this test has made; the namespace takes seconds to go, and nobody waits.
    pub(super) async fn close(self) {
        // What a release has outside of its namespace does not go with it.
        let uninstall = ["uninstall", &self.release_name, "--ignore-not-found"];
        self.helm(&[&uninstall[..], &self.in_space()].concat()).await;
        self.kubectl(&["delete", "namespace", &self.name, "--wait=false"]).await;
        let nodes: Vec<&str> = self.nodes.iter().map(String::as_str).collect();
        if !nodes.is_empty() {
            self.cluster.remove_nodes(&nodes).await.unwrap();
        }
    }

    fn arguments<'a>(&'a self, verb: &'a str, chart: &'a str, options: &[&'a str]) -> Vec<&'a str> {
        let all = [verb, &self.release_name, chart, "--values", &self.values];
        [&all[..], &self.in_space(), options].concat()
    }
}
