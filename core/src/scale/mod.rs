//! Sizing: how many replicas there should be, where more come from and which ones go. Of the
//! rollouts, and of the services that they need (`service`).
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
mod clock;
mod deadline;
mod demand;
mod groups;
mod guard;
mod leaving;
mod memory;
mod order;
mod outlook;
mod pace;
mod plan;
mod quota;
mod raising;
mod reason;
mod removal;
mod reserved;
mod role;
mod service;
mod silent;
mod spending;
mod startup;
mod stock;
mod swap;
mod sync;
mod terms;
#[cfg(test)]
pub(crate) mod tests;
mod trainer;
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
pub use self::role::Role;
pub use self::startup::StartupMemory;
pub use self::stock::Stock;
pub use self::terms::{BudgetTerms, PoolTerms, SizingTerms};
pub use self::trainer::{
    TrainerAction, TrainerMemory, TrainerPlan, TrainerReason, TrainerTerms, plan_trainer,
};

use self::arrivals::Late;
use self::census::{Census, take_census};
use self::deadline::Urgency;
use self::demand::{judge_demand, whole};
use self::guard::RaiseLimits;
use self::memory::Look;
use self::order::Bounds;
pub(crate) use self::pace::count;
use self::service::{Staff, judge_service};
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

/// What is needed, and how urgently.
struct Need {
    /// Replicas that run or will and stay.
    running: u32,
    /// How many of these run only until a swap is over.
    surge: u32,
    /// Replicas that the demand asks for.
    wish: u32,
    sizes: Sizes,
    /// How long an update takes, once that has been measured.
    time: Option<UpdateTime>,
    urgency: Urgency,
}

/// Plans the size of one worker group.
pub fn plan_scale(
    terms: &SizingTerms,
    observation: &Observation,
    memory: &ScaleMemory,
) -> ScalePlan {
    let mut memory = memory.clone();
    let look = memory.look(terms, observation);
    let census = match take_census(&look.terms, observation, &memory.pools, &look.late) {
        Ok(census) => census,
        Err(reasons) => {
            memory.pace = memory.pace.advance(observation, look.is_sync, false);
            memory.raise_clock = memory.raise_clock.advance(observation.now, false);
            let (running, wish, desired) = (None, None, None);
            let (bottleneck, actions) = (look.bottleneck, Vec::new());
            return ScalePlan { running, wish, desired, bottleneck, actions, reasons, memory };
        }
    };
    let mut reasons = Vec::new();
    let need = judge_need(&look, observation, &census, &mut memory, &mut reasons);
    let actions = act(&look, observation, &census, &need, &mut memory, &mut reasons);
    note_pools(observation, &memory, &census, &mut reasons);
    note_launches(&look, observation, &memory, &mut reasons);
    memory.desired = need.sizes.desired;
    ScalePlan {
        running: Some(need.running.saturating_add(census.running_ending())),
        wish: Some(need.wish),
        desired: Some(need.sizes.desired),
        bottleneck: look.bottleneck,
        actions,
        reasons,
        memory,
    }
}

/// Judges what is needed, by demand and deadline, once it has been wanted for long enough, and as
/// far as nothing else limits the run.
fn judge_need(
    look: &Look,
    observation: &Observation,
    census: &Census<'_>,
    memory: &mut ScaleMemory,
    reasons: &mut Vec<Reason>,
) -> Need {
    let (terms, is_sync) = (&look.terms, look.is_sync);
    let running = census.running_promised();
    // What runs only until a swap is over is no reason to keep as many.
    let surge = memory.swap.surge(running);
    let settled = running.saturating_sub(surge);
    // What is ordered elsewhere because a reservation ends runs beside what it replaces.
    let with_ending = settled.saturating_add(census.running_ending());
    let settled = settled.max(memory.desired.min(with_ending));
    let pace = &memory.pace;
    let (demand, time) = if terms.role.is_rollout() {
        let progress = memory.iteration.update_progress();
        let demand = judge_demand(terms, observation, pace, progress, is_sync, settled);
        (demand, UpdateTime::of(terms, observation, pace))
    } else {
        let staff = Staff::of(census, settled, &mut memory.at_work, observation.now);
        (judge_service(terms, observation, pace, staff), None)
    };
    reasons.extend(demand.reasons);
    let urgency = memory.schedule.judge(terms, time, (demand.wish, settled), observation.now);
    let wish = urgency.raise(demand.wish, demand.useful, reasons);
    memory.pace = memory.pace.advance(observation, is_sync, demand.is_firm);
    // What is known asks for more whatever is unknown; only engines that stand still for weights
    // ask for nothing.
    let may_raise = demand.is_firm || !is_sync;
    memory.raise_clock = memory.raise_clock.advance(observation.now, may_raise);
    let mut sizes = stabilize(terms, memory, census, wish, (demand.is_firm, may_raise), reasons);
    let step_remaining = memory.iteration.step_remaining(observation.now);
    let limits = RaiseLimits { terms, bottleneck: &look.bottleneck, step_remaining };
    sizes.raise_to = memory.guard.bound(&limits, settled, sizes.raise_to, reasons);
    Need { running, surge, wish, sizes, time, urgency }
}

