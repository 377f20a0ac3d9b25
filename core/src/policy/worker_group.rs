//! `spec.trainer`, `spec.rollout`, `spec.reward`, `spec.environment` and `spec.buffer`: the five
//! worker groups of a run.

use std::time::Duration;

use super::kinds::{Named, choice, list, text};
use super::numbers::{decimal, duration, number};
use super::pool::{Market, POOLS_LIMIT, PoolName};
use super::section::Section;
use super::signal::ServiceSignal;
use crate::work::GROUP_SIZE_LIMIT;

/// Most replicas of one worker group; the controller is measured up to 2,000 replicas.
pub const REPLICAS_LIMIT: u32 = 10_000;

/// Most nodes of one EP group. 64 = twice the 32 nodes of the largest published decode groups.
const NODES_PER_REPLICA_LIMIT: u16 = 64;

/// Most nodes of the trainer.
const TRAINER_NODES_LIMIT: u32 = 4096;

/// Most legal sizes of the trainer.
const LEGAL_SIZES_LIMIT: usize = 64;

/// Highest alarm: at 85 % of its memory the queue refuses new work, and an alarm comes before.
const MEMORY_ALARM_MAX_PERCENT: u16 = 84;

/// The window of the Kubernetes autoscaler, which operators know.
const STABILIZATION_DOWN: Duration = Duration::from_secs(300);

/// Longest window or estimate of a worker group.
const WINDOW_MAX: Duration = Duration::from_hours(24);

/// Most trainer steps that a buffer may be told to hold: the largest lag bound and one.
const BUFFER_STEPS_MAX: f64 = 1001.0;

/// `spec.trainer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainerPolicy {
    /// `groupsPerStep`: prompt groups of one policy update. Required, 1 to 65536.
    pub groups_per_step: u32,
    /// `groupSize`: samples of one prompt, n. Required, 1 to 1024.
    pub group_size: u16,
    /// `pool`: where its nodes come from; none is a trainer that somebody else sizes.
    pub pool: Option<PoolName>,
    /// `legalSizes`: node counts that the trainer can run with, rising; empty (default) leaves its
    /// size alone. Each 1 to 4096.
    pub legal_sizes: Vec<u32>,
    /// `resizeAfter`: for how long it must be too slow, or too fast, before it is asked to run on
    /// the next legal size. Default 30m, 0s to 24h.
    pub resize_after: Duration,
}

/// `spec.rollout`.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutPolicy {
    /// `nodesPerReplica`: nodes of one EP group. Default 1, 1 to 64.
    pub nodes_per_replica: u16,
    /// `minReplicas`: default 1, 0 to `maxReplicas`.
    pub min_replicas: u32,
    /// `maxReplicas`: required, 1 to what the pools hold. While a replica is exchanged for a
    /// cheaper one, one more runs.
    pub max_replicas: u32,
    /// `concurrencyPerReplica`: most samples in flight on one replica; how many there are follows
    /// the load of its engines. Default 256, 1 to 65536.
    pub concurrency_per_replica: u32,
    /// `pools`: where its nodes come from, in the order of preference; those that differ only in
    /// their zone and stand together are filled evenly. Required.
    pub pools: Vec<PoolName>,
    /// `bufferTargetSteps`: sealed groups that should stand ready, in trainer steps. Default 1.0,
    /// 0 to `maxLag` + 1.
    pub buffer_target_steps: f64,
    /// `bufferMaxSteps`: sealed groups above which nothing more is needed, in trainer steps.
    /// Default twice the target but at most `maxLag` + 1, `bufferTargetSteps` to `maxLag` + 1.
    pub buffer_max_steps: f64,
    /// `startupEstimate`: from the order to the first token, until it has been measured. Default
    /// 5m, 0s to 24h.
    pub startup_estimate: Duration,
    /// `joinAt`: when a new replica gets work, `anyTime` (default) or `stepEnd`, for trainers that
    /// add engines only between two updates.
    pub join_at: JoinPoint,
    /// `gangTimeout`: how long an EP group may lack a node before its other nodes are released.
    /// Default 10m, 0s to 24h.
    pub gang_timeout: Duration,
    /// `stabilizationUp`: how long more must be needed before more is ordered. Default 0s, 0s to
    /// 24h.
    pub stabilization_up: Duration,
    /// `stabilizationDown`: how long less must be needed before a replica is drained. Default
    /// 300s, 0s to 24h.
    pub stabilization_down: Duration,
    /// `maxChangesPerTick`: most replicas added or drained by one decision. Default 4, 1 to 1000.
    pub max_changes_per_tick: u32,
    /// `tick`: time between two decisions. Default 5s, 100ms to 5m.
    pub tick: Duration,
    /// `deleteWedgedEngineAfter`: how long an engine must hang or fail, without a token, before its
    /// agent deletes its pod; none (default) leaves it to people. 1m to 24h.
    pub delete_wedged_engine_after: Option<Duration>,
}

