//! How long single calls take at half of the throughput.
//!
//! Calls begin at moments that are fixed beforehand, whether earlier ones are answered or not (an
//! open loop), and each is timed from the moment at which it should have begun: a stall counts for
//! every call that it holds up. A unit's life is three calls of one unit each, [`GAP`] apart:
//! lease, append of 64 tokens, and by turns complete or hand back. What was handed back is leased
//! next, so about half of the leases bring tokens with them. The rate of all calls together is half
//! of the unbatched cycles per second, a cycle being one call there.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use ebbtide_core::ids::Holder;
use ebbtide_core::sample::Chunk;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{HandBackCause, Then};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;

use super::cycles::{self, Load};
use super::material::{LONG_LEASE, Material, complete, enqueue, holder, terms, write, write_all};
use super::site::Site;
use super::statistics::{Figures, percentile};

const GROUP_SIZE: usize = 8;
/// Calls of a life.
const CALLS_A_LIFE: f64 = 3.0;
/// Between two calls of a life.
const GAP: Duration = Duration::from_millis(100);
/// Of the throughput.
const RATE_PART: f64 = 0.5;
/// Units that stay waiting, so that the last lease still finds one.
const SPARE_UNITS: usize = 1_000;
const APPEND_TOKENS: usize = 64;
/// The calls, by the beginning of their keys.
const LEASE: &str = "lease";
const APPEND: &str = "append";
const COMPLETE: &str = "complete";
const HAND_BACK: &str = "handBack";
/// In the order of a life.
pub const CALLS: [&str; 4] = [LEASE, APPEND, COMPLETE, HAND_BACK];
/// The percentiles, of a thousand, and the ends of their keys.
pub const PERCENTILES: [(usize, &str); 3] = [(500, "P50Ms"), (990, "P99Ms"), (999, "P999Ms")];

/// Measures at half of `unbatched_per_second`; measures that first where it is not known.
///
/// # Errors
/// Redis gives no answer, or refuses a call.
pub async fn measure(
    site: &Site,
    material: &mut Material,
    unbatched_per_second: Option<f64>,
    say: impl Fn(&str),
) -> anyhow::Result<Figures> {
    let throughput = match unbatched_per_second {
        Some(known) => known,
        None => {
            let units = site.sizes.cycle_units;
            let load = Load { units, group_size: 8, batch: 1, has_partials: false };
            cycles::measure(site, material, load).await?.cycles.per_second
        }
    };
    let calls_per_second = throughput * RATE_PART;
    say(&format!("latency at {calls_per_second:.0} calls a second"));
    let span = site.sizes.latency_span;
    let lives = (calls_per_second / CALLS_A_LIFE * span.as_secs_f64()).ceil() as usize;
    let run = site.begin().await?;
    let groups = (lives + SPARE_UNITS).div_ceil(GROUP_SIZE);
    enqueue(&run.queue, material, 0, groups, GROUP_SIZE as u16).await?;
    let loads = Rc::new(Lives {
        queue: run.queue.clone(),
        chunk: material.chunk(0, APPEND_TOKENS),
        free_holders: RefCell::default(),
        holders_made: RefCell::default(),
        took: RefCell::default(),
    });
    let interval = Duration::from_secs_f64(CALLS_A_LIFE / calls_per_second);
    keep_to_schedule(&loads, lives, interval).await?;
    let figures = figures_of(loads.took.take(), calls_per_second);
    drop(loads);
    site.end(run).await?;
    Ok(figures)
}

/// What all lives share.
struct Lives {
    queue: WorkQueue,
    chunk: Chunk,
    /// One holder has one lease on its way at a time.
    free_holders: RefCell<Vec<Holder>>,
    holders_made: RefCell<usize>,
    /// Milliseconds by call.
    took: RefCell<BTreeMap<&'static str, Vec<f64>>>,
}

/// Begins every call at its moment. The clock is asked again and again in between, which costs this
/// core and nobody else: a timer would be late by up to a millisecond.
async fn keep_to_schedule(
    lives: &Rc<Lives>,
    count: usize,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut running = JoinSet::new();
    let mut later: [VecDeque<(Instant, oneshot::Sender<()>)>; 2] = Default::default();
    let (began, mut begun) = (Instant::now(), 0);
    while begun < count || later.iter().any(|queue| !queue.is_empty()) {
        let now = Instant::now();
        while begun < count && began + interval.mul_f64(begun as f64) <= now {
            let at = began + interval.mul_f64(begun as f64);
            let gates = [1, 2].map(|step| {
                let (opens, gate) = oneshot::channel();
                later[step as usize - 1].push_back((at + GAP * step, opens));
                gate
            });
            running.spawn_local(lives.clone().live(at, gates, begun % 2 == 0));
            begun += 1;
        }
        for queue in &mut later {
            while queue.front().is_some_and(|(at, _)| *at <= now) {
                // A life that has failed no longer waits; its error is the answer below.
                let _ = queue.pop_front().map(|(_, opens)| opens.send(()));
            }
        }
        while let Some(ended) = running.try_join_next() {
            ended??;
        }
        yield_now().await;
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

impl Lives {
    async fn live(
        self: Rc<Self>,
        at: Instant,
        [append, end]: [oneshot::Receiver<()>; 2],
        completes: bool,
    ) -> anyhow::Result<()> {
        let holder = self.free_holder();
        let leased = self.queue.lease_while(terms(&holder, LONG_LEASE), 1, || true).await?;
        self.note(LEASE, at);
        self.free_holders.borrow_mut().push(holder.clone());
        let grant = leased.grants.into_iter().next().context("no unit was there to be leased")?;

        append.await?;
        let offset = grant.partial.last().map_or(0, Chunk::end);
        let chunk = Chunk { offset, ..self.chunk.clone() };
        write_all(&self.queue, &holder, vec![write(&grant, vec![chunk], Then::Continue)]).await?;
        self.note(APPEND, at + GAP);

        end.await?;
        let (call, then) = if completes {
            (COMPLETE, complete())
        } else {
            (HAND_BACK, Then::HandBack(HandBackCause::Notice.into()))
        };
        write_all(&self.queue, &holder, vec![write(&grant, Vec::new(), then)]).await?;
        self.note(call, at + GAP * 2);
        Ok(())
    }

    fn free_holder(&self) -> Holder {
        self.free_holders.borrow_mut().pop().unwrap_or_else(|| {
            let mut made = self.holders_made.borrow_mut();
            *made += 1;
            holder(*made / 64, *made)
        })
    }

    fn note(&self, call: &'static str, due: Instant) {
        let milliseconds = due.elapsed().as_secs_f64() * 1000.0;
        self.took.borrow_mut().entry(call).or_default().push(milliseconds);
    }
}

fn figures_of(mut took: BTreeMap<&'static str, Vec<f64>>, calls_per_second: f64) -> Figures {
    let mut figures = Figures::default();
    figures.set("latencyCallsPerSecond", calls_per_second);
    for call in CALLS {
        let values = took.entry(call).or_default();
        values.sort_by(f64::total_cmp);
        for (per_thousand, suffix) in PERCENTILES {
            figures.set(format!("{call}{suffix}"), percentile(values, per_thousand));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_its_percentiles() {
        let took = BTreeMap::from([(LEASE, vec![2.0, 1.0, 3.0])]);
        let figures = figures_of(took, 100.0);
        assert_eq!(figures.value("leaseP50Ms"), Some(2.0));
        assert_eq!(figures.value("leaseP999Ms"), Some(3.0));
        assert!(figures.has("handBackP99Ms") && figures.value("handBackP99Ms").is_none());
    }
}
