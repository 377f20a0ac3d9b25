//! The way in: drains are taken back first, then pools are raised in the order of preference,
//! those last of which AWS has just taken an instance. On-demand nodes that stand in for Spot are
//! bought only as far as they are worth their price.

use super::census::{Census, PoolCount};
use super::plan::Action;
use super::reason::{CapacityReason, Reason, Unjudged};
use super::terms::SizingTerms;
use super::value::{UpdateCost, worth_buying};
use crate::observation::{DrainPurpose, DrainStage, ReplicaView};

/// What bounds the way in, besides room.
pub(super) struct Bounds {
    /// What an update costs, or why nobody can tell.
    pub cost: Result<UpdateCost, Unjudged>,
}

/// Brings `missing` more replicas, at most as many as one plan may change.
pub(super) fn raise(
    terms: &SizingTerms,
    census: &Census<'_>,
    bounds: &Bounds,
    missing: u32,
    actions: &mut Vec<Action>,
    reasons: &mut Vec<Reason>,
) {
    let limit = terms.max_changes_per_tick;
    if missing > limit {
        reasons.push(Reason::ChangesLimited { wanted: missing, limit });
    }
    let mut missing = missing.min(limit);
    let mut order = Order::new(terms, census, bounds);
    for (replica, request_id) in cancellable(census) {
        if missing == 0 {
            return;
        }
        missing -= 1;
        order.keep(replica);
        let replica = replica.id.clone();
        actions.push(Action::CancelDrain { replica, request_id: request_id.to_owned() });
    }
    let gang = terms.gang();
    if missing > 0 && terms.pools.iter().all(|pool| pool.max_nodes < gang) {
        reasons.push(Reason::Infeasible { nodes_per_replica: gang });
        return;
    }
    // A pool that AWS is emptying would lose the new replica next.
    let (last, first): (Vec<_>, Vec<_>) =
        (0..census.pools.len()).partition(|place| census.pools[*place].comes_last);
    for place in first.into_iter().chain(last) {
        missing -= order.place(place, missing);
    }
    order.finish(missing, actions, reasons);
}

/// What is ordered in each pool.
struct Order<'a> {
    terms: &'a SizingTerms,
    census: &'a Census<'a>,
    bounds: &'a Bounds,
    /// Replicas that will run in each pool, those ordered or kept here included.
    running: Vec<u32>,
    added: Vec<(usize, u32)>,
    /// Replicas that had room and were not worth their price.
    withheld: u32,
    reasons: Vec<Reason>,
}

impl<'a> Order<'a> {
    fn new(terms: &'a SizingTerms, census: &'a Census<'a>, bounds: &'a Bounds) -> Self {
        let running = census.pools.iter().map(PoolCount::running_promised).collect();
        let (added, reasons) = (Vec::new(), Vec::new());
        Self { terms, census, bounds, running, added, withheld: 0, reasons }
    }

    /// A replica that drains no more.
    fn keep(&mut self, replica: &ReplicaView) {
        if let Some(running) = self.running.get_mut(self.census.rank(replica.pool.as_ref())) {
            *running += 1;
        }
    }

    /// Orders up to `missing` replicas in the pool at this place and says how many.
    fn place(&mut self, place: usize, missing: u32) -> u32 {
        let pool = &self.census.pools[place];
        let wanted = missing.min(pool.room);
        let added = if self.census.is_fallback(place) { self.worth(pool, wanted) } else { wanted };
        if added > 0 {
            self.running[place] += added;
            self.added.push((place, added));
        }
        added
    }

    /// How many of `wanted` replicas of an on-demand pool lower the cost of an update; what the
    /// minimum needs is not weighed.
    fn worth(&mut self, pool: &PoolCount<'_>, wanted: u32) -> u32 {
        if wanted == 0 {
            return 0;
        }
        let worth = self.bounds.cost.clone().and_then(|cost| {
            worth_buying(self.terms, self.census, &cost, &self.running, pool, wanted)
        });
        let worth = worth.unwrap_or_else(|why| {
            let reason = CapacityReason::FallbackUnjudged { why }.into();
            if !self.reasons.contains(&reason) {
                self.reasons.push(reason);
            }
            wanted
        });
        let running = self.running.iter().sum::<u32>();
        let allowed = worth.max(self.terms.clamp(0).saturating_sub(running)).min(wanted);
        if allowed < wanted {
            self.withheld += wanted - allowed;
            let pool = pool.terms.name.clone();
            let reason = CapacityReason::FallbackLimited { pool, wanted, allowed };
            self.reasons.push(reason.into());
        }
        allowed
    }

    fn finish(self, missing: u32, actions: &mut Vec<Action>, reasons: &mut Vec<Reason>) {
        let gang = self.terms.gang();
        for (place, added) in self.added {
            let pool = &self.census.pools[place];
            let from = pool.size.desired;
            // Desired nodes that are no whole replica are completed by the next one.
            let to = from + added * gang;
            actions.push(Action::Raise { pool: pool.terms.name.clone(), from, to });
        }
        reasons.extend(self.reasons);
        let missing = missing.saturating_sub(self.withheld);
        if missing > 0 {
            reasons.push(Reason::NoRoom { missing });
        }
    }
}

/// Drains that may be taken back: ours, not yet terminating, of replicas that AWS leaves alone;
/// the ones that have come least far first.
fn cancellable<'a>(census: &Census<'a>) -> Vec<(&'a ReplicaView, &'a str)> {
    let mut drains: Vec<_> = census
        .replicas
        .iter()
        .filter_map(|replica| Some((replica, replica.drain.as_ref()?)))
        .filter(|(replica, drain)| {
            drain.purpose == DrainPurpose::Sizing
                && drain.stage < DrainStage::Terminating
                && !replica.has_notice
                && replica.silence() <= super::SILENCE_LIMIT
                && census.is_counted(replica)
        })
        .collect();
    drains.sort_by_key(|(replica, drain)| (drain.stage, &replica.id));
    drains.into_iter().map(|(replica, drain)| (replica, drain.request_id.as_str())).collect()
}
