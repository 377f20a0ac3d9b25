//! The `ebbtide` binary as real processes, and the queue beside them, as a test's trainer sees it.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ebbtide_core::ids::{GroupId, PolicyVersion};
use ebbtide_core::work::{PromptGroup, Sampling};
pub use ebbtide_harness::EVENT_LIMIT;
use ebbtide_harness::{Error, Moto, Program, Redis, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{ControlView, VersionRecord};
use ebbtide_queue::memory::DEFAULT_DEDUP_WINDOW;
use ebbtide_queue::redis::{Durability, Layout, RedisOptions, RedisPort};
use ebbtide_queue::state::UnitSnapshot;
use ebbtide_queue::status::ShardStatus;

use crate::aws::queue_url;

/// The binary under test.
pub const EBBTIDE: &str = env!("CARGO_BIN_EXE_ebbtide");

/// A file that is deleted with the test.
pub fn policy_file(folder: &Path, text: &str) -> String {
    let path = folder.join("policy.yaml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The queue of `run` as another client sees it.
pub async fn queue(redis: &Redis, run: &str, shard_count: u16) -> WorkQueue {
    let options = RedisOptions {
        url: redis.url(),
        run: run.parse().unwrap(),
        layout: Some(Layout { shard_count, stage_count: 1, dedup_window: DEFAULT_DEDUP_WINDOW }),
        durability: Durability::Fast,
    };
    let port = RedisPort::connect(options).await.expect("redis is there");
    WorkQueue::new(Arc::new(port))
}

/// A group whose samples differ by seed.
pub fn group(number: i32, size: u16, max_tokens: u32) -> PromptGroup {
    let id: GroupId = format!("g{number}").parse().unwrap();
    let mut group = PromptGroup::new(id, size, (0..16).map(|i| 100 + number * 31 + i).collect());
    group.sampling = Sampling { max_tokens, seed: Some(7), ..Sampling::default() };
    group.max_lag = 4;
    group
}

/// Publishes a policy version.
pub async fn publish_version(queue: &WorkQueue, version: u64) {
    let record = VersionRecord { version: PolicyVersion(version), ..VersionRecord::default() };
    queue.set_version(record).await.expect("published");
}

/// Counters of all shards.
pub async fn status(queue: &WorkQueue) -> ShardStatus {
    ShardStatus::sum(queue.status().await.complete().expect("status"))
}

/// Waits until the raw units look as wanted.
pub async fn units_become(
    queue: &WorkQueue,
    what: &str,
    is_wanted: impl Fn(&[UnitSnapshot]) -> bool,
) -> Result<Vec<UnitSnapshot>, Error> {
    until(what, EVENT_LIMIT, || async { queue.scan().await.ok().filter(|units| is_wanted(units)) })
        .await
}

/// Waits until the control keys look as wanted.
pub async fn view_becomes(
    queue: &WorkQueue,
    what: &str,
    is_wanted: impl Fn(&ControlView) -> bool,
) -> Result<ControlView, Error> {
    until(what, EVENT_LIMIT, || async { queue.view().await.ok().filter(|view| is_wanted(view)) })
        .await
}

/// A service that takes connections and never answers; it counts them.
pub struct SilentService {
    pub url: String,
    connections: Arc<AtomicU32>,
}

impl SilentService {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicU32::new(0));
        let counted = connections.clone();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for connection in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                held.push(connection);
            }
        });
        Self { url, connections }
    }

    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::SeqCst)
    }
}

/// `ebbtide agent` for a node.
pub struct AgentProgram<'a> {
    pub run: &'a str,
    pub node: &'a str,
    pub redis: &'a str,
    pub imds: &'a str,
    /// Empty: it is told of none.
    pub engine: &'a str,
    pub policy: &'a str,
    pub kubeconfig: Option<&'a Path>,
}

impl AgentProgram<'_> {
    /// Starts it; gives the process and the address of its health endpoints.
    pub fn start(&self) -> (Program, String) {
        self.start_with(&[])
    }

    /// As [`AgentProgram::start`], with more variables in its environment.
    pub fn start_with(&self, variables: &[(&str, &str)]) -> (Program, String) {
        let port = Program::free_port().expect("a free port");
        let listen = format!("127.0.0.1:{port}");
        let mut arguments = vec![
            "agent",
            "--run",
            self.run,
            "--policy",
            self.policy,
            "--redis",
            self.redis,
            "--imds",
            self.imds,
            "--listen",
            &listen,
        ];
        if !self.engine.is_empty() {
            arguments.extend(["--engine", self.engine]);
        }
        if self.kubeconfig.is_none() {
            arguments.push("--no-kubernetes");
        }
        let mut options = Program::options("ebbtide-agent", EBBTIDE)
            .arguments(arguments)
            .variable("NODE_NAME", self.node)
            .variable("NO_COLOR", "1");
        if let Some(kubeconfig) = self.kubeconfig {
            options = options.variable("KUBECONFIG", &kubeconfig.display().to_string());
        }
        for (name, value) in variables {
            options = options.variable(name, value);
        }
        (options.start().expect("the agent starts"), format!("http://{listen}"))
    }
}

/// `ebbtide controller` with a queue of events.
pub struct ControllerProgram<'a> {
    pub redis: String,
    /// Address of all of AWS but SQS.
    pub aws: String,
    pub sqs: String,
    pub events_queue: String,
    pub policy: &'a str,
    /// The cluster and its own namespace there; without them it always leads.
    pub kubeconfig: Option<(&'a Path, &'a str)>,
    pub imds: &'a str,
    pub has_keys: bool,
}

impl<'a> ControllerProgram<'a> {
    /// One that finds all of AWS in one place, has keys, and does not know Kubernetes.
    pub fn new(redis: &Redis, moto: &Moto, policy: &'a str) -> Self {
        Self {
            redis: redis.url(),
            aws: moto.url(),
            sqs: moto.url(),
            events_queue: queue_url(moto, "events"),
            policy,
            kubeconfig: None,
            imds: "http://127.0.0.1:1",
            has_keys: true,
        }
    }

    /// Starts it; gives the process and the address of its health endpoints.
    pub fn start(&self) -> (Program, String) {
        let port = Program::free_port().expect("a free port");
        let listen = format!("127.0.0.1:{port}");
        let mut options = Program::options("ebbtide-controller", EBBTIDE)
            .arguments(["controller", "--policy", self.policy, "--redis", &self.redis])
            .arguments(["--events-queue", &self.events_queue])
            .arguments(["--listen", &listen])
            .variable("AWS_ENDPOINT_URL", &self.aws)
            .variable("AWS_ENDPOINT_URL_SQS", &self.sqs)
            .variable("AWS_EC2_METADATA_SERVICE_ENDPOINT", self.imds)
            .variable("AWS_REGION", "us-east-1")
            .variable("AWS_CONFIG_FILE", "/nowhere")
            .variable("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
            .variable("NO_COLOR", "1");
        if self.has_keys {
            options = options
                .variable("AWS_ACCESS_KEY_ID", "test")
                .variable("AWS_SECRET_ACCESS_KEY", "test");
        }
        options = match self.kubeconfig {
            Some((kubeconfig, namespace)) => options
                .variable("KUBECONFIG", &kubeconfig.display().to_string())
                .arguments(["--namespace", namespace]),
            None => options.arguments(["--no-kubernetes"]),
        };
        (options.start().expect("the controller starts"), format!("http://{listen}"))
    }
}
