//! Metrics of the capacity that is bought: pools left out, fallback, terminations that must not be.

use std::collections::BTreeMap;

use ebbtide_core::observation::FailureKind;
use ebbtide_core::policy::{Market, Pool};
use ebbtide_core::scale::{BreakerReason, ScalePlan};
use ebbtide_core::time::UnixMillis;
use prometheus::{Gauge, GaugeVec, IntCounter};

use super::{Maker, to_gauge};

#[derive(Clone)]
pub(super) struct CapacityMetrics {
    benched: GaugeVec,
    breaker_open: GaugeVec,
    fallback_active: Gauge,
    busy_terminations: IntCounter,
}

impl CapacityMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            benched: make.gauges(
                "pool_benched",
                "1 while a pool is left out after a failed launch.",
                &["zone", "instance_type", "market"],
            )?,
            breaker_open: make.gauges(
                "breaker_open",
                "1 while launches are held back: none has come up, or a quota is used up.",
                &["reason"],
            )?,
            fallback_active: make
                .gauge("fallback_active", "1 while on-demand nodes are asked for beside Spot.")?,
            busy_terminations: make.counter(
                "busy_terminations_total",
                "Replicas terminated while the queue knew leases of them or, of services, before \
                 their agents said that they are drained and their pods have left; must stay 0.",
            )?,
        })
    }

    pub(super) fn set<'a>(
        &self,
        pools: impl Iterator<Item = &'a Pool>,
        plan: &ScalePlan,
        now: UnixMillis,
    ) {
        let pools: Vec<&Pool> = pools.collect();
        let benched: Vec<_> = plan.memory.benched(now).map(|(name, _)| name.clone()).collect();
        self.benched.reset();
        let mut worst = BTreeMap::<[&str; 3], f64>::new();
        for pool in &pools {
            let is_benched = benched.contains(&pool.name);
            let value = worst.entry(labels(pool)).or_default();
            *value = value.max(if is_benched { 1.0 } else { 0.0 });
        }
        for (labels, value) in worst {
            self.benched.with_label_values(&labels).set(value);
        }
        for reason in BreakerReason::ALL {
            let is_open = plan.memory.breaker() == Some(reason);
            self.breaker_open.with_label_values(&[reason.as_str()]).set(to_gauge(is_open.into()));
        }
        let lacks_quota = plan.memory.benched(now).any(|(_, kind)| kind == FailureKind::Quota);
        self.breaker_open.with_label_values(&["quota"]).set(to_gauge(lacks_quota.into()));
        let mut spot = pools.iter().filter(|pool| pool.market == Market::Spot).peekable();
        let has_spot = spot.peek().is_some();
        let spot_is_out = spot.all(|pool| benched.contains(&pool.name));
        self.fallback_active.set(if has_spot && spot_is_out { 1.0 } else { 0.0 });
    }

    pub(super) fn count_busy_termination(&self) {
        self.busy_terminations.inc();
    }
}

fn labels(pool: &Pool) -> [&str; 3] {
    [
        pool.zone.as_ref().map_or("", |zone| zone.as_str()),
        pool.instance_type.as_ref().map_or("", |instance_type| instance_type.as_str()),
        pool.market.as_str(),
    ]
}
