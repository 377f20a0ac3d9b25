//! Which stage limits the policy iteration: rollout, environment, reward, trainer, weight sync or
//! storage.
//!
//! | the trainer | and | limits |
//! |---|---|---|
//! | waits for samples | as many responses wait for a score as are being scored | reward |
//! | | half of the units in flight wait for their environment | environment |
//! | | units wait, or the places of the engines are taken | rollout |
//! | | neither | unknown: nobody has anything to do |
//! | has what it needs | the most of its time goes into updates | trainer |
//! | | into spreading weights | weight sync |
//! | | into checkpoints | storage |
//! | is busy, and the buffer runs low | | unknown: they keep pace |
//!
//! Where rollouts and updates overlap (`maxLag` above 0), the trainer *waits* when a tenth of its
//! time goes into that: each wait is time that samples were missing. Where they take turns it
//! always waits for samples, and what limits is what takes longest.
//!
//! [`IterationClock`] gathers the evidence from one observation after another, and
//! [`judge_bottleneck`] is pure.

mod clock;
#[cfg(test)]
mod tests;

use std::fmt;

pub use self::clock::IterationClock;
pub(crate) use self::clock::{GAP_MAX, UPDATES_KEPT};

/// Share of its time that the trainer may wait before samples are said to be missing, where it
/// need not wait at all: responses of uneven lengths and the time between two looks make that much.
const WAIT_SHARE: f64 = 0.1;

/// Fewest updates before anything is said.
const UPDATES_MIN: f64 = 3.0;

/// Share of the places of the engines from which on they count as taken.
const PLACES_TAKEN: f64 = 0.8;

/// Share of the units in flight that wait for their environment, from which on it limits them.
const ENVIRONMENT_SHARE: f64 = 0.5;

/// A stage of the policy iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IterationStage {
    /// Engines generate.
    Rollout,
    /// Environments and tools answer.
    Environment,
    /// Responses are scored.
    Reward,
    /// The policy is updated.
    Trainer,
    /// Weights spread.
    WeightSync,
    /// Checkpoints are written.
    Storage,
}

impl IterationStage {
    /// All stages, for metrics.
    pub const ALL: [Self; 6] = [
        Self::Rollout,
        Self::Environment,
        Self::Reward,
        Self::Trainer,
        Self::WeightSync,
        Self::Storage,
    ];

    /// The word in metrics and journals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Environment => "environment",
            Self::Reward => "reward",
            Self::Trainer => "trainer",
            Self::WeightSync => "weight_sync",
            Self::Storage => "storage",
        }
    }

    /// What would help, in words.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Rollout => "more rollout replicas, or more samples on each, would help",
            Self::Environment => {
                "more environment replicas would help, or more samples on each rollout replica"
            }
            Self::Reward => "more reward replicas would help",
            Self::Trainer => "a larger trainer would help, or smaller updates (groupsPerStep)",
            Self::WeightSync => {
                "larger updates (groupsPerStep) would help, or weights that spread faster"
            }
            Self::Storage => "fewer checkpoints would help, or faster storage",
        }
    }
}

impl fmt::Display for IterationStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WeightSync => "weight sync",
            other => other.as_str(),
        })
    }
}

/// Seconds that the trainer spent on each of its phases.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PhaseSeconds {
    /// Updating the policy.
    pub train: f64,
    /// Spreading weights.
    pub sync: f64,
    /// Waiting for sealed groups.
    pub wait: f64,
    /// Writing checkpoints.
    pub checkpoint: f64,
}

impl PhaseSeconds {
    /// All phases together.
    pub fn total(&self) -> f64 {
        self.train + self.sync + self.wait + self.checkpoint
    }
}

/// Where units were while the trainer waited, each the mean over that time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WaitPicture {
    /// Units that waited to be generated.
    pub ready: f64,
    /// Units being generated.
    pub in_flight: f64,
    /// Units among these that waited for their environment.
    pub environment: f64,
    /// Responses that waited for a score.
    pub reward_ready: f64,
    /// Responses being scored.
    pub reward_in_flight: f64,
    /// Samples that the replicas in service can work on at a time.
    pub places: f64,
}

