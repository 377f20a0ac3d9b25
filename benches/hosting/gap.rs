//! How long a place of the engine stands empty when a sequence has ended and the queue has more:
//! an engine of 16 places, sequences of some 60 tokens at 100 tokens a second, more work than is
//! done.
//!
//! Seen from the engine: a place that a sequence leaves is empty until another one runs there. One
//! that waits in the engine (the agent's look-ahead) takes it in the same moment: 0.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, ensure};
use ebbtide_agent::emulator::engine::{EngineCounts, ResponseLengths};
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator};
use ebbtide_harness::{Figures, percentile_ms};
use tokio::time::{Instant, sleep, timeout};

use super::world::World;

const PLACES: usize = 16;
const LIMIT: Duration = Duration::from_secs(60);
/// After the places were first full, before anything is measured: the agent learns what the engine
/// bears.
const SETTLING: Duration = Duration::from_secs(10);

/// What was seen of the places.
struct Meter {
    ends: u64,
    empty_since: VecDeque<Instant>,
    gaps: Vec<Duration>,
    running: usize,
    seen_at: Instant,
    /// Places in use times seconds.
    in_use: f64,
}

impl Meter {
    fn new(counts: &EngineCounts, now: Instant) -> Self {
        let empty = PLACES - counts.running;
        Self {
            ends: ends(counts),
            empty_since: vec![now; empty].into(),
            gaps: Vec::new(),
            running: counts.running,
            seen_at: now,
            in_use: 0.0,
        }
    }

    /// Takes in a change.
    fn see(&mut self, counts: &EngineCounts, now: Instant) {
        self.in_use += self.running as f64 * (now - self.seen_at).as_secs_f64();
        let ended = ends(counts) - std::mem::replace(&mut self.ends, ends(counts));
        let ended = usize::try_from(ended).unwrap_or(0);
        let begun = (counts.running + ended).saturating_sub(self.running);
        self.empty_since.extend(vec![now; ended]);
        for _ in 0..begun {
            if let Some(since) = self.empty_since.pop_front() {
                self.gaps.push(now - since);
            }
        }
        (self.running, self.seen_at) = (counts.running, now);
    }
}

fn ends(counts: &EngineCounts) -> u64 {
    counts.finished_stop + counts.finished_length + counts.finished_abort
}

/// See the module.
///
/// # Errors
/// A part does not start, or work runs out.
pub async fn measure(quick: bool, figures: &mut Figures) -> anyhow::Result<()> {
    let window = Duration::from_secs(if quick { 12 } else { 60 });
    let engine = EngineEmulator::start(EngineConfig {
        tokens_per_second: 100.0,
        tick: Duration::from_millis(10),
        max_running: PLACES,
        lengths: ResponseLengths { mean: 60.0, spread: 0.6 },
        weights_label: "1".to_owned(),
        ..EngineConfig::default()
    })
    .context("engine")?;
    let world = World::start(400, 1_000, 256, &engine.base_url()).await?;
    let handle = engine.handle();
    let are_full = timeout(LIMIT, handle.wait_for(|counts| counts.running == PLACES)).await;
    are_full.with_context(|| format!("the engine was never full: {:?}", handle.counts()))?;
    sleep(SETTLING).await;
    println!("gap: the engine is watched for {} s", window.as_secs());
    let begun = Instant::now();
    let mut meter = Meter::new(&handle.counts(), begun);
    let see = |counts: &EngineCounts| {
        meter.see(counts, Instant::now());
        false
    };
    // It never is as wanted: the closure only looks.
    let _ = timeout(window, handle.wait_for(see)).await;
    let ready: u64 = world.queue.status().await.answers.iter().map(|shard| shard.ready).sum();
    ensure!(ready > 0, "the work ran out");
    let took = begun.elapsed().as_secs_f64();
    let none = meter.gaps.iter().filter(|gap| gap.is_zero()).count();
    figures.set("idleGapP50Ms", percentile_ms(&meter.gaps, 50));
    figures.set("idleGapP99Ms", percentile_ms(&meter.gaps, 99));
    figures.set("idleGapEnds", meter.gaps.len() as f64);
    figures.set("idleGapNonePercent", none as f64 / meter.gaps.len() as f64 * 100.0);
    figures.set("placesInUsePercent", meter.in_use / (PLACES as f64 * took) * 100.0);
    Ok(())
}
