//! What the controller counts, for Prometheus.
//!
//! Labels come from closed sets only. A gauge whose signal is unknown is NaN, never zero.

mod capacity;
mod events;
mod money;

use std::collections::BTreeSet;
use std::time::Duration;

use ebbtide_core::bottleneck::IterationStage;
use ebbtide_core::observation::{Observation, ReplicaState, TrainerPhase};
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::scale::{Action, Reason, SILENCE_LIMIT, ScalePlan};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{ControlView, NodeRecord};
use ebbtide_queue::status::TokenCounts;
use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry,
    TextEncoder,
};

use self::capacity::CapacityMetrics;
pub(crate) use self::events::{EventError, EventMetrics};
pub(crate) use self::money::MoneyMetrics;

/// Buckets of a tick: from nothing to do, to every read at its time limit.
const LOOP_BUCKETS_SECONDS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0];

/// All metrics of a controller; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    signals: Signals,
    sizing: Sizing,
    capacity: CapacityMetrics,
    /// Calls of the provider's API, by operation and result.
    pub api_calls: ApiCalls,
    pub(crate) units_reaped: IntCounter,
    tokens_wasted: IntCounterVec,
    tokens_preserved: IntCounter,
    pub(crate) events: EventMetrics,
    pub(crate) money: MoneyMetrics,
    pub(crate) loop_duration: Histogram,
    loop_last_success: Gauge,
    leader: Gauge,
}

#[derive(Clone)]
struct Signals {
    queue_depth: Gauge,
    in_flight: Gauge,
    buffer_depth: Gauge,
    sync_in_progress: Gauge,
    age: GaugeVec,
    errors: IntCounterVec,
}

#[derive(Clone)]
struct Sizing {
    desired: Gauge,
    min: Gauge,
    max: Gauge,
    raw: Gauge,
    replicas: GaugeVec,
    slow: Gauge,
    idle_survivors: Gauge,
    idle_longest: Gauge,
    decisions: IntCounterVec,
    held: IntCounterVec,
    bottleneck: GaugeVec,
    startup: GaugeVec,
}

/// Counts calls of a provider's API.
#[derive(Clone)]
pub struct ApiCalls(IntCounterVec);

impl ApiCalls {
    /// Counts one call; `code` is `ok`, or why it was not carried out, from a closed set.
    pub fn count(&self, operation: &'static str, code: &'static str) {
        self.0.with_label_values(&[operation, code]).inc();
    }
}

/// Makes metrics and registers each.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn add<C: Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<C>,
    ) -> prometheus::Result<C> {
        let collector = made?;
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        self.add(Gauge::with_opts(opts(name, help)))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        self.add(GaugeVec::new(opts(name, help), labels))
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::with_opts(opts(name, help)))
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(opts(name, help), labels))
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("ebbtide_{name}"), help).const_label("role", "rollout")
}

impl Metrics {
    /// Metrics in a registry of their own.
    ///
    /// # Errors
    /// Two metrics have the same name, which a test rules out.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Maker(&registry);
        let calls =
            make.counters("api_calls_total", "Calls of the provider's API.", &["op", "code"])?;
        let loop_opts = HistogramOpts::new(
            "ebbtide_loop_duration_seconds",
            "Time of one tick, reads included.",
        )
        .buckets(LOOP_BUCKETS_SECONDS.to_vec());
        let built = make.gauges("build_info", "Version of this controller.", &["version"])?;
        built.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Ok(Self {
            signals: Signals::new(&make)?,
            sizing: Sizing::new(&make)?,
            capacity: CapacityMetrics::new(&make)?,
            api_calls: ApiCalls(calls),
            units_reaped: make
                .counter("units_reaped_total", "Units returned because their lease ran out.")?,
            tokens_wasted: make.counters(
                "tokens_wasted_total",
                "Tokens of the run that no trainer gets, as the queue counts them.",
                &["cause"],
            )?,
            tokens_preserved: make.counter(
                "tokens_preserved_total",
                "Tokens of the run that a later holder went on from, each once, as the queue \
                 counts them.",
            )?,
            events: EventMetrics::new(&make)?,
            money: MoneyMetrics::new(&make)?,
            loop_duration: make.add(Histogram::with_opts(loop_opts))?,
            loop_last_success: make.gauge(
                "loop_last_success_timestamp_seconds",
                "When a tick last read everything, in seconds since 1970.",
            )?,
            leader: make.gauge("leader", "1 while this controller leads.")?,
            registry,
        })
    }

    /// Everything in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics cannot be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Shows what was seen, what the policy says and what was planned.
    pub(crate) fn show(&self, policy: &FleetPolicy, observation: &Observation, plan: &ScalePlan) {
        self.signals.set(observation);
        self.sizing.set(policy, observation, plan);
        self.capacity.set(policy, plan, observation.now);
    }

    pub(crate) fn count_decision(&self, action: &Action, reasons: &[Reason]) {
        let reason = reasons.iter().find_map(Reason::demand).unwrap_or("unknown");
        self.sizing.decisions.with_label_values(&[action.kind(), reason]).inc();
    }

    /// Shows what the queue counts since the run began: the tokens that were wasted, by cause, and
    /// those that were preserved.
    pub(crate) fn show_tokens(&self, tokens: &TokenCounts) {
        for (cause, wasted) in &tokens.wasted {
            raise_to(&self.tokens_wasted.with_label_values(&[cause.as_str()]), *wasted);
        }
        raise_to(&self.tokens_preserved, tokens.preserved);
    }

    pub(crate) fn show_slow(&self, replicas: usize) {
        self.sizing.slow.set(to_gauge(replicas as u64));
    }

    /// Shows how many nodes stand idle that survived a loss of their EP group, and for how long;
    /// none while the records cannot be read.
    pub(crate) fn show_idle(&self, view: Option<&ControlView>) {
        let idle = view.map(|view| view.idle_survivors(SILENCE_LIMIT));
        let longest =
            |idle: &Vec<(&NodeRecord, Duration)>| idle.first().map_or(0.0, |it| it.1.as_secs_f64());
        let nodes = idle.as_ref().map_or(f64::NAN, |idle| to_gauge(idle.len() as u64));
        self.sizing.idle_survivors.set(nodes);
        self.sizing.idle_longest.set(idle.as_ref().map_or(f64::NAN, longest));
    }

    pub(crate) fn count_busy_termination(&self) {
        self.capacity.count_busy_termination();
    }

    pub(crate) fn end_loop(
        &self,
        took: Duration,
        is_leader: bool,
        succeeded_at: Option<UnixMillis>,
    ) {
        self.loop_duration.observe(took.as_secs_f64());
        self.leader.set(if is_leader { 1.0 } else { 0.0 });
        if let Some(at) = succeeded_at {
            self.loop_last_success.set(Duration::from_millis(at.0).as_secs_f64());
        }
    }
}

