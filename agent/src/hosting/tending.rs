//! Tends the engines, each one on its own: probes them, reads their load, and ends streams that are
//! to end.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_queue::command::HandBackCause;
use futures::future::OptionFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::engines::{Condition, EngineSlot, ProbeNews};
use super::roster::{self, Hosted};
use super::weights;
use crate::engine::{EngineError, EngineLoad};
use crate::rhythm::{all_of, first_of};
use crate::shared::Shared;

/// Pause before an abort is repeated: a call that had not reached the scheduler escapes the
/// first one.
const ABORT_AGAIN: Duration = Duration::from_millis(100);

/// How long an engine may take to end a stream; then the agent closes the connection.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// Probes between two readings of the load of an engine that has nothing of this agent.
const IDLE_PROBES: u32 = 5;

/// Part of the progress limit after which a unit that waits in a full engine is withdrawn.
const WAIT_SHARE: u32 = 4;

/// Tends all engines for as long as it is polled, each for as long as the node has it.
pub(super) async fn tend(shared: &Shared) {
    let mut changes = shared.engines.subscribe();
    let mut tended: Vec<Arc<EngineSlot>> = Vec::new();
    let mut loops = FuturesUnordered::new();
    loop {
        let hosted = changes.borrow_and_update().clone();
        for it in &hosted {
            let is_same = |slot: &Arc<EngineSlot>| Arc::ptr_eq(slot, &it.slot);
            if !tended.get(it.slot.index).is_some_and(is_same) {
                loops.push(tend_one(shared, it.clone()).boxed());
            }
        }
        tended = hosted.into_iter().map(|it| it.slot).collect();
        tokio::select! {
            // The sender lives in `shared`, so the wait cannot end with an error.
            _ = changes.changed() => {}
            Some(gone) = loops.next() => shared.engines.note_let_go(&gone),
        }
    }
}

/// Ends when the engine has left the node and nothing of it is held; gives it back.
async fn tend_one(shared: &Shared, hosted: Hosted) -> Hosted {
    let slot = &*hosted.slot;
    let service =
        all_of([probe(shared, slot).boxed(), weights::keep_in_time(shared, slot).boxed()]);
    let stay = async {
        tokio::select! {
            () = service => {}
            () = hosted.gone.cancelled() => roster::let_go(shared, slot).await,
        }
    };
    first_of([stay.boxed(), end_streams(shared, slot).boxed()]).await;
    hosted
}

async fn probe(shared: &Shared, slot: &EngineSlot) {
    let mut probes_since_reading = IDLE_PROBES;
    loop {
        probes_since_reading += 1;
        let is_idle = shared.desk.ledger().held_on(slot.index).streams == 0;
        let reads = !is_idle || probes_since_reading >= IDLE_PROBES;
        let load = OptionFuture::from(reads.then(|| slot.engine.load()));
        let (answer, load) = futures::join!(slot.engine.probe(), load);
        let has_answered = answer.is_ok();
        let news = slot.note_probe(answer, Instant::now());
        if let Some(load) = load {
            probes_since_reading = 0;
            note_load(shared, slot, load);
        }
        apply(shared, slot, news);
        hold_against_run(shared, slot);
        if has_answered {
            let (now, knows_the_run) = ((shared.wall_clock)(), shared.gate.is_open());
            slot.note_startup(|startup, is_taken| {
                startup.note_answer(is_taken && knows_the_run, now);
            });
        }
        sleep_until(shared.rhythm.next(shared.config.pace.engine_probe)).await;
    }
}

/// Takes in a reading, and withdraws what has waited in the engine for too long: another one may
/// begin it at once.
fn note_load(shared: &Shared, slot: &EngineSlot, load: Result<EngineLoad, EngineError>) {
    let now = Instant::now();
    let waiting = load.as_ref().ok().and_then(|load| load.waiting).unwrap_or(0);
    if let Err(error) = &load {
        tracing::debug!(engine = slot.engine.address(), %error, "load not read");
        shared.metrics.engines.note_failed_reading(slot.index);
    }
    let held = shared.desk.ledger().held_on(slot.index);
    let room = slot.room(held);
    slot.note_load(load, held, now);
    if waiting > 0 && !slot.is_paused() {
        withdraw(shared, slot, usize::try_from(waiting).unwrap_or(usize::MAX), now);
    }
    if slot.room(held) > room {
        shared.desk.nudge();
    }
}

