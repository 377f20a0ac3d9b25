//! How long calls waited for their first token, as a histogram.

use std::time::Duration;

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0];

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstTokens {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: Duration,
}

impl FirstTokens {
    pub(super) fn note(&mut self, waited: Duration) {
        let seconds = waited.as_secs_f64();
        if let Some(bucket) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum += waited;
    }

    /// Calls that waited at most so many seconds, for each bound; the last without a bound.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let below = self.buckets.iter().scan(0, |sum, bucket| {
            *sum += bucket;
            Some(*sum)
        });
        let bounded = BOUNDS.iter().map(|bound| Some(*bound)).zip(below);
        bounded.chain([(None, self.count)])
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn seconds(&self) -> f64 {
        self.sum.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_the_last_holds_all() {
        let mut times = FirstTokens::default();
        for milliseconds in [3, 3, 700, 1_000_000] {
            times.note(Duration::from_millis(milliseconds));
        }
        let counts: Vec<_> = times.cumulative().collect();
        assert_eq!(counts[..3], [(Some(0.001), 0), (Some(0.005), 2), (Some(0.01), 2)]);
        assert_eq!(
            counts[8..],
            [
                (Some(1.0), 3),
                (Some(2.5), 3),
                (Some(5.0), 3),
                (Some(10.0), 3),
                (Some(40.0), 3),
                (Some(160.0), 3),
                (None, 4),
            ]
        );
        assert_eq!((times.count(), times.seconds()), (4, 1000.706));
    }
}
