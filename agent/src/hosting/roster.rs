//! Which engines the node has: those that the agent was told, and those of the node's pods that
//! carry the label, as they come and go.
//!
//! An engine is an address: whatever answers there after a restart is the same one. An engine keeps
//! its number. One that has left keeps it too, and its record says so, until nothing of it is held
//! and another one comes. While the API server is away, the engines stay as they were last seen.

mod found;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ebbtide_core::ids::RunId;
use ebbtide_queue::command::HandBackCause;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::found::{Found, found_engines};
use super::admission::EngineHeld;
use super::engines::EngineSlot;
use crate::config::AgentConfig;
use crate::engine::{DetectedEngine, Engine};
use crate::kubernetes::{NodeSight, SeenPod};
use crate::shared::Shared;

/// Most engines of a node (contract, section 6).
const ENGINES_MAX: usize = 8;

/// What the record of an engine says that has left.
const GONE: &str = "its pod is gone";

/// An engine of the node.
#[derive(Clone)]
pub(crate) struct Hosted {
    pub(crate) slot: Arc<EngineSlot>,
    /// Cancelled once it has left.
    pub(super) gone: CancellationToken,
    /// Cancelled once nothing is left of it after that.
    let_go: CancellationToken,
    is_told: bool,
}

/// See the module.
pub(crate) struct Roster {
    /// By their numbers.
    hosted: watch::Sender<Vec<Hosted>>,
    /// Pods with an engine are on the node and do not run yet, or nobody knows.
    is_awaited: AtomicBool,
    /// A number may be given again.
    is_vacant: Notify,
}

impl Roster {
    /// The engines that the agent was told.
    pub(crate) fn of(engines: Vec<Arc<dyn Engine>>, config: &AgentConfig) -> Self {
        let ceiling = config.engine_ceiling(engines.len());
        let hosted = engines.into_iter().enumerate();
        let hosted = hosted.map(|(n, engine)| Hosted::new(engine, n, true, ceiling, config));
        Self {
            hosted: watch::Sender::new(hosted.collect()),
            is_awaited: AtomicBool::new(config.finds_engines),
            is_vacant: Notify::new(),
        }
    }

    /// All of them, those included that have left, by their numbers.
    pub(crate) fn slots(&self) -> Vec<Arc<EngineSlot>> {
        self.hosted.borrow().iter().map(|hosted| hosted.slot.clone()).collect()
    }

    /// The one with this number.
    pub(super) fn at(&self, index: usize) -> Option<Hosted> {
        self.hosted.borrow().get(index).cloned()
    }

    /// The engines of a pod; none where one of them is not this agent's, or does not run.
    pub(crate) fn of_pod(&self, pod: &SeenPod, run: &RunId) -> Option<Vec<Arc<EngineSlot>>> {
        let (found, is_awaited) = found_engines(std::slice::from_ref(pod), run);
        let hosted = self.hosted.borrow();
        let is_whole = !is_awaited && !found.is_empty() && found.len() == pod.engines.len();
        let slot = |found: &Found| {
            let is_it =
                |it: &&Hosted| !it.gone.is_cancelled() && found.may_be(it.slot.engine.address());
            hosted.iter().find(is_it).map(|it| it.slot.clone())
        };
        is_whole.then(|| found.iter().map(slot).collect()).flatten()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Vec<Hosted>> {
        self.hosted.subscribe()
    }

    /// Engines that have not left.
    pub(crate) fn present(&self) -> usize {
        self.hosted.borrow().iter().filter(|hosted| !hosted.gone.is_cancelled()).count()
    }

    /// Whether there is none, and a pod that has one does not run yet, or the pods were not seen.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed) && self.hosted.borrow().is_empty()
    }

    /// Nothing is left of an engine that has left.
    pub(super) fn note_let_go(&self, hosted: &Hosted) {
        hosted.let_go.cancel();
        self.is_vacant.notify_one();
    }

