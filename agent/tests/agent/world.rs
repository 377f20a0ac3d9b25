//! A small world for whole agents: one queue that can be taken away (in memory, unless a test has
//! its own), and nodes with an emulated metadata service and engine over real HTTP.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_agent::emulator::engine::ResponseLengths;
use ebbtide_agent::emulator::{
    EngineConfig, EngineEmulator, ImdsEmulator, ImdsHandle, InstanceIdentity,
};
use ebbtide_agent::engine::{DetectedEngine, Engine, EngineKind};
use ebbtide_agent::kubernetes::MemoryPods;
use ebbtide_agent::marks::MemoryMarks;
use ebbtide_agent::{
    Agent, AgentConfig, AgentError, AgentHandle, AgentReport, DrainTerms, ImdsClient, LeaseTerms,
    Outside, Pace, agent_holder,
};
use ebbtide_core::ids::{NodeName, PolicyVersion, RunId};
use ebbtide_core::sample::Sample;
use ebbtide_core::work::{PromptGroup, Sampling};
use ebbtide_harness::EVENT_LIMIT;
use ebbtide_queue::client::{MemoryPort, WorkQueue, wall_clock_now};
use ebbtide_queue::control::VersionRecord;
use ebbtide_queue::memory::ShardSettings;
use ebbtide_queue::reply::TakenGroup;
use ebbtide_queue::status::ShardStatus;
use jiff::{SignedDuration, Timestamp};
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::flaky::FlakyPort;

/// Waits for something, but not for ever.
pub async fn within<T>(wait: impl Future<Output = T>) -> T {
    timeout(EVENT_LIMIT, wait).await.expect("the event must come within the limit")
}

/// Looks again and again until something holds.
pub async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    within(async {
        let mut ticks = interval(Duration::from_millis(10));
        while !holds().await {
            ticks.tick().await;
        }
    })
    .await;
}

/// The queue and the marks that all nodes share.
pub struct World {
    pub port: Arc<FlakyPort>,
    pub queue: WorkQueue,
    pub marks: MemoryMarks,
    pub pods: MemoryPods,
}

impl World {
    pub fn new() -> Self {
        Self::with_settings(ShardSettings::default())
    }

    /// A run whose responses are scored.
    pub fn scored() -> Self {
        Self::with_settings(ShardSettings { has_reward_stage: true, ..ShardSettings::default() })
    }

    fn with_settings(settings: ShardSettings) -> Self {
        Self::on(FlakyPort::to(Arc::new(MemoryPort::new(2, settings, wall_clock_now))))
    }

    /// On a queue that stands elsewhere.
    pub fn on(port: Arc<FlakyPort>) -> Self {
        Self {
            queue: WorkQueue::new(port.clone()),
            port,
            marks: MemoryMarks::default(),
            pods: MemoryPods::default(),
        }
    }

    /// Makes the queue unreachable for everybody, or reachable again.
    pub fn set_queue_down(&self, is_down: bool) {
        self.port.set_down(is_down);
    }

    /// A way to the queue of its own.
    pub fn own_way(&self) -> Arc<FlakyPort> {
        self.port.beside()
    }

    /// Lease calls that were made so far.
    pub fn lease_calls(&self) -> u64 {
        self.port.leases()
    }

    pub async fn status(&self) -> ShardStatus {
        ShardStatus::sum(self.queue.status().await.answers)
    }

    pub async fn enqueue(&self, groups: impl IntoIterator<Item = PromptGroup>) {
        for group in groups {
            self.queue.enqueue(group).await.expect("valid and reachable");
        }
    }

    pub async fn set_version(&self, version: u64) {
        let version = PolicyVersion(version);
        let record = VersionRecord { version, ..VersionRecord::default() };
        self.queue.set_version(record).await.expect("reachable");
    }

    /// Publishes a version whose weights can be loaded from there.
    pub async fn publish(&self, version: u64, uri: &str) {
        let (version, uri) = (PolicyVersion(version), uri.to_owned());
        let record = VersionRecord { version, uri, ..VersionRecord::default() };
        self.queue.set_version(record).await.expect("reachable");
    }

