//! The load of the node's engines, as reports and metrics tell it.

use tokio::time::Instant;

use crate::hosting::{EngineFigures, StartupParts};
use crate::shared::Shared;

/// How one engine stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineStanding {
    pub(super) figures: EngineFigures,
    pub(super) startup: StartupParts,
    /// Streams that it may have.
    pub(super) places: usize,
    /// Streams that it is known to bear at a time.
    capacity: usize,
    /// Streams of this agent that have brought a token.
    generating: usize,
}

/// How each engine of the node stands, in their order.
#[derive(Debug, Clone)]
pub(super) struct NodeLoad {
    pub(super) engines: Vec<EngineStanding>,
}

impl NodeLoad {
    pub(super) fn of(shared: &Shared, now: Instant) -> Self {
        let pod = *shared.engine_pod.borrow();
        let standing = |slot: &std::sync::Arc<crate::hosting::EngineSlot>| {
            let held = shared.desk.ledger().held_on(slot.index);
            EngineStanding {
                figures: slot.figures(now),
                startup: slot.note_startup(|startup, _| startup.parts(pod)),
                places: slot.places(held),
                capacity: slot.capacity(),
                generating: held.begun,
            }
        };
        Self { engines: shared.engines_in_service().iter().map(standing).collect() }
    }

    /// Streams that bring tokens; none of a node without engines.
    pub(super) fn generating(&self) -> Option<u32> {
        self.sum(|engine| Some(engine.generating as u64))
    }

    /// Streams that the engines are known to bear at a time.
    pub(super) fn capacity(&self) -> Option<u32> {
        self.sum(|engine| Some(engine.capacity as u64))
    }

    /// Sequences that the engines work on, when all tell.
    pub(super) fn running(&self) -> Option<u32> {
        self.sum(|engine| engine.figures.running)
    }

    /// Sequences that wait in the engines, when all tell.
    pub(super) fn waiting(&self) -> Option<u32> {
        self.sum(|engine| engine.figures.waiting)
    }

    /// Use of the fullest KV cache, of those that tell.
    pub(super) fn kv_cache_use(&self) -> Option<f64> {
        self.engines.iter().filter_map(|engine| engine.figures.kv_cache_use).reduce(f64::max)
    }

    fn sum(&self, figure: impl Fn(&EngineStanding) -> Option<u64>) -> Option<u32> {
        if self.engines.is_empty() {
            return None;
        }
        let sum: u64 = self.engines.iter().map(figure).sum::<Option<u64>>()?;
        Some(clamped(sum))
    }
}

/// A count as records have it.
pub(super) fn clamped(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
