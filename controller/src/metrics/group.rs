//! Metrics that every worker group has: what it has to do, and its size.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use ebbtide_core::observation::{Observation, ReplicaState};
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::scale::{Action, Reason, ScalePlan, SizingTerms};
use ebbtide_core::time::UnixMillis;
use prometheus::{Gauge, GaugeVec, IntCounterVec};

use super::{CapacityMetrics, Maker, to_gauge};

/// One worker group, under its own label `role`.
#[derive(Clone)]
pub(crate) struct GroupMetrics {
    queue_depth: Gauge,
    in_flight: Gauge,
    age: GaugeVec,
    /// When each signal was last known, or first asked for, on the controller's clock.
    known_at: Arc<Mutex<BTreeMap<&'static str, UnixMillis>>>,
    errors: IntCounterVec,
    desired: Gauge,
    min: Gauge,
    max: Gauge,
    raw: Gauge,
    replicas: GaugeVec,
    decisions: IntCounterVec,
    held: IntCounterVec,
    startup: GaugeVec,
    capacity: CapacityMetrics,
}

impl GroupMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            queue_depth: make.gauge("queue_depth", "Units that wait; NaN when unknown.")?,
            in_flight: make.gauge("in_flight", "Units in flight; NaN when unknown.")?,
            age: make.gauges(
                "signal_age_seconds",
                "Age of what is known of a signal; it grows while nothing is read.",
                &["signal"],
            )?,
            known_at: Arc::default(),
            errors: make.counters(
                "signal_errors_total",
                "Ticks at which a signal was unknown.",
                &["signal", "kind"],
            )?,
            desired: make.gauge("replicas_desired", "Replicas that there should be.")?,
            min: make.gauge("replicas_min", "The policy's minimum.")?,
            max: make.gauge("replicas_max", "The policy's maximum.")?,
            raw: make.gauge("recommendation_raw", "Demand before minimum and maximum.")?,
            replicas: make.gauges("replicas", "Replicas by state.", &["state"])?,
            decisions: make.counters(
                "decision_total",
                "Actions carried out, by what the demand followed from.",
                &["decision", "reason"],
            )?,
            held: make.counters(
                "decision_held_total",
                "Ticks at which something held a change back.",
                &["reason"],
            )?,
            startup: make.gauges(
                "startup_seconds",
                "Time within which this share of the last starts was over, from order to ready.",
                &["share"],
            )?,
            capacity: CapacityMetrics::new(make)?,
        })
    }

    /// Shows what was seen, what the terms say and what was planned.
    pub(super) fn show(
        &self,
        policy: &FleetPolicy,
        terms: &SizingTerms,
        observation: &Observation,
        plan: &ScalePlan,
    ) {
        self.show_signals(observation);
        let or_nan = |known: Option<u32>| known.map_or(f64::NAN, f64::from);
        self.min.set(terms.min_replicas.into());
        self.max.set(terms.max_replicas.into());
        self.desired.set(or_nan(plan.desired));
        self.raw.set(or_nan(plan.wish));
        let states = observation.replicas_by_state(terms.nodes_per_replica);
        for state in ReplicaState::ALL {
            let count = states
                .as_ref()
                .map_or(f64::NAN, |states| to_gauge(states.get(&state).copied().unwrap_or(0)));
            self.replicas.with_label_values(&[state.as_str()]).set(count);
        }
        for (word, share) in [("0.5", 0.5), ("0.9", 0.9)] {
            if let Some(startup) = plan.memory.startup().percentile(share) {
                self.startup.with_label_values(&[word]).set(startup.as_secs_f64());
            }
        }
        let held: BTreeSet<_> = plan.reasons.iter().filter_map(Reason::held).collect();
        for kind in held {
            self.held.with_label_values(&[kind.as_str()]).inc();
        }
        self.capacity.set(policy.pools_of(terms.role), plan, observation.now);
    }

    fn show_signals(&self, observation: &Observation) {
        let or_nan = |known: Option<&u64>| known.map_or(f64::NAN, |value| to_gauge(*value));
        self.queue_depth.set(or_nan(observation.ready.known()));
        self.in_flight.set(or_nan(observation.in_flight.known()));
        let is_told = observation.service.is_none_or(|service| service.tells_in_flight);
        let of_rollouts = observation.service.is_none();
        let ages = [
            ("ready", observation.ready.age(), true),
            ("in_flight", observation.in_flight.age(), is_told),
            ("buffer", observation.buffer_groups.age(), of_rollouts),
            ("trainer", observation.trainer.age(), true),
            ("replicas", observation.replicas.age(), true),
        ];
        let now = observation.now;
        let mut known_at = self.known_at.lock().unwrap_or_else(PoisonError::into_inner);
        for (signal, age, _) in ages.into_iter().filter(|(_, _, is_wanted)| *is_wanted) {
            let known = known_at.entry(signal).or_insert(now);
            match age {
                Some(age) => *known = now.minus(age),
                None => self.errors.with_label_values(&[signal, "unknown"]).inc(),
            }
            self.age.with_label_values(&[signal]).set(now.since(*known).as_secs_f64());
        }
        drop(known_at);
        if observation.pools.iter().any(|pool| pool.size.known().is_none()) {
            self.errors.with_label_values(&["pool_size", "unknown"]).inc();
        }
    }

    pub(super) fn count_decision(&self, action: &Action, because: &str) {
        self.decisions.with_label_values(&[action.kind(), because]).inc();
    }

    pub(super) fn count_busy_termination(&self) {
        self.capacity.count_busy_termination();
    }
}