    /// Takes sealed groups until there are so many samples.
    pub async fn take_samples(&self, count: usize) -> Vec<Sample> {
        let mut samples = Vec::new();
        within(async {
            let mut ticks = interval(Duration::from_millis(10));
            while samples.len() < count {
                ticks.tick().await;
                let taken = self.queue.take("trainer", 64).await.expect("reachable");
                let groups: Vec<_> = taken.iter().map(|t| t.group.group_id.clone()).collect();
                let samples_of = |taken: TakenGroup| taken.samples;
                samples.extend(taken.into_iter().flat_map(samples_of));
                self.queue.acknowledge("trainer", &groups).await.expect("reachable");
            }
        })
        .await;
        samples.sort_by_key(|sample| sample.unit.clone());
        samples
    }

    /// A node that has not begun; see [`NodePlan::start`].
    pub fn node(&self, name: &str) -> NodePlan<'_> {
        let node: NodeName = name.parse().expect("valid");
        let holder = agent_holder(&node, "boot-1").expect("valid");
        let run: RunId = "test".parse().expect("valid");
        let mut config = AgentConfig::new(run, holder);
        config.concurrency_per_engine = 8;
        config.pace = Pace::brisk();
        config.lease = LeaseTerms {
            ttl: Duration::from_secs(2),
            renew_every: Duration::from_millis(300),
            ..LeaseTerms::default()
        };
        config.drain = DrainTerms { reserve: Duration::from_millis(500), ..DrainTerms::default() };
        NodePlan {
            world: self,
            config,
            engine: engine_config(),
            wall_clock: wall_clock_now,
            queue: self.queue.clone(),
            has_engine: true,
        }
    }
}

/// What makes an engine one of each kind that the agent drives: vLLM, vLLM without its scale-out
/// routes, SGLang with events that repeat everything, and with those that do not.
pub fn every_engine() -> [fn(&mut EngineConfig); 4] {
    [
        |_| {},
        |engine| engine.scale_out = false,
        |engine| engine.kind = EngineKind::Sglang,
        |engine| {
            engine.kind = EngineKind::Sglang;
            engine.incremental_streaming = true;
        },
    ]
}

/// An engine of 200 tokens a second with weights of version 0; all write the same.
pub fn engine_config() -> EngineConfig {
    EngineConfig {
        tokens_per_second: 200.0,
        lengths: ResponseLengths { mean: 60.0, spread: 0.3 },
        seed: 11,
        weights_label: "0".to_owned(),
        ..EngineConfig::default()
    }
}

/// A group of `size` greedy samples of exactly `tokens` tokens each.
pub fn group(name: &str, size: u16, tokens: u32) -> PromptGroup {
    let prompt = name.bytes().map(i32::from).collect();
    let mut group = PromptGroup::new(name.parse().expect("valid"), size, prompt);
    group.sampling =
        Sampling { max_tokens: tokens, seed: Some(5), ignore_eos: true, ..Sampling::default() };
    group.max_lag = 100;
    group
}

/// A node as it will be.
pub struct NodePlan<'a> {
    world: &'a World,
    pub config: AgentConfig,
    pub engine: EngineConfig,
    pub wall_clock: fn() -> ebbtide_core::time::UnixMillis,
    queue: WorkQueue,
    has_engine: bool,
}

impl<'a> NodePlan<'a> {
    pub fn with(mut self, change: impl FnOnce(&mut AgentConfig)) -> Self {
        change(&mut self.config);
        self
    }

