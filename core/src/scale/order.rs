//! What is ordered where.
//!
//! Pools are filled in the order of preference, those last of which AWS has just taken an instance.
//! Pools that differ only in their zone and stand together in that order are filled evenly: first
//! where the last launch did not fail, then where fewest replicas run, lost ones of late included,
//! then where it is cheapest. On-demand nodes that stand in for Spot are bought only as far as they
//! lower the cost of an update.

use super::census::{Census, PoolCount};
use super::plan::Action;
use super::reason::{CapacityReason, Reason, Unjudged};
use super::spending::Spending;
use super::terms::SizingTerms;
use super::value::{UpdateCost, replica_price};
use crate::observation::ReplicaView;

/// What bounds an order, besides room.
pub(super) struct Bounds {
    /// What an update costs, or why nobody can tell.
    pub cost: Result<UpdateCost, Unjudged>,
    /// Why on-demand is bought whatever it costs, if so.
    pub hurry: Option<Reason>,
    /// Most replicas that may be launched now.
    pub most_launches: u32,
}

/// What is ordered in each pool, by its place in the census.
pub(super) struct Order<'a> {
    terms: &'a SizingTerms,
    census: &'a Census<'a>,
    bounds: &'a Bounds,
    /// Replicas that will run, those ordered or kept here included.
    running: Vec<u32>,
    added: Vec<u32>,
    /// The pools with an order, in its order.
    ordered: Vec<usize>,
    /// What will run, in dollars per hour.
    dollars_per_hour: Result<f64, Unjudged>,
    spending: Spending,
    /// Replicas that have room and are not ordered.
    withheld: u32,
    reasons: Vec<Reason>,
}

impl<'a> Order<'a> {
    /// Nothing ordered yet.
    pub fn new(terms: &'a SizingTerms, census: &'a Census<'a>, bounds: &'a Bounds) -> Self {
        let running: Vec<u32> = census.pools.iter().map(PoolCount::running_promised).collect();
        let priced = census.pools.iter().zip(&running).filter(|(_, running)| **running > 0);
        let dollars_per_hour = priced
            .map(|(pool, running)| Ok(f64::from(*running) * replica_price(terms, pool.terms)?))
            .sum();
        let added = vec![0; running.len()];
        let (ordered, reasons) = (Vec::new(), Vec::new());
        Self {
            terms,
            census,
            bounds,
            running,
            added,
            ordered,
            dollars_per_hour,
            spending: Spending::of(terms, census),
            withheld: 0,
            reasons,
        }
    }

    /// Counts a replica that drains no more, unless it could not be paid.
    pub fn keep(&mut self, replica: &ReplicaView) -> bool {
        let place = self.census.rank(replica.pool.as_ref());
        let Some(pool) = self.census.pools.get(place) else { return true };
        let is_paid = self.spending.affords_to_keep(self.terms, pool);
        if is_paid {
            self.spending.keep(self.terms, pool);
            self.count(place);
        }
        is_paid
    }

    /// Orders up to `missing` replicas.
    pub fn fill(&mut self, missing: u32) {
        let mut missing = missing;
        for group in self.groups() {
            missing -= self.fill_group(&group, missing);
            // How much may be asked for is being found out; before that nothing dearer is bought.
            let halving = group.iter().map(|place| &self.census.pools[*place]);
            let halving = halving.filter(|pool| pool.room > 0).find(|pool| pool.halved.is_some());
            if let (Some(pool), true) = (halving, missing > 0) {
                self.withheld += missing;
                let (pool, most) = (pool.terms.name.clone(), pool.halved.unwrap_or(1));
                self.reasons.push(CapacityReason::Halved { pool, most }.into());
                return;
            }
        }
    }

    /// Pools that stand together and are alike, those last that AWS is emptying: they would lose
    /// the new replica next.
    fn groups(&self) -> Vec<Vec<usize>> {
        let pools = &self.census.pools;
        let (last, first): (Vec<_>, Vec<_>) =
            (0..pools.len()).partition(|place| pools[*place].comes_last);
        let stand_together = |a: &usize, b: &usize| pools[*a].terms.is_like(pools[*b].terms);
        let groups = [first, last];
        let groups = groups.iter().flat_map(|places| places.chunk_by(stand_together));
        groups.map(<[usize]>::to_vec).collect()
    }

