//! The last readings of an engine's metrics, and what they say about its speed and health.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::{EngineLoad, Mean};

/// Stretch over which speeds and means are taken: two readings of an idle engine and more.
const STRETCH: Duration = Duration::from_secs(10);

/// Age from which on a reading says nothing any more: three readings of an idle engine failed.
const AGE_MAX: Duration = Duration::from_secs(16);

/// How an engine does, as far as it tells.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct EngineFigures {
    /// Sequences that it works on.
    pub(crate) running: Option<u64>,
    /// Sequences that wait in it.
    pub(crate) waiting: Option<u64>,
    /// Share of its KV cache in use, 0 to 1.
    pub(crate) kv_cache_use: Option<f64>,
    /// Tokens that it generated per second of late.
    pub(crate) tokens_per_second: Option<f64>,
    /// Mean time to the first token of late, in seconds.
    pub(crate) first_token_seconds: Option<f64>,
    /// Sequences thrown out of its KV cache since it started.
    pub(crate) preemptions: Option<u64>,
    /// Share of the prompt tokens of late that its prefix cache had, 0 to 1.
    pub(crate) prefix_hit_share: Option<f64>,
    /// Load of the mean expert rank by that of the busiest of late, 0 to 1.
    pub(crate) expert_balance: Option<f64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// The oldest first; the last stretch.
    kept: VecDeque<(Instant, EngineLoad)>,
}

impl Readings {
    pub(super) fn note(&mut self, load: EngineLoad, now: Instant) {
        let last = self.kept.back().map(|(_, last)| *last);
        if last.is_some_and(|last| load.generated_tokens < last.generated_tokens) {
            // It was started anew, and counts from the start.
            self.kept.clear();
        }
        self.kept.push_back((now, load));
        // The newest of those that are old enough stays, to measure from.
        while self.kept.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= STRETCH)
        {
            self.kept.pop_front();
        }
    }

    /// Nothing is known while the last reading is too old.
    pub(super) fn figures(&self, now: Instant) -> EngineFigures {
        let (Some((since, first)), Some((at, last))) = (self.kept.front(), self.kept.back()) else {
            return EngineFigures::default();
        };
        if now.saturating_duration_since(*at) > AGE_MAX {
            return EngineFigures::default();
        }
        let seconds = (*at - *since).as_secs_f64();
        let risen = |figure: fn(&EngineLoad) -> Option<u64>| {
            Some(figure(last)?.saturating_sub(figure(first)?) as f64)
        };
        let share = |part: Option<f64>, whole: Option<f64>| {
            part.zip(whole).filter(|(_, whole)| *whole > 0.0).map(|(part, whole)| part / whole)
        };
        let hits = share(risen(|load| load.prefix_hits), risen(|load| load.prefix_tokens));
        EngineFigures {
            running: last.running,
            waiting: last.waiting,
            kv_cache_use: last.kv_cache_use,
            tokens_per_second: share(risen(|load| load.generated_tokens), Some(seconds)),
            first_token_seconds: last.first_tokens.zip(first.first_tokens).and_then(since_then),
            preemptions: last.preemptions,
            prefix_hit_share: hits.map(|share| share.min(1.0)),
            expert_balance: last.expert_balance.zip(first.expert_balance).and_then(since_then),
        }
    }
}

fn since_then((last, first): (Mean, Mean)) -> Option<f64> {
    last.since(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(tokens: u64) -> EngineLoad {
        EngineLoad {
            running: Some(3),
            generated_tokens: Some(tokens),
            prefix_tokens: Some(tokens),
            prefix_hits: Some(tokens / 4),
            first_tokens: Some(Mean { sum: tokens as f64 / 50.0, count: tokens as f64 / 100.0 }),
            ..EngineLoad::default()
        }
    }

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn speed_is_that_of_the_last_stretch() {
        let (start, mut readings) = (Instant::now(), Readings::default());
        (0..=20).for_each(|second| readings.note(load(100 * second), start + after(second)));
        (21..=40).for_each(|second| readings.note(load(200 * second), start + after(second)));
        let figures = readings.figures(start + after(40));
        assert_eq!(figures.tokens_per_second, Some(200.0));
        assert_eq!(
            (figures.prefix_hit_share, figures.first_token_seconds),
            (Some(0.25), Some(2.0))
        );
        assert_eq!(
            (figures.running, figures.waiting, figures.expert_balance),
            (Some(3), None, None)
        );
        assert!(readings.kept.len() <= 12);
    }

    #[test]
    fn one_reading_tells_no_speed_and_an_old_one_nothing() {
        let (start, mut readings) = (Instant::now(), Readings::default());
        assert_eq!(readings.figures(start), EngineFigures::default());
        readings.note(load(500), start);
        let figures = readings.figures(start + after(5));
        assert_eq!((figures.running, figures.tokens_per_second), (Some(3), None));
        assert_eq!(readings.figures(start + after(17)), EngineFigures::default());
    }

    #[test]
    fn engine_started_anew_is_measured_anew() {
        let (start, mut readings) = (Instant::now(), Readings::default());
        readings.note(load(90_000), start);
        readings.note(load(100), start + after(1));
        readings.note(load(200), start + after(2));
        assert_eq!(readings.figures(start + after(2)).tokens_per_second, Some(100.0));
    }
}
