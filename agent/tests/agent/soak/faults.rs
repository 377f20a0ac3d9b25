//! What befalls the nodes, and how long it is left alone.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ebbtide_agent::AgentHandle;
use ebbtide_agent::emulator::engine::PauseMode;
use ebbtide_harness::{EVENT_LIMIT, until};
use rand::RngExt;
use rand::seq::SliceRandom;
use tokio::time::timeout;

use super::fleet::{ALONE, Fleet, NODES, PLACES};
use crate::world::within;

/// What can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A node is gone without a word.
    NodeLost,
    /// A node has an interruption notice, and is gone when it is empty.
    NodeNoticed,
    /// A notice is taken back.
    NoticeWithdrawn,
    AgentKilled,
    /// As in an upgrade.
    AgentStopped,
    /// An agent does not reach the queue for a while, perhaps for longer than its leases last.
    AgentCutOff,
    /// Streams end with an error event, health fails, the server ends.
    CoreDies,
    /// Connections are reset.
    EngineKilled,
    /// As in an upgrade.
    EngineStopped,
    ErrorEvents,
    BrokenStreams,
    /// Calls are answered with an HTTP error.
    CallsRefused,
    /// No token comes, health is good.
    Hang,
    /// Aborts are answered and not heeded, while the agent wants to go.
    AbortsIgnored,
    /// A pause for weights, and no weights.
    LeftPaused,
    /// A pause that ends all streams.
    PausedByAbort,
    /// Streams end without `[DONE]`.
    EndsOmitted,
    /// Streams end and their connections do not.
    ConnectionsLeftOpen,
    UnreadableLabel,
    LowerLabel,
    /// The engine is much slower than others.
    Slow,
    /// Redis answers nothing for a while.
    QueueSilent,
    /// Redis is away, and comes back with what it had.
    QueueRestarted,
    /// Calls are carried out, and their answers get lost.
    AnswersLost,
    /// No fault: a new policy version, which all engines get.
    WeightsRise,
}

/// All kinds.
pub const EVERY: [Fault; 25] = [
    Fault::NodeLost,
    Fault::NodeNoticed,
    Fault::NoticeWithdrawn,
    Fault::AgentKilled,
    Fault::AgentStopped,
    Fault::AgentCutOff,
    Fault::CoreDies,
    Fault::EngineKilled,
    Fault::EngineStopped,
    Fault::ErrorEvents,
    Fault::BrokenStreams,
    Fault::CallsRefused,
    Fault::Hang,
    Fault::AbortsIgnored,
    Fault::LeftPaused,
    Fault::PausedByAbort,
    Fault::EndsOmitted,
    Fault::ConnectionsLeftOpen,
    Fault::UnreadableLabel,
    Fault::LowerLabel,
    Fault::Slow,
    Fault::QueueSilent,
    Fault::QueueRestarted,
    Fault::AnswersLost,
    Fault::WeightsRise,
];

/// Longest time that a fault is left to show.
const SHOWING: Duration = Duration::from_secs(12);

