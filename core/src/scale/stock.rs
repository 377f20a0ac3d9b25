//! What the trainer has before it: sealed groups, and those that it took and has not used yet.
//!
//! A trainer that takes all groups of an update at once empties the buffer by a whole step and lets
//! it fill again until the next one. That is no lack and no surplus. The groups of the update under
//! way count as far as they are not used: what remains moves evenly, however the trainer takes.

use std::fmt;

use super::demand::whole;
use super::pace::count;
use crate::observation::{Observation, TrainerPhase};

/// Sealed groups that the trainer can still use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// Groups in the buffer.
    pub groups: u64,
    /// Groups that the trainer has taken, as far as they are not used.
    pub unused: u64,
}

impl Stock {
    /// The stock, `groups` being the step's and `progress` the share of the update under way that
    /// is over, 0 to 1; half of it where nobody knows. `None` while the buffer is unknown.
    pub(super) fn of(
        observation: &Observation,
        groups: u64,
        progress: Option<f64>,
    ) -> Option<Self> {
        let taken = observation.buffer_taken.known().copied().unwrap_or(0);
        let is_used = observation.trainer.known().is_some_and(|trainer| {
            !matches!(trainer.phase, TrainerPhase::Wait | TrainerPhase::Done)
        });
        let used = if is_used { progress.unwrap_or(0.5) * count(groups) } else { 0.0 };
        Some(Self {
            groups: *observation.buffer_groups.known()?,
            unused: taken.saturating_sub(whole(used).into()),
        })
    }

    /// All of it.
    pub(super) fn total(self) -> u64 {
        self.groups.saturating_add(self.unused)
    }
}

impl fmt::Display for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer holds {} groups", self.groups)?;
        match self.unused {
            0 => Ok(()),
            unused => write!(f, " and the trainer {unused} more"),
        }
    }
}
