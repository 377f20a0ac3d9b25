//! How fast replicas are beside each other: what one sequence gets, at an equal batch.
//!
//! Speed is tokens per second by the sequences that make them. It falls with their number (the
//! batch), whatever the replica is worth; so a speed says something only beside others whose batch
//! is about as large. The measure of several is their median, the lower one of two middle ones: a
//! slow one among them does not lower it, and a fast one does not raise it.
//!
//! Both who ask are here served alike, `straggler` and `image_rollout`; what they make of the
//! answer differs, and is told there.

/// Largest difference between equal batches, as a share of the judged one.
pub(crate) const BATCH_TOLERANCE: f64 = 0.25;

/// The share of the others' speed from which on a replica is as fast as they are. Equal engines
/// with different prompts differ by a few per cent.
pub(crate) const SAME_SPEED_SHARE: f64 = 0.9;

/// What a replica did over a stretch of time, summed over its readings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Work {
    readings: u32,
    tokens_per_second: f64,
    sequences: f64,
}

/// A replica beside others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Beside {
    /// Its speed as a share of theirs. Without bounds when they make no token and it does; 0 when
    /// it makes none.
    pub(crate) speed: f64,
    /// Its batch as a share of theirs.
    pub(crate) batch: f64,
}

impl Work {
    /// Takes in a reading: tokens per second, of so many sequences together.
    pub(crate) fn add(&mut self, tokens_per_second: f64, sequences: u32) {
        self.readings += 1;
        self.tokens_per_second += tokens_per_second;
        self.sequences += f64::from(sequences);
    }

    /// Readings that it is made of.
    pub(crate) fn readings(&self) -> u32 {
        self.readings
    }

    /// Sequences at a time, on the average. There must be a reading.
    fn batch(&self) -> f64 {
        self.sequences / f64::from(self.readings)
    }

    /// Tokens per second that one sequence gets. There must have been one.
    fn speed(&self) -> f64 {
        self.tokens_per_second / self.sequences
    }

    /// Whether the other's batch is as large as this one.
    pub(crate) fn has_batch_of(&self, other: &Self) -> bool {
        (other.batch() - self.batch()).abs() <= BATCH_TOLERANCE * self.batch()
    }

    /// This one beside others, by their medians; there must be one. All have worked.
    pub(crate) fn beside(&self, others: &[Self]) -> Beside {
        let speed = match median(others.iter().map(Self::speed)) {
            _ if self.tokens_per_second <= 0.0 => 0.0,
            theirs if theirs <= 0.0 => f64::INFINITY,
            theirs => self.speed() / theirs,
        };
        Beside { speed, batch: self.batch() / median(others.iter().map(Self::batch)) }
    }
}

/// The middle one of numbers, the lower one of two; there is at least one.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    let middle = (numbers.len() - 1) / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(tokens_per_second: f64, sequences: u32) -> Work {
        let mut work = Work::default();
        (0..3).for_each(|_| work.add(tokens_per_second, sequences));
        work
    }

    #[test]
    fn measure_of_several_is_the_lower_median() {
        let others = [work(100.0, 10), work(900.0, 10), work(200.0, 10), work(300.0, 10)];
        let beside = work(100.0, 10).beside(&others);
        assert_eq!((beside.speed, beside.batch), (0.5, 1.0));
    }

    #[test]
    fn batch_is_equal_within_a_quarter() {
        for (other, is_equal) in [(74, false), (75, true), (125, true), (126, false)] {
            assert_eq!(work(1.0, 100).has_batch_of(&work(1.0, other)), is_equal, "{other}");
        }
    }

    #[test]
    fn who_makes_no_token_is_never_fast_and_those_who_make_none_are_no_measure() {
        let (idle, busy) = (work(0.0, 10), work(100.0, 10));
        assert_eq!(idle.beside(&[busy]).speed, 0.0);
        assert_eq!(idle.beside(&[idle]).speed, 0.0);
        assert_eq!(busy.beside(&[idle]).speed, f64::INFINITY);
    }
}