/// When a new replica gets work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum JoinPoint {
    /// As soon as it is ready.
    #[default]
    AnyTime,
    /// From the next policy update on.
    StepEnd,
}

impl Named for JoinPoint {
    const NAMES: &'static [(&'static str, Self)] =
        &[("anyTime", Self::AnyTime), ("stepEnd", Self::StepEnd)];
}

/// `spec.reward` or `spec.environment`: independent replicas of one node each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePolicy {
    /// `minReplicas`: default 1, 0 to `maxReplicas`.
    pub min_replicas: u32,
    /// `maxReplicas`: required, 1 to what the pools hold.
    pub max_replicas: u32,
    /// `pools`: where its nodes come from, in the order of preference. Required.
    pub pools: Vec<PoolName>,
    /// `itemsPerReplica`: samples to score, or rollouts to serve, that one replica takes at a
    /// time. Required, 1 to 65536.
    pub items_per_replica: u32,
    /// `signal`: where it is read what waits and what is worked on. None (default) is, for reward,
    /// the run's own stage, and for environment the units in flight that wait for it.
    pub signal: Option<ServiceSignal>,
    /// `startupEstimate`: until it has been measured. Default 2m, 0s to 24h.
    pub startup_estimate: Duration,
    /// `stabilizationUp`: default 0s, 0s to 24h.
    pub stabilization_up: Duration,
    /// `stabilizationDown`: default 300s, 0s to 24h.
    pub stabilization_down: Duration,
}

/// `spec.buffer`: Redis, watched and never sized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferPolicy {
    /// `pool`: where it runs, for the cost only; none (default) leaves it out.
    pub pool: Option<PoolName>,
    /// `memoryAlarmPercent`: use of its memory that raises the alarm. Default 80, 1 to 84, since
    /// at 85 the queue refuses new work.
    pub memory_alarm_percent: u16,
}

/// Why a worker group cannot be on Spot.
pub(super) const TRAINER_OFF_SPOT: &str =
    "the trainer is one synchronised gang, and losing one of its nodes stops every update";

/// Why the buffer cannot be on Spot.
pub(super) const BUFFER_OFF_SPOT: &str =
    "the buffer holds work that is finished and paid for, and losing its node loses all of it";

impl TrainerPolicy {
    pub(super) fn read(trainer: &mut Section<'_, '_>) -> Self {
        refuse_spot(trainer, TRAINER_OFF_SPOT);
        let sizes = list(1..=LEGAL_SIZES_LIMIT, number(1..=TRAINER_NODES_LIMIT));
        Self {
            groups_per_step: trainer.required("groupsPerStep", number(1..=65_536_u32)),
            group_size: trainer.required("groupSize", number(1..=GROUP_SIZE_LIMIT)),
            pool: trainer.optional("pool", text()),
            legal_sizes: trainer.optional("legalSizes", sizes).unwrap_or_default(),
            resize_after: read_window(trainer, "resizeAfter", Duration::from_mins(30)),
        }
    }
}

