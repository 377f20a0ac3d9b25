//! How many replicas a service of the rollouts needs: scorers (reward) and environments.
//!
//! A service works on `itemsPerReplica` items at a time. What it works on now is what it needs
//! (Little's law: arrivals per second × seconds that one takes), times what the rollouts are about
//! to grow by: so it is there when their work arrives. Of a backlog only that counts which would
//! still be there once another replica could help, as much as is worked off within one more start;
//! all of it, when the service is what limits the iteration.
//!
//! A source that tells what waits and not what is worked on (a list) lets a service be taken for
//! busy: fully as long as something waits, and but for one replica when nothing does. One that is
//! ordered, or has come just now, is not: what waits may be what it is about to take.
//!
//! Unlike rollouts a service makes nothing by itself: nothing to do is nothing to do. What keeps it
//! is work that comes in waves, one an update (`ScaleMemory::learned`), weights that spread, and
//! whatever is unknown.

use std::time::Duration;

use super::census::Census;
use super::demand::{Demand, settled, unknown_signals, whole};
use super::pace::{Pace, count};
use super::reason::{Reason, SignalName};
use super::terms::SizingTerms;
use super::window::WishWindow;
use crate::observation::{Observation, TrainerPhase};
use crate::time::UnixMillis;

/// Shortest start that is counted with.
const STARTUP_MIN: Duration = Duration::from_secs(1);

/// From the first report of a node to work that it has visibly taken: its pods start (half a
/// minute), and the answer of a source may be as old (half a minute).
const TAKES_WORK_WITHIN: Duration = Duration::from_secs(60);

/// What there is to do.
struct Work {
    waiting: u64,
    /// What is worked on; `None` when nobody tells.
    working: Option<u64>,
    /// What the rollouts are about to be as a multiple of what they are.
    growth: f64,
}

/// Replicas of a service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staff {
    /// There or ordered.
    pub running: u32,
    /// At work, as far as anybody knows.
    pub at_work: u32,
    /// At work for long enough to have taken what they can.
    pub settled: u32,
}

impl Staff {
    /// Who there is beside the `running` ones; `at_work` remembers who was at work lately.
    pub fn of(
        census: &Census<'_>,
        running: u32,
        at_work: &mut WishWindow,
        now: UnixMillis,
    ) -> Self {
        let (replicas, now) = (census.at_work(), Duration::from_millis(now.0));
        at_work.push(replicas, TAKES_WORK_WITHIN, now);
        let settled = at_work.settled(Duration::ZERO, now).unwrap_or(replicas);
        Self { running, at_work: replicas, settled }
    }

    /// Items that are to be worked on where nobody tells what is, each replica on so many at most,
    /// and so many of the `backlog` would have to be worked on besides.
    fn busy_with(&self, each: f64, waiting: u64, backlog: f64) -> f64 {
        let but_one = f64::from(self.at_work.saturating_sub(1)) * each;
        match waiting {
            0 => but_one,
            _ => but_one.max(f64::from(self.settled) * each + backlog),
        }
    }
}

/// Judges the demand for a service that has this `staff`.
pub(super) fn judge_service(
    terms: &SizingTerms,
    observation: &Observation,
    pace: &Pace,
    staff: Staff,
) -> Demand {
    let running = staff.running;
    let view = observation.service.unwrap_or_default();
    let mut needed = vec![SignalName::Ready, SignalName::Trainer, SignalName::Replicas];
    if view.tells_in_flight {
        needed.insert(1, SignalName::InFlight);
    }
    let mut reasons = unknown_signals(observation, &needed);
    let phase = observation.trainer.known().map(|trainer| trainer.phase);
    if phase == Some(TrainerPhase::Done) {
        reasons.push(Reason::RunEnded);
        return Demand { wish: 0, useful: 0, is_firm: reasons.len() == 1, reasons };
    }
    let is_known = reasons.is_empty();
    let work = Work {
        waiting: observation.ready.known().copied().unwrap_or(0),
        working: observation.in_flight.known().copied().filter(|_| view.tells_in_flight),
        growth: view.rollout_growth.max(1.0),
    };
    let wish = work.replicas(terms, pace, staff, view.limits_run, &mut reasons);
    if !is_known {
        return Demand { wish: wish.max(running), useful: 0, is_firm: false, reasons };
    }
    if view.is_paused && wish < running {
        reasons.push(Reason::WeightSync { lasted: pace.sync_for() });
        return Demand { wish: running, useful: 0, is_firm: false, reasons };
    }
    Demand { wish, useful: 0, is_firm: true, reasons }
}

impl Work {
    /// Replicas for it, when there are these.
    fn replicas(
        &self,
        terms: &SizingTerms,
        pace: &Pace,
        staff: Staff,
        limits_run: bool,
        reasons: &mut Vec<Reason>,
    ) -> u32 {
        let each = f64::from(terms.concurrency_per_replica.max(1));
        let backlog = self.backlog(terms, pace, f64::from(staff.running) * each, limits_run);
        let items = match self.working {
            Some(working) => count(working) * self.growth + backlog,
            None => staff.busy_with(each, self.waiting, backlog),
        };
        let needed = items / each;
        let replicas = match self.working {
            Some(_) if needed > 0.0 => settled(needed, staff.running),
            _ => whole(needed.ceil()),
        };
        let (waiting, working) = (self.waiting, self.working);
        let growth_percent = whole((self.growth * 100.0).round());
        reasons.push(Reason::ItemsNeed { waiting, working, growth_percent, replicas });
        if waiting > 0 && backlog <= 0.0 {
            reasons.push(Reason::BacklogPasses);
        }
        replicas
    }

    /// Items of the backlog that more replicas would have to work on, where there are so many
    /// `places`.
    fn backlog(&self, terms: &SizingTerms, pace: &Pace, places: f64, limits_run: bool) -> f64 {
        let startup = terms.startup.max(STARTUP_MIN).as_secs_f64();
        // Where nobody knows how long one takes, each waits for a place of its own.
        let Some(seconds) = pace.seconds_in_flight() else { return count(self.waiting) };
        let done_by_then = if limits_run { 0.0 } else { places * startup / seconds };
        (count(self.waiting) - done_by_then).max(0.0) * seconds / startup
    }
}
