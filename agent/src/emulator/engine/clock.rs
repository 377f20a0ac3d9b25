//! The one timer of an emulated engine: it opens the server after the start-up time and ticks the
//! scheduler while there is a stream. An idle engine costs nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::config::{FailAfter, Failure};
use super::scheduler::Scheduler;
use super::{Engine, EngineCounts, handle};

/// Runs until the engine has ended.
pub(super) async fn run(engine: Arc<Engine>) {
    let ended = engine.ended.clone();
    ended.run_until_cancelled(start_and_tick(engine)).await;
}

async fn start_and_tick(engine: Arc<Engine>) {
    if !engine.config.start_after.is_zero() {
        sleep(engine.config.start_after).await;
        if let Err(error) = engine.listen() {
            tracing::warn!(%error, "emulated engine could not listen");
            engine.kill();
            return;
        }
    }
    let mut ticks = interval(engine.config.tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failure_ahead = engine.config.fail_after;
    loop {
        wait_for_work(&engine).await;
        ticks.reset();
        let mut last = Instant::now();
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let counts = tick(&engine, now - last);
            last = now;
            fail_if_due(&engine, &mut failure_ahead, counts.tokens_generated);
            if super::lock(&engine.scheduler).lacks_weights() {
                handle::fail_core(&engine);
            }
            if counts.is_idle() {
                break;
            }
        }
    }
}

async fn wait_for_work(engine: &Engine) {
    while engine.counts_now().is_idle() {
        engine.work_arrived.notified().await;
    }
}

fn tick(engine: &Engine, elapsed: Duration) -> EngineCounts {
    let mut scheduler = super::lock(&engine.scheduler);
    scheduler.tick(elapsed);
    engine.publish(&mut scheduler)
}

/// Lets the configured failure come, once.
fn fail_if_due(engine: &Arc<Engine>, ahead: &mut Option<FailAfter>, tokens_generated: u64) {
    let Some(due) = ahead.take_if(|ahead| tokens_generated >= ahead.tokens) else { return };
    match due.failure {
        Failure::NodeLoss => engine.kill(),
        Failure::CoreDeath => handle::fail_core(engine),
        Failure::Hang => engine.change(|scheduler| scheduler.set_hung(true)),
        Failure::ErrorEvents => engine.change(Scheduler::fail_streams),
        Failure::BrokenStreams => engine.change(Scheduler::break_streams),
    }
}
