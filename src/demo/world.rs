//! The demo's machines: starts a node when the capacity provider has booted one, gives notices,
//! kills, and lets a noticed node die at its deadline.
//!
//! A node is an emulated IMDS, an emulated engine and a real agent. A dead node answers nothing
//! any more: its engine and IMDS are cut off and its agent ends in the middle of what it does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebbtide_agent::AgentHandle;
use ebbtide_agent::emulator::engine::{EngineConfig, EngineEmulator, ResponseLengths};
use ebbtide_agent::emulator::imds::{ImdsEmulator, InstanceIdentity, LifeCycle, SpotAction};
use ebbtide_controller::capacity::local::{LocalCapacity, LocalNode, NodeOrder};
use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::{FleetPolicy, Market};
use ebbtide_queue::client::{WorkQueue, wall_clock_now};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::agents;
use super::clock::Clock;
use super::disruptions::{Disruption, DisruptionKind};
use super::picture::Event;
use super::report::Capacity;
use crate::words::counted;

/// Time from a node's boot until its engine answers.
const ENGINE_START: Duration = Duration::from_millis(400);
/// Between two looks for a node to disrupt, when none is at work.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Speed of one stream, in tokens per second.
pub const TOKENS_PER_SECOND: f64 = 60.0;

/// What all engines of the demo have in common: they continue each other's responses.
pub fn engine_config(max_running: usize) -> EngineConfig {
    EngineConfig {
        tokens_per_second: TOKENS_PER_SECOND,
        max_running,
        tick: Duration::from_millis(50),
        start_after: ENGINE_START,
        lengths: ResponseLengths { mean: 150.0, spread: 0.6 },
        ..EngineConfig::default()
    }
}

/// What the world tells the screen and the report.
#[derive(Default)]
pub struct Facts {
    pub events: Vec<Event>,
    /// Nodes that the trainer ran on after each change of its size.
    pub trainer_sizes: Vec<u32>,
    pub notices: u32,
    pub kills: u32,
    /// Node seconds by market, of nodes that ended.
    node_seconds: BTreeMap<&'static str, f64>,
    dollars: BTreeMap<&'static str, f64>,
    /// Tokens that engines made, of nodes that ended.
    pub tokens_made: u64,
}

impl Facts {
    /// Node time and money by market.
    pub fn capacity(&self) -> Vec<Capacity> {
        let part = |(market, seconds): (&&'static str, &f64)| Capacity {
            market,
            node_seconds: *seconds,
            dollars: self.dollars.get(market).copied().unwrap_or(0.0),
        };
        self.node_seconds.iter().map(part).collect()
    }
}

/// The machines.
pub struct World {
    pub queue: WorkQueue,
    pub policy: FleetPolicy,
    pub capacity: LocalCapacity,
    pub facts: Arc<Mutex<Facts>>,
    pub notice_lead: Duration,
    pub clock: Clock,
    nodes: BTreeMap<InstanceId, RunningNode>,
    /// Machines of the trainer, of which nothing runs here, and since when.
    trainers: BTreeMap<InstanceId, (LocalNode, Instant)>,
}

struct RunningNode {
    node: LocalNode,
    imds: ImdsEmulator,
    engine: EngineEmulator,
    agent: JoinHandle<()>,
    handle: AgentHandle,
    started_at: Instant,
    dies_at: Option<Instant>,
}

/// The word for a market.
pub fn market_word(market: Market) -> &'static str {
    match market {
        Market::Spot => "Spot",
        Market::OnDemand => "on demand",
    }
}

impl World {
    /// A world without nodes.
    pub fn new(
        queue: WorkQueue,
        policy: FleetPolicy,
        capacity: LocalCapacity,
        notice_lead: Duration,
        clock: Clock,
    ) -> Self {
        Self {
            queue,
            policy,
            capacity,
            facts: Arc::default(),
            notice_lead,
            clock,
            nodes: BTreeMap::new(),
            trainers: BTreeMap::new(),
        }
    }

