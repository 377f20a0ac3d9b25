//! What a change of weights means for what is held: of the run, or of one engine.

use ebbtide_core::ids::{PolicyVersion, UnitId};
use ebbtide_core::work::ResumePolicy;
use tokio::time::Instant;

use super::unit::{HeldUnit, Phase};
use super::{Leave, Ledger};

impl Ledger {
    /// The run's version has risen: units that restart under newer weights leave.
    pub(crate) fn note_run_version(
        &mut self,
        version: PolicyVersion,
        leave: Leave,
        now: Instant,
    ) -> usize {
        let outdated = self.restarting(|unit| unit.run_version < version);
        self.leave(outdated.iter(), leave, now)
    }

    /// An engine's weights have risen: tokens from now on are made by them, and units that
    /// restart under newer weights leave. Returns the units that go on, with their offsets.
    pub(crate) fn note_engine_version(
        &mut self,
        engine: usize,
        version: PolicyVersion,
        leave: Leave,
        now: Instant,
    ) -> Vec<(UnitId, u32)> {
        let outdated =
            self.restarting(|unit| unit.engine == engine && unit.tail.version() < version);
        self.leave(outdated.iter(), leave, now);
        let streaming = self
            .units
            .iter_mut()
            .filter(|(_, unit)| unit.engine == engine && matches!(unit.phase, Phase::Streaming));
        streaming
            .map(|(id, unit)| {
                unit.tail.raise_version(version);
                (id.clone(), unit.tail.end())
            })
            .collect()
    }

    fn restarting(&self, is_outdated: impl Fn(&HeldUnit) -> bool) -> Vec<UnitId> {
        let outdated = self.units.iter().filter(|(_, unit)| {
            unit.group.resume_policy == ResumePolicy::RestartIfNewer && is_outdated(unit)
        });
        outdated.map(|(id, _)| id.clone()).collect()
    }

    /// An engine's weights are no version any more, or fell: its units leave, with the tokens whose
    /// weights are known. Returns how many leave now.
    pub(crate) fn doubt_engine(&mut self, engine: usize, leave: Leave, now: Instant) -> usize {
        let units = self.units.values_mut().filter(|unit| unit.engine == engine);
        for unit in units.filter(|unit| !matches!(unit.phase, Phase::Ended(_))) {
            unit.tail.doubt();
        }
        self.leave_engine(engine, leave, now)
    }
}
