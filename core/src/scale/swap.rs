//! The way back to Spot: one Spot replica is launched, and once it is ready one on-demand replica
//! that stood in for Spot drains.
//!
//! A swap must pay its changeover. With `k` the price ratio of on-demand to Spot and `d` the time
//! from order to first token, it pays when Spot is expected to last for longer than
//! `2 × k × d / (k − 1)` (Can't Be Late, NSDI'24, as in the autoscaling reference, section 1.3).
//! What a pool is expected to last is what it has lasted: since it was last without a failed
//! launch, a bench or a loss. An empty pool has lasted for no time; one replica is launched there
//! as a probe and replaces nothing before it has lasted.
//!
//! One swap at a time, and a while of peace after each. Nothing drains before its replacement is
//! ready, so for the length of a swap one replica more runs than is needed; at the maximum, one
//! more than the maximum.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Sizes;
use super::bench::{LAUNCH_LIMIT, PoolMemory};
use super::census::{Census, PoolCount};
use super::leaving::choose_victims;
use super::plan::{Action, LeaveReason};
use super::reason::{CapacityReason, Reason, SwapStep};
use super::removal::is_asked;
use super::spending::Spending;
use super::terms::SizingTerms;
use crate::ids::ReplicaId;
use crate::observation::{ReplicaState, ReplicaView};
use crate::policy::{Market, PoolName};
use crate::time::UnixMillis;

/// Peace after a swap, before the next one.
const SWAP_WINDOW: Duration = Duration::from_secs(300);

/// Time until a launch that was granted shows in its pool.
const LAUNCH_SHOWN_WITHIN: Duration = Duration::from_secs(60);

/// Price ratio of on-demand to Spot where a price is unknown: Spot for GPUs is sold at half the
/// on-demand price or less.
const PRICE_RATIO_UNKNOWN: f64 = 2.0;

/// What is remembered of swaps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SwapMemory {
    /// The swap that the last plan asked for, not known to be under way.
    proposed: Option<Swap>,
    /// The swap that is under way.
    under_way: Option<Swap>,
    /// When the last one ended.
    ended_at: Option<UnixMillis>,
    /// When the last plan was made.
    planned_at: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Swap {
    pool: PoolName,
    began_at: UnixMillis,
    /// How many replicas ran before, in all pools.
    running_before: u32,
    /// The replicas that the pool had before.
    known: BTreeSet<ReplicaId>,
}

/// What a swap is judged by.
pub(super) struct SwapView<'a> {
    pub terms: &'a SizingTerms,
    pub census: &'a Census<'a>,
    pub pools: &'a BTreeMap<PoolName, PoolMemory>,
    pub sizes: &'a Sizes,
    pub now: UnixMillis,
}

impl SwapMemory {
    /// How many of `running` replicas run only until a swap is over.
    pub fn surge(&self, running: u32) -> u32 {
        u32::from(self.under_way.as_ref().is_some_and(|swap| running > swap.running_before))
    }

    /// Begins a swap where that may be, follows one up, or gives it up.
    pub fn plan(
        &mut self,
        view: &SwapView<'_>,
        may_begin: bool,
        actions: &mut Vec<Action>,
        reasons: &mut Vec<Reason>,
    ) {
        self.planned_at = view.now;
        self.proposed = None;
        if let Some(swap) = &self.under_way {
            view.follow_up(swap, actions, reasons);
            if view.is_over(swap) {
                (self.under_way, self.ended_at) = (None, Some(view.now));
            }
        } else if may_begin
            && !actions.iter().any(Action::is_decision)
            && !self.is_too_soon(view.now)
        {
            self.proposed = view.begin(actions, reasons);
        }
    }

    /// Takes note of an action that was carried out.
    pub fn note_done(&mut self, action: &Action) {
        match action {
            Action::Raise { pool, .. } => {
                if let Some(swap) = self.proposed.take_if(|swap| swap.pool == *pool) {
                    self.under_way = Some(swap);
                }
            }
            Action::RequestDrain { why: LeaveReason::Swap, .. } => {
                (self.under_way, self.ended_at) = (None, Some(self.planned_at));
            }
            _ => {}
        }
    }

    fn is_too_soon(&self, now: UnixMillis) -> bool {
        self.ended_at.is_some_and(|ended_at| now.since(ended_at) < SWAP_WINDOW)
    }
}

