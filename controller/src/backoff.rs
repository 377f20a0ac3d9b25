//! Pauses between attempts that grow up to a bound, with jitter.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Growing pauses.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    /// The next pause: between half and all of a time that doubles.
    pub fn pause(&mut self) -> Duration {
        let drawn = f64::from(draw()) / f64::from(u32::MAX);
        let pause = self.next.mul_f64(0.5 + 0.5 * drawn);
        self.next = (self.next * 2).min(self.most);
        pause
    }

    /// Begins anew after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A number that is another one at each call: the standard library seeds its hashers at random,
/// which is all the randomness that a pause or the name of a process needs.
pub(crate) fn draw() -> u32 {
    u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let most = Duration::from_secs(5);
        let mut backoff = Backoff::new(Duration::from_millis(100), most);
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.pause()).collect();
        assert!(pauses[0] <= Duration::from_millis(100));
        assert!(pauses.iter().all(|pause| *pause <= most));
        assert!(pauses[19] >= most / 2);
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(100));
    }
}