impl RolloutPolicy {
    pub(super) fn read(rollout: &mut Section<'_, '_>, max_lag: u16) -> Self {
        let steps = || decimal(0.0..=BUFFER_STEPS_MAX, "trainer steps");
        let buffer_target_steps = rollout.or("bufferTargetSteps", steps(), 1.0);
        let default_max_steps = (2.0 * buffer_target_steps).min(f64::from(max_lag) + 1.0);
        let tick = Duration::from_millis(100)..=Duration::from_mins(5);
        Self {
            nodes_per_replica: rollout.or(
                "nodesPerReplica",
                number(1..=NODES_PER_REPLICA_LIMIT),
                1,
            ),
            min_replicas: read_min_replicas(rollout),
            max_replicas: rollout.required("maxReplicas", number(1..=REPLICAS_LIMIT)),
            concurrency_per_replica: rollout.or(
                "concurrencyPerReplica",
                number(1..=65_536_u32),
                256,
            ),
            pools: read_pools(rollout),
            buffer_target_steps,
            buffer_max_steps: rollout
                .optional("bufferMaxSteps", steps())
                .unwrap_or(default_max_steps.max(buffer_target_steps)),
            startup_estimate: read_window(rollout, "startupEstimate", Duration::from_mins(5)),
            join_at: rollout.or("joinAt", choice(), JoinPoint::default()),
            gang_timeout: read_window(rollout, "gangTimeout", Duration::from_mins(10)),
            stabilization_up: read_window(rollout, "stabilizationUp", Duration::ZERO),
            stabilization_down: read_window(rollout, "stabilizationDown", STABILIZATION_DOWN),
            max_changes_per_tick: rollout.or("maxChangesPerTick", number(1..=1000_u32), 4),
            tick: rollout.or("tick", duration(tick), Duration::from_secs(5)),
            delete_wedged_engine_after: rollout
                .optional("deleteWedgedEngineAfter", duration(Duration::from_mins(1)..=WINDOW_MAX)),
        }
    }
}

impl ServicePolicy {
    pub(super) fn read(service: &mut Section<'_, '_>) -> Self {
        Self {
            min_replicas: read_min_replicas(service),
            max_replicas: service.required("maxReplicas", number(1..=REPLICAS_LIMIT)),
            pools: read_pools(service),
            items_per_replica: service.required("itemsPerReplica", number(1..=65_536_u32)),
            signal: service.optional_section("signal", ServiceSignal::read).flatten(),
            startup_estimate: read_window(service, "startupEstimate", Duration::from_mins(2)),
            stabilization_up: read_window(service, "stabilizationUp", Duration::ZERO),
            stabilization_down: read_window(service, "stabilizationDown", STABILIZATION_DOWN),
        }
    }
}

impl BufferPolicy {
    pub(super) fn read(buffer: &mut Section<'_, '_>) -> Self {
        refuse_spot(buffer, BUFFER_OFF_SPOT);
        Self {
            pool: buffer.optional("pool", text()),
            memory_alarm_percent: buffer.or(
                "memoryAlarmPercent",
                number(1..=MEMORY_ALARM_MAX_PERCENT),
                80,
            ),
        }
    }
}

/// `market` of a worker group that is always on demand: it may be said, and nothing else.
fn refuse_spot(section: &mut Section<'_, '_>, reason: &str) {
    if section.optional("market", choice::<Market>()) == Some(Market::Spot) {
        section.complain("market", format_args!("must be onDemand, got spot: {reason}"));
    }
}

fn read_min_replicas(section: &mut Section<'_, '_>) -> u32 {
    section.or("minReplicas", number(0..=REPLICAS_LIMIT), 1)
}

fn read_pools(section: &mut Section<'_, '_>) -> Vec<PoolName> {
    section.required("pools", list(1..=POOLS_LIMIT, text()))
}

fn read_window(section: &mut Section<'_, '_>, key: &'static str, default: Duration) -> Duration {
    section.or(key, duration(Duration::ZERO..=WINDOW_MAX), default)
}
