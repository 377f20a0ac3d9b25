//! A shard's counters against its raw units: every slot and every token is counted once.
//!
//! Counters and units are read in several steps. Where nothing moved between the first and the last
//! the comparison is exact; elsewhere a difference only means something when it stays the same.

use std::collections::BTreeMap;

use ebbtide_core::ids::NodeName;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::command::Stage;
use ebbtide_queue::state::UnitSnapshot;
use ebbtide_queue::status::ShardStatus;

use crate::words::thousands;

/// Readings of a shard that is at work, until one is exact.
const TRIES: usize = 5;

/// A sum that does not come out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Of what.
    pub what: String,
    /// What the counters say.
    pub counted: u64,
    /// What the units say.
    pub found: u64,
}

/// One shard, compared.
#[derive(Debug, Default)]
pub struct Sums {
    pub gaps: Vec<Gap>,
    /// Whether nothing moved meanwhile.
    pub is_exact: bool,
    /// The units as they were read.
    pub units: Vec<UnitSnapshot>,
}

/// Reads a shard and compares, a few times until the reading is exact.
///
/// # Errors
/// The shard does not answer.
pub async fn compare(queue: &WorkQueue, shard: u16) -> Result<Sums, QueueError> {
    let mut sums = Sums::default();
    for _ in 0..TRIES {
        let before = queue.shard_status(shard).await?;
        let units = queue.scan_shard(shard).await?;
        let after = queue.shard_status(shard).await?;
        let is_exact = moved(&before) == moved(&after);
        sums = Sums { gaps: gaps(&before, &units), is_exact, units };
        if sums.is_exact || sums.gaps.is_empty() {
            break;
        }
    }
    Ok(sums)
}

/// A status without what changes by itself.
fn moved(status: &ShardStatus) -> ShardStatus {
    ShardStatus { now: UnixMillis(0), ..status.clone() }
}

/// Every sum that does not come out.
pub fn gaps(status: &ShardStatus, units: &[UnitSnapshot]) -> Vec<Gap> {
    let count = |is_wanted: &dyn Fn(&UnitSnapshot) -> bool| {
        units.iter().filter(|unit| is_wanted(unit)).count() as u64
    };
    let open = count(&|unit| !unit.state.is_final());
    let ended = status.completed + status.dead + status.expired + status.cancelled;
    let unsealed = units.iter().filter(|unit| !unit.is_sealed);
    let tokens_here: u64 = unsealed.map(|unit| u64::from(unit.tokens)).sum();
    let tokens = &status.tokens;
    let ready = |stage| {
        count(&|unit| unit.stage == stage && !unit.state.is_final() && !unit.state.is_leased())
    };
    let leased = |stage| count(&|unit| unit.stage == stage && unit.state.is_leased());
    let mut pairs = vec![
        (SLOTS.to_owned(), status.enqueued, ended + open),
        (
            TOKENS.to_owned(),
            tokens.generated,
            tokens.accepted + tokens.wasted_total() + tokens_here,
        ),
        ("units ready to be generated".to_owned(), status.ready, ready(Stage::Generate)),
        ("units being generated".to_owned(), status.leased, leased(Stage::Generate)),
        ("units ready to be scored".to_owned(), status.reward_ready, ready(Stage::Reward)),
        ("units being scored".to_owned(), status.reward_leased, leased(Stage::Reward)),
    ];
    let mut held = BTreeMap::<&NodeName, u64>::new();
    for holder in units.iter().filter(|u| u.state.is_leased()).filter_map(|u| u.holder.as_ref()) {
        *held.entry(&holder.node).or_default() += 1;
    }
    let nodes = status.leased_by_node.keys().chain(held.keys().copied());
    for node in nodes.collect::<std::collections::BTreeSet<_>>() {
        let counted = status.leased_by_node.get(node).copied().unwrap_or(0);
        pairs.push((
            format!("units held by {node}"),
            counted,
            held.get(node).copied().unwrap_or(0),
        ));
    }
    let gap = |(what, counted, found)| Gap { what, counted, found };
    pairs.into_iter().map(gap).filter(|gap| gap.counted != gap.found).collect()
}

/// The name of the conservation law (I8) among the sums.
pub const SLOTS: &str = "slots";
/// The name of the token account among the sums.
pub const TOKENS: &str = "tokens";

impl Gap {
    /// What tells it from others: two readings with the same one mean the same.
    pub fn difference(&self) -> i128 {
        i128::from(self.counted) - i128::from(self.found)
    }

    /// Whether it is a law of the counters themselves, whatever the queues hold.
    pub fn is_of_counters(&self) -> bool {
        [SLOTS, TOKENS].contains(&self.what.as_str())
    }

    /// For people.
    pub fn words(&self) -> String {
        let (counted, found) = (thousands(self.counted), thousands(self.found));
        format!("{}: {counted} counted, {found} accounted for", self.what)
    }
}