    /// Runs the machines until `stop`, then ends all of them at once.
    pub async fn run(mut self, disruptions: Vec<Disruption>, stop: CancellationToken) {
        let mut coming: std::collections::VecDeque<Disruption> = disruptions.into();
        let capacity = self.capacity.clone();
        loop {
            let begun_at = self.clock.begun_at();
            let next_disruption = coming.front().zip(begun_at).map(|(one, at)| at + one.at);
            let next_death = self.nodes.values().filter_map(|node| node.dies_at).min();
            tokio::select! {
                () = stop.cancelled() => break,
                order = capacity.next_order() => self.carry_out(order).await,
                () = self.clock.begun(), if begun_at.is_none() => {}
                () = until(next_death) => self.bury_the_dead().await,
                () = until(next_disruption) => {
                    if let Some(mut disruption) = coming.pop_front()
                        && !self.disrupt(disruption).await
                    {
                        disruption.at = self.clock.elapsed() + RETRY_INTERVAL;
                        coming.push_front(disruption);
                    }
                }
            }
        }
        let left: Vec<InstanceId> = self.nodes.keys().cloned().collect();
        for instance in left {
            self.end(&instance).await;
        }
        let trainers: Vec<InstanceId> = self.trainers.keys().cloned().collect();
        for instance in trainers {
            self.end_trainer(&instance);
        }
    }

    async fn carry_out(&mut self, order: NodeOrder) {
        match order {
            NodeOrder::Start(node) if self.is_of_trainer(&node) => {
                self.tell(format!("{} has booted for the trainer", node.node));
                self.trainers.insert(node.instance.clone(), (node, Instant::now()));
            }
            NodeOrder::Stop(node) if self.end_trainer(&node.instance) => {
                self.tell(format!("{}, which the trainer has left, is terminated", node.node));
            }
            NodeOrder::Start(node) => {
                let name = node.node.to_string();
                let market = market_word(node.market);
                match self.start(node) {
                    Ok(()) => self.tell(format!("{name} ({market}) has booted")),
                    Err(error) => self.tell(format!("{name} did not start: {error}")),
                }
            }
            NodeOrder::Stop(node) => {
                if self.end(&node.instance).await {
                    self.tell(format!("{} was drained and is terminated", node.node));
                }
            }
        }
    }

    fn start(&mut self, node: LocalNode) -> anyhow::Result<()> {
        let zone = node.zone.as_ref().map_or("us-east-2a", |zone| zone.as_str());
        let mut identity = InstanceIdentity::spot(node.instance.0.as_str(), zone);
        if node.market == Market::OnDemand {
            identity.life_cycle = LifeCycle::OnDemand;
        }
        let imds = ImdsEmulator::start(identity)?;
        let concurrency = self.policy.rollout.concurrency_per_replica as usize;
        let engine = EngineEmulator::start(engine_config(concurrency))?;
        let (agent, handle) = agents::start_agent(
            &self.policy,
            &node,
            self.queue.clone(),
            &imds.base_url(),
            &engine.base_url(),
        )?;
        let started_at = Instant::now();
        let instance = node.instance.clone();
        let running = RunningNode { node, imds, engine, agent, handle, started_at, dies_at: None };
        self.nodes.insert(instance, running);
        Ok(())
    }

    /// Disrupts a node that is at work; `false` when there is none.
    async fn disrupt(&mut self, disruption: Disruption) -> bool {
        let is_candidate = |node: &&mut RunningNode| {
            let is_interruptible =
                disruption.kind == DisruptionKind::Kill || node.node.market == Market::Spot;
            // Its engine answers and has work: an empty node would show nothing.
            is_interruptible && node.dies_at.is_none() && node.engine.handle().counts().running > 0
        };
        let mut candidates: Vec<&mut RunningNode> =
            self.nodes.values_mut().filter(is_candidate).collect();
        if candidates.is_empty() {
            return false;
        }
        let pick = usize::try_from(disruption.pick).unwrap_or(0) % candidates.len();
        let chosen = candidates.swap_remove(pick);
        let instance = chosen.node.instance.clone();
        let name = chosen.node.node.to_string();
        match disruption.kind {
            DisruptionKind::Notice => {
                let lead = chosen.notice(self.notice_lead);
                self.facts().notices += 1;
                self.tell(format!("notice: {name} will be gone in {:.1} s", lead.as_secs_f64()));
            }
            DisruptionKind::Kill => {
                self.facts().kills += 1;
                self.tell(format!("kill: {name} is gone without notice"));
                self.lose(&instance).await;
            }
        }
        true
    }

