//! Pauses between tries: doubling, bounded, spread so that many clients do not knock at once.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The next pause of a series of failures.
#[derive(Debug, Clone)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses that begin at `shortest` and double up to `longest`.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, failures: 0 }
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Begins anew after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure; the pause before the next try is between half and all of the step.
    pub fn next_pause(&mut self) -> Duration {
        // 2^16 times the shortest pause is beyond every longest one in use.
        let step = self.shortest.saturating_mul(1 << self.failures.min(16)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        step.mul_f64(0.5 + 0.5 * random_share())
    }
}

/// A random number from 0 to 1: the standard library seeds its hashers at random, which is all the
/// randomness that a pause needs.
fn random_share() -> f64 {
    let drawn = RandomState::new().build_hasher().finish() >> 32;
    u32::try_from(drawn).map_or(1.0, |drawn| f64::from(drawn) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_begin_again_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for step in [100, 200, 400, 800, 1000, 1000] {
            let pause = backoff.next_pause().as_millis();
            assert!((step / 2..=step).contains(&pause), "step {step}, got {pause}");
        }
        backoff.reset();
        assert!(backoff.next_pause() <= Duration::from_millis(100));
        assert_eq!(backoff.failures(), 1);
    }
}