impl Signals {
    fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            queue_depth: make.gauge("queue_depth", "Units that wait; NaN when unknown.")?,
            in_flight: make.gauge("in_flight", "Units in flight; NaN when unknown.")?,
            buffer_depth: make.gauge(
                "buffer_depth",
                "Sealed groups that no trainer has taken; NaN if unknown.",
            )?,
            sync_in_progress: make
                .gauge("sync_in_progress", "1 while weights are spread; NaN when unknown.")?,
            age: make.gauges(
                "signal_age_seconds",
                "Age of a signal that is known.",
                &["signal"],
            )?,
            errors: make.counters(
                "signal_errors_total",
                "Ticks at which a signal was unknown.",
                &["signal", "kind"],
            )?,
        })
    }

    fn set(&self, observation: &Observation) {
        let or_nan = |known: Option<&u64>| known.map_or(f64::NAN, |value| to_gauge(*value));
        self.queue_depth.set(or_nan(observation.ready.known()));
        self.in_flight.set(or_nan(observation.in_flight.known()));
        self.buffer_depth.set(or_nan(observation.buffer_groups.known()));
        let syncs = observation.trainer.known().map(|trainer| trainer.phase == TrainerPhase::Sync);
        self.sync_in_progress.set(syncs.map_or(f64::NAN, |syncs| to_gauge(u64::from(syncs))));
        let ages = [
            ("ready", observation.ready.age()),
            ("in_flight", observation.in_flight.age()),
            ("buffer", observation.buffer_groups.age()),
            ("trainer", observation.trainer.age()),
            ("replicas", observation.replicas.age()),
        ];
        for (signal, age) in ages {
            match age {
                Some(age) => self.age.with_label_values(&[signal]).set(age.as_secs_f64()),
                None => self.errors.with_label_values(&[signal, "unknown"]).inc(),
            }
        }
        if observation.pools.iter().any(|pool| pool.size.known().is_none()) {
            self.errors.with_label_values(&["pool_size", "unknown"]).inc();
        }
    }
}

impl Sizing {
    fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            desired: make.gauge("replicas_desired", "Replicas that there should be.")?,
            min: make.gauge("replicas_min", "The policy's minimum.")?,
            max: make.gauge("replicas_max", "The policy's maximum.")?,
            raw: make.gauge("recommendation_raw", "Demand before minimum and maximum.")?,
            replicas: make.gauges("replicas", "Replicas by state.", &["state"])?,
            slow: make.gauge(
                "replicas_slow",
                "Replicas that are slower than their peers at an equal batch.",
            )?,
            idle_survivors: make.gauge(
                "idle_survivor_nodes",
                "Nodes that stand idle although they stay, since their EP group lost another one; \
                 NaN when unknown.",
            )?,
            idle_longest: make.gauge(
                "idle_survivor_seconds",
                "Time for which the longest of them has stood idle; NaN when unknown.",
            )?,
            decisions: make.counters(
                "decision_total",
                "Actions carried out, by what the demand followed from.",
                &["decision", "reason"],
            )?,
            bottleneck: make.gauges(
                "bottleneck",
                "1 for the stage that limits the policy iteration; none while that is unknown.",
                &["stage"],
            )?,
            startup: make.gauges(
                "startup_seconds",
                "Time within which this share of the last starts was over, from order to ready.",
                &["share"],
            )?,
            held: make.counters(
                "decision_held_total",
                "Ticks at which something held a change back.",
                &["reason"],
            )?,
        })
    }

    fn set(&self, policy: &FleetPolicy, observation: &Observation, plan: &ScalePlan) {
        let or_nan = |known: Option<u32>| known.map_or(f64::NAN, f64::from);
        self.min.set(policy.rollout.min_replicas.into());
        self.max.set(policy.rollout.max_replicas.into());
        self.desired.set(or_nan(plan.desired));
        self.raw.set(or_nan(plan.wish));
        let states = observation.replicas_by_state(policy.rollout.nodes_per_replica);
        for state in ReplicaState::ALL {
            let count = states
                .as_ref()
                .map_or(f64::NAN, |states| to_gauge(states.get(&state).copied().unwrap_or(0)));
            self.replicas.with_label_values(&[state.as_str()]).set(count);
        }
        for stage in IterationStage::ALL {
            let limits = plan.bottleneck.stage == Some(stage);
            self.bottleneck.with_label_values(&[stage.as_str()]).set(to_gauge(u64::from(limits)));
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
    }
}

/// A count that is kept elsewhere; it is read again and again, and may be read late.
fn raise_to(counter: &IntCounter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}

#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
fn to_gauge(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;