    async fn bury_the_dead(&mut self) {
        let now = Instant::now();
        let is_dead = |node: &&RunningNode| node.dies_at.is_some_and(|at| at <= now);
        let last_words = |node: &RunningNode| (node.node.instance.clone(), node.last_words());
        let dead: Vec<(InstanceId, String)> =
            self.nodes.values().filter(is_dead).map(last_words).collect();
        for (instance, text) in dead {
            self.tell(text);
            self.lose(&instance).await;
        }
    }

    /// The machine dies by itself: the capacity provider has to notice.
    async fn lose(&mut self, instance: &InstanceId) {
        self.end(instance).await;
        self.capacity.lose(instance);
    }

    /// Ends everything on a machine at once; `false` when there is no such machine.
    async fn end(&mut self, instance: &InstanceId) -> bool {
        let Some(mut node) = self.nodes.remove(instance) else { return false };
        // The agent first: it must not see its engine die and tell the queue.
        node.agent.abort();
        let _ = (&mut node.agent).await;
        node.engine.kill();
        self.pay(&node.node, node.started_at);
        self.facts().tokens_made += node.engine.tokens_generated();
        true
    }

    fn is_of_trainer(&self, node: &LocalNode) -> bool {
        self.policy.resized_trainer_pool().is_some_and(|pool| pool.name == node.pool)
    }

    /// Ends a machine of the trainer; `false` when there is no such machine.
    fn end_trainer(&mut self, instance: &InstanceId) -> bool {
        let Some((node, started_at)) = self.trainers.remove(instance) else { return false };
        self.pay(&node, started_at);
        true
    }

    /// What a machine has cost.
    fn pay(&self, node: &LocalNode, started_at: Instant) {
        let seconds = started_at.elapsed().as_secs_f64();
        let price = self.policy.pool(&node.pool).and_then(|pool| pool.dollars_per_node_hour);
        let market = market_word(node.market);
        let mut facts = self.facts();
        *facts.node_seconds.entry(market).or_default() += seconds;
        *facts.dollars.entry(market).or_default() += seconds * price.unwrap_or(0.0) / 3600.0;
    }

    fn tell(&self, text: String) {
        let at = self.clock.elapsed();
        self.facts().events.push(Event { at, text });
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningNode {
    /// Announces the loss at the next whole second that leaves at least `lead`, as IMDS tells whole
    /// seconds; gives the time that is left.
    fn notice(&mut self, lead: Duration) -> Duration {
        let now = wall_clock_now();
        let second = now.plus(lead).0.div_ceil(1000);
        let left = Duration::from_millis((second * 1000).saturating_sub(now.0));
        let time = jiff::Timestamp::from_second(i64::try_from(second).unwrap_or(i64::MAX));
        self.imds
            .handle()
            .announce_spot(SpotAction::Terminate, time.unwrap_or(jiff::Timestamp::MAX));
        self.dies_at = Some(Instant::now() + left);
        left
    }
}

impl RunningNode {
    /// What became of its work, now that its deadline has come.
    fn last_words(&self) -> String {
        let name = &self.node.node;
        match self.handle.report().drains.last() {
            None => format!("{name} is gone, before its work was handed back"),
            Some(drain) => format!(
                "{name} is gone: {} finished in time, {} handed back, empty after {:.1} s",
                counted(drain.units_completed, "unit"),
                drain.units_handed_back,
                drain.duration.as_secs_f64(),
            ),
        }
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
