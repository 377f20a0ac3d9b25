//! Whether the trainer is too slow or too fast, and whether another size may be asked for.
//!
//! *Too slow*: it limits the iteration, and the buffer holds what it should. *Too fast*: it waits
//! for rollouts, the buffer runs low, and there can be no more rollouts (the maximum, the budget,
//! capacity). A smaller one must still keep pace: its time is taken to grow as its size shrinks,
//! which is more than it will, so that a size that was left for being too slow is not gone back
//! to.

use std::time::Duration;

use super::{Look, QUIET, TrainerAction, TrainerMemory, TrainerReason, TrainerTerms};
use crate::bottleneck::{IterationPhases, IterationStage, UPDATES_KEPT};
use crate::observation::{ResizeEnd, TrainerPhase};
use crate::scale::reason::{CapacityReason, Direction, Reason};

/// Updates after a change that say nothing: those that are looked back on, and the one under way.
pub(super) const UPDATES_OF_OLD_SIZE: u64 = UPDATES_KEPT as u64 + 1;

/// Most of the iteration that a smaller trainer may be busy for, where rollouts go on meanwhile.
const BUSY_SHARE_MAX: f64 = 0.9;

/// By how much of it a smaller trainer may lengthen an iteration in which stages take turns.
const LONGER_SHARE_MAX: f64 = 0.1;

