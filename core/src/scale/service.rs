//! How many replicas a service of the rollouts needs: scorers (reward) and environments.
//!
//! A service works on `itemsPerReplica` items at a time. What it works on now is what it needs
//! (Little's law: arrivals per second × seconds that one takes), times what the rollouts are about
//! to grow by: so it is there when their work arrives. Of a backlog only that counts which would
//! still be there once another replica could help, as much as is worked off within one more start;
//! all of it, when the service is what limits the iteration.
//!
//! A source that tells what waits and not what is worked on (a list) lets a service be taken for
//! busy: fully as long as something waits, and but for one replica when nothing does.
//!
//! Unlike rollouts a service makes nothing by itself: nothing to do is nothing to do. What keeps it
//! is work that comes in waves, one an update (`ScaleMemory::learned`), weights that spread, and
//! whatever is unknown.

use std::time::Duration;

use super::demand::{Demand, settled, unknown_signals, whole};
use super::pace::{Pace, count};
use super::reason::{Reason, SignalName};
use super::terms::SizingTerms;
use crate::observation::{Observation, TrainerPhase};

/// Shortest start that is counted with.
const STARTUP_MIN: Duration = Duration::from_secs(1);

/// What there is to do.
struct Work {
    waiting: u64,
    /// What is worked on; `None` when nobody tells.
    working: Option<u64>,
    /// What the rollouts are about to be as a multiple of what they are.
    growth: f64,
}

/// Judges the demand for a service of which `running` replicas are there or ordered.
pub(super) fn judge_service(
    terms: &SizingTerms,
    observation: &Observation,
    pace: &Pace,
    running: u32,
) -> Demand {
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
    let wish = work.replicas(terms, pace, running, view.limits_run, &mut reasons);
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
    /// Replicas for it, when so many run.
    fn replicas(
        &self,
        terms: &SizingTerms,
        pace: &Pace,
        running: u32,
        limits_run: bool,
        reasons: &mut Vec<Reason>,
    ) -> u32 {
        let each = f64::from(terms.concurrency_per_replica.max(1));
        let ahead = match self.working {
            Some(working) => count(working) * self.growth,
            None => f64::from(running.saturating_sub(u32::from(self.waiting == 0))) * each,
        };
        let backlog = self.backlog(terms, pace, f64::from(running) * each, limits_run);
        let needed = (ahead + backlog) / each;
        let replicas = match self.working {
            Some(_) if needed > 0.0 => settled(needed, running),
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
