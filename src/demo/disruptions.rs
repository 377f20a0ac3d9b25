//! When the demo's nodes are noticed or killed: drawn from the seed before it begins.

use std::time::Duration;

use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Part of the run before the first disruption: the fleet has to be at work first.
const QUIET_START: f64 = 0.2;
/// Part of the run after the last one, beside the notice lead: work has to come back.
const QUIET_END: f64 = 0.15;

/// How a node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisruptionKind {
    /// Its IMDS announces the loss, and it comes at the announced moment.
    Notice,
    /// It is gone at once, and nobody is told.
    Kill,
}

/// One node to lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disruption {
    /// Since the start of the demo.
    pub at: Duration,
    /// How.
    pub kind: DisruptionKind,
    /// Chooses among the nodes that are at work then.
    pub pick: u64,
}

/// Spreads the disruptions over the run, in a random order with random gaps.
pub fn schedule(
    seed: u64,
    notices: u32,
    kills: u32,
    run: Duration,
    notice_lead: Duration,
) -> Vec<Disruption> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let notices = std::iter::repeat_n(DisruptionKind::Notice, notices as usize);
    let kills = std::iter::repeat_n(DisruptionKind::Kill, kills as usize);
    let mut kinds: Vec<DisruptionKind> = notices.chain(kills).collect();
    kinds.shuffle(&mut random);
    let first = run.mul_f64(QUIET_START);
    let last = run.mul_f64(1.0 - QUIET_END).saturating_sub(notice_lead).max(first);
    let slot = (last - first).div_f64(kinds.len().max(1) as f64);
    let place = |(kind, index): (DisruptionKind, u32)| {
        let at = first + slot * index + slot.mul_f64(random.random_range(0.0..1.0));
        Disruption { at, kind, pick: random.next_u64() }
    };
    kinds.into_iter().zip(0..).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Duration = Duration::from_secs(30);
    const LEAD: Duration = Duration::from_secs(3);

    #[test]
    fn every_disruption_comes_in_order_and_leaves_time_to_recover() {
        for seed in 0..50 {
            let planned = schedule(seed, 4, 2, RUN, LEAD);
            let count = |kind| planned.iter().filter(|one| one.kind == kind).count();
            assert_eq!((count(DisruptionKind::Notice), count(DisruptionKind::Kill)), (4, 2));
            assert!(planned.is_sorted_by_key(|one| one.at));
            assert!(planned.iter().all(|one| one.at >= RUN.mul_f64(0.2)));
            assert!(planned.iter().all(|one| one.at + LEAD < RUN), "seed {seed}: {planned:?}");
        }
    }

    #[test]
    fn same_seed_gives_the_same_disruptions() {
        assert_eq!(schedule(7, 4, 2, RUN, LEAD), schedule(7, 4, 2, RUN, LEAD));
        assert_ne!(schedule(7, 4, 2, RUN, LEAD), schedule(8, 4, 2, RUN, LEAD));
    }
}
