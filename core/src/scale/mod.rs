//! Sizing: how many rollout replicas there should be, where more come from and which ones go.
//!
//! [`plan_scale`] is pure and the same in controller, simulator and replay. It reads top to
//! bottom: count what is there, judge what is needed, wait until that is stable, then raise, or
//! name the replicas to drain. Raising works through desired capacity; lowering never does: only
//! drained, named instances go.
//!
//! Laws: an unknown signal never lowers and an unknown size writes nothing; no busy replica and
//! none with an AWS notice is terminated; more demand never asks for less; a settled fleet needs
//! no change.

mod arrivals;
mod bench;
mod breaker;
mod census;
mod deadline;
mod demand;
mod groups;
mod guard;
mod leaving;
mod memory;
mod order;
mod pace;
mod plan;
mod quota;
mod raising;
mod reason;
mod removal;
mod reserved;
mod spending;
mod startup;
mod stock;
mod swap;
mod sync;
mod terms;
#[cfg(test)]
pub(crate) mod tests;
mod value;
mod window;
mod writer;

pub use self::leaving::SILENCE_LIMIT;
pub use self::memory::ScaleMemory;
pub use self::pace::{MeasuredPace, Pace};
pub use self::plan::{Action, ActionResult, LeaveReason, ScalePlan};
pub use self::quota::QuotaFamily;
pub use self::reason::{
    BreakerReason, CapacityReason, Direction, HoldKind, Reason, SignalName, SwapStep, Unjudged,
};
pub use self::startup::StartupMemory;
pub use self::stock::Stock;
pub use self::terms::{BudgetTerms, PoolTerms, SizingTerms};

use self::census::{Census, take_census};
use self::demand::{Demand, judge_demand, whole};
use self::guard::RaiseLimits;
use self::order::Bounds;
pub(crate) use self::pace::count;
use self::quota::share_refusals;
use self::swap::SwapView;
use self::value::{UpdateCost, UpdateTime};
use crate::observation::Observation;

/// Sizes of one plan on its way from demand to actions.
struct Sizes {
    /// What should be there, within minimum and maximum.
    desired: u32,
    /// Raise up to this.
    raise_to: u32,
    /// Lower down to this; `None` when nothing may be lowered.
    lower_to: Option<u32>,
}

/// Plans the size of the rollout group.
pub fn plan_scale(
    terms: &SizingTerms,
    observation: &Observation,
    memory: &ScaleMemory,
) -> ScalePlan {
    let mut memory = memory.clone();
    memory.look_at_pools(observation);
    let bottleneck = memory.look_at_run(terms, observation);
    let terms = &memory.learned(terms);
    (memory.gang, memory.planned_at) = (terms.gang(), observation.now);
    memory.schedule = memory.schedule.advance(terms.deadline, observation);
    memory.look_at_reservations(terms, observation.now);
    let late = memory.look_at_arrivals(terms, observation);
    let quotas = share_refusals(terms, &mut memory.pools);
    let is_sync = sync::is_spreading(observation, &memory.startup);
    let census = match take_census(terms, observation, &memory.pools, &late) {
        Ok(census) => census,
        Err(reasons) => {
            memory.pace = memory.pace.advance(observation, is_sync, false);
            let (running, wish, desired) = (None, None, None);
            let actions = Vec::new();
            return ScalePlan { running, wish, desired, bottleneck, actions, reasons, memory };
        }
    };
    let running = census.running_promised();
    // What runs only until a swap is over is no reason to keep as many.
    let surge = memory.swap.surge(running);
    let settled = running.saturating_sub(surge);
    // What is ordered elsewhere because a reservation ends runs beside what it replaces.
    let with_ending = settled.saturating_add(census.running_ending());
    let settled = settled.max(memory.desired.min(with_ending));
    let progress = memory.iteration.update_progress();
    let Demand { wish, useful, is_firm, mut reasons } =
        judge_demand(terms, observation, &memory.pace, progress, is_sync, settled);
    let time = UpdateTime::of(terms, observation, &memory.pace);
    let urgency = memory.schedule.judge(terms, time, wish.max(settled), observation.now);
    let wish = urgency.raise(wish, useful, &mut reasons);
    memory.pace = memory.pace.advance(observation, is_sync, is_firm);
    let mut sizes = stabilize(terms, &mut memory, &census, wish, is_firm, &mut reasons);
    let step_remaining = memory.iteration.step_remaining(observation.now);
    let limits = RaiseLimits { terms, bottleneck: &bottleneck, step_remaining };
    sizes.raise_to = memory.guard.bound(&limits, settled, sizes.raise_to, &mut reasons);

    let mut actions = Vec::new();
    leaving::forget_gone(&census, observation, &mut actions);
    if running < sizes.raise_to {
        let bounds = Bounds {
            cost: UpdateCost::of(terms, time),
            hurry: urgency.hurry,
            most_launches: memory.most_launches(terms, running),
        };
        let missing = sizes.raise_to - running;
        raising::raise(terms, &census, &bounds, missing, &mut actions, &mut reasons);
    } else if let Some(lower_to) = sizes.lower_to {
        lower(terms, &census, lower_to.saturating_add(surge), &mut actions, &mut reasons);
    }
    let (pools, now) = (&memory.pools, observation.now);
    let view = SwapView { terms, census: &census, pools, sizes: &sizes, now };
    let may_begin = memory.breaker.open().is_none() && !urgency.is_tight;
    memory.swap.plan(&view, may_begin, &mut actions, &mut reasons);
    reserved::leave_ending(&census, &mut actions, &mut reasons);
    spending::drain_unpaid(terms, &census, &mut actions, &mut reasons);
    leaving::discard_unjoined(terms, &census, &late, &mut actions, &mut reasons);
    memory.groups.plan(terms, &census, &memory.arrivals, now, &mut actions, &mut reasons);
    let cancelled = actions.clone();
    leaving::retire_drained(&census, &mut actions, &mut reasons);
    drop_contradictions(&mut actions, &cancelled);
    note_pools(observation, &memory, &census, &mut reasons);
    if let Some(reason) = memory.breaker.open() {
        reasons.push(CapacityReason::BreakerOpen { reason }.into());
    }
    reasons.extend(quotas.into_iter().filter_map(|(family, until)| {
        let remaining = until.remaining(observation.now);
        let reason = CapacityReason::QuotaExceeded { family, remaining };
        (!remaining.is_zero()).then_some(Reason::Capacity(reason))
    }));
    memory.desired = sizes.desired;
    ScalePlan {
        running: Some(running),
        wish: Some(wish),
        desired: Some(sizes.desired),
        bottleneck,
        actions,
        reasons,
        memory,
    }
}

