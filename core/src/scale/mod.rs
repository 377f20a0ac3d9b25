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
mod demand;
mod groups;
mod guard;
mod leaving;
mod order;
mod pace;
mod plan;
mod quota;
mod raising;
mod reason;
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

use std::collections::{BTreeMap, BTreeSet};

pub use self::leaving::SILENCE_LIMIT;
pub use self::pace::{MeasuredPace, Pace};
pub use self::plan::{Action, ActionResult, LeaveReason, ScalePlan};
pub use self::quota::QuotaFamily;
pub use self::reason::{
    BreakerReason, CapacityReason, Direction, HoldKind, Reason, SignalName, SwapStep, Unjudged,
};
pub use self::startup::StartupMemory;
pub use self::stock::Stock;
pub use self::terms::{PoolTerms, SizingTerms};

use self::arrivals::{Arrivals, Late};
use self::bench::PoolMemory;
use self::breaker::Breaker;
use self::census::{Census, take_census};
use self::demand::{Demand, judge_demand, whole};
use self::groups::PartialGroups;
use self::guard::{RaiseGuard, RaiseLimits};
use self::order::Bounds;
pub(crate) use self::pace::count;
use self::quota::share_refusals;
use self::swap::{SwapMemory, SwapView};
use self::value::UpdateCost;
use self::window::{Keep, WishWindow};
use self::writer::WriterMemory;
use crate::bottleneck::{Bottleneck, IterationClock, judge_bottleneck};
use crate::observation::{FailureKind, InstanceId, Observation};
use crate::policy::PoolName;
use crate::time::UnixMillis;

/// Share of the starts that are over within the time that is planned with.
const STARTUP_SHARE: f64 = 0.9;

/// What one plan hands to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleMemory {
    pace: Pace,
    iteration: IterationClock,
    startup: StartupMemory,
    guard: RaiseGuard,
    pools: BTreeMap<PoolName, PoolMemory>,
    highest: WishWindow,
    lowest: WishWindow,
    /// Instances that AWS takes, as far as they were taken note of.
    reclaimed: BTreeSet<InstanceId>,
    swap: SwapMemory,
    arrivals: Arrivals,
    breaker: Breaker,
    groups: PartialGroups,
    /// When the last plan was made.
    planned_at: UnixMillis,
    /// Nodes of one replica, by the terms of the last plan.
    gang: u32,
}

impl Default for ScaleMemory {
    fn default() -> Self {
        Self {
            pace: Pace::default(),
            iteration: IterationClock::default(),
            startup: StartupMemory::default(),
            guard: RaiseGuard::default(),
            pools: BTreeMap::new(),
            highest: WishWindow::new(Keep::Largest),
            lowest: WishWindow::new(Keep::Smallest),
            reclaimed: BTreeSet::new(),
            swap: SwapMemory::default(),
            arrivals: Arrivals::default(),
            breaker: Breaker::default(),
            groups: PartialGroups::default(),
            planned_at: UnixMillis::default(),
            gang: 1,
        }
    }
}

impl ScaleMemory {
    /// The measured pace so far.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The measured starts so far.
    pub fn startup(&self) -> &StartupMemory {
        &self.startup
    }

    /// Why each pool is left out, as of `now`.
    pub fn benched(&self, now: UnixMillis) -> impl Iterator<Item = (&PoolName, FailureKind)> {
        self.pools
            .iter()
            .filter_map(move |(name, pool)| pool.benched(now).map(|(kind, _)| (name, kind)))
    }

    /// Why nothing more is launched, if so.
    pub fn breaker(&self) -> Option<BreakerReason> {
        self.breaker.open()
    }

    /// Takes note of what became of an action, so that a size that somebody else set is told
    /// from one that was asked for here, and less is asked for where more was refused.
    pub fn note_outcome(&mut self, action: &Action, result: ActionResult) {
        let is_done = result == ActionResult::Done;
        if is_done {
            self.swap.note_done(action);
        }
        let (name, asked) = match action {
            Action::Raise { pool, to, .. } => (pool, Some(*to)),
            Action::Retire { pool, instances, .. } | Action::Discard { pool, instances } => {
                let fewer = u32::try_from(instances.len()).unwrap_or(u32::MAX);
                let before = self.pools.get(pool).and_then(|pool| pool.writer.asked());
                (pool, before.map(|before| before.saturating_sub(fewer)))
            }
            _ => return,
        };
        let pool = self.pools.entry(name.clone()).or_default();
        pool.writer.note_asked(asked.filter(|_| is_done));
        let Action::Raise { from, to, .. } = action else { return };
        match result {
            ActionResult::Done => {
                pool.note_granted();
                self.breaker.note_launch(self.planned_at);
            }
            ActionResult::Refused(kind) => {
                pool.note_refusal(kind, to.saturating_sub(*from).div_ceil(self.gang.max(1)));
            }
            ActionResult::Failed => {}
        }
    }

