//! `spec.queue` and `spec.staleness`: how work is leased, lost, given again and grows old.

use std::time::Duration;

use super::kinds::{Named, choice, list};
use super::numbers::{duration, number};
use super::section::Section;
use crate::time::whole_millis;
use crate::work::{GROUP_SIZE_LIMIT, OnDeadSlot, ResumePolicy, default_max_attempts};

/// Most shards. 256 = the 64 slots of a wide Redis Cluster times four.
const SHARDS_LIMIT: u16 = 256;

/// Longest limit in the queue: thirty days, below what 32 bits of milliseconds hold.
const LIMIT_MAX: Duration = Duration::from_hours(720);

/// What a unit goes through before its sample is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Generation of the response, environment turns included.
    Generate,
    /// Scoring of the finished response.
    Reward,
}

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// The loss of clients; a fail-over of Redis may lose the last writes.
    #[default]
    Fast,
    /// A fail-over to the replica that acknowledged, or a restart of the single server.
    Safe,
}

/// `spec.queue`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePolicy {
    /// `stages`: `[generate]` (default) or `[generate, reward]`.
    pub stages: Vec<Stage>,
    /// `shards`: default 4, 1 to 256. Fixed once a run has begun.
    pub shards: u16,
    /// `lease`: how long a holder may stay silent. Default 15s, 1s to 10m.
    pub lease: Duration,
    /// `renewEvery`: default a third of `lease`, 100ms up to half of `lease`.
    pub renew_every: Duration,
    /// `progressLimit`: longest time without a token or a declared wait. Default 60s (or `lease`,
    /// when that is longer), `lease` to 720h.
    pub progress_limit: Duration,
    /// `pauseLimit`: how long an engine that is paused for weights suspends the progress limit.
    /// Default 5m, 1s to 720h.
    pub pause_limit: Duration,
    /// `environmentWaitLimit`: how long a unit that waits for its environment does. Default 10m,
    /// 1s to 720h.
    pub environment_wait_limit: Duration,
    /// `maxLeased`: wall-clock limit of one lease. Default none, `lease` to 720h.
    pub max_leased: Option<Duration>,
    /// `maxAttempts`: model or engine faults of one unit before it is DEAD. Default 3, 1 to 1000.
    pub max_attempts: u16,
    /// `maxInfraAttempts`: lost holders of one unit before it is DEAD; 0 is unlimited. Default 0,
    /// 0 to 1000.
    pub max_infra_attempts: u16,
    /// `onDeadSlot`: `fail` (default), or `shrink` with `minSamples`, 1 to `trainer.groupSize`.
    pub on_dead_slot: OnDeadSlot,
    /// `dedupWindow`: how long a finished group is remembered. Default 24h, 1m to 720h.
    pub dedup_window: Duration,
    /// `durability`: `fast` (default) or `safe`.
    pub durability: Durability,
}

/// `spec.staleness`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StalenessPolicy {
    /// `maxLag`: the bound L in policy versions; 0 is strictly on-policy. Default 1, 0 to 1000.
    pub max_lag: u16,
    /// `resumePolicy`: `continueMixed` (default), `restartIfNewer` or `maskOld`.
    pub resume_policy: ResumePolicy,
}

impl Named for Stage {
    const NAMES: &'static [(&'static str, Self)] =
        &[("generate", Self::Generate), ("reward", Self::Reward)];
}

impl Named for Durability {
    const NAMES: &'static [(&'static str, Self)] = &[("fast", Self::Fast), ("safe", Self::Safe)];
}

impl Named for ResumePolicy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("continueMixed", Self::ContinueMixed),
        ("restartIfNewer", Self::RestartIfNewer),
        ("maskOld", Self::MaskOld),
    ];
}

/// `onDeadSlot` as it is written, before `minSamples` is joined to it.
#[derive(Clone, Copy, PartialEq)]
enum DeadSlotRule {
    Fail,
    Shrink,
}

impl Named for DeadSlotRule {
    const NAMES: &'static [(&'static str, Self)] =
        &[("fail", Self::Fail), ("shrink", Self::Shrink)];
}

impl QueuePolicy {
    pub(super) fn read(queue: &mut Section<'_, '_>) -> Self {
        let lease_range = Duration::from_secs(1)..=Duration::from_mins(10);
        let lease = queue.or("lease", duration(lease_range), Duration::from_secs(15));
        let limit = || duration(Duration::from_secs(1)..=LIMIT_MAX);
        let progress_limit =
            queue.optional("progressLimit", limit()).unwrap_or(Duration::from_secs(60).max(lease));
        let pause_limit = queue.or("pauseLimit", limit(), Duration::from_mins(5));
        let environment_wait_limit =
            queue.or("environmentWaitLimit", limit(), Duration::from_mins(10));
        Self {
            stages: queue.or(
                "stages",
                list(1..=Stage::NAMES.len(), choice::<Stage>()),
                vec![Stage::Generate],
            ),
            shards: queue.or("shards", number(1..=SHARDS_LIMIT), 4),
            lease,
            renew_every: queue
                .optional("renewEvery", duration(Duration::from_millis(100)..=LIMIT_MAX))
                .unwrap_or(Duration::from_millis(whole_millis(lease) / 3)),
            progress_limit,
            pause_limit,
            environment_wait_limit,
            max_leased: queue.optional("maxLeased", limit()),
            max_attempts: queue.or("maxAttempts", number(1..=1000_u16), default_max_attempts()),
            max_infra_attempts: queue.or("maxInfraAttempts", number(0..=1000_u16), 0),
            on_dead_slot: read_on_dead_slot(queue),
            dedup_window: queue.or(
                "dedupWindow",
                duration(Duration::from_mins(1)..=LIMIT_MAX),
                Duration::from_hours(24),
            ),
            durability: queue.or("durability", choice(), Durability::default()),
        }
    }
}

/// Joins `onDeadSlot` and `minSamples`, which only make sense together.
fn read_on_dead_slot(queue: &mut Section<'_, '_>) -> OnDeadSlot {
    let has_rule = queue.has("onDeadSlot");
    let has_samples = queue.has("minSamples");
    let rule = queue.optional("onDeadSlot", choice::<DeadSlotRule>());
    let samples = queue.optional("minSamples", number(1..=GROUP_SIZE_LIMIT));
    match (rule, samples) {
        (Some(DeadSlotRule::Shrink), Some(min_samples)) => OnDeadSlot::Shrink { min_samples },
        (Some(DeadSlotRule::Shrink), None) if !has_samples => {
            queue.miss("minSamples", " with onDeadSlot: shrink");
            OnDeadSlot::Fail
        }
        (None, Some(_)) if has_rule => OnDeadSlot::Fail,
        (Some(DeadSlotRule::Fail) | None, Some(_)) => {
            queue.complain("minSamples", "is for onDeadSlot: shrink only, got fail");
            OnDeadSlot::Fail
        }
        _ => OnDeadSlot::Fail,
    }
}

impl StalenessPolicy {
    pub(super) fn read(staleness: &mut Section<'_, '_>) -> Self {
        Self {
            max_lag: staleness.or("maxLag", number(0..=1000_u16), 1),
            resume_policy: staleness.or("resumePolicy", choice(), ResumePolicy::default()),
        }
    }
}
