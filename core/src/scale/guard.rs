//! What keeps a wanted raise back: another stage that limits the iteration, or a join point that a
//! new replica would miss.

use std::time::Duration;

use super::reason::Reason;
use super::terms::SizingTerms;
use crate::bottleneck::{Bottleneck, IterationStage};

/// What the guard remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RaiseGuard {
    /// Most replicas that ran since another stage limits the iteration; `None` while none does.
    ran: Option<u32>,
}

impl RaiseGuard {
    /// How far the fleet may be raised. While another stage limits the iteration it does not grow
    /// beyond what ran then: more rollouts would only wait. What was lost may come back, and the
    /// minimum and a first replica are always allowed.
    pub fn bound(
        &mut self,
        terms: &SizingTerms,
        bottleneck: &Bottleneck,
        running: u32,
        raise_to: u32,
        reasons: &mut Vec<Reason>,
    ) -> u32 {
        let stage = bottleneck.stage.filter(|stage| *stage != IterationStage::Rollout);
        let Some(stage) = stage else {
            self.ran = None;
            return raise_to;
        };
        let ran = self.ran.unwrap_or(0).max(running);
        self.ran = Some(ran);
        let limit = ran.max(terms.clamp(0)).max(1);
        if raise_to > limit {
            reasons.push(Reason::LimitedElsewhere { stage, wanted: raise_to, kept: limit });
        }
        raise_to.min(limit)
    }
}

/// Where replicas join only between two updates: how far the fleet may be raised when the step
/// under way has `remaining` to go. A replica that would not be ready by then is not ordered on
/// account of a step that it misses.
pub(super) fn bound_by_join(
    terms: &SizingTerms,
    remaining: Option<Duration>,
    raise_to: u32,
    running: u32,
    reasons: &mut Vec<Reason>,
) -> u32 {
    let minimum = terms.clamp(0);
    let Some(remaining) = remaining.filter(|_| terms.joins_at_step_end) else { return raise_to };
    if remaining >= terms.startup || raise_to <= running.max(minimum) {
        return raise_to;
    }
    reasons.push(Reason::MissesJoin { remaining, startup: terms.startup });
    running.max(minimum).min(raise_to)
}
