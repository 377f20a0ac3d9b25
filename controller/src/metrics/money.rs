//! What the run costs, by the prices of the policy: estimates, all of them.

use ebbtide_core::ledger::Ledger;
use prometheus::{Counter, CounterVec, Gauge, GaugeVec, IntCounter};

use super::Maker;

/// Figures of the ledger; a figure that is unknown is NaN.
#[derive(Clone)]
pub(crate) struct MoneyMetrics {
    dollars: CounterVec,
    trainer_dollars: Counter,
    service_dollars: Counter,
    unpriced: Counter,
    updates: IntCounter,
    verified: IntCounter,
    per_update: Gauge,
    of_static: GaugeVec,
}

impl MoneyMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            dollars: make.add(CounterVec::new(
                make.opts("cost_dollars_total", "Estimated dollars of rollout nodes."),
                &["market"],
            ))?,
            trainer_dollars: make.add(Counter::with_opts(make.opts(
                "cost_trainer_dollars_total",
                "Estimated dollars of the trainer, while its price and size are known.",
            )))?,
            service_dollars: make.add(Counter::with_opts(make.opts(
                "cost_service_dollars_total",
                "Estimated dollars of the nodes of scorers and environments.",
            )))?,
            unpriced: make.add(Counter::with_opts(make.opts(
                "cost_unpriced_node_seconds_total",
                "Seconds of nodes without a price, which no estimate contains.",
            )))?,
            updates: make.counter("policy_updates_total", "Updates since the ledger began.")?,
            verified: make.counter("verified_policy_updates_total", "Those that are verified.")?,
            per_update: make.gauge(
                "dollars_per_verified_update",
                "Estimated, trainer included while it is known; NaN when unknown.",
            )?,
            of_static: make.gauges(
                "static_fleet_dollars",
                "Estimated for a fleet of the largest size that was desired; NaN when unknown.",
                &["market"],
            )?,
        })
    }

    /// Shows a ledger. Counters go on from what they were in another process.
    pub fn show(&self, ledger: &Ledger) {
        let raise = |counter: &Counter, to: f64| counter.inc_by((to - counter.get()).max(0.0));
        for (market, dollars) in
            [("spot", ledger.spot_dollars), ("on_demand", ledger.on_demand_dollars)]
        {
            raise(&self.dollars.with_label_values(&[market]), dollars);
        }
        raise(&self.trainer_dollars, ledger.trainer_dollars);
        raise(&self.service_dollars, ledger.service_dollars);
        raise(&self.unpriced, ledger.unpriced_node_seconds);
        self.updates.inc_by(ledger.updates.saturating_sub(self.updates.get()));
        self.verified.inc_by(ledger.verified_updates.saturating_sub(self.verified.get()));
        let or_nan = |dollars: Option<f64>| dollars.unwrap_or(f64::NAN);
        self.per_update.set(or_nan(ledger.dollars_per_verified_update()));
        for (market, dollars) in [
            ("spot", ledger.static_spot_dollars()),
            ("on_demand", ledger.static_on_demand_dollars()),
        ] {
            self.of_static.with_label_values(&[market]).set(or_nan(dollars));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn ledger_of_an_earlier_process_is_shown_once() {
        let metrics = Metrics::new().expect("names differ");
        let ledger = Ledger {
            spot_dollars: 12.5,
            updates: 3,
            verified_updates: 2,
            unpriced_trainer_seconds: 5.0,
            ..Ledger::default()
        };
        for _ in 0..2 {
            metrics.money.show(&ledger);
        }
        let text = metrics.render();
        for line in [
            r#"ebbtide_cost_dollars_total{market="spot",role="rollout"} 12.5"#,
            r#"ebbtide_verified_policy_updates_total{role="rollout"} 2"#,
            r#"ebbtide_dollars_per_verified_update{role="rollout"} 6.25"#,
            r#"ebbtide_static_fleet_dollars{market="on_demand",role="rollout"} NaN"#,
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