impl SwapView<'_> {
    /// Launches one Spot replica when the fleet is at rest and on-demand replicas stand in for
    /// Spot: where Spot is expected to last, else as a probe where nothing runs.
    fn begin(&self, actions: &mut Vec<Action>, reasons: &mut Vec<Reason>) -> Option<Swap> {
        if !self.is_at_rest() || self.victim().is_none() {
            return None;
        }
        let spot = self.census.pools.iter().filter(|pool| self.may_receive(pool));
        let (running, empty): (Vec<_>, Vec<_>) = spot.partition(|pool| pool.present > 0);
        let lasting = running.iter().find(|pool| self.remaining(pool) == Some(Duration::ZERO));
        let probe = empty.iter().find(|_| running.is_empty());
        let (pool, step) = match (lasting, probe) {
            (Some(pool), _) => (pool, SwapStep::Launch),
            (None, Some(pool)) => (pool, SwapStep::Probe),
            (None, None) => return None,
        };
        let (name, from) = (pool.terms.name.clone(), pool.size.desired);
        let to = (from / self.terms.gang() + 1) * self.terms.gang();
        actions.push(Action::Raise { pool: name.clone(), from, to });
        reasons.push(CapacityReason::Swap { pool: name.clone(), step }.into());
        let known = self.replicas_of(&name).map(|(id, _)| id.clone()).collect();
        let running_before = self.census.running_promised();
        Some(Swap { pool: name, began_at: self.now, running_before, known })
    }

    /// Asks one on-demand replica to drain once its replacement is ready and Spot has lasted; the
    /// replacement itself when that takes too long.
    fn follow_up(&self, swap: &Swap, actions: &mut Vec<Action>, reasons: &mut Vec<Reason>) {
        let Some(pool) = self.pool(swap) else { return };
        let mut newcomers =
            self.replicas_of(&swap.pool).filter(|(id, _)| !swap.known.contains(*id));
        let is_ready = newcomers.any(|(_, state)| state == ReplicaState::Ready);
        let remaining = self.remaining(pool).unwrap_or(Duration::MAX);
        let step = match (is_ready, remaining) {
            _ if self.is_late(swap, pool) => SwapStep::GiveUp,
            (false, _) => SwapStep::Ready,
            (true, Duration::ZERO) => SwapStep::Drain,
            (true, remaining) => SwapStep::Last { remaining },
        };
        if matches!(step, SwapStep::Drain | SwapStep::GiveUp) {
            let is_surplus = self.sizes.lower_to < Some(self.census.running_present());
            let knows_need = self.sizes.lower_to.is_some() && is_surplus;
            let is_quiet = !actions.iter().any(Action::is_decision);
            let victim = if step == SwapStep::Drain { self.victim() } else { self.newcomer(swap) };
            let Some(replica) = victim.filter(|_| knows_need && is_quiet) else { return };
            actions.push(Action::RequestDrain { replica, why: LeaveReason::Swap });
        }
        reasons.push(CapacityReason::Swap { pool: swap.pool.clone(), step }.into());
    }

    /// Whether nothing runs beside what is needed any more: the launch has failed, demand has taken
    /// the replacement, or nothing stands in for Spot.
    fn is_over(&self, swap: &Swap) -> bool {
        let has_fallback = self.fallback_pools().any(|pool| pool.staying() > 0);
        let running = self.census.running_promised();
        let is_shown = self.now.since(swap.began_at) > LAUNCH_SHOWN_WITHIN;
        let has_failed = is_shown && running <= swap.running_before;
        let is_taken = running > swap.running_before && running <= self.sizes.raise_to;
        has_failed || is_taken || !has_fallback || self.pool(swap).is_none()
    }

    fn is_late(&self, swap: &Swap, pool: &PoolCount<'_>) -> bool {
        let patience = self.lasting(pool).unwrap_or(Duration::ZERO).saturating_add(LAUNCH_LIMIT);
        self.now.since(swap.began_at) > patience.saturating_add(self.terms.startup)
    }

    /// Nothing is missing, nothing is too much, nothing is on its way.
    fn is_at_rest(&self) -> bool {
        let (promised, present) = (self.census.running_promised(), self.census.running_present());
        let needs_all = self.sizes.lower_to.is_some_and(|lower_to| lower_to >= present);
        // One that was asked to go could stay in the place of what would be launched.
        let leaves = |it: &ReplicaView| is_asked(it) && self.census.is_counted(it);
        let is_left = self.census.replicas.iter().any(leaves);
        needs_all && self.sizes.raise_to <= promised && promised == present && !is_left
    }

    fn may_receive(&self, pool: &PoolCount<'_>) -> bool {
        let is_spot = pool.terms.market == Market::Spot;
        let is_paid = Spending::of(self.terms, self.census).affords(self.terms, pool);
        is_paid && is_spot && pool.room > 0 && !pool.comes_last && self.lasting(pool).is_some()
    }

    /// How long Spot of this pool must be expected to last; `None` when it never pays.
    fn lasting(&self, pool: &PoolCount<'_>) -> Option<Duration> {
        let fallback = self.fallback_pools().find(|pool| pool.present > 0)?;
        let prices = (fallback.terms.dollars_per_node_hour, pool.terms.dollars_per_node_hour);
        let ratio = match prices {
            (Some(on_demand), Some(spot)) => on_demand / spot,
            _ => PRICE_RATIO_UNKNOWN,
        };
        lasting(ratio, self.terms.startup)
    }

    /// For how much longer this pool must last before a swap pays; `None` when it never does, or
    /// while nothing runs there.
    fn remaining(&self, pool: &PoolCount<'_>) -> Option<Duration> {
        let good_for = self.pools.get(&pool.terms.name)?.good_for(self.now)?;
        Some(self.lasting(pool)?.saturating_sub(good_for))
    }

    fn fallback_pools(&self) -> impl Iterator<Item = &PoolCount<'_>> {
        let pools = self.census.pools.iter().enumerate();
        pools.filter(|(place, _)| self.census.is_fallback(*place)).map(|(_, pool)| pool)
    }

    /// The on-demand replica that goes next.
    fn victim(&self) -> Option<ReplicaId> {
        let fallback: BTreeSet<&PoolName> =
            self.fallback_pools().map(|pool| &pool.terms.name).collect();
        let may_go = |replica: &ReplicaView| {
            replica.pool.as_ref().is_some_and(|pool| fallback.contains(pool))
        };
        let victims = choose_victims(self.terms, self.census, 1, may_go);
        victims.first().map(|victim| victim.id.clone())
    }

    /// The replica that the swap brought.
    fn newcomer(&self, swap: &Swap) -> Option<ReplicaId> {
        let is_new = |replica: &ReplicaView| {
            replica.pool.as_ref() == Some(&swap.pool) && !swap.known.contains(&replica.id)
        };
        let victims = choose_victims(self.terms, self.census, 1, is_new);
        victims.first().map(|victim| victim.id.clone())
    }

    fn pool(&self, swap: &Swap) -> Option<&PoolCount<'_>> {
        self.census.pools.iter().find(|pool| pool.terms.name == swap.pool)
    }

    fn replicas_of(&self, pool: &PoolName) -> impl Iterator<Item = (&ReplicaId, ReplicaState)> {
        let replicas = self.census.replicas.iter();
        let of_pool = replicas.filter(move |replica| replica.pool.as_ref() == Some(pool));
        of_pool.map(|replica| (&replica.id, replica.state))
    }
}

/// `2 × k × d / (k − 1)`; `None` when Spot is no cheaper.
fn lasting(ratio: f64, changeover: Duration) -> Option<Duration> {
    if ratio.is_nan() || ratio <= 1.0 {
        return None;
    }
    if ratio.is_infinite() {
        return Some(changeover * 2);
    }
    let seconds = 2.0 * ratio * changeover.as_secs_f64() / (ratio - 1.0);
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spot_must_last_as_long_as_published() {
        // For k = 3 and d = 6 min: 18 min.
        let changeover = Duration::from_mins(6);
        assert_eq!(lasting(3.0, changeover), Some(Duration::from_mins(18)));
        assert_eq!(lasting(f64::INFINITY, changeover), Some(Duration::from_mins(12)));
        assert_eq!(lasting(1.0, changeover), None, "what is no cheaper is no gain");
        assert_eq!(lasting(f64::NAN, changeover), None, "both are free");
    }
}
