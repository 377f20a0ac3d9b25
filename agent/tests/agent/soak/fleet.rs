//! Three nodes, each with an agent and an engine, which are replaced as they are lost.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ebbtide_agent::emulator::engine::ResponseLengths;
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator, EngineHandle};
use ebbtide_agent::{LeaseTerms, Pace};
use ebbtide_harness::Redis;
use ebbtide_queue::command::ProgressLimits;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use super::faults::Fault;
use super::{FIRST_VERSION, Site};
use crate::flaky::FlakyPort;
use crate::world::{Node, NodePlan, Place, engine_config, every_engine};

pub const NODES: usize = 3;

/// Sequences that an engine works on at a time: 3 × 680 = 2,040.
pub const PLACES: usize = 680;

/// Tokens a second of a sequence that is alone on its engine; on a full one it makes one in two
/// seconds. So the engine itself makes about as many whatever it has, and an emptied one is soon
/// full again.
pub const ALONE: f64 = 20.0;
const SLOWDOWN: f64 = (2.0 * ALONE - 1.0) / (PLACES - 1) as f64;

/// How an engine of the soak is set up, apart from its kind.
pub fn plain_engine() -> EngineConfig {
    EngineConfig {
        tokens_per_second: ALONE,
        slowdown_per_stream: SLOWDOWN,
        max_running: 2 * PLACES,
        tick: Duration::from_millis(100),
        lengths: ResponseLengths { mean: 24.0, spread: 0.5 },
        weights_label: FIRST_VERSION.to_string(),
        ..engine_config()
    }
}

/// One of the three places, whichever node is there.
pub struct Spot {
    pub node: Node,
    /// Its agent's way to the queue.
    pub way: Arc<FlakyPort>,
    pub engine: EngineConfig,
}

impl Spot {
    pub fn engine(&self) -> EngineHandle {
        self.node.place.engine.handle()
    }
}

/// See the module.
pub struct Fleet<'a> {
    pub site: &'a Site,
    pub redis: Redis,
    pub spots: Vec<Spot>,
    pub random: ChaCha8Rng,
    pub version: u64,
    /// What comes next; filled again when it is empty.
    pub ahead: Vec<Fault>,
    pub struck: BTreeMap<Fault, u32>,
    pub begun: Instant,
    nodes: usize,
}

impl<'a> Fleet<'a> {
    pub async fn start(site: &'a Site, redis: Redis, seed: u64) -> Self {
        let mut fleet = Self {
            site,
            redis,
            spots: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            version: FIRST_VERSION,
            ahead: Vec::new(),
            struck: BTreeMap::new(),
            begun: Instant::now(),
            nodes: 0,
        };
        for at in 0..NODES {
            fleet.add(at).await;
        }
        fleet
    }

    /// A new node, with an engine of the next kind.
    pub async fn add(&mut self, at: usize) {
        let kinds = every_engine();
        let mut engine = plain_engine();
        kinds[self.nodes % kinds.len()](&mut engine);
        engine.weights_label = self.version.to_string();
        let name = format!("n{:03}", self.nodes);
        self.nodes += 1;
        let place = self.plan(&name, &engine, self.site.world.port.clone()).place();
        self.site.books.follow_engine(at, place.engine.handle());
        self.begin(at, &name, place, engine).await;
    }

    /// A new agent, on what is left of a node.
    pub async fn begin(&mut self, at: usize, name: &str, place: Place, engine: EngineConfig) {
        let way = self.site.own_way().await;
        let node = self.plan(name, &engine, way.clone()).start_at(place);
        self.site.books.follow_agent(at, node.agent.clone());
        self.spots.insert(at, Spot { node, way, engine });
    }

    fn plan(&self, name: &str, engine: &EngineConfig, way: Arc<FlakyPort>) -> NodePlan<'a> {
        let engine = engine.clone();
        self.site.world.node(name).by(way).with_engine(|it| *it = engine).with(|config| {
            config.concurrency_per_engine = PLACES;
            config.pace = Pace {
                append_every: Duration::from_secs(1),
                engine_probe: Duration::from_millis(500),
                meet_every: Duration::from_millis(500),
                ..Pace::brisk()
            };
            config.lease = LeaseTerms {
                ttl: Duration::from_secs(8),
                renew_every: Duration::from_secs(2),
                progress: ProgressLimits {
                    idle: Duration::from_secs(6),
                    engine_pause: Duration::from_secs(5),
                    ..ProgressLimits::default()
                },
            };
        })
    }

    /// The engine's pod starts again: the same address, nothing else of before.
    pub fn restart_engine(&mut self, at: usize, weights_label: String) {
        let spot = &mut self.spots[at];
        let address = spot.node.place.engine.base_url();
        spot.node.place.engine.kill();
        spot.engine.listen = address.trim_start_matches("http://").parse::<SocketAddr>().unwrap();
        let engine = EngineConfig { weights_label, ..spot.engine.clone() };
        spot.node.place.engine = EngineEmulator::start(engine).expect("the address of before");
        self.site.books.follow_engine(at, spot.engine());
    }

    /// Everything that a person or the trainer would put right.
    pub fn mend(&self) {
        self.site.tap.unanswered.store(0, Ordering::Relaxed);
        for spot in &self.spots {
            let engine = spot.engine();
            engine.set_hung(false);
            engine.resume();
            engine.fail_next(0, 503);
            engine.set_ignores_aborts(false);
            engine.set_omits_done(false);
            engine.set_leaves_open(false);
            engine.set_ignores_labels(false);
            engine.set_weights_label(&self.version.to_string());
            engine.set_tokens_per_second(ALONE);
            spot.node.imds().withdraw_spot();
            spot.way.set_down(false);
        }
    }

    /// So that the end need not be waited for: several tokens in each event.
    pub fn hurry(&self) {
        let engines = self.spots.iter().map(Spot::engine);
        engines.for_each(|engine| engine.set_tokens_per_second(100.0 * ALONE));
    }

    /// All agents end as in an upgrade; Redis goes on. What has struck, and how often.
    pub async fn stop(self) -> (Redis, BTreeMap<Fault, u32>) {
        for spot in self.spots {
            let (report, _place) = spot.node.stop().await;
            assert_eq!(report.counts.tokens_waiting, 0);
        }
        (self.redis, self.struck)
    }
}