impl Fleet<'_> {
    /// The next fault, on a random node; mends what the one before has left. All kinds come once
    /// before one comes again. Sometimes the next one follows at once.
    pub async fn strike(&mut self) {
        if self.ahead.is_empty() {
            self.ahead = EVERY.to_vec();
            self.ahead.shuffle(&mut self.random);
        }
        let fault = self.ahead.pop().expect("not empty");
        let at = self.random.random_range(0..NODES);
        let node = &self.spots[at].node.name;
        eprintln!("{:7.3} s: {fault:?} at {node}", self.begun.elapsed().as_secs_f64());
        self.mend();
        *self.struck.entry(fault).or_default() += 1;
        self.befall(fault, at).await;
        if self.random.random_bool(0.7) {
            self.work_goes_on().await;
        }
    }

    async fn befall(&mut self, fault: Fault, at: usize) {
        let engine = self.spots[at].engine();
        match fault {
            Fault::NodeLost => self.lose_node(at).await,
            Fault::NodeNoticed => {
                self.spots[at].node.announce(4);
                self.shows(at, |agent| !agent.is_gate_open()).await;
                self.shows(at, |it| it.held() == 0 || !it.report().drains.is_empty()).await;
                self.lose_node(at).await;
            }
            Fault::NoticeWithdrawn => {
                self.spots[at].node.announce(600);
                self.shows(at, |agent| !agent.is_gate_open()).await;
                self.spots[at].node.imds().withdraw_spot();
                self.shows(at, AgentHandle::is_gate_open).await;
            }
            Fault::AgentKilled => {
                let spot = self.spots.remove(at);
                let name = spot.node.name.to_string();
                let place = spot.node.kill().await;
                self.begin(at, &name, place, spot.engine).await;
            }
            Fault::AgentStopped => self.stop_agent(at).await,
            Fault::AgentCutOff => {
                self.spots[at].way.set_down(true);
                self.engines_make(200, 10_000).await;
            }
            Fault::CoreDies => {
                engine.fail_core();
                within(engine.ended()).await;
                self.restart_engine(at, self.version.to_string());
            }
            Fault::EngineKilled => {
                engine.kill();
                self.shows(at, |agent| agent.held() == 0).await;
                self.restart_engine(at, self.version.to_string());
            }
            Fault::EngineStopped => {
                engine.begin_drain(Duration::from_millis(500));
                within(engine.ended()).await;
                // It comes back with the weights that its image has.
                self.restart_engine(at, "0".to_owned());
            }
            Fault::ErrorEvents => engine.fail_streams(),
            Fault::BrokenStreams => engine.break_streams(),
            Fault::CallsRefused => {
                let status = [400, 404, 429, 500, 503][self.random.random_range(0..5)];
                engine.fail_next(self.random.random_range(1..12), status);
                engine.break_streams();
            }
            Fault::Hang => {
                engine.set_hung(true);
                self.shows(at, |agent| agent.held() == 0).await;
            }
            Fault::AbortsIgnored => {
                engine.set_ignores_aborts(true);
                self.stop_agent(at).await;
            }
            Fault::LeftPaused => {
                engine.pause(PauseMode::Keep);
                self.shows(at, |agent| agent.held() == 0).await;
            }
            Fault::PausedByAbort => engine.pause(PauseMode::Abort),
            Fault::EndsOmitted => engine.set_omits_done(true),
            Fault::ConnectionsLeftOpen => engine.set_leaves_open(true),
            Fault::UnreadableLabel => engine.set_weights_label("checkpoint-17"),
            Fault::LowerLabel => engine.set_weights_label(&(self.version - 1).to_string()),
            Fault::Slow => engine.set_tokens_per_second(ALONE / 4.0),
            Fault::QueueSilent => {
                self.redis.pause().expect("a signal");
                self.engines_make(200, 5_000).await;
                self.redis.resume().expect("a signal");
            }
            Fault::QueueRestarted => self.redis.restart().await.expect("it starts again"),
            Fault::AnswersLost => {
                let count = self.random.random_range(10..100);
                self.site.tap.unanswered.store(count, Ordering::Relaxed);
            }
            Fault::WeightsRise => self.raise_weights().await,
        }
    }

    async fn lose_node(&mut self, at: usize) {
        let spot = self.spots.remove(at);
        spot.node.place.engine.kill();
        drop(spot.node.kill().await);
        self.add(at).await;
    }

    async fn stop_agent(&mut self, at: usize) {
        let spot = self.spots.remove(at);
        let name = spot.node.name.to_string();
        let (_report, place) = spot.node.stop().await;
        self.begin(at, &name, place, spot.engine).await;
    }

    /// The trainer publishes a version and gives it to the engines, one after the other, in the
    /// way that SGLang and vLLM have for it.
    async fn raise_weights(&mut self) {
        self.version += 1;
        self.site.publish(self.version).await;
        for spot in &self.spots {
            let engine = spot.engine();
            engine.pause(PauseMode::Keep);
            within(engine.wait_for(|counts| counts.is_frozen)).await;
            engine.set_weights_label(&self.version.to_string());
            engine.resume();
        }
    }

    /// Waits until the agent there shows what the fault does to it; it may show otherwise, too.
    async fn shows(&self, at: usize, is_seen: impl Fn(&AgentHandle) -> bool) {
        let _ = timeout(SHOWING, self.spots[at].node.agent.wait_until(is_seen)).await;
    }

    /// Waits until all engines together have made some tokens, a random number between these: the
    /// clock by which an outage is measured. An outage may stop them all.
    async fn engines_make(&mut self, fewest: u64, most: u64) {
        let enough = self.site.books.tokens_made() + self.random.random_range(fewest..most);
        let is_made = || async { (self.site.books.tokens_made() >= enough).then_some(()) };
        let _ = until("tokens", SHOWING, is_made).await;
    }

    /// Whatever happened: tokens reach the queue again, as many as there are places on a node.
    async fn work_goes_on(&self) {
        let enough = self.site.books.tokens_stored() + PLACES as u64;
        let is_stored = || async { (self.site.books.tokens_stored() >= enough).then_some(()) };
        let stored = until("the work to go on", EVENT_LIMIT, is_stored).await;
        stored.unwrap_or_else(|error| panic!("{error}"));
    }
}
