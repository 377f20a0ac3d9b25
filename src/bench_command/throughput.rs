//! Cycles per second of the floor and of the queue, in turn, round after round; medians.
//!
//! Groups of 8 samples, as runs have them, are the headline; groups of one, where each unit brings
//! a specification and seals a group of its own, are measured beside them. A floor "with spec" also
//! stores, reads and deletes 1 KiB for each unit.

use super::cycles::{self, BATCH, Load};
use super::floor::{self, Spec};
use super::material::Material;
use super::meter::Rate;
use super::site::Site;
use super::statistics::{Figures, Rounds};

/// Units a call, and how keys begin.
const BATCHES: [(usize, &str); 2] = [(1, "unbatched"), (BATCH, "batched")];
const GROUP_SIZES: [u16; 2] = [HEADLINE_GROUP_SIZE, 1];
const HEADLINE_GROUP_SIZE: u16 = 8;
/// Units of the run that warms everything up.
const WARM_UP_UNITS: usize = 960;

/// Measures all; says each round.
///
/// # Errors
/// Redis gives no answer, or refuses what is measured.
pub async fn measure(
    site: &Site,
    material: &mut Material,
    say: impl Fn(&str),
) -> anyhow::Result<Figures> {
    let units = WARM_UP_UNITS.min(site.sizes.cycle_units);
    let warm_up = Load { units, group_size: 8, batch: BATCH, has_partials: true };
    cycles::measure(site, material, warm_up).await?;
    let mut rounds = Rounds::default();
    for round in 1..=site.sizes.rounds {
        say(&format!("throughput, round {round} of {}", site.sizes.rounds));
        measure_floors(site, &mut rounds).await?;
        measure_queue(site, material, &mut rounds).await?;
    }
    Ok(figures_of(&rounds, site.server.is_some()))
}

async fn measure_floors(site: &Site, rounds: &mut Rounds) -> anyhow::Result<()> {
    let Some(server) = &site.server else { return Ok(()) };
    for (spec, suffix) in [(Spec::LeftOut, ""), (Spec::Copied, "WithSpec")] {
        for (batch, name) in BATCHES {
            let units = site.sizes.cycle_units;
            let rate = floor::measure(server, site.name(), units, batch, spec).await?;
            rounds.add(format!("{name}Floor{suffix}CyclesPerSecond"), rate.per_second);
        }
    }
    Ok(())
}

async fn measure_queue(
    site: &Site,
    material: &mut Material,
    rounds: &mut Rounds,
) -> anyhow::Result<()> {
    for group_size in GROUP_SIZES {
        for (batch, name) in BATCHES {
            let units = site.sizes.cycle_units;
            let load = Load { units, group_size, batch, has_partials: false };
            let measured = cycles::measure(site, material, load).await?;
            let suffix = format!("GroupsOf{group_size}");
            add(rounds, name, &suffix, measured.cycles);
            let enqueued = measured.enqueued_groups_per_second;
            rounds.add(format!("enqueuedGroupsPerSecond{suffix}"), enqueued);
        }
    }
    let units = site.sizes.partial_units;
    let load = Load { units, group_size: 8, batch: BATCH, has_partials: true };
    add(rounds, "partial", "", cycles::measure(site, material, load).await?.cycles);
    Ok(())
}

fn add(rounds: &mut Rounds, name: &str, suffix: &str, rate: Rate) {
    rounds.add(format!("{name}CyclesPerSecond{suffix}"), rate.per_second);
    let microseconds = rate.redis_seconds.map(|seconds| seconds * 1e6);
    rounds.add(format!("{name}RedisMicrosecondsPerCycle{suffix}"), microseconds);
    rounds.add(format!("{name}RedisCpuPercent{suffix}"), rate.redis_percent);
    rounds.add(format!("{name}ClientCpuPercent{suffix}"), rate.client_percent);
}

/// The medians, with the headlines; null for floors that could not be measured.
fn figures_of(rounds: &Rounds, has_floor: bool) -> Figures {
    let mut figures = Figures::default();
    for (key, median) in rounds.medians() {
        figures.set(key, median);
    }
    for (_, name) in BATCHES {
        let key = format!("{name}CyclesPerSecond");
        figures.set(key.clone(), figures.value(&format!("{key}GroupsOf{HEADLINE_GROUP_SIZE}")));
        for suffix in ["", "WithSpec"] {
            if !has_floor {
                figures.set(format!("{name}Floor{suffix}CyclesPerSecond"), None);
            }
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headline_is_that_of_groups_of_8() {
        let mut rounds = Rounds::default();
        rounds.add("batchedCyclesPerSecondGroupsOf8", 30_000.0);
        rounds.add("batchedCyclesPerSecondGroupsOf1", 25_000.0);
        rounds.add("unbatchedCyclesPerSecondGroupsOf8", 9_000.0);
        rounds.add("unbatchedCyclesPerSecondGroupsOf1", 12_000.0);
        let figures = figures_of(&rounds, false);
        assert_eq!(figures.value("batchedCyclesPerSecond"), Some(30_000.0));
        assert_eq!(figures.value("unbatchedCyclesPerSecond"), Some(9_000.0));
        assert!(figures.has("batchedFloorWithSpecCyclesPerSecond"), "not measured is null");
    }
}
