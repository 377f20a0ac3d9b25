//! What the engines say about themselves, one series for each: the label is their number on the
//! node, of which there are at most 8. What an engine does not tell is NaN, never zero.

use prometheus::core::Collector;
use prometheus::{GaugeVec, IntCounterVec, Opts};

use super::{VALID, counters};
use crate::hosting::{EngineFigures, StartupParts};

/// See the module.
#[derive(Debug)]
pub(crate) struct EngineMetrics {
    running: GaugeVec,
    waiting: GaugeVec,
    kv_cache_use: GaugeVec,
    tokens_per_second: GaugeVec,
    first_token: GaugeVec,
    prefix_hits: GaugeVec,
    expert_balance: GaugeVec,
    places: GaugeVec,
    preemptions: IntCounterVec,
    readings_failed: IntCounterVec,
    weights_loads: IntCounterVec,
    startup: GaugeVec,
}

impl EngineMetrics {
    pub(super) fn new() -> Self {
        Self {
            running: gauges("running_sequences", "Sequences that an engine works on."),
            waiting: gauges("waiting_sequences", "Sequences that wait in an engine."),
            kv_cache_use: gauges("kv_cache_use_ratio", "Share of the KV cache in use, 0 to 1."),
            tokens_per_second: gauges("tokens_per_second", "Tokens that an engine generates."),
            first_token: gauges(
                "first_token_seconds",
                "Mean time to the first token over the last 10 s, by the engine's own account.",
            ),
            prefix_hits: gauges(
                "prefix_hit_ratio",
                "Share of prompt tokens found in the prefix cache over the last 10 s.",
            ),
            expert_balance: gauges(
                "expert_balance_ratio",
                "Load of the mean expert rank by that of the busiest, last 10 s; 1 is even.",
            ),
            places: gauges("places", "Streams that an engine may have now."),
            preemptions: counters(
                "ebbtide_engine_preemptions_total",
                "Sequences thrown out of an engine's KV cache, to be computed again.",
                &["engine"],
            ),
            readings_failed: counters(
                "ebbtide_engine_readings_failed_total",
                "Failed tries to read an engine's metrics.",
                &["engine"],
            ),
            weights_loads: counters(
                "ebbtide_engine_weights_loads_total",
                "Loads of the run's weights by an engine that was too old, by outcome.",
                &["engine", "outcome"],
            ),
            startup: GaugeVec::new(
                Opts::new(
                    "ebbtide_engine_startup_seconds",
                    "Parts of an engine's last start: until its pod had a node, its containers \
                     ran, it answered, the run took its weights, it brought a token.",
                ),
                &["engine", "part"],
            )
            .expect(VALID),
        }
    }

    pub(super) fn families(&self) -> [Box<dyn Collector>; 12] {
        [
            Box::new(self.running.clone()),
            Box::new(self.waiting.clone()),
            Box::new(self.kv_cache_use.clone()),
            Box::new(self.tokens_per_second.clone()),
            Box::new(self.first_token.clone()),
            Box::new(self.prefix_hits.clone()),
            Box::new(self.expert_balance.clone()),
            Box::new(self.places.clone()),
            Box::new(self.preemptions.clone()),
            Box::new(self.readings_failed.clone()),
            Box::new(self.weights_loads.clone()),
            Box::new(self.startup.clone()),
        ]
    }

    /// Shows how an engine does, and how many streams it may have.
    pub(crate) fn show(&self, engine: usize, figures: &EngineFigures, places: usize) {
        let engine = engine.to_string();
        let label = &[engine.as_str()];
        let count = |count: Option<u64>| count.map_or(f64::NAN, |count| count as f64);
        let or_nan = |figure: Option<f64>| figure.unwrap_or(f64::NAN);
        self.running.with_label_values(label).set(count(figures.running));
        self.waiting.with_label_values(label).set(count(figures.waiting));
        self.kv_cache_use.with_label_values(label).set(or_nan(figures.kv_cache_use));
        self.tokens_per_second.with_label_values(label).set(or_nan(figures.tokens_per_second));
        self.first_token.with_label_values(label).set(or_nan(figures.first_token_seconds));
        self.prefix_hits.with_label_values(label).set(or_nan(figures.prefix_hit_share));
        self.expert_balance.with_label_values(label).set(or_nan(figures.expert_balance));
        self.places.with_label_values(label).set(places as f64);
        let preemptions = self.preemptions.with_label_values(label);
        let seen = preemptions.get();
        match figures.preemptions {
            Some(now) if now >= seen => preemptions.inc_by(now - seen),
            // An engine that was started anew counts from the start.
            Some(now) => {
                preemptions.reset();
                preemptions.inc_by(now);
            }
            None => {}
        }
        self.readings_failed.with_label_values(label);
    }

    /// Shows how an engine's last start went.
    pub(crate) fn show_startup(&self, engine: usize, startup: &StartupParts) {
        let engine = engine.to_string();
        for (part, duration) in startup.named() {
            let seconds = duration.map_or(f64::NAN, |duration| duration.as_secs_f64());
            self.startup.with_label_values(&[engine.as_str(), part]).set(seconds);
        }
    }

    pub(crate) fn note_weights_load(&self, engine: usize, is_loaded: bool) {
        let outcome = if is_loaded { "loaded" } else { "failed" };
        self.weights_loads.with_label_values(&[engine.to_string().as_str(), outcome]).inc();
    }

    pub(crate) fn note_failed_reading(&self, engine: usize) {
        self.readings_failed.with_label_values(&[engine.to_string().as_str()]).inc();
    }
}

fn gauges(name: &str, help: &str) -> GaugeVec {
    GaugeVec::new(Opts::new(format!("ebbtide_engine_{name}"), help), &["engine"]).expect(VALID)
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[test]
    fn what_an_engine_does_not_tell_is_no_number() {
        let metrics = EngineMetrics::new();
        let registry = Registry::new();
        for family in metrics.families() {
            registry.register(family).expect("names differ");
        }
        let figures = |preemptions| EngineFigures {
            running: Some(5),
            preemptions: Some(preemptions),
            ..EngineFigures::default()
        };
        [7, 9, 2].into_iter().for_each(|times| metrics.show(1, &figures(times), 64));
        let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
        for line in [
            "ebbtide_engine_running_sequences{engine=\"1\"} 5",
            "ebbtide_engine_waiting_sequences{engine=\"1\"} NaN",
            "ebbtide_engine_places{engine=\"1\"} 64",
            "ebbtide_engine_preemptions_total{engine=\"1\"} 2",
            "ebbtide_engine_readings_failed_total{engine=\"1\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in {text}");
        }
    }
}
