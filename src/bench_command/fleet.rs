//! What the calls of a fleet cost Redis, made as its agents make them.
//!
//! Eight nodes hold 64 units each. Each node in turn appends as many tokens to all of its units as
//! a unit of the fleet makes in a checkpoint interval, then renews all of its leases: each time by
//! one call of [`WorkQueue::write`] or [`WorkQueue::renew`], which is one call of Redis for each
//! shard that has units of the node. A cost is the time that Redis's main thread worked for one
//! unit of such a call (time on the clock, where Redis cannot be asked). That of a cycle is a
//! batched one's of a group of 8.

use std::time::Duration;

use anyhow::ensure;
use ebbtide_core::ids::Holder;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{ProgressLimits, Renewal, Then, Waiting};
use ebbtide_queue::reply::Grant;

use super::advice::Costs;
use super::arguments::FleetArgs;
use super::cycles::{self, BATCH, Load};
use super::material::{LONG_LEASE, Material, enqueue, holder, lease, write, write_all};
use super::meter::{Meter, Rate};
use super::site::Site;
use super::statistics::{Figures, median};

const GROUP_SIZE: usize = 8;
/// Nodes, and units of each: what an engine of today has in flight.
const NODES: usize = 8;
const UNITS_A_NODE: usize = 64;
/// Calls of each node: the first is not counted, and the median of the others is.
const TURNS: usize = 21;
/// Units of the measurement of cycles.
const CYCLE_UNITS: usize = 9_600;
/// Tokens of an append at most, however seldom the fleet appends.
const APPEND_TOKENS_LIMIT: usize = 4_096;

/// Measures the costs; that of a cycle is taken from the throughput where that is known.
///
/// # Errors
/// Redis gives no answer, or refuses a write.
pub async fn measure(
    site: &Site,
    material: &mut Material,
    fleet: &FleetArgs,
    known: &Figures,
    say: impl Fn(&str),
) -> anyhow::Result<Costs> {
    let tokens = append_tokens(fleet);
    say(&format!("shards: appends of {tokens} tokens and renewals by {NODES} nodes"));
    let run = site.begin().await?;
    let groups = NODES * UNITS_A_NODE / GROUP_SIZE;
    enqueue(&run.queue, material, 0, groups, GROUP_SIZE as u16).await?;
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let holder = holder(number, 0);
        let grants = lease(&run.queue, &holder, UNITS_A_NODE).await?;
        nodes.push((holder, grants));
    }
    let (mut appends, mut renewals) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let offset = u32::try_from(turn * tokens)?;
        appends.push(append(site, &run.queue, material, &nodes, offset, tokens).await?);
        renewals.push(renew(site, &run.queue, &nodes).await?);
    }
    site.end(run).await?;
    let cost = |costs: Vec<f64>| median(costs[1..].to_vec()).unwrap_or_default();
    let cycle = match known.value("batchedRedisMicrosecondsPerCycleGroupsOf8") {
        Some(microseconds) => microseconds / 1e6,
        None => {
            let units = CYCLE_UNITS.min(site.sizes.cycle_units);
            let load = Load { units, group_size: 8, batch: BATCH, has_partials: false };
            cost_of(cycles::measure(site, material, load).await?.cycles)
        }
    };
    Ok(Costs { cycle, append: cost(appends), renewal: cost(renewals) })
}

/// Tokens that a unit of the fleet makes in a checkpoint interval.
fn append_tokens(fleet: &FleetArgs) -> usize {
    let a_second = fleet.tokens_per_second as f64 / fleet.units_in_flight as f64;
    let tokens = (a_second * fleet.checkpoint_interval.as_secs_f64()).round() as usize;
    tokens.clamp(1, APPEND_TOKENS_LIMIT)
}

fn cost_of(rate: Rate) -> f64 {
    rate.redis_seconds.unwrap_or(1.0 / rate.per_second)
}

async fn append(
    site: &Site,
    queue: &WorkQueue,
    material: &mut Material,
    nodes: &[(Holder, Vec<Grant>)],
    offset: u32,
    tokens: usize,
) -> anyhow::Result<f64> {
    let chunk = material.chunk(offset, tokens);
    let meter = Meter::start(site.server.as_ref()).await?;
    for (holder, grants) in nodes {
        let append = |grant| write(grant, vec![chunk.clone()], Then::Continue);
        write_all(queue, holder, grants.iter().map(append).collect()).await?;
    }
    meter.stop(site.server.as_ref(), NODES * UNITS_A_NODE).await.map(cost_of)
}

async fn renew(
    site: &Site,
    queue: &WorkQueue,
    nodes: &[(Holder, Vec<Grant>)],
) -> anyhow::Result<f64> {
    // Nothing here goes without a token for that long.
    let patient = Duration::from_secs(3_600);
    let limits = ProgressLimits { idle: patient, ..ProgressLimits::default() };
    let meter = Meter::start(site.server.as_ref()).await?;
    for (holder, grants) in nodes {
        let renewal = |grant: &Grant| Renewal {
            unit: grant.unit.clone(),
            fencing_token: grant.fencing_token,
            ttl: LONG_LEASE,
            waiting: Waiting::Nothing,
        };
        let lost = queue.renew(holder, grants.iter().map(renewal).collect(), limits).await?;
        ensure!(lost.is_empty(), "{} leases were lost", lost.len());
    }
    meter.stop(site.server.as_ref(), NODES * UNITS_A_NODE).await.map(cost_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn append_has_the_tokens_of_a_checkpoint_interval() {
        let fleet = |tokens_per_second, milliseconds| FleetArgs {
            units_in_flight: 8_000,
            tokens_per_second,
            response_tokens: 4_000,
            checkpoint_interval: Duration::from_millis(milliseconds),
        };
        assert_eq!(append_tokens(&fleet(320_000, 500)), 20);
        assert_eq!(append_tokens(&fleet(320_000, 5_000)), 200);
        assert_eq!(append_tokens(&fleet(8, 500)), 1);
        assert_eq!(append_tokens(&fleet(320_000, 3_600_000)), APPEND_TOKENS_LIMIT);
    }
}
