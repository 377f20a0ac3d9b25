//! One agent in this process on a node of a real cluster: its queue is in memory, its metadata
//! service and engine are emulated, its API server is real, or stands behind a [`Faulty`] way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_agent::emulator::engine::ResponseLengths;
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator, ImdsEmulator, InstanceIdentity};
use ebbtide_agent::engine::DetectedEngine;
use ebbtide_agent::kubernetes::KubePods;
use ebbtide_agent::marks::KubeMarks;
use ebbtide_agent::{
    Agent, AgentConfig, AgentError, AgentHandle, AgentReport, ImdsClient, Outside, Pace,
    agent_holder,
};
use ebbtide_core::ids::ReplicaId;
use ebbtide_harness::{ControlPlane, Kubectl, NodeSpec, PATIENT_POD_ANNOTATION, Program, until};
use ebbtide_queue::client::{MemoryPort, WorkQueue, wall_clock_now};
use ebbtide_queue::control::{DrainReason, DrainRequest, NodeNames, NodeState};
use ebbtide_queue::memory::ShardSettings;
use ebbtide_queue::state::{SlotState, UnitSnapshot};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use super::faulty::client;
use crate::programs::EVENT_LIMIT;

/// The key of our taint.
pub const OURS: &str = "ebbtide.dev/interruption";

/// A namespace and nodes of a test.
pub struct Space<'a> {
    pub cluster: &'a ControlPlane,
    pub name: String,
    pub node: String,
}

impl<'a> Space<'a> {
    /// A namespace, and one node of the same name.
    pub async fn new(cluster: &'a ControlPlane, prefix: &str) -> Self {
        let name = cluster.unique_name(prefix);
        cluster.create_namespace(&name).await.unwrap();
        cluster.add_nodes(&[NodeSpec::gpu(&name)]).await.unwrap();
        Self { cluster, node: name.clone(), name }
    }

    pub fn kubectl(&self) -> &Kubectl {
        self.cluster.kubectl()
    }

    /// A pod that runs on the node, with this label.
    pub async fn run_pod(&self, name: &str, label: &str) {
        self.kubectl().create(&pod(&self.name, name, label, &self.node)).await.unwrap();
        self.pod_becomes(name, "to run", |pod| pod["status"]["phase"] == "Running").await;
    }

    /// A disruption budget that keeps every pod with this label.
    pub async fn keep_pods(&self, budget: &str, label: &str) {
        let budget_object = json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": { "namespace": self.name, "name": budget },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": label } } },
        });
        self.kubectl().create(&budget_object).await.unwrap();
        until("the budget to be counted", EVENT_LIMIT, || async {
            let get = ["poddisruptionbudget", budget, "--namespace", &self.name];
            let status = self.kubectl().get(&get).await.ok()?["status"].take();
            (status["currentHealthy"] == 1 && status["disruptionsAllowed"] == 0).then_some(())
        })
        .await
        .unwrap();
    }

    /// The pod, if it is there.
    pub async fn pod(&self, name: &str) -> Option<Value> {
        let get = ["pod", name, "--namespace", &self.name, "--ignore-not-found"];
        let text = self.kubectl().run(&[&["get", "--output=json"], &get[..]].concat()).await;
        serde_json::from_str(&text.unwrap()).ok()
    }

    pub async fn pod_becomes(&self, name: &str, what: &str, is_wanted: impl Fn(&Value) -> bool) {
        until(&format!("pod {name} {what}"), EVENT_LIMIT, || async {
            self.pod(name).await.filter(|pod| is_wanted(pod))
        })
        .await
        .unwrap();
    }

    pub async fn pod_goes(&self, name: &str) {
        until(&format!("pod {name} to go"), EVENT_LIMIT, || async {
            self.pod(name).await.is_none().then_some(())
        })
        .await
        .unwrap();
    }

    pub async fn node_object(&self, node: &str) -> Value {
        self.kubectl().get(&["node", node]).await.unwrap()
    }

    pub async fn node_becomes(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        until(&format!("the node {what}"), EVENT_LIMIT, || async {
            let node = self.kubectl().get(&["node", &self.node]).await.ok()?;
            is_wanted(&node).then_some(node)
        })
        .await
        .unwrap()
    }

    /// Waits for an event on the node, and gives its message.
    pub async fn event(&self, reason: &str) -> String {
        let selector =
            format!("--field-selector=involvedObject.name={},reason={reason}", self.node);
        until(&format!("event {reason}"), EVENT_LIMIT, || async {
            let get = ["events", "--namespace=default", &selector];
            let events = self.kubectl().get(&get).await.ok()?;
            events["items"].as_array()?.first()?["message"].as_str().map(str::to_owned)
        })
        .await
        .unwrap()
    }

    /// Starts an agent on the node; see [`Running`].
    pub async fn start_agent(&self, change: impl FnOnce(&mut AgentConfig)) -> Running {
        Running::start(&self.node, client(self.cluster).await, change).await
    }

    /// The name of the only pod with this label, once it runs on the node.
    pub async fn running_pod(&self, label: &str) -> String {
        let (selector, of) = (format!("--selector=app={label}"), format!("a pod of {label}"));
        let on_node = format!("--field-selector=spec.nodeName={}", self.node);
        until(&of, EVENT_LIMIT, || async {
            let get = ["pods", "--namespace", &self.name, &selector, &on_node];
            let pods = self.kubectl().get(&get).await.ok()?;
            let pod = pods["items"].as_array()?.first()?;
            let runs = pod["status"]["phase"] == "Running";
            runs.then_some(pod["metadata"]["name"].as_str()?.to_owned())
        })
        .await
        .unwrap()
    }

    /// The containers of a patient pod have ended: it goes.
    pub async fn end_pod(&self, name: &str) {
        let delete = ["delete", "pod", name, "--namespace", &self.name];
        let now = ["--grace-period=0", "--force"];
        self.kubectl().run(&[&delete[..], &now].concat()).await.unwrap();
    }

    /// Removes what the test has made; nobody waits.
    pub async fn close(self) {
        let delete = ["delete", "namespace", &self.name, "--wait=false"];
        self.kubectl().run(&delete).await.unwrap();
        self.cluster.remove_nodes(&[&self.node]).await.unwrap();
    }
}