    /// Forgets what was asked for here: while another controller leads, every size is its.
    pub fn forget_writes(&mut self) {
        for pool in self.pools.values_mut() {
            pool.writer = WriterMemory::default();
        }
        self.swap = SwapMemory::default();
    }

    /// Takes in what the iteration and the starts look like, and judges what limits the run.
    fn look_at_run(&mut self, terms: &SizingTerms, observation: &Observation) -> Bottleneck {
        self.startup.note(observation);
        self.iteration = self.iteration.advance(observation, terms.concurrency_per_replica);
        let progress = self.iteration.update_progress();
        let is_filled = demand::is_buffer_filled(terms, observation, progress);
        judge_bottleneck(&self.iteration.phases(terms.max_lag > 0, is_filled))
    }

    /// The terms with what has been measured in the place of what the policy estimates.
    fn learned(&self, terms: &SizingTerms) -> SizingTerms {
        let startup = self.startup.percentile(STARTUP_SHARE).unwrap_or(terms.startup);
        SizingTerms { startup, ..terms.clone() }
    }

    fn look_at_pools(&mut self, observation: &Observation) {
        for view in &observation.pools {
            let next = self.pools.entry(view.name.clone()).or_default();
            *next = next.advance(view, observation.now);
        }
        self.pools.retain(|name, _| observation.pools.iter().any(|view| view.name == *name));
        self.look_for_reclaims(observation);
    }

    /// Which instances came too late, and what that says about pools and launches.
    fn look_at_arrivals(
        &mut self,
        terms: &SizingTerms,
        observation: &Observation,
    ) -> BTreeMap<PoolName, Late> {
        let now = observation.now;
        self.arrivals = self.arrivals.advance(observation);
        let late = self.arrivals.late(now);
        for (name, pool) in &mut self.pools {
            pool.note_stuck(late.get(name).map_or(0, |late| late.stuck.len()), now);
        }
        let unjoined = late.values().map(|late| late.never_joined.len()).sum();
        self.breaker.look(self.arrivals.joins(), unjoined, terms.startup, now);
        late
    }

    fn most_launches(&self, terms: &SizingTerms, running: u32) -> u32 {
        let is_any_awaited = self.arrivals.is_any_awaited(self.planned_at);
        self.breaker.most_launches(is_any_awaited, running, terms.clamp(0), self.planned_at)
    }

    /// Each instance that AWS takes counts against its pool once. Replicas that are unknown say
    /// nothing.
    fn look_for_reclaims(&mut self, observation: &Observation) {
        let Some(replicas) = observation.replicas.known() else { return };
        let mut counted = BTreeSet::new();
        for replica in replicas {
            let reclaimed = replica.nodes.iter().filter(|node| node.is_reclaimed);
            for instance in reclaimed.filter_map(|node| node.instance.clone()) {
                if !self.reclaimed.contains(&instance) {
                    let pool = replica.pool.as_ref().and_then(|name| self.pools.get_mut(name));
                    let Some(pool) = pool else { continue };
                    pool.note_reclaim(observation.now);
                }
                counted.insert(instance);
            }
        }
        self.reclaimed = counted;
    }
}

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
    let progress = memory.iteration.update_progress();
    let Demand { wish, is_firm, mut reasons } =
        judge_demand(terms, observation, &memory.pace, progress, is_sync, settled);
    memory.pace = memory.pace.advance(observation, is_sync, is_firm);
    let mut sizes = stabilize(terms, &mut memory, &census, wish, is_firm, &mut reasons);
    let step_remaining = memory.iteration.step_remaining(observation.now);
    let limits = RaiseLimits { terms, bottleneck: &bottleneck, step_remaining };
    sizes.raise_to = memory.guard.bound(&limits, settled, sizes.raise_to, &mut reasons);

    let mut actions = Vec::new();
    leaving::forget_gone(&census, observation, &mut actions);
    if running < sizes.raise_to {
        let bounds = Bounds {
            cost: UpdateCost::of(terms, observation, &memory.pace),
            most_launches: memory.most_launches(terms, running),
        };
        let missing = sizes.raise_to - running;
        raising::raise(terms, &census, &bounds, missing, &mut actions, &mut reasons);
    } else if let Some(lower_to) = sizes.lower_to {
        lower(terms, &census, lower_to.saturating_add(surge), &mut actions, &mut reasons);
    }
    let (pools, now) = (&memory.pools, observation.now);
    let view = SwapView { terms, census: &census, pools, sizes: &sizes, now };
    let may_begin = memory.breaker.open().is_none();
    memory.swap.plan(&view, may_begin, &mut actions, &mut reasons);
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
