//! `spec.drain`: how a node is emptied before it goes.

use std::time::Duration;

use super::kinds::{Named, choice};
use super::numbers::duration;
use super::section::Section;

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
    /// `rebalance`: `stopLeases` (default), `drain` or `ignore`.
    pub rebalance: RebalanceAction,
    /// `rebalanceTtl`: how long a rebalance recommendation counts when nothing follows. Default
    /// 15m, 1s to 24h.
    pub rebalance_ttl: Duration,
    /// `maintenanceLead`: how long before a scheduled maintenance the drain begins. Default 30m,
    /// 0s to 168h.
    pub maintenance_lead: Duration,
}

impl Named for RebalanceAction {
    const NAMES: &'static [(&'static str, Self)] =
        &[("stopLeases", Self::StopLeases), ("drain", Self::Drain), ("ignore", Self::Ignore)];
}

impl DrainPolicy {
    pub(super) fn read(drain: &mut Section<'_, '_>) -> Self {
        let second = Duration::from_secs(1);
        let day = Duration::from_hours(24);
        let reserve = drain
            .optional("reserve", duration(Duration::from_millis(100)..=RESERVE_MAX))
            .unwrap_or(Duration::from_secs(10));
        Self {
            reserve,
            grace: drain
                .optional("grace", duration(Duration::ZERO..=RESERVE_MAX))
                .unwrap_or(reserve / 2),
            request_deadline: drain
                .optional("requestDeadline", duration(second..=day))
                .unwrap_or(Duration::from_mins(10)),
            asg_deadline: drain
                .optional("asgDeadline", duration(second..=HOOK_MAX))
                .unwrap_or(Duration::from_secs(120)),
            rebalance: drain.optional("rebalance", choice()).unwrap_or_default(),
            rebalance_ttl: drain
                .optional("rebalanceTtl", duration(second..=day))
                .unwrap_or(Duration::from_mins(15)),
            maintenance_lead: drain
                .optional("maintenanceLead", duration(Duration::ZERO..=7 * day))
                .unwrap_or(Duration::from_mins(30)),
        }
    }
}