/// A pod that is bound to a node.
pub fn pod(space: &str, name: &str, label: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": space, "name": name, "labels": { "app": label } },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "c", "image": "played" }],
        },
    })
}

/// A Deployment of one engine for nodes with this label. Its pod gets three minutes to end, longer
/// than a test lasts on a busy machine: it takes them all unless [`Space::end_pod`] ends it.
pub fn engine_deployment(space: &str, node_label: (&str, &str)) -> Value {
    let labels = json!({ "app": "engine", "ebbtide.dev/engine": "vllm" });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "namespace": space, "name": "engine" },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "engine" } },
            "template": {
                "metadata": { "labels": labels, "annotations": { PATIENT_POD_ANNOTATION: "" } },
                "spec": {
                    "nodeSelector": { node_label.0: node_label.1 },
                    "terminationGracePeriodSeconds": 180,
                    "containers": [{
                        "name": "engine",
                        "image": "played",
                        "resources": { "limits": { "nvidia.com/gpu": "8" } },
                    }],
                },
            },
        },
    })
}

/// Whether our marks stand on a node.
pub fn is_marked(node: &Value) -> bool {
    has_taint(node, OURS) && node["spec"]["unschedulable"] == true
}

pub fn has_taint(node: &Value, key: &str) -> bool {
    let taints = node["spec"]["taints"].as_array();
    taints.is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key))
}

/// Status and reason of our condition, if the node has it.
pub fn condition(node: &Value) -> Option<(&str, &str)> {
    let conditions = node["status"]["conditions"].as_array()?;
    let ours = conditions.iter().find(|one| one["type"] == "EbbtideInterruption")?;
    Some((ours["status"].as_str()?, ours["reason"].as_str()?))
}

/// None of its responses ends within a test, nor in the time that any drain of one has.
fn slow_engine() -> EngineConfig {
    EngineConfig {
        tokens_per_second: 5.0,
        lengths: ResponseLengths { mean: 4_000.0, spread: 0.1 },
        weights_label: "0".to_owned(),
        ..EngineConfig::default()
    }
}

/// An agent that runs, with everything around it.
pub struct Running {
    pub agent: AgentHandle,
    pub imds: ImdsEmulator,
    pub queue: WorkQueue,
    pub engine: EngineEmulator,
    replica: ReplicaId,
    address: SocketAddr,
    task: JoinHandle<Result<AgentReport, AgentError>>,
}

impl Running {
    /// Starts it on `node`, with this way to the API server, and waits until it is in service.
    pub async fn start(
        node: &str,
        client: kube::Client,
        change: impl FnOnce(&mut AgentConfig),
    ) -> Self {
        let port = MemoryPort::new(2, ShardSettings::default(), wall_clock_now);
        Self::join(node, client, WorkQueue::new(Arc::new(port)), change).await
    }