/// Waits with a change until it has been wanted long enough; the minimum needs no waiting.
fn stabilize(
    terms: &SizingTerms,
    memory: &mut ScaleMemory,
    census: &Census<'_>,
    wish: u32,
    is_firm: bool,
    reasons: &mut Vec<Reason>,
) -> Sizes {
    let desired = terms.clamp(wish);
    if desired > wish {
        reasons.push(Reason::AtMinimum { minimum: desired });
    } else if desired < wish {
        reasons.push(Reason::AtMaximum { maximum: desired });
    }
    let (up, down) = (terms.stabilization_up, terms.stabilization_down);
    let at = memory.pace.counted();
    if is_firm {
        memory.highest.push(desired, down, at);
        memory.lowest.push(desired, up, at);
    }
    let settled_up = if up.is_zero() {
        Some(desired)
    } else {
        memory.lowest.settled(up, at).filter(|_| is_firm)
    };
    let minimum = terms.clamp(0);
    let raise_to = settled_up.unwrap_or(minimum).max(minimum);
    let running = census.running_promised();
    if raise_to < desired && running < desired {
        let remaining = memory.lowest.remaining(up, at);
        reasons.push(Reason::Stabilizing { direction: Direction::Up, wanted: desired, remaining });
    }
    let lower_to = memory.highest.settled(down, at).filter(|_| is_firm);
    let present = census.running_present();
    if is_firm && desired < present && lower_to.is_none_or(|lower_to| lower_to > desired) {
        let remaining = memory.highest.remaining(down, at);
        let direction = Direction::Down;
        reasons.push(Reason::Stabilizing { direction, wanted: desired, remaining });
    }
    Sizes { desired, raise_to, lower_to }
}

/// Names the replicas to drain, at most as many as one plan may change.
fn lower(
    terms: &SizingTerms,
    census: &Census<'_>,
    lower_to: u32,
    actions: &mut Vec<Action>,
    reasons: &mut Vec<Reason>,
) {
    let surplus = census.running_present().saturating_sub(lower_to);
    let limit = terms.max_changes_per_tick;
    if surplus > limit {
        reasons.push(Reason::ChangesLimited { wanted: surplus, limit });
    }
    let wanted = surplus.min(limit);
    let victims = leaving::choose_victims(terms, census, wanted, |_| true);
    let found = u32::try_from(victims.len()).unwrap_or(u32::MAX);
    if found < wanted {
        reasons.push(Reason::NoVictim { missing: wanted - found });
    }
    actions.extend(victims.into_iter().map(|victim| {
        let why = LeaveReason::ScaleIn;
        Action::RequestDrain { replica: victim.id.clone(), why }
    }));
}

/// A replica whose drain this very plan takes back is not retired by it.
fn drop_contradictions(actions: &mut Vec<Action>, cancelled: &[Action]) {
    let is_cancelled = |id: &crate::ids::ReplicaId| {
        cancelled
            .iter()
            .any(|action| matches!(action, Action::CancelDrain { replica, .. } if replica == id))
    };
    actions.retain(
        |action| !matches!(action, Action::Retire { replica, .. } if is_cancelled(replica)),
    );
}

/// Says which pools are left out and which fill up by themselves.
fn note_pools(
    observation: &Observation,
    memory: &ScaleMemory,
    census: &Census<'_>,
    reasons: &mut Vec<Reason>,
) {
    for pool in &census.pools {
        let name = &pool.terms.name;
        let now = observation.now;
        let benched = memory.pools.get(name).and_then(|pool| pool.benched(now));
        if let Some(conflict) = memory.pools.get(name).and_then(|pool| pool.writer.conflict(now)) {
            let (pool, remaining) = (name.clone(), conflict.until.remaining(now));
            let (asked, found) = (conflict.asked, conflict.found);
            reasons.push(Reason::ConflictingWriter { pool, asked, found, remaining });
        }
        if let Some(remaining) = memory.pools.get(name).and_then(|pool| pool.comes_last(now)) {
            reasons.push(Reason::PoolReclaimed { pool: name.clone(), remaining });
        }
        if pool.holds == 0 {
            let (pool, nodes_per_replica) = (name.clone(), census.gang);
            reasons.push(CapacityReason::PoolTooSmall { pool, nodes_per_replica }.into());
        }
        let (desired, observed) = (pool.size.desired, pool.counted);
        if let Some((kind, remaining)) = benched {
            reasons.push(Reason::PoolBenched { pool: name.clone(), kind, remaining });
        } else if observed < desired {
            reasons.push(Reason::PoolFilling { pool: name.clone(), desired, observed });
        }
    }
}