fn withdraw(shared: &Shared, slot: &EngineSlot, waiting: usize, now: Instant) {
    let limit = shared.config.lease.progress.idle / WAIT_SHARE;
    let Some(opened_before) = now.checked_sub(limit) else { return };
    let leave = shared.leave(HandBackCause::Engine.into(), now);
    let mut ledger = shared.desk.ledger();
    let mut late = ledger.unbegun(slot.index, opened_before);
    late.truncate(waiting);
    let units = ledger.leave(late.iter(), leave, now);
    drop(ledger);
    if units > 0 {
        tracing::debug!(engine = slot.engine.address(), units, "units waited in a full engine");
        slot.note_withdrawn();
        shared.desk.nudge();
    }
}

fn apply(shared: &Shared, slot: &EngineSlot, news: ProbeNews) {
    let engine = slot.engine.address();
    if let Some(name) = news.name {
        tracing::info!(engine, name, "engine found");
    }
    for lack in news.lacks {
        tracing::warn!(engine, advice = lack.advice(), "engine lacks an ability");
    }
    if let Some(condition) = news.condition {
        tell(shared, slot, &condition);
    }
    if let Some(version) = news.risen_to {
        note_weights(shared, slot, version);
    }
    if news.has_no_version {
        give_back(shared, slot);
    }
}

/// Engines of a node that is on its way out, or that answer elsewhere, are left as they are.
fn hold_against_run(shared: &Shared, slot: &EngineSlot) {
    let is_served = shared.engines_in_service().iter().any(|other| other.index == slot.index);
    if !is_served || !shared.gate.is_open() {
        return;
    }
    let (published, config) = (shared.published.borrow().clone(), &shared.config);
    let news = slot.note_run(&published, &config.weights, config.run.as_str(), Instant::now());
    if let Some(condition) = news {
        tell(shared, slot, &condition);
    }
}

fn tell(shared: &Shared, slot: &EngineSlot, condition: &Condition) {
    let engine = slot.engine.address();
    match condition {
        Condition::Ready(version) => tracing::info!(engine, %version, "engine ready"),
        Condition::Starting(why) => {
            let why = why.as_deref().unwrap_or_default();
            tracing::info!(engine, why, "engine has not answered yet");
        }
        Condition::Loading(why) | Condition::NotReady(why) => {
            tracing::warn!(engine, why, "engine not ready");
        }
    }
    shared.desk.nudge();
}

/// Tokens from here on are made by the new weights: a dead stream could not tell any more.
fn note_weights(shared: &Shared, slot: &EngineSlot, version: PolicyVersion) {
    let now = Instant::now();
    let leave = shared.leave(HandBackCause::Weights.into(), now);
    let going_on =
        shared.desk.change(|ledger| ledger.note_engine_version(slot.index, version, leave, now));
    tracing::info!(
        engine = slot.engine.address(), %version, streams = going_on.len(), "weights changed"
    );
    for (unit, offset) in going_on {
        tracing::debug!(%unit, offset, %version, "stream goes on under new weights");
    }
}

/// Nobody knows what weights make the tokens from here on, or they are older than what they
/// continue: what runs goes on elsewhere.
fn give_back(shared: &Shared, slot: &EngineSlot) {
    let now = Instant::now();
    let leave = shared.leave(HandBackCause::Engine.into(), now);
    let units = shared.desk.ledger().doubt_engine(slot.index, leave, now);
    if units > 0 {
        tracing::warn!(
            engine = slot.engine.address(),
            units,
            "units leave an engine of unknown weights"
        );
        shared.desk.nudge();
    }
}

/// Aborts what is to end, again and again until each stream has ended; cuts off what does not.
async fn end_streams(shared: &Shared, slot: &EngineSlot) {
    let mut changes = shared.desk.subscribe();
    loop {
        let cut_before = Instant::now().checked_sub(ABORT_LIMIT);
        let cut_before = cut_before.unwrap_or_else(Instant::now);
        let requests = shared.desk.ledger().streams_to_end(slot.index, cut_before);
        if requests.is_empty() {
            // The sender lives in `shared`, so the wait cannot end with an error.
            let _ = changes.changed().await;
            continue;
        }
        match timeout(ABORT_LIMIT, slot.engine.abort(&requests)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "abort not heard"),
            Err(_) => tracing::debug!(engine = slot.engine.address(), "abort not answered"),
        }
        sleep(ABORT_AGAIN).await;
    }
}
