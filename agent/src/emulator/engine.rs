//! Emulated inference engine: real HTTP in the shape recorded from vLLM 0.32, or in the one that
//! the source of SGLang 0.5.23 has, token ids in and out, at a set speed, with every failure an
//! agent has to live with.
//!
//! Behaviour and shape are apart: `scheduler` decides who gets which tokens, `response` what they
//! are, `clock` drives it with one timer per engine, and `vllm` and `sglang` alone know routes and
//! JSON.

mod clock;
mod config;
mod counts;
mod events;
mod expected;
mod exposition;
mod faults;
mod first_tokens;
mod handle;
mod response;
mod scheduler;
mod sequence;
mod sglang;
mod vllm;

use std::io;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::server::Server;
use super::{lock, wall_clock};

pub use config::{EngineConfig, FailAfter, Failure, ResponseLengths, SMALLEST_VOCABULARY};
pub use counts::EngineCounts;
pub use handle::EngineHandle;
pub use scheduler::PauseMode;

use crate::engine::EngineKind;
use faults::Faults;
use scheduler::Scheduler;

/// Largest request taken: 64 MiB hold a prompt of several million token ids.
const BODY_BYTES_MAX: usize = 64 << 20;

/// A running emulator. It is lost like a node when this is dropped: see [`EngineHandle::kill`].
pub struct EngineEmulator {
    handle: EngineHandle,
}

/// Everything one engine holds; its clock, requests and handles share it.
struct Engine {
    config: EngineConfig,
    started_at: Timestamp,
    server: Server,
    scheduler: Mutex<Scheduler>,
    faults: Mutex<Faults>,
    /// Where it has loaded its weights from since the start.
    loaded_from: Mutex<Option<String>>,
    /// Held while weights are loaded.
    loading: tokio::sync::Mutex<()>,
    counts: watch::Sender<EngineCounts>,
    /// Wakes the clock of an idle engine.
    work_arrived: Notify,
    /// Cancelled once the engine has ended, however it did.
    ended: CancellationToken,
    runtime: Handle,
}

impl EngineEmulator {
    /// Starts an engine; connections are refused until `start_after` has passed. Call inside a
    /// tokio runtime.
    ///
    /// # Errors
    /// When a value of `config` is impossible or its address cannot be bound.
    pub fn start(config: EngineConfig) -> io::Result<Self> {
        config.check()?;
        let engine = Arc::new(Engine {
            started_at: wall_clock(),
            server: Server::bind(config.listen)?,
            scheduler: Mutex::new(Scheduler::new(&config)),
            faults: Mutex::default(),
            loaded_from: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            counts: watch::Sender::default(),
            work_arrived: Notify::new(),
            ended: CancellationToken::new(),
            runtime: Handle::try_current().map_err(io::Error::other)?,
            config,
        });
        if engine.config.start_after.is_zero() {
            engine.listen()?;
        }
        engine.runtime.spawn(clock::run(engine.clone()));
        Ok(Self { handle: EngineHandle::of(engine) })
    }

    /// `http://address`, without a slash at the end; fixed from the start.
    pub fn base_url(&self) -> String {
        self.handle.base_url()
    }

    /// A handle to script this engine.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Tokens made so far by all streams, delivered or not, each counted once.
    pub fn tokens_generated(&self) -> u64 {
        self.handle.tokens_generated()
    }

    /// Loses the node: see [`EngineHandle::kill`].
    pub fn kill(&self) {
        self.handle.kill();
    }
}

impl Drop for EngineEmulator {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Engine {
    fn listen(self: &Arc<Self>) -> io::Result<()> {
        self.server.listen(match self.config.kind {
            EngineKind::Vllm => vllm::router(self.clone()),
            EngineKind::Sglang => sglang::router(self.clone()),
        })
    }

    /// Takes a new weights label, unless that was set to be ignored.
    fn take_label(&self, label: &str) {
        if !lock(&self.faults).ignores_labels {
            self.change(|scheduler| scheduler.set_label(label));
        }
    }

    /// Takes the time of a load, and notes where the weights are from; says why it cannot.
    async fn load_weights(&self, place: &str) -> Result<(), String> {
        let _loading = self.loading.lock().await;
        self.change(Scheduler::count_weight_load);
        tokio::time::sleep(self.config.load_takes).await;
        if lock(&self.faults).refuses_weights(place) {
            return Err(format!("cannot find any model weights with `{place}`"));
        }
        *lock(&self.loaded_from) = Some(place.to_owned());
        Ok(())
    }

    fn model_path(&self) -> String {
        let loaded_from = lock(&self.loaded_from).clone();
        loaded_from.unwrap_or_else(|| format!("/models/{}", self.config.model_name))
    }

    /// SGLang calls a model as its path once it has loaded weights from there.
    fn served_model_name(&self) -> String {
        lock(&self.loaded_from).clone().unwrap_or_else(|| self.config.model_name.clone())
    }

    /// Changes the scheduler, tells who waits for the counts, and wakes the clock.
    fn change<T>(&self, change: impl FnOnce(&mut Scheduler) -> T) -> T {
        let mut scheduler = lock(&self.scheduler);
        let result = change(&mut scheduler);
        self.publish(&mut scheduler);
        drop(scheduler);
        self.work_arrived.notify_one();
        result
    }

    fn publish(&self, scheduler: &mut Scheduler) -> EngineCounts {
        let counts = scheduler.counts();
        self.counts.send_if_modified(|known| {
            let is_new = *known != counts;
            *known = counts;
            is_new
        });
        counts
    }

    /// The counts of this moment; streams whose client hung up are no longer in them.
    fn counts_now(&self) -> EngineCounts {
        self.publish(&mut lock(&self.scheduler))
    }

    /// Resets all connections and makes no token any more.
    fn kill(&self) {
        self.server.cut();
        self.change(Scheduler::lose);
        self.ended.cancel();
    }
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
