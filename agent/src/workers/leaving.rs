//! Units that have to go: for a drain, for newer weights, or because their worker has fallen
//! silent. Their worker is asked first; then the agent hands back what is left.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::drain::InFlightUnit;
use ebbtide_core::ids::{PolicyVersion, UnitId};
use ebbtide_core::work::ResumePolicy;
use ebbtide_queue::command::{HandBackCause, Renewal, Stage, Waiting};
use tokio::time::Instant;

use super::unit::{HeldUnit, Phase};
use super::{WorkerName, Workers};
use crate::ledger::{Leave, slow_rate};

impl Workers {
    /// Units that are being worked on, as a drain plan wants them. Scoring has no speed that could
    /// be measured.
    pub(crate) fn in_flight(&self, now: Instant) -> Vec<InFlightUnit> {
        let working =
            || self.units.iter().filter(|(_, unit)| matches!(unit.phase, Phase::Working { .. }));
        let mut pooled: BTreeMap<&WorkerName, Vec<f64>> = BTreeMap::new();
        for (_, unit) in working() {
            pooled.entry(&unit.worker).or_default().extend(unit.meter.rates_of_transfers(now));
        }
        let flight = |(id, unit): (&UnitId, &HeldUnit)| {
            let own: Vec<f64> = unit.meter.rates_of_transfers(now).collect();
            let pooled = pooled.get(&unit.worker).map_or(&[][..], Vec::as_slice);
            let is_scored = unit.stage == Stage::Reward;
            InFlightUnit {
                unit: id.clone(),
                tokens: unit.end,
                max_tokens: if is_scored { unit.end } else { unit.group.sampling.max_tokens },
                slow_tokens_per_second: slow_rate(&own, pooled).filter(|_| !is_scored),
            }
        };
        working().map(flight).collect()
    }

    /// These units may go on until then.
    pub(crate) fn keep<'a>(&mut self, units: impl Iterator<Item = &'a UnitId>, until: Instant) {
        for id in units {
            let phase = self.units.get_mut(id).map(|unit| &mut unit.phase);
            if let Some(Phase::Working { keep_until }) = phase {
                *keep_until = Some(until);
            }
        }
    }

    /// Lets units go: their worker is asked for its tail, and `leave` says until when it may send
    /// it. A unit that it was never given goes back at once. Returns how many go now.
    pub(crate) fn release<'a>(
        &mut self,
        units: impl Iterator<Item = &'a UnitId>,
        leave: Leave,
    ) -> usize {
        let mut released = 0;
        for id in units {
            let Some(unit) = self.units.get_mut(id) else { continue };
            let Leave { why, write_by } = leave;
            match &mut unit.phase {
                Phase::Working { .. } if unit.is_delivered => {
                    unit.phase = Phase::Releasing { why, write_by };
                    released += 1;
                }
                Phase::Working { .. } => {
                    unit.phase = Phase::HandingBack(why);
                    unit.grant = None;
                    released += 1;
                }
                Phase::Releasing { write_by: known, .. } => *known = write_by.min(*known),
                Phase::HandingBack(_) => {}
            }
        }
        released
    }

    /// Units that go already must be handed back by `latest`: the deadline has come closer.
    pub(crate) fn hasten(&mut self, latest: Instant) {
        for unit in self.units.values_mut() {
            if let Phase::Releasing { write_by, .. } = &mut unit.phase {
                *write_by = latest.min(*write_by);
            }
        }
    }

    /// Lets every unit go.
    pub(crate) fn release_all(&mut self, leave: Leave) -> usize {
        let units: Vec<UnitId> = self.units.keys().cloned().collect();
        self.release(units.iter(), leave)
    }

    /// The run's version has risen: units that restart under newer weights go.
    pub(crate) fn note_run_version(&mut self, version: PolicyVersion, leave: Leave) -> usize {
        let outdated = self.units.iter().filter(|(_, unit)| {
            unit.stage == Stage::Generate
                && unit.group.resume_policy == ResumePolicy::RestartIfNewer
                && unit.run_version < version
        });
        let outdated: Vec<UnitId> = outdated.map(|(id, _)| id.clone()).collect();
        self.release(outdated.iter(), leave)
    }

    /// Takes the units that are due from their workers: those that had to go by now, and those
    /// whose worker was silent for longer than `silence_limit`. A write under way is waited for.
    pub(super) fn take_due(&mut self, silence_limit: Duration, now: Instant) -> usize {
        let mut silent = 0;
        for unit in self.units.values_mut().filter(|unit| unit.is_at_rest()) {
            let is_silent = now.saturating_duration_since(unit.heard_at) >= silence_limit;
            let why = match unit.phase {
                Phase::Releasing { why, write_by } if write_by <= now || is_silent => why,
                Phase::Working { .. } if is_silent => HandBackCause::Engine.into(),
                _ => continue,
            };
            silent += usize::from(is_silent);
            unit.phase = Phase::HandingBack(why);
            unit.grant = None;
        }
        silent
    }

    /// When the next unit is due; in the past when one waits to be handed back.
    pub(super) fn next_due(&self, silence_limit: Duration) -> Option<Instant> {
        let due = |unit: &HeldUnit| match unit.phase {
            _ if unit.writes_under_way > 0 => None,
            Phase::HandingBack(_) => Some(unit.heard_at),
            Phase::Releasing { write_by, .. } => Some(write_by.min(unit.heard_at + silence_limit)),
            Phase::Working { .. } => Some(unit.heard_at + silence_limit),
        };
        self.units.values().filter_map(due).min()
    }

    /// One renewal for every lease that a worker tends.
    pub(super) fn renewals(&self, ttl: Duration) -> Vec<Renewal> {
        let tended =
            self.units.iter().filter(|(_, unit)| !matches!(unit.phase, Phase::HandingBack(_)));
        let renewal = |(id, unit): (&UnitId, &HeldUnit)| Renewal {
            unit: id.clone(),
            fencing_token: unit.fencing_token,
            ttl,
            waiting: unit.waiting,
        };
        tended.map(renewal).collect()
    }

    /// The worker renews a lease and says what the unit waits for; `None` when it does not hold it.
    pub(super) fn renewal(
        &mut self,
        worker: &WorkerName,
        key: &super::LeaseKey,
        waiting: Waiting,
        ttl: Duration,
        now: Instant,
    ) -> Option<Renewal> {
        let unit = self.own_unit(worker, key)?;
        if matches!(unit.phase, Phase::HandingBack(_)) {
            return None;
        }
        unit.note_heard(now);
        unit.waiting = waiting;
        let (unit, fencing_token) = (key.unit.clone(), key.fencing_token);
        Some(Renewal { unit, fencing_token, ttl, waiting })
    }

    /// By when a renewed unit has to be handed back, if it has to.
    pub(super) fn release_by(&self, renewal: &Renewal) -> Option<Instant> {
        let unit = self.units.get(&renewal.unit)?;
        match unit.phase {
            Phase::Releasing { write_by, .. } if unit.fencing_token == renewal.fencing_token => {
                Some(write_by)
            }
            _ => None,
        }
    }
}
