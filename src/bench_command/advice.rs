//! How many shards a fleet needs: what it asks of Redis each second against what one Redis can do.
//!
//! A node's agent does three things all the time, each for all of its units in one call: it appends
//! new tokens every checkpoint interval, renews leases every 5 s, and completes units and leases
//! others as responses end. `fleet.rs` measures what each costs.

use std::time::Duration;

use super::arguments::FleetArgs;
use super::statistics::Figures;

/// Between two renewals of a lease of 15 s (contract, section 2).
const RENEWAL_INTERVAL: Duration = Duration::from_secs(5);
/// Part of a Redis that the fleet may keep busy: the rest is for hand-backs, the trainer, and short
/// answers.
const BUSY_PART: f64 = 0.5;
/// Shards for each server of a Cluster: where a shard lands follows from its name alone, and with
/// several on each server the servers have about the same share.
const SHARDS_A_SERVER: u64 = 4;

/// Seconds that one Redis works for one unit of each call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    pub cycle: f64,
    pub append: f64,
    pub renewal: f64,
}

/// What a fleet needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    pub costs: Costs,
    /// Of all units, in a second.
    pub appends: f64,
    pub renewals: f64,
    pub cycles: f64,
    /// How busy all this would keep one Redis, in percent.
    pub busy_percent: f64,
    /// Redis servers that it takes.
    pub servers: u64,
    /// `spec.queue.shards` of the policy.
    pub shards: u64,
}

/// Counts the shards for a fleet.
pub fn advise(fleet: &FleetArgs, costs: Costs) -> Advice {
    let units = fleet.units_in_flight as f64;
    let appends = units / fleet.checkpoint_interval.as_secs_f64();
    let renewals = units / RENEWAL_INTERVAL.as_secs_f64();
    let cycles = fleet.tokens_per_second as f64 / fleet.response_tokens as f64;
    let busy = appends * costs.append + renewals * costs.renewal + cycles * costs.cycle;
    let servers = (busy / BUSY_PART).ceil().max(1.0) as u64;
    let shards = if servers == 1 { 1 } else { servers * SHARDS_A_SERVER };
    let busy_percent = busy * 100.0;
    Advice { costs, appends, renewals, cycles, busy_percent, servers, shards }
}

impl Advice {
    /// For machines.
    pub fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures.set("fleetAppendsPerSecond", self.appends);
        figures.set("fleetRenewalsPerSecond", self.renewals);
        figures.set("fleetCyclesPerSecond", self.cycles);
        figures.set("redisMicrosecondsPerAppend", self.costs.append * 1e6);
        figures.set("redisMicrosecondsPerRenewal", self.costs.renewal * 1e6);
        figures.set("redisMicrosecondsPerCycle", self.costs.cycle * 1e6);
        figures.set("fleetRedisCpuPercent", self.busy_percent);
        figures.set("serversNeeded", self.servers as f64);
        figures.set("shardsNeeded", self.shards as f64);
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { cycle: 20e-6, append: 10e-6, renewal: 5e-6 };

    fn fleet(units_in_flight: u64, tokens_per_second: u64, interval_ms: u64) -> FleetArgs {
        let checkpoint_interval = Duration::from_millis(interval_ms);
        FleetArgs {
            units_in_flight,
            tokens_per_second,
            response_tokens: 4_000,
            checkpoint_interval,
        }
    }

    #[test]
    fn small_fleet_needs_one_shard() {
        let advice = advise(&fleet(1_000, 40_000, 500), COSTS);
        assert_eq!((advice.appends, advice.renewals, advice.cycles), (2_000.0, 200.0, 10.0));
        // 2,000 × 10 µs + 200 × 5 µs + 10 × 20 µs
        assert!((advice.busy_percent - 2.12).abs() < 1e-9, "{advice:?}");
        assert_eq!((advice.servers, advice.shards), (1, 1));
    }

    #[test]
    fn large_fleet_needs_several_servers_with_several_shards_each() {
        let advice = advise(&fleet(50_000, 2_000_000, 500), COSTS);
        // 100,000 × 10 µs + 10,000 × 5 µs + 500 × 20 µs = 1.06 s a second, at half of each server
        assert!((advice.busy_percent - 106.0).abs() < 1e-9, "{advice:?}");
        assert_eq!((advice.servers, advice.shards), (3, 12));
    }

    #[test]
    fn half_a_server_is_still_one() {
        let costs = Costs { cycle: 0.0, append: 25e-6, renewal: 0.0 };
        let advice = advise(&fleet(10_000, 400_000, 500), costs);
        assert_eq!((advice.busy_percent, advice.servers), (50.0, 1));
    }

    #[test]
    fn longer_checkpoint_interval_makes_fewer_appends() {
        let advice = advise(&fleet(1_000, 40_000, 2_000), COSTS);
        assert_eq!(advice.appends, 500.0);
    }
}
