//! One node: its agent as a task, with emulated metadata service and engine of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use ebbtide_agent::emulator::engine::ResponseLengths;
use ebbtide_agent::emulator::imds::{SpotAction, path};
use ebbtide_agent::emulator::{
    EngineConfig, EngineEmulator, ImdsEmulator, ImdsHandle, InstanceIdentity,
};
use ebbtide_agent::engine::{Engine, VllmEngine};
use ebbtide_agent::{Agent, AgentConfig, AgentHandle, ImdsClient, Outside, agent_holder};
use ebbtide_queue::client::WorkQueue;
use jiff::{SignedDuration, Timestamp};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Units that a node works on.
pub const UNITS: usize = 64;
/// Tokens of each unit that are stored before it gets to the node.
pub const STORED_TOKENS: u32 = 8_000;
/// What AWS gives.
const NOTICE: SignedDuration = SignedDuration::from_secs(120);
/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(120);

/// Speed of an engine's streams, and how often the agent stores what they bring.
#[derive(Debug, Clone, Copy)]
pub struct Streams {
    pub tokens_per_second: f64,
    pub tick: Duration,
    pub append_every: Duration,
}

impl Streams {
    /// Up to 256 tokens of each unit are not stored yet, depending on the moment.
    pub const LONG_TAILS: Self = Self {
        tokens_per_second: 64.0,
        tick: Duration::from_millis(125),
        append_every: Duration::from_secs(4),
    };
    /// Two tokens a second: one machine can bear the streams of a whole fleet.
    pub const SLOW: Self = Self {
        tokens_per_second: 2.0,
        tick: Duration::from_secs(1),
        append_every: Duration::from_millis(500),
    };
}

/// An agent that runs; it ends when this is dropped.
pub struct Node {
    pub agent: AgentHandle,
    pub imds: ImdsHandle,
    _imds: ImdsEmulator,
    _engine: Option<EngineEmulator>,
    task: JoinHandle<()>,
}

/// When the steps of one hand-back came, from the moment at which the metadata service showed the
/// notice.
#[derive(Debug, Clone, Copy)]
pub struct HandBack {
    /// The agent read it.
    pub read: Duration,
    /// The queue had acknowledged the last unit.
    pub done: Duration,
    /// Tokens that were not stored when the notice came.
    pub tail_tokens: u64,
    /// Units whose lease ran out before the hand-back: the machine was too busy to renew it in
    /// time. They are others' by then.
    pub lost_units: u64,
    /// Tokens that came too late to be handed back: their stream did not end in time.
    pub late_tokens: u64,
}

/// An engine that finishes nothing within a measurement.
fn engine(streams: Streams) -> anyhow::Result<EngineEmulator> {
    let config = EngineConfig {
        tokens_per_second: streams.tokens_per_second,
        tick: streams.tick,
        max_running: UNITS,
        context_length: 1 << 21,
        lengths: ResponseLengths { mean: 1_000_000.0, spread: 0.0 },
        weights_label: "1".to_owned(),
        ..EngineConfig::default()
    };
    EngineEmulator::start(config).context("engine")
}

impl Node {
    /// Starts the agent of node `name`, with an engine if it has streams.
    ///
    /// # Errors
    /// An emulator does not start.
    pub fn start(
        name: &str,
        run: &str,
        queue: WorkQueue,
        streams: Option<Streams>,
        change: impl FnOnce(AgentConfig, &mut Outside) -> AgentConfig,
    ) -> anyhow::Result<Self> {
        let mut config = AgentConfig::new(run.parse()?, agent_holder(&name.parse()?, "boot")?);
        config.concurrency_per_engine = UNITS;
        let imds = ImdsEmulator::start(InstanceIdentity::spot(format!("i-{name}"), "us-east-2b"))?;
        let mut outside = Outside {
            imds: Some(ImdsClient::new(&imds.base_url())?),
            ..Outside::with_queue(queue)
        };
        let engine = streams.map(engine).transpose()?;
        if let (Some(engine), Some(streams)) = (&engine, streams) {
            config.pace.append_every = streams.append_every;
            let driver: Arc<dyn Engine> = Arc::new(VllmEngine::new(&engine.base_url())?);
            outside.engines.push(driver);
        }
        let agent = Agent::new(change(config, &mut outside), outside);
        let handle = agent.handle();
        let task = tokio::spawn(async move {
            if let Err(error) = agent.run(CancellationToken::new()).await {
                eprintln!("an agent did not begin: {error}");
            }
        });
        Ok(Self { agent: handle, imds: imds.handle(), _imds: imds, _engine: engine, task })
    }

    /// Waits until the agent is as wanted.
    ///
    /// # Errors
    /// It does not become so.
    pub async fn wait_until(
        &self,
        what: &str,
        is_wanted: impl Fn(&AgentHandle) -> bool,
    ) -> anyhow::Result<()> {
        let waited = tokio::time::timeout(LIMIT, self.agent.wait_until(is_wanted)).await;
        waited.with_context(|| format!("no agent became {what}: {:?}", self.agent.counts()))
    }

    /// Waits until all units are worked on.
    ///
    /// # Errors
    /// They are not.
    pub async fn is_busy(&self) -> anyhow::Result<()> {
        self.wait_until("busy", |agent| agent.held() == UNITS).await
    }

    /// Gives the node a notice of two minutes. Returns when it was shown.
    pub fn notice(&self) -> Instant {
        let until = Timestamp::now() + NOTICE;
        self.imds.announce_spot(SpotAction::Terminate, until);
        Instant::now()
    }

    /// Takes the notice back and waits until the node is in service again.
    ///
    /// # Errors
    /// It does not come back.
    pub async fn reopen(&self) -> anyhow::Result<()> {
        self.imds.withdraw_spot();
        self.wait_until("open again", AgentHandle::is_gate_open).await
    }

    /// Gives the node, which works on all its units, a notice, and waits until it is empty.
    ///
    /// # Errors
    /// A unit was not handed back whole.
    pub async fn hand_back(&self) -> anyhow::Result<HandBack> {
        let before = self.agent.counts();
        let asked = self.imds.requests(path::SPOT_ACTION);
        let shown = self.notice();
        self.imds.await_requests(path::SPOT_ACTION, asked + 1).await;
        let read = shown.elapsed();
        self.wait_until("empty", |agent| agent.held() == 0).await?;
        let done = shown.elapsed();
        let counts = self.agent.counts();
        let handed_back = counts.handed_back_total() - before.handed_back_total();
        let lost_units = counts.units_lost - before.units_lost;
        ensure!(
            handed_back + lost_units == UNITS as u64,
            "{handed_back} units handed back and {lost_units} leases lost, of {UNITS} units"
        );
        let late_tokens = counts.tokens_dropped - before.tokens_dropped;
        Ok(HandBack { read, done, tail_tokens: before.tokens_waiting, lost_units, late_tokens })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}
