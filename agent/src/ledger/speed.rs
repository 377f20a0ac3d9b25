//! How fast a stream makes tokens, as the slow end of what was measured.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Shortest stretch over which a rate is measured: a busy engine sends several tokens at once.
const WINDOW: Duration = Duration::from_millis(200);

/// Rates remembered: the last four seconds or more.
const RATES_KEPT: usize = 20;

/// Fewest rates that say something about a stream of its own.
const RATES_NEEDED: usize = 3;

/// Measures one stream.
#[derive(Debug, Default)]
pub(crate) struct SpeedMeter {
    /// Start of the open window; none before the first token.
    since: Option<Instant>,
    tokens: u32,
    /// Each with the stretch over which it was measured.
    rates: VecDeque<(f64, Duration)>,
}

impl SpeedMeter {
    /// Notes tokens that arrived at `now`. The first ones open the first window: how long they
    /// took is the time to the first token, not speed.
    pub(crate) fn record(&mut self, tokens: u32, now: Instant) {
        let Some(since) = self.since else {
            self.since = Some(now);
            return;
        };
        self.tokens = self.tokens.saturating_add(tokens);
        let elapsed = now - since;
        if elapsed < WINDOW {
            return;
        }
        if self.rates.len() == RATES_KEPT {
            self.rates.pop_front();
        }
        self.rates.push_back((f64::from(self.tokens) / elapsed.as_secs_f64(), elapsed));
        self.since = Some(now);
        self.tokens = 0;
    }

    /// The rates measured, the open window included once it is as long as two: a stream that
    /// stands still gets slower by the moment.
    pub(crate) fn rates(&self, now: Instant) -> impl Iterator<Item = f64> + '_ {
        self.rates_with_open(2 * WINDOW, now)
    }

    /// As [`SpeedMeter::rates`], for tokens that come in transfers with pauses between them: the
    /// open window says something once it is twice as long as the longest one measured.
    pub(crate) fn rates_of_transfers(&self, now: Instant) -> impl Iterator<Item = f64> + '_ {
        let longest = self.rates.iter().map(|(_, stretch)| *stretch).max();
        self.rates_with_open(2 * longest.unwrap_or(WINDOW), now)
    }

    fn rates_with_open(&self, from: Duration, now: Instant) -> impl Iterator<Item = f64> + '_ {
        let open = self.since.map(|since| now.saturating_duration_since(since));
        let open = open.filter(|elapsed| *elapsed >= from);
        let open = open.map(|elapsed| f64::from(self.tokens) / elapsed.as_secs_f64());
        self.rates.iter().map(|(rate, _)| *rate).chain(open)
    }
}

/// 10th percentile (nearest rank) of the rates, in tokens per second.
///
/// `own` are those of the stream, `pooled` those of all streams of its engine, which have to do
/// while the stream is young. `None` when there is neither.
pub(crate) fn slow_rate(own: &[f64], pooled: &[f64]) -> Option<f64> {
    let basis = if own.len() >= RATES_NEEDED { own } else { pooled };
    let mut sorted = basis.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().div_ceil(10).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_stream_has_its_rate() {
        let start = Instant::now();
        let mut meter = SpeedMeter::default();
        for step in 0..=100_u32 {
            meter.record(1, start + Duration::from_millis(20) * step);
        }
        let rates: Vec<f64> = meter.rates(start + Duration::from_secs(2)).collect();
        assert_eq!(rates.len(), 10);
        assert!(rates.iter().all(|rate| (rate - 50.0).abs() < 1.0), "{rates:?}");
    }

    #[test]
    fn stalled_stream_slows_down() {
        let start = Instant::now();
        let mut meter = SpeedMeter::default();
        for step in 0..=50_u32 {
            meter.record(1, start + Duration::from_millis(20) * step);
        }
        let slowest = |now| meter.rates(now).fold(f64::MAX, f64::min);
        assert!(slowest(start + Duration::from_secs(1)) > 40.0);
        assert!(slowest(start + Duration::from_secs(11)) < 1.0);
    }

    #[test]
    fn pause_between_two_transfers_is_no_stall() {
        let start = Instant::now();
        let mut meter = SpeedMeter::default();
        for step in 0..=5_u32 {
            meter.record(64, start + Duration::from_secs(1) * step);
        }
        let slowest = |after_ms| {
            let now = start + Duration::from_secs(5) + Duration::from_millis(after_ms);
            meter.rates_of_transfers(now).fold(f64::MAX, f64::min)
        };
        assert!((slowest(900) - 64.0).abs() < 1.0);
        assert!(slowest(2_100) < 1.0);
    }

    #[test]
    fn slow_rate_is_the_tenth_percentile_of_the_own_or_the_pooled_rates() {
        let own: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(slow_rate(&own, &[]), Some(2.0));
        assert_eq!(slow_rate(&[9.0], &own), Some(2.0), "too few of its own");
        assert_eq!(slow_rate(&[], &[]), None);
    }
}
