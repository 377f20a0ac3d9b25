//! Whether weights spread right now: the trainer says so, or its engines stand still for it.
//!
//! A trainer that goes on with the next update while its weights spread says `train`. What shows it
//! then is that replicas which have worked before load, or are paused, soon after a new version.

use std::time::Duration;

use super::startup::StartupMemory;
use crate::observation::{Observation, ReplicaState, TrainerPhase};

/// How long after a new version engines that stand still do so for its weights: well above the
/// minutes that weights take to spread, well below the time in which somebody looks at a fleet
/// that does nothing.
const SPREAD_MAX: Duration = Duration::from_mins(30);

/// Whether weights spread; unknown counts as no.
pub(super) fn is_spreading(observation: &Observation, startup: &StartupMemory) -> bool {
    if observation.trainer.known().is_some_and(|trainer| trainer.phase == TrainerPhase::Sync) {
        return true;
    }
    if observation.policy_version.age().is_none_or(|age| age > SPREAD_MAX) {
        return false;
    }
    let replicas = observation.replicas.known().map_or(&[][..], Vec::as_slice);
    let at_work = replicas.iter().filter(|replica| replica.state == ReplicaState::Ready).count();
    let stands = |state| matches!(state, ReplicaState::Loading | ReplicaState::NotReady);
    let standing = replicas.iter().filter(|it| stands(it.state) && !startup.is_new(it)).count();
    standing > at_work
}
