//! The agent's metrics. Labels come from closed sets only; never a node, unit or event id.

mod engines;
mod evictions;
mod streams;

use std::collections::BTreeMap;

use ebbtide_core::notice::NoticeKind;
use ebbtide_core::policy::Market;
use ebbtide_core::sample::Chunk;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::NodeRole;
use ebbtide_queue::reply::Grant;
use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

pub(crate) use engines::EngineMetrics;
pub(crate) use evictions::EvictionMetrics;
pub(crate) use streams::StreamMetrics;

use crate::imds::{Answer, Source};
use crate::shared::InstanceFacts;

/// Causes of a hand-back, as labels.
const CAUSES: [HandBackCause; 5] = [
    HandBackCause::Notice,
    HandBackCause::Drain,
    HandBackCause::AgentRestart,
    HandBackCause::Engine,
    HandBackCause::Weights,
];

/// See the module. Every family exists from the start with all its labels, so that a rate over it
/// is never missing.
#[derive(Debug)]
pub(crate) struct Metrics {
    notices: IntCounterVec,
    pub(crate) notice_lead: Histogram,
    pub(crate) drain_duration: Histogram,
    handed_back: BTreeMap<HandBackCause, IntCounter>,
    handed_back_family: IntCounterVec,
    pub(crate) units_lost: IntCounter,
    pub(crate) leases_lost: IntCounter,
    pub(crate) units_completed: IntCounter,
    pub(crate) units_faulted: IntCounter,
    pub(crate) tokens: TokenMetrics,
    pub(crate) streams: StreamMetrics,
    pub(crate) engines: EngineMetrics,
    pub(crate) in_flight: IntGauge,
    pub(crate) engines_ready: IntGauge,
    pub(crate) gate_open: IntGauge,
    pub(crate) replica_slow: IntGauge,
    imds_reads: IntCounterVec,
    pub(crate) node_mark_failures: IntCounter,
    pub(crate) webhook_failures: IntCounter,
    pub(crate) node_watch_failures: IntCounter,
    pub(crate) evictions: EvictionMetrics,
    pub(crate) wedged_pods_deleted: IntCounter,
    node_info: IntGaugeVec,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let handed_back_family = counters(
            "ebbtide_units_handed_back_total",
            "Units handed back to the queue with their tokens, by cause.",
            &["cause"],
        );
        let handed_back = CAUSES
            .into_iter()
            .map(|cause| (cause, handed_back_family.with_label_values(&[cause.as_str()])));
        Self {
            notices: notices(),
            notice_lead: histogram(
                "ebbtide_notice_lead_seconds",
                "Time between the first sight of a notice and its deadline.",
                &[1.0, 5.0, 15.0, 30.0, 60.0, 90.0, 105.0, 115.0, 120.0, 600.0],
            ),
            drain_duration: histogram(
                "ebbtide_drain_duration_seconds",
                "Time from the beginning of a drain until nothing is held and no stream is \
                 open, or until its deadline has passed over what is.",
                &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 110.0, 300.0, 600.0],
            ),
            handed_back: handed_back.collect(),
            handed_back_family: handed_back_family.clone(),
            units_lost: counter(
                "ebbtide_units_lost_total",
                "Units still held when AWS was to take their node; must stay 0.",
            ),
            leases_lost: counter(
                "ebbtide_leases_lost_total",
                "Units that somebody else took over because their lease had run out.",
            ),
            units_completed: counter("ebbtide_units_completed_total", "Samples completed."),
            units_faulted: counter(
                "ebbtide_units_faulted_total",
                "Units given back because of a model or engine fault.",
            ),
            tokens: TokenMetrics::new(),
            streams: StreamMetrics::new(),
            engines: EngineMetrics::new(),
            in_flight: gauge("ebbtide_in_flight", "Units held."),
            engines_ready: gauge("ebbtide_engines_ready", "Engines that may be given work."),
            gate_open: gauge("ebbtide_lease_gate_open", "1 while work may be leased."),
            replica_slow: gauge(
                "ebbtide_replica_slow",
                "1 while this node's replica is slower than its peers at an equal batch.",
            ),
            imds_reads: imds_reads(),
            node_mark_failures: counter(
                "ebbtide_node_mark_failures_total",
                "Failed tries to mark the Kubernetes node or to show its condition.",
            ),
            webhook_failures: counter(
                "ebbtide_webhook_failures_total",
                "Notices that the webhook could not be told, all tries together.",
            ),
            node_watch_failures: counter(
                "ebbtide_node_watch_failures_total",
                "Failed tries to follow the Kubernetes node and its pods.",
            ),
            evictions: EvictionMetrics::new(),
            wedged_pods_deleted: counter(
                "ebbtide_wedged_engine_pods_deleted_total",
                "Pods deleted because their engines hung or failed for too long.",
            ),
            node_info: IntGaugeVec::new(
                Opts::new(
                    "ebbtide_node_info",
                    "1; what the node is for, how it is bought and where it is; empty if unknown.",
                ),
                &["role", "market", "zone"],
            )
            .expect(VALID),
        }
    }

    /// Adds every family to a registry.
    ///
    /// # Errors
    /// A family of the same name is there already.
    pub(crate) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        let families: [Box<dyn Collector>; 27] = [
            Box::new(self.notices.clone()),
            Box::new(self.notice_lead.clone()),
            Box::new(self.drain_duration.clone()),
            Box::new(self.handed_back_family.clone()),
            Box::new(self.units_lost.clone()),
            Box::new(self.leases_lost.clone()),
            Box::new(self.units_completed.clone()),
            Box::new(self.units_faulted.clone()),
            Box::new(self.tokens.continued.clone()),
            Box::new(self.tokens.received.clone()),
            Box::new(self.tokens.dropped.clone()),
            Box::new(self.tokens.waiting.clone()),
            Box::new(self.tokens.per_second.clone()),
            Box::new(self.streams.first_token.clone()),
            Box::new(self.streams.partials.clone()),
            Box::new(self.in_flight.clone()),
            Box::new(self.engines_ready.clone()),
            Box::new(self.gate_open.clone()),
            Box::new(self.replica_slow.clone()),
            Box::new(self.imds_reads.clone()),
            Box::new(self.node_mark_failures.clone()),
            Box::new(self.webhook_failures.clone()),
            Box::new(self.node_watch_failures.clone()),
            Box::new(self.evictions.calls.clone()),
            Box::new(self.evictions.blocked.clone()),
            Box::new(self.wedged_pods_deleted.clone()),
            Box::new(self.node_info.clone()),
        ];
        families
            .into_iter()
            .chain(self.engines.families())
            .try_for_each(|family| registry.register(family))
    }

    pub(crate) fn notice(&self, kind: NoticeKind) -> IntCounter {
        self.notices.with_label_values(&[kind.as_str()])
    }

    pub(crate) fn handed_back(&self, cause: HandBackCause) -> &IntCounter {
        &self.handed_back[&cause]
    }

    /// Shows what the node is for and where it is, as far as that is known by now.
    pub(crate) fn show_node(&self, role: NodeRole, facts: &InstanceFacts) {
        let market = facts.market.map_or("", Market::as_str);
        let labels = [role.as_str(), market, facts.zone.as_deref().unwrap_or_default()];
        // A node has one of these series: what was unknown before is no other node.
        self.node_info.reset();
        self.node_info.with_label_values(&labels).set(1);
    }

    pub(crate) fn imds_read(&self, source: Source, answer: Answer) {
        self.imds_reads.with_label_values(&[source.as_str(), answer.as_str()]).inc();
    }
}

