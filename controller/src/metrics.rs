//! What the controller counts, for Prometheus.
//!
//! Labels come from closed sets only. A gauge whose signal is unknown is NaN, never zero.

mod capacity;
mod events;
mod group;
mod money;
mod trainer;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ebbtide_core::bottleneck::IterationStage;
use ebbtide_core::observation::{Observation, TrainerPhase};
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::scale::{Action, Role, SILENCE_LIMIT, ScalePlan, SizingTerms};
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
use self::group::GroupMetrics;
pub(crate) use self::money::MoneyMetrics;
pub(crate) use self::trainer::TrainerMetrics;

/// Buckets of a tick: from nothing to do, to every read at its time limit.
const LOOP_BUCKETS_SECONDS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0];

/// All metrics of a controller; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    rollout: RolloutMetrics,
    /// By worker group; those of a service as long as there is one.
    groups: Arc<Mutex<BTreeMap<Role, Group>>>,
    /// Calls of the provider's API, by operation and result.
    pub api_calls: ApiCalls,
    pub(crate) units_reaped: IntCounter,
    tokens_wasted: IntCounterVec,
    tokens_preserved: IntCounter,
    pub(crate) events: EventMetrics,
    pub(crate) money: MoneyMetrics,
    pub(crate) trainer: TrainerMetrics,
    pub(crate) loop_duration: Histogram,
    loop_last_success: Gauge,
    leader: Gauge,
}

/// What every worker group has, and what of it is registered.
struct Group {
    metrics: GroupMetrics,
    collectors: Vec<Box<dyn Collector>>,
}

impl Group {
    fn new(registry: &Registry, role: Role) -> prometheus::Result<Self> {
        let make = Maker::new(registry, role);
        Ok(Self { metrics: GroupMetrics::new(&make)?, collectors: make.made.into_inner() })
    }
}

/// What only the rollouts have.
#[derive(Clone)]
struct RolloutMetrics {
    buffer_depth: Gauge,
    sync_in_progress: Gauge,
    slow: Gauge,
    idle_survivors: Gauge,
    idle_longest: Gauge,
    bottleneck: GaugeVec,
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

/// Makes metrics of a worker group and registers each.
struct Maker<'a> {
    registry: &'a Registry,
    role: Role,
    made: RefCell<Vec<Box<dyn Collector>>>,
}

impl<'a> Maker<'a> {
    fn new(registry: &'a Registry, role: Role) -> Self {
        Self { registry, role, made: RefCell::default() }
    }

    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(format!("ebbtide_{name}"), help).const_label("role", self.role.as_str())
    }

    fn add<C: Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<C>,
    ) -> prometheus::Result<C> {
        let collector = made?;
        self.registry.register(Box::new(collector.clone()))?;
        self.made.borrow_mut().push(Box::new(collector.clone()));
        Ok(collector)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<Gauge> {
        self.add(Gauge::with_opts(self.opts(name, help)))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        self.add(GaugeVec::new(self.opts(name, help), labels))
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::with_opts(self.opts(name, help)))
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(self.opts(name, help), labels))
    }
}

impl Metrics {
    /// Metrics in a registry of their own.
    ///
    /// # Errors
    /// Two metrics have the same name, which a test rules out.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Maker::new(&registry, Role::Rollout);
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
            rollout: RolloutMetrics::new(&make)?,
            groups: Arc::new(Mutex::new(
                [(Role::Rollout, Group::new(&registry, Role::Rollout)?)].into(),
            )),
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
            trainer: TrainerMetrics::new(&make)?,
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

    /// Shows what was seen of a worker group, how it is to be sized, and what was planned.
    pub(crate) fn show(
        &self,
        policy: &FleetPolicy,
        terms: &SizingTerms,
        observation: &Observation,
        plan: &ScalePlan,
    ) {
        if terms.role.is_rollout() {
            self.rollout.show(observation, plan);
        }
        self.with_group(terms.role, |group| group.show(policy, terms, observation, plan));
    }

    pub(crate) fn count_decision(&self, role: Role, action: &Action, because: &str) {
        self.with_group(role, |group| group.count_decision(action, because));
    }

    fn with_group(&self, role: Role, apply: impl FnOnce(&GroupMetrics)) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(place) = groups.entry(role) {
            match Group::new(&self.registry, role) {
                Ok(made) => _ = place.insert(made),
                Err(error) => tracing::error!(%role, %error, "metrics cannot be registered"),
            }
        }
        if let Some(group) = groups.get(&role) {
            apply(&group.metrics);
        }
    }

    /// Shows nothing more of a worker group that is no more. One that comes back begins anew.
    pub(crate) fn forget(&self, role: Role) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        for collector in groups.remove(&role).into_iter().flat_map(|group| group.collectors) {
            if let Err(error) = self.registry.unregister(collector) {
                tracing::error!(%role, %error, "a metric cannot be forgotten");
            }
        }
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
        self.rollout.slow.set(to_gauge(replicas as u64));
    }

    /// Shows how many nodes stand idle that survived a loss of their EP group, and for how long;
    /// none while the records cannot be read.
    pub(crate) fn show_idle(&self, view: Option<&ControlView>) {
        let idle = view.map(|view| view.idle_survivors(SILENCE_LIMIT));
        let longest =
            |idle: &Vec<(&NodeRecord, Duration)>| idle.first().map_or(0.0, |it| it.1.as_secs_f64());
        let nodes = idle.as_ref().map_or(f64::NAN, |idle| to_gauge(idle.len() as u64));
        self.rollout.idle_survivors.set(nodes);
        self.rollout.idle_longest.set(idle.as_ref().map_or(f64::NAN, longest));
    }

    pub(crate) fn count_busy_termination(&self, role: Role) {
        self.with_group(role, GroupMetrics::count_busy_termination);
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

impl RolloutMetrics {
    fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            buffer_depth: make.gauge(
                "buffer_depth",
                "Sealed groups that no trainer has taken; NaN if unknown.",
            )?,
            sync_in_progress: make
                .gauge("sync_in_progress", "1 while weights are spread; NaN when unknown.")?,
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
            bottleneck: make.gauges(
                "bottleneck",
                "1 for the stage that limits the policy iteration; none while that is unknown.",
                &["stage"],
            )?,
        })
    }

    fn show(&self, observation: &Observation, plan: &ScalePlan) {
        let depth = observation.buffer_groups.known();
        self.buffer_depth.set(depth.map_or(f64::NAN, |value| to_gauge(*value)));
        let syncs = observation.trainer.known().map(|trainer| trainer.phase == TrainerPhase::Sync);
        self.sync_in_progress.set(syncs.map_or(f64::NAN, |syncs| to_gauge(u64::from(syncs))));
        for stage in IterationStage::ALL {
            let limits = plan.bottleneck.stage == Some(stage);
            self.bottleneck.with_label_values(&[stage.as_str()]).set(to_gauge(u64::from(limits)));
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
