//! Whether an EP group under a new image is as fast as those under the old one: decided, not done.
//!
//! Compared is what one sequence gets (`speed.rs`), beside the groups of an equal batch. Where none
//! has one, only what holds all the more is said: a group with more sequences that is as fast, and
//! one with fewer that is slower. Otherwise nothing has been shown yet.
//!
//! The same comparison names stragglers (`straggler.rs`), by another burden of proof. Here a change
//! waits for the answer, and going on with a slow image costs every group: in doubt it does not go
//! on. One other group is enough, as there may be no more; and as an open gate is never shut again,
//! one long window decides instead of several short ones.

use std::collections::VecDeque;
use std::fmt;

use crate::speed::{Beside, SAME_SPEED_SHARE, Work};

/// Readings that a speed is made of. Two minutes, at one every 5 s: kernels are compiled and caches
/// filled in the first one.
pub const WINDOW_READINGS: usize = 24;

/// What a group did at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Tokens per second, of all its sequences.
    pub tokens_per_second: f64,
    /// Sequences in flight.
    pub in_flight: u32,
}

/// The newest readings of a group at work.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpeedWindow {
    readings: VecDeque<Reading>,
}

impl SpeedWindow {
    /// Takes in a reading. One without work says nothing about speed.
    pub fn add(&mut self, reading: Reading) {
        if reading.in_flight == 0 {
            return;
        }
        if self.readings.len() == WINDOW_READINGS {
            self.readings.pop_front();
        }
        self.readings.push_back(reading);
    }

    fn is_full(&self) -> bool {
        self.readings.len() == WINDOW_READINGS
    }

    fn work(&self) -> Work {
        let mut work = Work::default();
        self.readings.iter().for_each(|it| work.add(it.tokens_per_second, it.in_flight));
        work
    }
}

/// What is known of a new group's speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SpeedVerdict {
    /// No group under another image is there: a first start, a change of size, or the last group.
    NothingToCompare,
    /// It is as fast, or faster: its share of the others' speed.
    AsFast(f64),
    /// It was at work for so many readings.
    Measuring(usize),
    /// It has this share of the sequences that the others have, too few to have shown its speed.
    FewerSequences(f64),
    /// It has this share of the sequences that the others have, too many to be called slower.
    MoreSequences(f64),
    /// It is slower: its share of the others' speed.
    Slower(f64),
}

impl SpeedVerdict {
    /// Whether the next group may be replaced.
    pub fn goes_on(self) -> bool {
        matches!(self, Self::NothingToCompare | Self::AsFast(_))
    }

    /// The reason in one word, as conditions have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NothingToCompare => "NothingToCompare",
            Self::AsFast(_) => "AsFast",
            Self::Measuring(_) => "Measuring",
            Self::FewerSequences(_) => "FewerSequences",
            Self::MoreSequences(_) => "MoreSequences",
            Self::Slower(_) => "Slower",
        }
    }
}

impl fmt::Display for SpeedVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| (share * 100.0).round();
        match *self {
            Self::NothingToCompare => write!(f, "no group has another image"),
            Self::AsFast(share) if share.is_infinite() => {
                write!(f, "it makes tokens, and the other groups make none")
            }
            Self::AsFast(share) => {
                write!(f, "a sequence gets {} % of what the other groups give", percent(share))
            }
            Self::Measuring(readings) => {
                write!(f, "at work for {readings} readings of {WINDOW_READINGS}")
            }
            Self::FewerSequences(share) | Self::MoreSequences(share) => {
                write!(f, "has {} % of the sequences that the other groups have", percent(share))
            }
            Self::Slower(share) => {
                let least = percent(SAME_SPEED_SHARE);
                let share = percent(share);
                write!(f, "a sequence gets {share} % of what the other groups give, not {least} %")
            }
        }
    }
}