/// What the last policy iterations looked like.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct IterationPhases {
    /// Updates that this is about.
    pub updates: f64,
    /// Whether samples are made while the policy is updated (`maxLag` above 0).
    pub is_overlapped: bool,
    /// Whether the buffer holds what it should, now.
    pub is_buffer_filled: bool,
    /// What the trainer did.
    pub seconds: PhaseSeconds,
    /// What there was while it waited.
    pub while_waiting: WaitPicture,
}

/// Which stage limits, with the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bottleneck {
    /// The stage; `None` when that is unknown.
    pub stage: Option<IterationStage>,
    /// What it was judged by.
    pub phases: IterationPhases,
}

/// Judges which stage limits the policy iteration; *unknown* when the evidence does not say.
pub fn judge_bottleneck(phases: &IterationPhases) -> Bottleneck {
    Bottleneck { stage: stage_that_limits(phases), phases: *phases }
}

fn stage_that_limits(phases: &IterationPhases) -> Option<IterationStage> {
    let seconds = phases.seconds;
    if phases.updates < UPDATES_MIN || seconds.total() <= 0.0 {
        return None;
    }
    let longest = seconds.train.max(seconds.sync).max(seconds.checkpoint);
    let is_waiting = if phases.is_overlapped {
        seconds.wait >= WAIT_SHARE * seconds.total()
    } else {
        seconds.wait >= longest
    };
    if is_waiting {
        return stage_waited_for(&phases.while_waiting);
    }
    if phases.is_overlapped && !phases.is_buffer_filled {
        return None;
    }
    Some(if seconds.train >= longest {
        IterationStage::Trainer
    } else if seconds.sync >= longest {
        IterationStage::WeightSync
    } else {
        IterationStage::Storage
    })
}

/// The last stage before the trainer at which work piles up: what is before it makes enough.
fn stage_waited_for(seen: &WaitPicture) -> Option<IterationStage> {
    if seen.reward_ready >= seen.reward_in_flight.max(1.0) {
        return Some(IterationStage::Reward);
    }
    if seen.in_flight > 0.0 && seen.environment >= ENVIRONMENT_SHARE * seen.in_flight {
        return Some(IterationStage::Environment);
    }
    let is_taken = seen.places > 0.0 && seen.in_flight >= PLACES_TAKEN * seen.places;
    (seen.ready >= 1.0 || is_taken).then_some(IterationStage::Rollout)
}

impl fmt::Display for Bottleneck {
    /// The verdict and its evidence in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IterationPhases { updates, seconds, while_waiting: seen, .. } = self.phases;
        match self.stage {
            Some(stage) => write!(f, "{stage} limits the iteration")?,
            None => f.write_str("what limits the iteration is unknown")?,
        }
        if updates < UPDATES_MIN || seconds.total() <= 0.0 {
            return write!(f, ": {updates:.0} updates were seen, {UPDATES_MIN:.0} are needed");
        }
        let percent = |part: f64| 100.0 * part / seconds.total();
        write!(
            f,
            ": the trainer trains {:.0} %, syncs {:.0} %, checkpoints {:.0} % and waits {:.0} % of \
             its time",
            percent(seconds.train),
            percent(seconds.sync),
            percent(seconds.checkpoint),
            percent(seconds.wait),
        )?;
        if seconds.wait <= 0.0 {
            return Ok(());
        }
        write!(f, ", while {:.0} units wait and {:.0}", seen.ready, seen.in_flight)?;
        if seen.places > 0.0 {
            write!(f, " of {:.0}", seen.places)?;
        }
        f.write_str(" are generated")?;
        if seen.environment > 0.0 {
            write!(f, ", {:.0} of them waiting for their environment", seen.environment)?;
        }
        if seen.reward_ready + seen.reward_in_flight > 0.0 {
            let (ready, scored) = (seen.reward_ready, seen.reward_in_flight);
            write!(f, ", {ready:.0} responses wait for a score and {scored:.0} are scored")?;
        }
        Ok(())
    }
}