    fn fill_group(&mut self, group: &[usize], missing: u32) -> u32 {
        let rooms = group.iter().map(|place| self.census.pools[*place].room);
        let wanted = missing.min(rooms.fold(0, u32::saturating_add));
        let is_fallback = group.iter().any(|place| self.census.is_fallback(*place));
        let mut placed = 0;
        while placed < wanted {
            let Some(place) = self.best(group) else { break };
            if is_fallback && !self.is_worth(place) {
                let reason = CapacityReason::FallbackLimited { wanted, allowed: placed };
                self.reasons.push(reason.into());
                break;
            }
            self.add(place);
            placed += 1;
        }
        self.withheld += wanted - placed;
        placed
    }

    /// The pool of a group that the next replica goes to, when one has room and can be paid.
    fn best(&mut self, group: &[usize]) -> Option<usize> {
        let has_room = |place: &&usize| self.added[**place] < self.census.pools[**place].room;
        let places: Vec<usize> = group.iter().filter(has_room).copied().collect();
        let (terms, pools) = (self.terms, &self.census.pools);
        let is_paid = |place: &usize| self.spending.affords(terms, &pools[*place]);
        let places: Vec<usize> = places.into_iter().filter(is_paid).collect();
        let rank = |place: &usize| {
            let pool = &self.census.pools[*place];
            let burden = self.running[*place].saturating_add(pool.losses);
            let price = pool.terms.dollars_per_node_hour.unwrap_or(f64::INFINITY);
            (pool.has_failed, burden, price)
        };
        let order = |a: &usize, b: &usize| {
            let (a, b) = (rank(a), rank(b));
            (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2))
        };
        places.into_iter().min_by(order)
    }

    /// Whether one more replica of an on-demand pool lowers the cost of an update. What the minimum
    /// needs is not weighed.
    fn is_worth(&mut self, place: usize) -> bool {
        let running = self.running.iter().sum::<u32>();
        // Nor what the rollouts wait for: a service is small beside them.
        if running < self.terms.clamp(0) || !self.terms.role.is_rollout() {
            return true;
        }
        if let Some(hurry) = &self.bounds.hurry {
            if !self.reasons.contains(hurry) {
                self.reasons.push(hurry.clone());
            }
            return true;
        }
        let worth = self.bounds.cost.clone().and_then(|cost| {
            let price = replica_price(self.terms, self.census.pools[place].terms)?;
            Ok(cost.is_lowered(running, self.dollars_per_hour.clone()?, price))
        });
        worth.unwrap_or_else(|why| {
            let reason = CapacityReason::FallbackUnjudged { why }.into();
            if !self.reasons.contains(&reason) {
                self.reasons.push(reason);
            }
            true
        })
    }

    fn add(&mut self, place: usize) {
        if self.added[place] == 0 {
            self.ordered.push(place);
        }
        self.added[place] += 1;
        self.spending.launch(self.terms, &self.census.pools[place]);
        self.count(place);
    }

    fn count(&mut self, place: usize) {
        self.running[place] += 1;
        let price = replica_price(self.terms, self.census.pools[place].terms);
        let so_far = std::mem::replace(&mut self.dollars_per_hour, Ok(0.0));
        self.dollars_per_hour = so_far.and_then(|so_far| Ok(so_far + price?));
    }

    /// The actions, and what is left of `missing`.
    pub fn finish(self, missing: u32, actions: &mut Vec<Action>, reasons: &mut Vec<Reason>) {
        let gang = self.terms.gang();
        for place in self.ordered {
            let pool = &self.census.pools[place];
            let from = pool.size.desired;
            // Nodes that are no whole replica are completed: one lost node costs one node.
            let to = (from / gang + self.added[place]) * gang;
            actions.push(Action::Raise { pool: pool.terms.name.clone(), from, to });
        }
        reasons.extend(self.reasons);
        reasons.extend(self.spending.reason());
        let ordered = self.added.iter().sum::<u32>();
        let missing = missing.saturating_sub(ordered).saturating_sub(self.withheld);
        if missing > 0 {
            reasons.push(Reason::NoRoom { missing });
        }
    }
}