/// Compares a group under a new image with those that have another one.
pub fn judge_speed(new: &SpeedWindow, others: &[&SpeedWindow]) -> SpeedVerdict {
    if others.is_empty() {
        return SpeedVerdict::NothingToCompare;
    }
    let others: Vec<Work> =
        others.iter().filter(|other| other.is_full()).map(|other| other.work()).collect();
    if others.is_empty() || !new.is_full() {
        return SpeedVerdict::Measuring(new.readings.len());
    }
    let new = new.work();
    let equals: Vec<Work> =
        others.iter().copied().filter(|other| new.has_batch_of(other)).collect();
    let Beside { speed, batch } = new.beside(if equals.is_empty() { &others } else { &equals });
    let is_equal = !equals.is_empty();
    match speed >= SAME_SPEED_SHARE {
        true if is_equal || batch > 1.0 => SpeedVerdict::AsFast(speed),
        true => SpeedVerdict::FewerSequences(batch),
        false if is_equal || batch < 1.0 => SpeedVerdict::Slower(speed),
        false => SpeedVerdict::MoreSequences(batch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(readings: usize, tokens_per_second: f64, in_flight: u32) -> SpeedWindow {
        let mut window = SpeedWindow::default();
        for _ in 0..readings {
            window.add(Reading { tokens_per_second, in_flight });
        }
        window
    }

    fn full(tokens_per_second: f64, in_flight: u32) -> SpeedWindow {
        window(WINDOW_READINGS, tokens_per_second, in_flight)
    }

    fn word(new: &SpeedWindow, others: &[&SpeedWindow]) -> &'static str {
        judge_speed(new, others).as_str()
    }

    #[test]
    fn group_without_others_under_another_image_has_nothing_to_prove() {
        assert_eq!(word(&SpeedWindow::default(), &[]), "NothingToCompare");
        assert!(judge_speed(&SpeedWindow::default(), &[]).goes_on());
    }

    #[test]
    fn what_one_sequence_gets_decides() {
        let old = full(6_400.0, 64);
        for (tokens_per_second, in_flight, expected) in [
            (6_400.0, 64, "AsFast"),
            (5_760.0, 64, "AsFast"),
            (5_700.0, 64, "Slower"),
            // More sequences at the same speed each.
            (12_800.0, 128, "AsFast"),
            // As many tokens in all, by so many sequences that each must get less.
            (6_400.0, 128, "MoreSequences"),
            (0.0, 64, "Slower"),
            (0.0, 4, "Slower"),
        ] {
            let new = full(tokens_per_second, in_flight);
            assert_eq!(word(&new, &[&old]), expected, "{tokens_per_second} of {in_flight}");
        }
    }

    #[test]
    fn few_sequences_are_no_proof_of_speed() {
        let (old, new) = (full(6_400.0, 64), full(800.0, 4));
        assert_eq!(word(&new, &[&old]), "FewerSequences");
    }

    #[test]
    fn groups_of_an_equal_batch_are_the_measure_where_there_are_any() {
        let (equal, wide) = (full(6_400.0, 64), full(12_800.0, 256));
        assert_eq!(word(&full(4_000.0, 64), &[&equal, &wide, &wide]), "Slower");
        assert_eq!(word(&full(6_400.0, 64), &[&equal, &wide, &wide]), "AsFast");
        assert_eq!(word(&full(6_400.0, 64), &[&wide]), "FewerSequences");
    }

    #[test]
    fn group_that_makes_no_token_is_never_as_fast() {
        let idle = full(0.0, 64);
        assert_eq!(word(&idle, &[&idle]), "Slower");
        let verdict = judge_speed(&full(6_400.0, 64), &[&idle]);
        assert!(verdict.goes_on(), "the image that mends the others may go on");
        assert_eq!(verdict.to_string(), "it makes tokens, and the other groups make none");
    }

    #[test]
    fn slow_one_among_the_others_does_not_lower_the_measure() {
        let (slow, fast) = (full(640.0, 64), full(6_400.0, 64));
        let new = full(4_000.0, 64);
        assert_eq!(word(&new, &[&slow, &fast, &fast]), "Slower");
    }

    #[test]
    fn both_sides_must_have_worked_for_long_enough_and_idle_time_does_not_count() {
        let old = full(6_400.0, 64);
        assert_eq!(word(&window(WINDOW_READINGS - 1, 6_400.0, 64), &[&old]), "Measuring");
        assert_eq!(word(&full(6_400.0, 64), &[&window(3, 6_400.0, 64)]), "Measuring");
        let mut new = SpeedWindow::default();
        for _ in 0..2 * WINDOW_READINGS {
            new.add(Reading { tokens_per_second: 0.0, in_flight: 0 });
        }
        assert_eq!(judge_speed(&new, &[&old]), SpeedVerdict::Measuring(0));
    }

    #[test]
    fn slow_start_is_forgotten() {
        let old = full(6_400.0, 64);
        let mut new = full(100.0, 64);
        assert_eq!(word(&new, &[&old]), "Slower");
        for _ in 0..WINDOW_READINGS {
            new.add(Reading { tokens_per_second: 6_400.0, in_flight: 64 });
        }
        assert_eq!(word(&new, &[&old]), "AsFast");
    }

    #[test]
    fn verdict_says_what_it_saw() {
        let text = judge_speed(&full(3_200.0, 64), &[&full(6_400.0, 64)]).to_string();
        assert_eq!(text, "a sequence gets 50 % of what the other groups give, not 90 %");
    }
}
