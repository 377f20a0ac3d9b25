//! What is counted of events and lifecycle actions.

use prometheus::{IntCounter, IntCounterVec};

use super::Maker;

/// Why something about events did not work; the closed set of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventError {
    /// The queue of events cannot be read.
    Receive,
    /// A message was neither deleted nor hidden.
    Settle,
    /// Redis does not answer.
    Redis,
    /// The API server does not answer.
    Kubernetes,
    /// The API server, or an admission policy, refuses a mark.
    Refused,
    /// A message took too long.
    TimeLimit,
}

impl EventError {
    fn as_str(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Settle => "settle",
            Self::Redis => "redis",
            Self::Kubernetes => "kubernetes",
            Self::Refused => "refused",
            Self::TimeLimit => "time_limit",
        }
    }
}

/// See the module; cheap to clone.
#[derive(Clone)]
pub(crate) struct EventMetrics {
    events: IntCounterVec,
    unknown_instances: IntCounter,
    errors: IntCounterVec,
    cordons: IntCounter,
    lifecycle: IntCounterVec,
}

impl EventMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            events: make.counters(
                "events_total",
                "Events of the queue, one for each instance, by what became of them.",
                &["kind", "outcome"],
            )?,
            unknown_instances: make.counter(
                "events_unknown_instance_total",
                "Events about instances that neither Redis nor the cluster knows.",
            )?,
            errors: make.counters(
                "event_errors_total",
                "What did not work about events; the messages are kept.",
                &["kind"],
            )?,
            cordons: make.counter(
                "nodes_cordoned_total",
                "Nodes that were marked here, since their agents were silent.",
            )?,
            lifecycle: make.counters(
                "lifecycle_actions_total",
                "Calls about lifecycle actions of Auto Scaling groups.",
                &["outcome"],
            )?,
        })
    }

    /// Counts an event; both words are from closed sets.
    pub fn count(&self, kind: &'static str, outcome: &'static str) {
        self.events.with_label_values(&[kind, outcome]).inc();
    }

    pub fn unknown_instance(&self) {
        self.unknown_instances.inc();
    }

    pub fn error(&self, error: EventError) {
        self.errors.with_label_values(&[error.as_str()]).inc();
    }

    pub fn cordoned(&self) {
        self.cordons.inc();
    }

    /// Counts a call about a lifecycle action; the word is from a closed set.
    pub fn lifecycle(&self, outcome: &'static str) {
        self.lifecycle.with_label_values(&[outcome]).inc();
    }
}
