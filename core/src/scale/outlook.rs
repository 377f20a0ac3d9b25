//! What the rollouts are about to do, as the services see it that serve them.

use super::plan::{Action, ScalePlan};
use super::role::Role;
use super::sync::is_spreading;
use super::terms::SizingTerms;
use crate::bottleneck::IterationStage;
use crate::observation::{Observation, ReplicaState, ReplicaView, ServiceView};
use crate::policy::PoolName;

/// A growth is told in hundredths, so that a journal of it reads back as it was.
const HUNDREDTHS: f64 = 100.0;

impl ScalePlan {
    /// What a service of this role sees of the rollouts, of which this is the plan on `seen`, under
    /// these terms. `is_ordered` says whether what the plan orders is really asked for.
    pub fn outlook(
        &self,
        seen: &Observation,
        terms: &SizingTerms,
        is_ordered: bool,
        role: Role,
    ) -> ServiceView {
        let ordered = if is_ordered { self.ordered(terms.gang()) } else { 0 };
        let stage = match role {
            Role::Rollout => IterationStage::Rollout,
            Role::Reward => IterationStage::Reward,
            Role::Environment => IterationStage::Environment,
        };
        ServiceView {
            rollout_growth: self.growth(seen, ordered),
            is_paused: is_spreading(seen, &self.memory.startup),
            limits_run: self.bottleneck.stage == Some(stage),
            tells_in_flight: true,
        }
    }

    /// What runs and is on its way, so many `ordered` replicas included, as a multiple of what is
    /// at work: whatever has been ready before, for engines that load new weights make no work and
    /// come back. At least 1, and 1 where nobody knows.
    fn growth(&self, seen: &Observation, ordered: u32) -> f64 {
        let (Some(running), Some(replicas)) = (self.running, seen.replicas.known()) else {
            return 1.0;
        };
        let is_here = |state| state >= ReplicaState::Starting && state <= ReplicaState::Ready;
        let is_at_work = |replica: &&ReplicaView| {
            let has_worked =
                replica.state == ReplicaState::Ready || !self.memory.startup.is_new(replica);
            is_here(replica.state) && has_worked
        };
        let at_work = replicas.iter().filter(is_at_work).count();
        let Some(at_work) = u32::try_from(at_work).ok().filter(|count| *count > 0) else {
            return 1.0;
        };
        let coming = running.saturating_add(ordered);
        let growth = f64::from(coming) / f64::from(at_work);
        (growth.max(1.0) * HUNDREDTHS).round() / HUNDREDTHS
    }

    /// Replicas that this plan brings, those included whose drain it takes back.
    fn ordered(&self, gang: u32) -> u32 {
        let of_action = |action: &Action| match action {
            Action::Raise { from, to, .. } => to.saturating_sub(*from).div_ceil(gang),
            Action::CancelDrain { .. } => 1,
            _ => 0,
        };
        self.actions.iter().map(of_action).sum()
    }

    /// What this plan asks a pool for, in nodes; `None` where it asks for no more than before.
    pub fn raises(&self, pool: &PoolName) -> Option<u32> {
        self.actions.iter().find_map(|action| match action {
            Action::Raise { pool: raised, to, .. } if raised == pool => Some(*to),
            _ => None,
        })
    }
}
