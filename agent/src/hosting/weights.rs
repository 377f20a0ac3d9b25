//! Brings an engine that is too old for the run to the run's version, by the engine's own call.
//!
//! What runs on the engine goes on to its end first, as it gets nothing new; what has not ended
//! after the limit of a pause goes back with its tokens. So the engine is idle while it loads:
//! nothing has to be paused, and whatever becomes of the agent, nothing is left paused. The agent
//! moves no bytes. The engine's label is the only proof.

use ebbtide_core::ids::PolicyVersion;
use ebbtide_queue::command::HandBackCause;
use tokio::time::{Instant, timeout};

use super::engines::{EngineSlot, LoadOrder};
use crate::engine::WeightsAt;
use crate::shared::Shared;

/// Loads whenever that is due, one load at a time, for as long as it is polled.
pub(super) async fn keep_in_time(shared: &Shared, slot: &EngineSlot) {
    loop {
        let order = slot.load_order().await;
        let (engine, version) = (slot.engine.address(), order.version);
        let begun = Instant::now();
        free(shared, slot).await;
        let outcome = load(shared, slot, order).await;
        match &outcome {
            Ok(()) => {
                let seconds = begun.elapsed().as_secs_f64();
                tracing::info!(engine, %version, seconds, "engine brought to the run's weights");
            }
            Err(why) => tracing::warn!(engine, %version, why, "engine has not loaded weights"),
        }
        shared.metrics.engines.note_weights_load(slot.index, outcome.is_ok());
        slot.note_load_ended(outcome, Instant::now());
        shared.desk.nudge();
    }
}

/// Waits until nothing of this agent is on the engine.
async fn free(shared: &Shared, slot: &EngineSlot) {
    let limit = shared.config.lease.pause_limit();
    if timeout(limit, emptied(shared, slot)).await.is_ok() {
        return;
    }
    let now = Instant::now();
    let leave = shared.leave(HandBackCause::Weights.into(), now);
    let units = shared.desk.change(|ledger| ledger.leave_engine(slot.index, leave, now));
    tracing::info!(engine = slot.engine.address(), units, "units make way for newer weights");
    emptied(shared, slot).await;
}

async fn emptied(shared: &Shared, slot: &EngineSlot) {
    let mut changes = shared.desk.subscribe();
    while shared.desk.ledger().held_on(slot.index).streams > 0 {
        // The sender lives in `shared`, so the wait cannot end with an error.
        let _ = changes.changed().await;
    }
}

/// Tries one place after the other.
async fn load(shared: &Shared, slot: &EngineSlot, order: LoadOrder) -> Result<(), String> {
    let mut problems = Vec::new();
    for weights in order.places {
        tracing::info!(
            engine = slot.engine.address(), version = %order.version, from = weights.place,
            "engine loads weights"
        );
        match load_from(shared, slot, &weights).await {
            Ok(()) => return Ok(()),
            Err(problem) => problems.push(format!("{}: {problem}", weights.place)),
        }
    }
    Err(format!(
        "it could not load version {}: {}; mend that, or push it, or restart the engine with it",
        order.version,
        problems.join("; ")
    ))
}

async fn load_from(shared: &Shared, slot: &EngineSlot, weights: &WeightsAt) -> Result<(), String> {
    let limit = shared.config.weights.load_limit;
    let told = slot.engine.load_weights(weights, limit).await;
    told.map_err(|error| error.problem())?;
    let facts = slot.engine.probe().await.map_err(|error| error.problem())?;
    let label = facts.weights_label.unwrap_or_default();
    // Somebody may have pushed a newer one meanwhile.
    if PolicyVersion::from_weights_label(&label) >= Some(weights.version) {
        return Ok(());
    }
    Err(format!("it was acknowledged, but its weights are still called {label:?}"))
}
