//! Which of a draining node's units may still finish, and which go back now.
//!
//! The rule (contract, section 4): a unit is kept only if its 90th-percentile finish, at its
//! 10th-percentile speed, comes before deadline − reserve. Everything else is aborted and handed
//! back at once, the longest first. The same function plans for the agent and for the simulator.

use std::collections::VecDeque;
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

/// The decision on one unit, with what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitDecision {
    /// The unit.
    pub unit: UnitId,
    /// What becomes of it.
    pub verdict: Verdict,
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
            UnitDecision { unit: unit.unit.clone(), verdict, tokens_left }
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unit(slot: u16, tokens: u32, speed: Option<f64>) -> InFlightUnit {
        InFlightUnit {
            unit: UnitId { group: "g".parse().expect("valid"), slot },
            tokens,
            max_tokens: 1000,
            slow_tokens_per_second: speed,
        }
    }

    fn window(remaining_seconds: u64) -> DrainWindow {
        DrainWindow {
            remaining: Duration::from_secs(remaining_seconds),
            reserve: Duration::from_secs(10),
        }
    }

    fn kept_slots(plan: &DrainPlan) -> Vec<u16> {
        plan.kept().map(|decision| decision.unit.slot).collect()
    }

    #[test]
    fn what_finishes_in_time_is_kept_and_the_rest_goes_back_longest_first() {
        // 110 s are usable: at 10 tokens/s that is 1100 tokens, at 5 tokens/s 550.
        let units = [
            unit(0, 900, Some(10.0)),
            unit(1, 400, Some(5.0)),
            unit(2, 100, Some(5.0)),
            unit(3, 0, None),
        ];
        let plan = plan_drain(&units, &ResponseLengths::default(), window(120));
        let handed_back: Vec<u16> = plan.handed_back().map(|d| d.unit.slot).collect();
        assert_eq!(handed_back, [3, 2, 1]);
        assert_eq!(kept_slots(&plan), [0]);
    }

    #[test]
    fn known_lengths_keep_what_the_token_limit_alone_would_not() {
        let mut lengths = ResponseLengths::default();
        (1..=100).for_each(|length| lengths.record(length * 10));
        // Longer than 500: 510 to 1000 in steps of ten; the 45th of these 50 is 950.
        assert_eq!(lengths.tokens_left(500, 10_000), 450);
        let unit = InFlightUnit { max_tokens: 10_000, ..unit(0, 500, Some(5.0)) };
        let units = std::slice::from_ref(&unit);
        assert_eq!(kept_slots(&plan_drain(units, &lengths, window(120))), [0]);
        let unknown = ResponseLengths::default();
        assert!(kept_slots(&plan_drain(units, &unknown, window(120))).is_empty());
    }

    #[test]
    fn few_longer_responses_say_nothing() {
        let mut lengths = ResponseLengths::default();
        (0..1000).for_each(|_| lengths.record(20));
        assert_eq!(lengths.tokens_left(30, 1000), 970);
    }

    #[test]
    fn nothing_is_kept_from_the_reserve_on() {
        let units = [unit(0, 999, Some(1e9))];
        for remaining in [0, 5, 10] {
            let plan = plan_drain(&units, &ResponseLengths::default(), window(remaining));
            let verdict = plan.decisions[0].verdict;
            assert_eq!(verdict, Verdict::HandBack(HandBackReason::NoTimeLeft), "{remaining}");
        }
    }

    fn any_units() -> impl Strategy<Value = Vec<InFlightUnit>> {
        let speed = prop_oneof![Just(None), (0.0..500.0_f64).prop_map(Some)];
        prop::collection::vec((0..2000_u32, 1..4000_u32, speed), 0..40).prop_map(|rows| {
            let numbered = rows.into_iter().zip(0_u16..);
            numbered
                .map(|((tokens, max_tokens, speed), slot)| InFlightUnit {
                    max_tokens,
                    ..unit(slot, tokens.min(max_tokens), speed)
                })
                .collect()
        })
    }

    fn any_lengths() -> impl Strategy<Value = ResponseLengths> {
        prop::collection::vec(1..4000_u32, 0..80).prop_map(|values| {
            let mut lengths = ResponseLengths::default();
            values.into_iter().for_each(|length| lengths.record(length));
            lengths
        })
    }

    proptest! {
        #[test]
        fn unit_is_kept_exactly_when_the_rule_says_so(
            units in any_units(),
            lengths in any_lengths(),
            remaining_ms in 0_u64..200_000,
            reserve_ms in 0_u64..20_000,
        ) {
            let window = DrainWindow {
                remaining: Duration::from_millis(remaining_ms),
                reserve: Duration::from_millis(reserve_ms),
            };
            let plan = plan_drain(&units, &lengths, window);
            prop_assert_eq!(plan.decisions.len(), units.len());
            for unit in &units {
                let left = f64::from(lengths.tokens_left(unit.tokens, unit.max_tokens));
                let usable = remaining_ms.saturating_sub(reserve_ms) as f64 / 1000.0;
                let in_time = unit
                    .slow_tokens_per_second
                    .is_some_and(|speed| speed > 0.0 && left / speed < usable);
                let is_kept = plan.kept().any(|decision| decision.unit == unit.unit);
                // A nanosecond of rounding decides nothing.
                let is_close = unit
                    .slow_tokens_per_second
                    .is_some_and(|speed| (left / speed - usable).abs() < 1e-6);
                prop_assert!(is_kept == in_time || is_close, "{unit:?} {window:?}");
            }
        }

        #[test]
        fn same_input_gives_the_same_plan_longest_first(
            units in any_units(),
            lengths in any_lengths(),
            remaining in 0_u64..200,
        ) {
            let plan = plan_drain(&units, &lengths, window(remaining));
            let mut shuffled = units.clone();
            shuffled.reverse();
            prop_assert_eq!(&plan, &plan_drain(&shuffled, &lengths, window(remaining)));
            let left: Vec<u32> = plan.decisions.iter().map(|d| d.tokens_left).collect();
            prop_assert!(left.is_sorted_by(|a, b| a >= b));
        }

        #[test]
        fn tighter_deadline_never_keeps_more(
            units in any_units(),
            lengths in any_lengths(),
            remaining in 0_u64..200,
            less in 0_u64..200,
        ) {
            let wide = plan_drain(&units, &lengths, window(remaining));
            let tight = plan_drain(&units, &lengths, window(remaining.saturating_sub(less)));
            for decision in tight.kept() {
                prop_assert!(wide.kept().any(|other| other.unit == decision.unit));
            }
        }
    }
}
