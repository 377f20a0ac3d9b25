//! Which of a draining node's units may still finish, and which go back now.
//!
//! The rule (contract, section 4): a unit is kept only if its 90th-percentile finish, at its
//! 10th-percentile speed, comes before deadline − reserve. Everything else is aborted and handed
//! back at once, the longest first. The same function plans for the agent and for the simulator.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::ids::UnitId;

/// Response lengths that are remembered: enough for a 90th percentile of what is still running,
/// little enough to follow a policy whose responses grow.
const LENGTHS_WINDOW: usize = 1000;

/// Fewest longer responses that say something about the 90th percentile of the rest.
const LENGTHS_NEEDED: usize = 10;

/// A unit in flight, as measured.
#[derive(Debug, Clone, PartialEq)]
pub struct InFlightUnit {
    /// The unit.
    pub unit: UnitId,
    /// Response tokens so far, those of earlier holders included.
    pub tokens: u32,
    /// Most response tokens that it may have.
    pub max_tokens: u32,
    /// 10th percentile of its measured speed in tokens per second; `None` when nothing is known.
    pub slow_tokens_per_second: Option<f64>,
}

/// What bounds a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainWindow {
    /// Monotonic time left until the node is lost.
    pub remaining: Duration,
    /// What must be left of it when the last unit finishes.
    pub reserve: Duration,
}

impl DrainWindow {
    /// Time in which a unit must finish to be kept; zero when there is none.
    pub fn usable(self) -> Duration {
        self.remaining.saturating_sub(self.reserve)
    }
}

/// Lengths of the run's finished responses, the newest [`LENGTHS_WINDOW`].
#[derive(Debug, Clone, Default)]
pub struct ResponseLengths {
    newest: VecDeque<u32>,
}

impl ResponseLengths {
    /// Notes the length of a finished response, in tokens.
    pub fn record(&mut self, length: u32) {
        if self.newest.len() == LENGTHS_WINDOW {
            self.newest.pop_front();
        }
        self.newest.push_back(length);
    }

    /// 90th percentile of the tokens left to a response that has `tokens` already: nearest rank
    /// among the responses that went on to be longer, or up to `max_tokens` when those are fewer
    /// than ten. Never more than `max_tokens` leaves.
    pub fn tokens_left(&self, tokens: u32, max_tokens: u32) -> u32 {
        let most = max_tokens.saturating_sub(tokens);
        let mut longer: Vec<u32> =
            self.newest.iter().copied().filter(|length| *length > tokens).collect();
        if longer.len() < LENGTHS_NEEDED {
            return most;
        }
        // Nearest rank: the ceil(0.9 n)-th smallest.
        let rank = (longer.len() * 9).div_ceil(10) - 1;
        let (_, length, _) = longer.select_nth_unstable(rank);
        (*length - tokens).min(most)
    }
}

/// What becomes of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on; expected to finish within this time.
    Keep {
        /// 90th-percentile time to its finish.
        finishes_in: Duration,
    },
    /// It is aborted and goes back now.
    HandBack(HandBackReason),
}

/// Why a unit goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandBackReason {
    /// Deadline − reserve has come.
    NoTimeLeft,
    /// Its speed is not known, so nothing can be expected of it.
    UnknownSpeed,
    /// It is expected to take this long, which is too long.
    TooLong(Duration),
}

impl Verdict {
    /// What is done, as one word for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep { .. } => "keep",
            Self::HandBack(_) => "hand_back",
        }
    }
}

/// The reason, in words.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep { finishes_in } => {
                write!(f, "it is expected to finish in {:.1} s", finishes_in.as_secs_f64())
            }
            Self::HandBack(HandBackReason::NoTimeLeft) => f.write_str("no time is left"),
            Self::HandBack(HandBackReason::UnknownSpeed) => f.write_str("its speed is not known"),
            Self::HandBack(HandBackReason::TooLong(finishes_in)) => {
                write!(f, "it is expected to take {:.1} s, too long", finishes_in.as_secs_f64())
            }
        }
    }
}

/// One step of a drain: the decision on one unit, with what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitDecision {
    /// The unit.
    pub unit: UnitId,
    /// What becomes of it, and why.
    pub verdict: Verdict,
    /// The step's deadline, counted from the moment of the plan: a unit that goes on must have
    /// finished by then, one that goes back does so at once.
    pub due_in: Duration,
    /// 90th percentile of the tokens that it still needs.
    pub tokens_left: u32,
}

/// One decision for each unit, the longest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainPlan {
    /// In the order in which they are to be carried out.
    pub decisions: Vec<UnitDecision>,
}

impl DrainPlan {
    /// The units that go back, the longest first.
    pub fn handed_back(&self) -> impl Iterator<Item = &UnitDecision> {
        self.decisions.iter().filter(|decision| matches!(decision.verdict, Verdict::HandBack(_)))
    }

    /// The units that go on.
    pub fn kept(&self) -> impl Iterator<Item = &UnitDecision> {
        self.decisions.iter().filter(|decision| matches!(decision.verdict, Verdict::Keep { .. }))
    }
}

/// Decides what becomes of every unit in flight, the one with most tokens left first.
pub fn plan_drain(
    units: &[InFlightUnit],
    lengths: &ResponseLengths,
    window: DrainWindow,
) -> DrainPlan {
    let mut decisions: Vec<UnitDecision> = units
        .iter()
        .map(|unit| {
            let tokens_left = lengths.tokens_left(unit.tokens, unit.max_tokens);
            let verdict = judge(tokens_left, unit.slow_tokens_per_second, window.usable());
            let due_in = match verdict {
                Verdict::Keep { .. } => window.usable(),
                Verdict::HandBack(_) => Duration::ZERO,
            };
            UnitDecision { unit: unit.unit.clone(), verdict, due_in, tokens_left }
        })
        .collect();
    decisions.sort_by(|a, b| b.tokens_left.cmp(&a.tokens_left).then_with(|| a.unit.cmp(&b.unit)));
    DrainPlan { decisions }
}

fn judge(tokens_left: u32, speed: Option<f64>, usable: Duration) -> Verdict {
    if usable.is_zero() {
        return Verdict::HandBack(HandBackReason::NoTimeLeft);
    }
    let Some(speed) = speed.filter(|speed| speed.is_finite() && *speed > 0.0) else {
        return Verdict::HandBack(HandBackReason::UnknownSpeed);
    };
    let seconds = f64::from(tokens_left) / speed;
    let finishes_in = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    if finishes_in < usable {
        Verdict::Keep { finishes_in }
    } else {
        Verdict::HandBack(HandBackReason::TooLong(finishes_in))
    }
}

#[cfg(test)]
mod tests;
