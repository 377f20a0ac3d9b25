//! What a cycle costs behind a long queue, over what it costs behind a short one.
//!
//! Two runs on the same Redis, one with a million units waiting in groups of 8, one with a
//! thousand. In turn, each gets [`SLICE`] batched cycles by six callers; before that it is filled
//! up to half a slice above its depth, so that its depth is right on the average, and what the
//! cycles have sealed is taken and acknowledged. The cost of a slice is the CPU time of Redis's
//! main thread during the cycles (time on the clock where Redis cannot be asked); the figure is the
//! ratio of the medians.

use tokio::time::Instant;

use super::cycles::{BATCH, cycle};
use super::material::{LONG_LEASE, Material, enqueue};
use super::meter::Meter;
use super::site::{Run, Site};
use super::statistics::{Figures, median};

const GROUP_SIZE: usize = 8;
const CALLERS: usize = 6;
/// Batches of one caller in a slice.
const BATCHES: usize = 5;
/// Cycles of one slice.
const SLICE: usize = CALLERS * BATCHES * BATCH;
/// Slices of each depth before it is measured.
const WARM_UP_SLICES: usize = 2;
/// Who takes what is sealed.
const TRAINER: &str = "bench-trainer";

/// The key of the figure for these depths; only a million over a thousand is the headline.
pub fn key(deep_units: usize, shallow_units: usize) -> String {
    let short = |units: usize| {
        let exponent = units.ilog10();
        if units == 10_usize.pow(exponent) { format!("1e{exponent}") } else { units.to_string() }
    };
    format!("depthSlowdown{}Over{}", short(deep_units), short(shallow_units))
}

/// Measures both depths.
///
/// # Errors
/// Redis gives no answer, or has too little memory.
pub async fn measure(
    site: &Site,
    material: &mut Material,
    say: impl Fn(&str),
) -> anyhow::Result<Figures> {
    let sizes = site.sizes;
    say(&format!("depth: {} and {} waiting units", sizes.deep_units, sizes.shallow_units));
    let mut deep = Pond::fill(site, material, sizes.deep_units).await?;
    let mut shallow = Pond::fill(site, material, sizes.shallow_units).await?;
    for slice in 0..WARM_UP_SLICES + sizes.depth_slices {
        for pond in [&mut deep, &mut shallow] {
            let cost = pond.measure_slice(site, material).await?;
            if slice >= WARM_UP_SLICES {
                pond.costs.push(cost * 1e6);
            }
        }
    }
    let medians = [&deep, &shallow].map(|pond| median(pond.costs.clone()));
    for pond in [deep, shallow] {
        site.end(pond.run).await?;
    }
    let mut figures = Figures::default();
    let ratio = medians[0].zip(medians[1]).map(|(deep, shallow)| deep / shallow);
    figures.set(key(sizes.deep_units, sizes.shallow_units), ratio);
    figures.set("deepMicrosecondsPerCycle", medians[0]);
    figures.set("shallowMicrosecondsPerCycle", medians[1]);
    Ok(figures)
}

/// A run that is kept at its depth.
struct Pond {
    run: Run,
    groups: usize,
    costs: Vec<f64>,
}

impl Pond {
    /// A run with `units` units waiting.
    async fn fill(site: &Site, material: &Material, units: usize) -> anyhow::Result<Self> {
        let run = site.begin().await?;
        // A slice ends half a slice below.
        let groups = (units - SLICE / 2) / GROUP_SIZE;
        enqueue(&run.queue, material, 0, groups, GROUP_SIZE as u16).await?;
        Ok(Self { run, groups, costs: Vec::new() })
    }

    /// Seconds that one cycle cost.
    async fn measure_slice(&mut self, site: &Site, material: &Material) -> anyhow::Result<f64> {
        let (queue, more) = (&self.run.queue, SLICE / GROUP_SIZE);
        enqueue(queue, material, self.groups, more, GROUP_SIZE as u16).await?;
        self.groups += more;
        let meter = Meter::start(site.server.as_ref()).await?;
        let until = Instant::now() + LONG_LEASE;
        let callers = (0..CALLERS).map(|number| cycle(queue, number, BATCH, BATCHES, until, &[]));
        let done: usize = futures::future::try_join_all(callers).await?.into_iter().sum();
        anyhow::ensure!(done == SLICE, "{done} of {SLICE} units were completed");
        let rate = meter.stop(site.server.as_ref(), done).await?;
        let sealed = queue.take(TRAINER, SLICE).await?;
        let sealed: Vec<_> = sealed.iter().map(|taken| taken.group.group_id.clone()).collect();
        queue.acknowledge(TRAINER, &sealed).await?;
        Ok(rate.redis_seconds.unwrap_or(1.0 / rate.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_tells_the_depths() {
        assert_eq!(key(1_000_000, 1_000), "depthSlowdown1e6Over1e3");
        assert_eq!(key(100_000, 1_000), "depthSlowdown1e5Over1e3");
        assert_eq!(key(2_000, 1_000), "depthSlowdown2000Over1e3");
    }

    #[test]
    fn slices_are_whole_groups_and_fit_into_the_short_queue() {
        assert!(SLICE.is_multiple_of(2 * GROUP_SIZE) && SLICE < 1_000);
    }
}