/// What becomes of tokens on this node.
#[derive(Debug)]
pub(crate) struct TokenMetrics {
    continued: IntCounter,
    pub(crate) received: IntCounter,
    pub(crate) dropped: IntCounter,
    pub(crate) waiting: IntGauge,
    pub(crate) per_second: Gauge,
}

impl TokenMetrics {
    fn new() -> Self {
        Self {
            continued: counter(
                "ebbtide_tokens_continued_total",
                "Tokens that units had when they were leased, at each lease again: those of \
                 engines' units are prefilled anew.",
            ),
            received: counter("ebbtide_tokens_received_total", "Tokens from engines."),
            dropped: counter(
                "ebbtide_tokens_dropped_total",
                "Tokens received for units that were no longer held here.",
            ),
            waiting: gauge(
                "ebbtide_tokens_waiting",
                "Tokens received that the queue does not have yet: what a kill would cost.",
            ),
            per_second: Gauge::new(
                "ebbtide_tokens_per_second",
                "Tokens received per second over the last report interval.",
            )
            .expect(VALID),
        }
    }

    /// Counts the tokens from which an admitted unit goes on.
    pub(crate) fn note_continued(&self, grant: &Grant) {
        let tokens = grant.partial.last().map_or(0, Chunk::end);
        self.continued.inc_by(u64::from(tokens));
    }
}

fn notices() -> IntCounterVec {
    let family = counters(
        "ebbtide_interruption_notices_total",
        "Interruption notices and rebalance recommendations seen, by kind.",
        &["kind"],
    );
    for kind in NoticeKind::ALL {
        family.with_label_values(&[kind.as_str()]);
    }
    family
}

fn imds_reads() -> IntCounterVec {
    let family = counters(
        "ebbtide_imds_reads_total",
        "Reads of instance metadata, by outcome.",
        &["source", "outcome"],
    );
    for source in Source::ALL {
        for answer in Answer::ALL {
            family.with_label_values(&[source.as_str(), answer.as_str()]);
        }
    }
    family
}

const VALID: &str = "names and labels are constants that Prometheus accepts";

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect(VALID)
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect(VALID)
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect(VALID)
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())).expect(VALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_families_register_once_and_have_their_labels_from_the_start() {
        let metrics = Metrics::new();
        let registry = Registry::new();
        metrics.register(&registry).expect("names differ");
        metrics.show_node(NodeRole::Rollout, &InstanceFacts::default());
        let families = registry.gather();
        assert_eq!(families.len(), 27, "those of engines come with the engines");
        let series: usize = families.iter().map(|family| family.get_metric().len()).sum();
        for kind in NoticeKind::ALL {
            metrics.notice(kind).inc();
        }
        let after: usize = registry.gather().iter().map(|f| f.get_metric().len()).sum();
        assert_eq!(after, series, "events add no series");
        let (zone, market) = (Some("us-east-2b".to_owned()), Some(Market::OnDemand));
        let facts = InstanceFacts { zone, market, ..InstanceFacts::default() };
        metrics.show_node(NodeRole::Trainer, &facts);
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather());
        let info = "ebbtide_node_info{market=\"on_demand\",role=\"trainer\",zone=\"us-east-2b\"} 1";
        let text = text.expect("valid");
        assert!(text.contains(info) && text.matches("ebbtide_node_info{").count() == 1, "{text}");
        assert!(families.iter().all(|family| family.name().starts_with("ebbtide_")));
    }
}
