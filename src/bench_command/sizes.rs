//! How much is done: for figures, for a quick look, for a test.

use std::time::Duration;

use super::arguments::{Part, QueueBenchArgs};

/// Units in flight where callers work at the same time, as in every workload of the benchmark.
pub const UNITS_IN_FLIGHT: usize = 100;

/// Rounds of the throughput measurements: the first is dropped, of five the median counts.
const ROUNDS: usize = 6;

/// Bytes of a waiting unit of a group of one, as far as they are announced: its prompt of 1 KiB,
/// its terms, its places in the hashes and in the ready queue.
const WAITING_BYTES: u64 = 1_900;
/// The same of a unit of a group of 8.
const WAITING_BYTES_OF_8: u64 = 360;
/// Bytes of a stored token, as far as they are announced.
pub const TOKEN_BYTES: u64 = 9;

/// Sizes of every measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Rounds of the throughput measurements; of several the first is dropped.
    pub rounds: usize,
    /// Units of one measurement of cycles, and of the floor.
    pub cycle_units: usize,
    /// Units of one measurement with partials.
    pub partial_units: usize,
    /// How long calls are made for their latency.
    pub latency_span: Duration,
    /// Waiting units, for their cost and for their bytes.
    pub deep_units: usize,
    pub shallow_units: usize,
    /// Measurements of the cost of a cycle at each depth.
    pub depth_slices: usize,
    /// Tokens of each unit that is handed back.
    pub response_tokens: usize,
    /// Units of the node that hands back alone, and how often it does.
    pub node_units: usize,
    pub hand_backs: usize,
    /// Nodes that hand back at once, and units of each.
    pub nodes: usize,
    pub units_a_node: usize,
    /// Tokens that each of their units has stored before, if there is memory for them.
    pub nodes_stored_tokens: usize,
    /// Lease time of the units whose holder is killed, and how many it holds.
    pub lease_ttl: Duration,
    pub lost_units: usize,
    /// Units that wait for their bytes to be counted, and units with 4,096 tokens each.
    pub weighed_units: usize,
    pub weighed_partials: usize,
}

impl Sizes {
    /// What the arguments ask for.
    pub fn of(args: &QueueBenchArgs) -> Self {
        let sizes = match (args.tiny, args.quick) {
            (true, _) => Self::tiny(),
            (false, true) => Self::quick(),
            (false, false) => Self::full(),
        };
        Self { rounds: args.rounds.map_or(sizes.rounds, usize::from), ..sizes }
    }

    fn full() -> Self {
        Self {
            rounds: ROUNDS,
            cycle_units: 30_000,
            partial_units: 8_000,
            latency_span: Duration::from_secs(10),
            deep_units: 1_000_000,
            shallow_units: 1_000,
            depth_slices: 60,
            response_tokens: 8_000,
            node_units: 512,
            hand_backs: 5,
            nodes: 125,
            units_a_node: 64,
            nodes_stored_tokens: 8_000,
            lease_ttl: Duration::from_secs(15),
            lost_units: 64,
            weighed_units: 50_000,
            weighed_partials: 500,
        }
    }

    fn quick() -> Self {
        Self {
            rounds: 2,
            cycle_units: 6_000,
            partial_units: 1_600,
            latency_span: Duration::from_secs(2),
            deep_units: 100_000,
            depth_slices: 20,
            hand_backs: 2,
            nodes_stored_tokens: 500,
            lease_ttl: Duration::from_secs(3),
            weighed_units: 10_000,
            weighed_partials: 100,
            ..Self::full()
        }
    }

    fn tiny() -> Self {
        Self {
            rounds: 1,
            cycle_units: 400,
            partial_units: 200,
            latency_span: Duration::from_millis(200),
            deep_units: 2_000,
            shallow_units: 1_000,
            depth_slices: 2,
            response_tokens: 300,
            node_units: 16,
            hand_backs: 1,
            nodes: 3,
            units_a_node: 4,
            nodes_stored_tokens: 300,
            lease_ttl: Duration::from_secs(1),
            lost_units: 8,
            weighed_units: 2_000,
            weighed_partials: 8,
        }
    }

    /// Most bytes that Redis holds for a part at a time.
    pub fn bytes(&self, part: Part) -> u64 {
        let units = |count: usize, bytes: u64| count as u64 * bytes;
        let tokens = |units: usize, tokens: usize| (units * tokens) as u64 * TOKEN_BYTES;
        match part {
            Part::Throughput => {
                units(self.cycle_units, WAITING_BYTES + 400).max(tokens(self.partial_units, 1_200))
            }
            Part::Latency => units(self.cycle_units, WAITING_BYTES),
            Part::Depth => units(self.deep_units, WAITING_BYTES_OF_8),
            Part::HandBack => tokens(self.node_units, self.response_tokens)
                .max(tokens(self.nodes * self.units_a_node, self.nodes_stored_tokens)),
            Part::Recovery => units(self.lost_units, WAITING_BYTES),
            Part::Memory => {
                units(self.weighed_units, WAITING_BYTES).max(tokens(self.weighed_partials, 4_096))
            }
            Part::Shards => units(self.cycle_units, WAITING_BYTES_OF_8 + 400),
        }
    }

    /// About how long a part takes on a Redis that is near and has a core for itself.
    pub fn time(&self, part: Part) -> Duration {
        let millis = match part {
            // Nine measurements a round, each of some 15,000 cycles a second, and its enqueueing.
            Part::Throughput => self.rounds * self.cycle_units * 3 / 4,
            Part::Latency => 3_000 + self.latency_span.as_millis() as usize,
            // 8 units a group, some 8,000 groups a second.
            Part::Depth => self.deep_units / 50 + self.depth_slices * 150,
            // Some 4 million tokens a second are stored.
            Part::HandBack => {
                let stored = self.nodes * self.units_a_node * self.nodes_stored_tokens;
                let alone = self.node_units * self.response_tokens * (2 * self.hand_backs + 1);
                (stored + alone) / 4_000
            }
            Part::Recovery => self.lease_ttl.as_millis() as usize + 1_000,
            Part::Memory => self.weighed_units / 4 + 2_000,
            Part::Shards => 1_000 + self.cycle_units / 15,
        };
        Duration::from_millis(millis as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_sizes_take_less_memory_and_time() {
        let (full, quick, tiny) = (Sizes::full(), Sizes::quick(), Sizes::tiny());
        for part in Part::ALL {
            assert!(full.bytes(part) >= quick.bytes(part), "{part:?}");
            assert!(quick.bytes(part) >= tiny.bytes(part), "{part:?}");
            assert!(full.time(part) > quick.time(part), "{part:?}");
            assert!(quick.time(part) > tiny.time(part), "{part:?}");
        }
    }

    #[test]
    fn groups_of_eight_fill_every_depth() {
        for sizes in [Sizes::full(), Sizes::quick(), Sizes::tiny()] {
            assert_eq!((sizes.deep_units % 8, sizes.shallow_units % 8), (0, 0));
        }
    }
}