    pub fn with_engine(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.engine);
        self
    }

    /// Waits for the last token of an aborted stream, however busy the machine is.
    pub fn with_patience(self) -> Self {
        self.with(|config| config.pace.abort_wait = Duration::from_secs(5))
    }

    /// Without an engine, for custom workers at this socket.
    pub fn for_workers(self, socket: &Path) -> Self {
        self.without_engine().with(|config| config.socket = Some(socket.to_owned()))
    }

    /// A node whose agent hosts no engine.
    pub fn without_engine(mut self) -> Self {
        self.has_engine = false;
        self
    }

    /// One of an EP group.
    pub fn of_replica(self, replica: &str, leads: bool) -> Self {
        let replica = replica.parse().expect("valid");
        let plan = if leads { self } else { self.without_engine() };
        plan.with(|config| (config.replica, config.leads_replica) = (replica, leads))
    }

    pub fn with_clock(mut self, clock: fn() -> ebbtide_core::time::UnixMillis) -> Self {
        self.wall_clock = clock;
        self
    }

    /// Reaches the queue by a way of its own.
    pub fn by(mut self, way: Arc<FlakyPort>) -> Self {
        self.queue = WorkQueue::new(way);
        self
    }

    /// Starts the emulators.
    pub fn place(&self) -> Place {
        let name = self.config.node().as_str();
        let identity = InstanceIdentity::spot(format!("i-{name}"), "us-east-2b");
        Place {
            imds: ImdsEmulator::start(identity).expect("a free port"),
            engine: EngineEmulator::start(self.engine.clone()).expect("a free port"),
        }
    }

    /// Starts the emulators and the agent.
    pub fn start(self) -> Node {
        let place = self.place();
        self.start_at(place)
    }

    /// Starts the agent on emulators that run already.
    pub fn start_at(self, place: Place) -> Node {
        self.start_beside(place, &[])
    }

    /// As [`NodePlan::start_at`], with further engines on the node.
    pub fn start_beside(self, place: Place, others: &[EngineEmulator]) -> Node {
        let mut outside = self.outside(&place);
        outside.engines.extend(others.iter().map(driver));
        let config = self.config;
        let name = config.node().clone();
        let agent = Agent::new(config, outside);
        let (handle, shutdown) = (agent.handle(), CancellationToken::new());
        let task = tokio::spawn(agent.run(shutdown.clone()));
        Node { name, place, agent: handle, shutdown, task }
    }

    pub fn outside(&self, place: &Place) -> Outside {
        let engines = self.has_engine.then(|| driver(&place.engine));
        Outside {
            imds: Some(ImdsClient::new(&place.imds.base_url()).expect("a URL")),
            engines: engines.into_iter().collect(),
            marks: Arc::new(self.world.marks.clone()),
            pods: Arc::new(self.world.pods.clone()),
            wall_clock: self.wall_clock,
            ..Outside::with_queue(self.queue.clone())
        }
    }
}

fn driver(engine: &EngineEmulator) -> Arc<dyn Engine> {
    Arc::new(DetectedEngine::new(&engine.base_url()).expect("a URL"))
}

/// The emulators of a node.
pub struct Place {
    pub imds: ImdsEmulator,
    pub engine: EngineEmulator,
}

impl Place {
    /// Announces the loss of the node in so many seconds.
    pub fn announce(&self, seconds: i64) {
        let time = timestamp_now().checked_add(SignedDuration::from_secs(seconds));
        let action = ebbtide_agent::emulator::imds::SpotAction::Terminate;
        self.imds.handle().announce_spot(action, time.expect("in range"));
    }
}

/// A node whose agent runs.
pub struct Node {
    pub name: NodeName,
    pub place: Place,
    pub agent: AgentHandle,
    pub shutdown: CancellationToken,
    pub task: JoinHandle<Result<AgentReport, AgentError>>,
}

impl Node {
    pub fn imds(&self) -> ImdsHandle {
        self.place.imds.handle()
    }

    /// Announces the loss of the node in so many seconds.
    pub fn announce(&self, seconds: i64) {
        self.place.announce(seconds);
    }

    pub async fn wait_until(&self, is_wanted: impl Fn(&AgentHandle) -> bool) {
        within(self.agent.wait_until(is_wanted)).await;
    }

    /// Waits until the agent holds so many units and has stored some tokens of them.
    pub async fn wait_until_busy(&self, units: usize) {
        self.wait_until(|agent| agent.held() == units && agent.counts().tokens_stored > 0).await;
    }

    /// Ends the process without a word, and waits until it is gone.
    pub async fn kill(self) -> Place {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()));
        self.place
    }

    /// Ends the process as SIGTERM does.
    pub async fn stop(self) -> (AgentReport, Place) {
        self.shutdown.cancel();
        let report = within(self.task).await.expect("no panic").expect("it began");
        (report, self.place)
    }
}

pub fn timestamp_now() -> Timestamp {
    let now = i64::try_from(wall_clock_now().0).expect("in range");
    Timestamp::from_millisecond(now).expect("in range")
}