impl Look<'_> {
    /// Asks for another size when that has been needed for the whole window, or, when its pool has
    /// been larger than it for as long, which nodes the trainer does not run on.
    pub(super) fn ask(
        &self,
        nodes: u32,
        memory: &mut TrainerMemory,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<TrainerAction> {
        let terms = self.terms.trainer.as_ref()?;
        let (after, desired) = (terms.resize_after, self.pool_size(reasons)?.desired);
        if desired > nodes {
            let pool = terms.pool.clone();
            reasons.push(TrainerReason::PoolLarger { pool, desired, nodes });
        }
        let Some(wants) = self.wanted(nodes, memory, reasons) else {
            memory.surplus.pause();
            return None;
        };
        let next = wants.and_then(|direction| next_size(terms, nodes, direction));
        // One that is to grow takes them, unless it just did not.
        let grows = wants == Some(Direction::Up) && next.is_some_and(|to| to <= desired);
        let was_taken = self.ended() != Some(ResizeEnd::NotTaken);
        let is_surplus = desired > nodes && self.is_legal(nodes) && !(grows && was_taken);
        memory.surplus.look(is_surplus.then_some(Direction::Down), after, self.observation.now);

        let held = wants.map_or(Duration::ZERO, |direction| memory.watch.held(direction));
        let surplus_held = memory.surplus.held(Direction::Down);
        let to = match (wants, next) {
            (_, Some(to)) if held >= after && !(grows && is_surplus) => to,
            _ if is_surplus && surplus_held >= after => nodes,
            (Some(direction), to) => {
                reasons.push(match to {
                    Some(to) => TrainerReason::Watching { direction, to, held, after },
                    None => TrainerReason::NoSuchSize { direction, nodes },
                });
                return None;
            }
            (None, _) => return None,
        };
        if let Some(left) = self.quiet_for() {
            reasons.push(TrainerReason::Quiet { to, left });
            return None;
        }
        self.may_become(to, nodes, reasons).then_some(TrainerAction::Request { from: nodes, to })
    }

    fn ended(&self) -> Option<ResizeEnd> {
        Some(self.observation.trainer_resize_ended?.how)
    }

    /// How much longer nothing is asked for, since the last request came to nothing.
    fn quiet_for(&self) -> Option<Duration> {
        let ended = self.observation.trainer_resize_ended?;
        let left = QUIET.saturating_sub(ended.ago);
        (ended.how.is_the_trainers() && !left.is_zero()).then_some(left)
    }

    /// Which way the trainer's size should go; the outer `None` where this moment counts for
    /// nothing.
    #[expect(clippy::option_option, reason = "no evidence is not the same as no time")]
    fn wanted(
        &self,
        nodes: u32,
        memory: &mut TrainerMemory,
        reasons: &mut Vec<TrainerReason>,
    ) -> Option<Option<Direction>> {
        let trainer = self.observation.trainer.known()?;
        if trainer.step < memory.judged_from {
            let updates = memory.judged_from - trainer.step;
            reasons.push(TrainerReason::Settling { updates });
            memory.watch = super::Watch::default();
            return None;
        }
        let works = matches!(trainer.phase, TrainerPhase::Train | TrainerPhase::Wait);
        let is_known = self.plan.desired.is_some()
            && self.observation.buffer_groups.known().is_some()
            && self.observation.replicas.known().is_some();
        if !works || !is_known || self.has(|it| matches!(it, CapacityReason::BreakerOpen { .. })) {
            memory.watch.pause();
            return None;
        }
        let terms = self.terms.trainer.as_ref()?;
        let wants = self.direction(terms, nodes);
        memory.watch.look(wants, terms.resize_after, self.observation.now);
        Some(wants)
    }

    fn direction(&self, terms: &TrainerTerms, nodes: u32) -> Option<Direction> {
        let phases = &self.plan.bottleneck.phases;
        match self.plan.bottleneck.stage? {
            IterationStage::Trainer => {
                let is_ahead = phases.is_buffer_filled || !phases.is_overlapped;
                is_ahead.then_some(Direction::Up)
            }
            IterationStage::Rollout if !phases.is_buffer_filled && self.are_rollouts_at_limit() => {
                let smaller = next_size(terms, nodes, Direction::Down);
                let keeps_pace = |to| is_fast_enough(phases, f64::from(nodes) / f64::from(to));
                smaller.is_none_or(keeps_pace).then_some(Direction::Down)
            }
            _ => None,
        }
    }

    /// Whether more rollouts are wanted than there can be.
    fn are_rollouts_at_limit(&self) -> bool {
        let running = self.plan.running.unwrap_or(0);
        self.plan.reasons.iter().any(|reason| match reason {
            Reason::AtMaximum { maximum } => running >= *maximum,
            Reason::NoRoom { .. } => true,
            Reason::Capacity(reason) => matches!(
                reason,
                CapacityReason::BudgetSpent { .. } | CapacityReason::FallbackLimited { .. }
            ),
            _ => false,
        })
    }

    fn may_become(&self, to: u32, nodes: u32, reasons: &mut Vec<TrainerReason>) -> bool {
        let pool = self.observation.trainer_pool.as_ref().and_then(|pool| pool.size.known());
        let limit = pool.and_then(|size| size.limit).unwrap_or(u32::MAX);
        let floor = pool.map_or(0, |size| size.floor);
        let is_paid = if to > nodes { self.is_paid(to) } else { Some(true) };
        if to > limit || (to <= nodes && to < floor) {
            let bound = if to > limit { limit } else { floor };
            reasons.push(TrainerReason::PoolBound { to, bound });
        } else if is_paid.is_none() {
            reasons.push(TrainerReason::PriceUnknown { to });
        } else if is_paid == Some(false) {
            reasons.push(TrainerReason::TooDear { to });
        } else if to < nodes && self.is_late() {
            reasons.push(TrainerReason::Late { to });
        } else {
            return true;
        }
        false
    }

    /// Whether the deadline leaves no time for a slower trainer.
    fn is_late(&self) -> bool {
        self.has(|reason| {
            matches!(
                reason,
                CapacityReason::BehindSchedule { .. }
                    | CapacityReason::NoTimeToSpare { .. }
                    | CapacityReason::DeadlineNeeds { .. }
                    | CapacityReason::DeadlineInfeasible { .. }
            )
        })
    }

    fn has(&self, is_it: impl Fn(&CapacityReason) -> bool) -> bool {
        let mut reasons = self.plan.reasons.iter();
        reasons.any(|reason| matches!(reason, Reason::Capacity(reason) if is_it(reason)))
    }

    /// Whether the budget pays for a trainer of so many nodes, beside everything that the rollouts
    /// are asked for, by this very plan too; `None` while a pool is unread or a price is missing.
    pub(super) fn is_paid(&self, nodes: u32) -> Option<bool> {
        let Some(budget) = self.terms.beside(self.observation, Some(nodes)).budget else {
            return Some(true);
        };
        let rollouts: Option<f64> =
            self.terms.pools.iter().map(|pool| self.asked_dollars(pool)).sum();
        let all = rollouts? + budget.others_dollars_per_hour?;
        Some(all <= budget.dollars_per_hour)
    }

    /// Dollars per hour of all that a pool of the rollouts is asked for; `None` while unknown.
    fn asked_dollars(&self, pool: &crate::scale::PoolTerms) -> Option<f64> {
        let view = self.observation.pools.iter().find(|view| view.name == pool.name)?;
        let size = view.size.known()?;
        let nodes = size.committed().max(self.plan.raises(&pool.name).unwrap_or(0));
        let price = if nodes == 0 { Some(0.0) } else { pool.dollars_per_node_hour };
        Some(price? * f64::from(nodes))
    }
}

/// The next legal size that way.
fn next_size(terms: &TrainerTerms, nodes: u32, direction: Direction) -> Option<u32> {
    let mut sizes = terms.legal_sizes.iter().copied();
    match direction {
        Direction::Up => sizes.find(|size| *size > nodes),
        Direction::Down => sizes.rfind(|size| *size < nodes),
    }
}

/// Whether a trainer whose updates take `slower` times as long would not hold the run back.
fn is_fast_enough(phases: &IterationPhases, slower: f64) -> bool {
    let seconds = phases.seconds;
    let train = seconds.train * slower;
    if phases.is_overlapped {
        train + seconds.sync + seconds.checkpoint <= BUSY_SHARE_MAX * seconds.total()
    } else {
        train - seconds.train <= LONGER_SHARE_MAX * seconds.total()
    }
}
