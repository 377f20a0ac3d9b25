//! `spec.drain`: how a node is emptied before it goes.

use std::time::Duration;

use super::kinds::{Named, choice, text};
use super::numbers::duration;
use super::pool::LifecycleHookName;
use super::section::Section;
use super::taint::ExtraTaint;

/// Largest reserve: EC2 gives 120 s of notice at most, and some of it has to be left for work.
const RESERVE_MAX: Duration = Duration::from_secs(110);

/// Longest time that a lifecycle hook of EC2 Auto Scaling may be given at once.
const HOOK_MAX: Duration = Duration::from_hours(2);

/// What a rebalance recommendation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RebalanceAction {
    /// No lease is taken, neither fresh nor resumed; running work goes on.
    #[default]
    StopLeases,
    /// The node is drained at once.
    Drain,
    /// Nothing changes.
    Ignore,
}

/// `spec.drain`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainPolicy {
    /// `reserve`: a unit keeps running only if it is expected to finish this long before the
    /// deadline. Default 10s, 100ms to 110s.
    pub reserve: Duration,
    /// `grace`: the engine's pod is evicted this long before the deadline at the latest. Default
    /// half of `reserve`, 0s to `reserve`.
    pub grace: Duration,
    /// `requestDeadline`: time for a drain that no notice caused. Default 10m, 1s to 24h.
    pub request_deadline: Duration,
    /// `asgDeadline`: time that a `Terminated` target lifecycle state leaves, since the metadata
    /// service does not say. Default 120s, 1s to 2h.
    pub asg_deadline: Duration,
    /// `lifecycleHook`: the hook that is completed once a node is drained. Default: the only hook
    /// that the group of an instance has for those on their way out.
    pub lifecycle_hook: Option<LifecycleHookName>,
    /// `rebalance`: `stopLeases` (default), `drain` or `ignore`.
    pub rebalance: RebalanceAction,
    /// `rebalanceTtl`: how long a rebalance recommendation counts when nothing follows. Default
    /// 15m, 1s to 24h.
    pub rebalance_ttl: Duration,
    /// `maintenanceLead`: how long before a scheduled maintenance the drain begins. Default 30m,
    /// 0s to 168h.
    pub maintenance_lead: Duration,
    /// `leaveDegraded`: whether a node whose hardware is degraded (`instance-retirement`,
    /// `instance-stop`) is drained when that is announced, however far ahead. Default false.
    pub leave_degraded: bool,
    /// `evict`: whether the pods of a node that goes are evicted; otherwise it is only cordoned
    /// and tainted. Default true.
    pub evict: bool,
    /// `onBlockedEviction`: what becomes of a pod whose eviction a disruption budget still refuses
    /// at deadline − grace: `delete` (default) or `wait`.
    pub on_blocked_eviction: BlockedEviction,
    /// `extraTaint`: a taint beside Ebbtide's own, as `key=value:Effect` or `key:Effect`.
    pub extra_taint: Option<ExtraTaint>,
    /// `unknownInstances`: what becomes of a message about an instance of which no agent of the run
    /// has reported: `acknowledge` (default) or `keep`.
    pub unknown_instances: UnknownInstances,
}

/// What becomes of a pod that a disruption budget holds on a node that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BlockedEviction {
    /// It is deleted with the grace that is left: its node goes in any case.
    #[default]
    Delete,
    /// It stays until its node is gone.
    Wait,
}

/// What becomes of a message about an instance of which no agent of the run has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum UnknownInstances {
    /// It is counted and acknowledged: the queue sees the whole account and region.
    #[default]
    Acknowledge,
    /// It is counted and left to whoever else reads the queue.
    Keep,
}

impl Named for BlockedEviction {
    const NAMES: &'static [(&'static str, Self)] =
        &[("delete", Self::Delete), ("wait", Self::Wait)];
}

impl Named for UnknownInstances {
    const NAMES: &'static [(&'static str, Self)] =
        &[("acknowledge", Self::Acknowledge), ("keep", Self::Keep)];
}

impl Named for RebalanceAction {
    const NAMES: &'static [(&'static str, Self)] =
        &[("stopLeases", Self::StopLeases), ("drain", Self::Drain), ("ignore", Self::Ignore)];
}

impl DrainPolicy {
    pub(super) fn read(drain: &mut Section<'_, '_>) -> Self {
        let second = Duration::from_secs(1);
        let day = Duration::from_hours(24);
        let reserve_range = Duration::from_millis(100)..=RESERVE_MAX;
        let reserve = drain.or("reserve", duration(reserve_range), Duration::from_secs(10));
        Self {
            reserve,
            grace: drain
                .optional("grace", duration(Duration::ZERO..=RESERVE_MAX))
                .unwrap_or(reserve / 2),
            request_deadline: drain.or(
                "requestDeadline",
                duration(second..=day),
                Duration::from_mins(10),
            ),
            asg_deadline: drain.or(
                "asgDeadline",
                duration(second..=HOOK_MAX),
                Duration::from_secs(120),
            ),
            lifecycle_hook: drain.optional("lifecycleHook", text()),
            rebalance: drain.or("rebalance", choice(), RebalanceAction::default()),
            rebalance_ttl: drain.or(
                "rebalanceTtl",
                duration(second..=day),
                Duration::from_mins(15),
            ),
            maintenance_lead: drain.or(
                "maintenanceLead",
                duration(Duration::ZERO..=7 * day),
                Duration::from_mins(30),
            ),
            leave_degraded: drain.or("leaveDegraded", choice(), false),
            evict: drain.or("evict", choice(), true),
            on_blocked_eviction: drain.or(
                "onBlockedEviction",
                choice(),
                BlockedEviction::default(),
            ),
            extra_taint: drain.optional("extraTaint", text()),
            unknown_instances: drain.or("unknownInstances", choice(), UnknownInstances::default()),
        }
    }
}
