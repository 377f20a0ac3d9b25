//! What the agent measures of its own streams, whatever the engine says.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec};

use super::{counters, histogram};

/// Streams that the agent opens.
#[derive(Debug)]
pub(crate) struct StreamMetrics {
    pub(super) first_token: Histogram,
    pub(super) partials: IntCounterVec,
    continued: IntCounter,
    refused: IntCounter,
    restarted: IntCounter,
}

impl StreamMetrics {
    pub(super) fn new() -> Self {
        let partials = counters(
            "ebbtide_partials_total",
            "Units with tokens of earlier holders: gone on with, refused by an engine, or to begin \
             again under newer weights.",
            &["outcome"],
        );
        Self {
            first_token: histogram(
                "ebbtide_first_token_seconds",
                "Time from the call to the engine to its first token.",
                &[0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0],
            ),
            continued: partials.with_label_values(&["continued"]),
            refused: partials.with_label_values(&["refused"]),
            restarted: partials.with_label_values(&["restarted"]),
            partials,
        }
    }

    /// A stream brought its first token.
    pub(crate) fn note_first_token(&self, after: Duration, is_continued: bool) {
        self.first_token.observe(after.as_secs_f64());
        self.continued.inc_by(u64::from(is_continued));
    }

    /// A partial was complete without a call.
    pub(crate) fn note_complete(&self) {
        self.continued.inc();
    }

    /// An engine took a partial and brought nothing.
    pub(crate) fn note_refused(&self) {
        self.refused.inc();
    }

    /// Units went back whose tokens the queue drops, since newer weights are out.
    pub(crate) fn note_restarted(&self, units: u64) {
        self.restarted.inc_by(units);
    }
}