/// What to do about it.
fn act(
    look: &Look,
    observation: &Observation,
    census: &Census<'_>,
    need: &Need,
    memory: &mut ScaleMemory,
    reasons: &mut Vec<Reason>,
) -> Vec<Action> {
    let (terms, sizes, now) = (&look.terms, &need.sizes, observation.now);
    let mut actions = Vec::new();
    leaving::forget_gone(census, observation, &mut actions);
    if need.running < sizes.raise_to {
        let bounds = Bounds {
            cost: UpdateCost::of(terms, need.time),
            hurry: need.urgency.hurry.clone(),
            most_launches: memory.most_launches(terms, need.running),
        };
        let missing = sizes.raise_to - need.running;
        raising::raise(terms, census, &bounds, missing, &mut actions, reasons);
    } else if let Some(lower_to) = sizes.lower_to {
        lower(terms, census, lower_to.saturating_add(need.surge), &mut actions, reasons);
    }
    let view = SwapView { terms, census, pools: &memory.pools, sizes, now };
    let may_begin = memory.breaker.open().is_none() && !need.urgency.is_tight;
    memory.swap.plan(&view, may_begin, &mut actions, reasons);
    reserved::leave_ending(census, &mut actions, reasons);
    spending::drain_unpaid(terms, census, &mut actions, reasons);
    let late = look.late.values().map(Late::unjoined).sum::<usize>();
    if terms.role.is_rollout() || !census.replicas.is_empty() {
        leaving::discard_unjoined(terms, census, &look.late, &mut actions, reasons);
    } else if late > 0 {
        // Nobody from there is on record: it may be the agents that are missing.
        reasons.push(Reason::NoAgents { role: terms.role });
    }
    silent::leave_silent(terms, census, &mut actions, reasons);
    memory.groups.plan(terms, census, &memory.arrivals, now, &mut actions, reasons);
    leaving::take_over_passing(census, &mut actions);
    let cancelled = actions.clone();
    leaving::retire_drained(census, &mut actions, reasons);
    drop_contradictions(&mut actions, &cancelled);
    actions
}

/// Waits with a change until it has been wanted long enough; the minimum needs no waiting.
fn stabilize(
    terms: &SizingTerms,
    memory: &mut ScaleMemory,
    census: &Census<'_>,
    wish: u32,
    (is_firm, may_raise): (bool, bool),
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
    let raise_at = memory.raise_clock.counted();
    if is_firm {
        memory.highest.push(desired, down, at);
    }
    if may_raise {
        memory.lowest.push(desired, up, raise_at);
    }
    let settled_up = if up.is_zero() {
        Some(desired)
    } else {
        memory.lowest.settled(up, raise_at).filter(|_| may_raise)
    };
    let minimum = terms.clamp(0);
    let raise_to = settled_up.unwrap_or(minimum).max(minimum);
    let running = census.running_promised();
    if raise_to < desired && running < desired {
        let remaining = memory.lowest.remaining(up, raise_at);
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
    let unpooled = census.replicas.iter().filter(|replica| census.is_unpooled(replica)).count();
    if let Some(replicas) = u32::try_from(unpooled).ok().filter(|count| *count > 0) {
        reasons.push(CapacityReason::Unpooled { replicas }.into());
    }
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

/// Says why launches are held back altogether, or for a whole quota.
fn note_launches(
    look: &Look,
    observation: &Observation,
    memory: &ScaleMemory,
    reasons: &mut Vec<Reason>,
) {
    if let Some(reason) = memory.breaker.open() {
        reasons.push(CapacityReason::BreakerOpen { reason }.into());
    }
    for (family, until) in &look.quotas {
        let (family, remaining) = (*family, until.remaining(observation.now));
        if !remaining.is_zero() {
            reasons.push(CapacityReason::QuotaExceeded { family, remaining }.into());
        }
    }
}