    /// The same, on a queue that others have, too.
    pub async fn join(
        node: &str,
        client: kube::Client,
        queue: WorkQueue,
        change: impl FnOnce(&mut AgentConfig),
    ) -> Self {
        let node = node.parse().unwrap();
        let mut config =
            AgentConfig::new("lane".parse().unwrap(), agent_holder(&node, "boot").unwrap());
        config.pace = Pace::brisk();
        config.concurrency_per_engine = 4;
        let address = SocketAddr::from(([127, 0, 0, 1], Program::free_port().unwrap()));
        config.listen = Some(address);
        change(&mut config);
        let engine = EngineEmulator::start(slow_engine()).unwrap();
        let imds = ImdsEmulator::start(InstanceIdentity::spot("i-1", "us-east-2b")).unwrap();
        let outside = Outside {
            imds: Some(ImdsClient::new(&imds.base_url()).unwrap()),
            engines: vec![Arc::new(DetectedEngine::new(&engine.base_url()).unwrap())],
            marks: Arc::new(KubeMarks::new(client.clone())),
            pods: Arc::new(KubePods::new(client)),
            ..Outside::with_queue(queue.clone())
        };
        let replica = config.replica.clone();
        let agent = Agent::new(config, outside);
        let handle = agent.handle();
        let task = tokio::spawn(agent.run(CancellationToken::new()));
        let running = Self { agent: handle, imds, queue, engine, replica, address, task };
        running.wait_until("in service", |agent| agent.state() == NodeState::Ready).await;
        running
    }

    pub async fn wait_until(&self, what: &str, is_wanted: impl Fn(&AgentHandle) -> bool) {
        // Some tests here share two cores with two control planes.
        let waited = tokio::time::timeout(2 * EVENT_LIMIT, self.agent.wait_until(is_wanted)).await;
        if waited.is_err() {
            panic!("the agent must be {what}: {}", self.describe().await);
        }
    }

    /// What the agent says about itself.
    async fn describe(&self) -> String {
        let ready = match reqwest::get(format!("http://{}/readyz", self.address)).await {
            Ok(answer) => format!("{}: {:?}", answer.status(), answer.text().await),
            Err(error) => error.to_string(),
        };
        let (agent, has_ended) = (&self.agent, self.task.is_finished());
        format!(
            "{:?}, ended {has_ended}, /readyz {ready}, {:?}, engine {:?}",
            agent.state(),
            agent.membership(),
            self.engine.handle().counts(),
        )
    }

    /// Enqueues four long units and waits until tokens of them are stored.
    pub async fn give_work(&self) {
        self.queue.enqueue(crate::programs::group(0, 4, 4_000)).await.unwrap();
        let is_busy = |agent: &AgentHandle| agent.held() == 4 && agent.counts().tokens_stored > 0;
        self.wait_until("busy", is_busy).await;
    }

    /// Asks for a drain as an operator does.
    pub async fn drain(&self, seconds: u64) {
        let request = DrainRequest {
            replica: self.replica.clone(),
            request_id: "drain-1".to_owned(),
            generation: 0,
            reason: DrainReason::Operator,
            remaining: Duration::from_secs(seconds),
            lost: NodeNames::default(),
        };
        self.queue.request_drain(request).await.unwrap();
    }

    /// Waits until everything is handed back, and says how long that took.
    pub async fn drained(&self) -> Duration {
        self.wait_until("drained", |agent| agent.state() == NodeState::Drained).await;
        assert_eq!(self.agent.held(), 0);
        self.agent.report().drains.last().expect("a drain").duration
    }

    /// Where it serves `/drained`.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// What the `preStop` hook of an engine's pod does: waits until the agent lets it go.
    pub async fn pre_stop(&self) {
        let url = format!("http://{}/drained", self.address);
        until("the agent to hold nothing", EVENT_LIMIT, || async {
            reqwest::get(&url).await.unwrap().status().is_success().then_some(())
        })
        .await
        .unwrap();
    }

    /// All units are back in the queue with their tokens, each once, and nothing is lost; gives
    /// how many tokens there are.
    pub async fn work_is_back(&self) -> u64 {
        let units = self.queue.scan().await.unwrap();
        let is_back = |unit: &UnitSnapshot| {
            let attempts = unit.attempts + unit.infra_attempts;
            unit.state == SlotState::Enqueued && (unit.hand_backs, attempts) == (1, 0)
        };
        assert!(units.len() == 4 && units.iter().all(is_back), "{units:?}");
        let counts = self.agent.counts();
        assert_eq!((counts.tokens_dropped, counts.tokens_waiting), (0, 0));
        let tokens = units.iter().map(|unit| u64::from(unit.tokens)).sum();
        assert_eq!(counts.tokens_handed_back, tokens);
        tokens
    }

    /// The engine is there again, at the same address, without any of its streams.
    pub fn start_engine_again(&mut self) {
        let url = self.engine.base_url();
        let listen = url.trim_start_matches("http://").parse().unwrap();
        self.engine = EngineEmulator::start(EngineConfig { listen, ..slow_engine() }).unwrap();
    }

    /// The value of a metric; 0 when there is none.
    pub async fn metric(&self, series: &str) -> f64 {
        let text = reqwest::get(format!("http://{}/metrics", self.address))
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        let line = text.lines().find(|line| line.starts_with(series));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