    /// Takes in what was found. `is_free` tells of a number whether another engine may have it.
    fn settle(&self, found: &[Found], config: &AgentConfig, is_free: impl Fn(usize) -> bool) {
        let mut hosted = self.hosted.borrow().clone();
        let stays = |it: &Hosted| it.is_told || found.iter().any(|found| it.is_at(&found.url));
        let leaving = hosted.iter().filter(|it| !it.gone.is_cancelled() && !stays(it));
        let mut is_new = false;
        for it in leaving {
            tracing::info!(engine = it.slot.engine.address(), "engine has left the node");
            it.gone.cancel();
            is_new = true;
        }
        for found in found {
            let is_known = |it: &Hosted| match it.is_told {
                true => found.may_be(it.slot.engine.address()),
                false => !it.gone.is_cancelled() && it.is_at(&found.url),
            };
            if hosted.iter().any(is_known) {
                continue;
            }
            let free = |it: &&Hosted| it.let_go.is_cancelled() && is_free(it.slot.index);
            let index = hosted.iter().find(free).map_or(hosted.len(), |it| it.slot.index);
            match DetectedEngine::new(&found.url) {
                Ok(_) if index >= ENGINES_MAX => {
                    tracing::warn!(engine = %found.url, most = ENGINES_MAX, "too many engines");
                }
                Ok(engine) => {
                    tracing::info!(engine = %found.url, "engine found among the node's pods");
                    let it = Hosted::new(Arc::new(engine), index, false, 1, config);
                    match hosted.get_mut(index) {
                        Some(place) => *place = it,
                        None => hosted.push(it),
                    }
                    is_new = true;
                }
                Err(error) => tracing::warn!(engine = %found.url, %error, "engine not hosted"),
            }
        }
        if is_new {
            self.hosted.send_replace(hosted);
            let ceiling = config.engine_ceiling(self.present());
            self.slots().iter().for_each(|slot| slot.set_ceiling(ceiling));
        }
    }
}

impl Hosted {
    fn new(
        engine: Arc<dyn Engine>,
        index: usize,
        is_told: bool,
        ceiling: usize,
        config: &AgentConfig,
    ) -> Self {
        let pause_limit = config.lease.pause_limit();
        let slot = Arc::new(EngineSlot::new(engine, index, pause_limit, ceiling));
        let (gone, let_go) = (CancellationToken::new(), CancellationToken::new());
        Self { slot, gone, let_go, is_told }
    }

    fn is_at(&self, url: &str) -> bool {
        self.slot.engine.address() == url
    }
}

/// Follows the node's pods, for as long as it is polled.
pub(super) async fn follow(shared: &Shared, mut sights: watch::Receiver<NodeSight>) {
    if !shared.config.finds_engines {
        return std::future::pending().await;
    }
    loop {
        let pods = sights.borrow_and_update().pods.clone();
        if let Some(pods) = pods {
            let (found, is_awaited) = found_engines(&pods, &shared.config.run);
            let was_awaited = shared.engines.is_awaited.swap(is_awaited, Ordering::Relaxed);
            shared.engines.settle(&found, &shared.config, |index| is_free(shared, index));
            if was_awaited != is_awaited {
                shared.desk.nudge();
            }
        }
        tokio::select! {
            // The sender lives as long as the agent.
            _ = sights.changed() => {}
            () = shared.engines.is_vacant.notified() => {}
        }
    }
}

/// A lease call under way may end in units for the engine that has left.
fn is_free(shared: &Shared, index: usize) -> bool {
    !shared.gate.has_claims() && shared.desk.ledger().held_on(index) == EngineHeld::default()
}

/// Lets go of an engine that has left: what it has goes back at once, whatever it answers.
pub(super) async fn let_go(shared: &Shared, slot: &EngineSlot) {
    let mut changes = shared.desk.subscribe();
    slot.note_load_ended(Err(GONE.to_owned()), Instant::now());
    slot.condemn(GONE, Instant::now());
    shared.desk.nudge();
    loop {
        let now = Instant::now();
        let leave = shared.leave(HandBackCause::Engine.into(), now);
        let (units, held) = {
            let mut ledger = shared.desk.ledger();
            (ledger.leave_engine(slot.index, leave, now), ledger.held_on(slot.index))
        };
        if units > 0 {
            tracing::info!(engine = slot.engine.address(), units, "units leave with their engine");
            shared.desk.nudge();
        }
        if held == EngineHeld::default() {
            return;
        }
        // The sender lives in `shared`, so the wait cannot end with an error.
        let _ = changes.changed().await;
    }
}
