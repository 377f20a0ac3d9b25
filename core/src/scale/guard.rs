//! What keeps a wanted raise back: another stage that limits the iteration, or a join point that a
//! new replica would miss.

use std::time::Duration;

use super::reason::Reason;
use super::terms::SizingTerms;
use crate::bottleneck::{Bottleneck, IterationStage};

/// What may keep a raise back.
pub(super) struct RaiseLimits<'a> {
    pub terms: &'a SizingTerms,
    /// Which stage limits the iteration.
    pub bottleneck: &'a Bottleneck,
    /// Until the update under way is expected to end; `None` while nobody knows.
    pub step_remaining: Option<Duration>,
}

/// What the guard remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RaiseGuard {
    /// Most replicas that ran since another stage limits the iteration; `None` while none does.
    ran: Option<u32>,
}

impl RaiseGuard {
    /// How far the fleet may be raised, when so many `running` replicas stay.
    pub fn bound(
        &mut self,
        limits: &RaiseLimits<'_>,
        running: u32,
        raise_to: u32,
        reasons: &mut Vec<Reason>,
    ) -> u32 {
        let raise_to = self.bound_by_stage(limits, running, raise_to, reasons);
        bound_by_join(limits, running, raise_to, reasons)
    }

    /// While another stage limits the iteration the fleet does not grow beyond what ran then: more
    /// rollouts would only wait. What was lost may come back, and the minimum and a first replica
    /// are always allowed.
    fn bound_by_stage(
        &mut self,
        limits: &RaiseLimits<'_>,
        running: u32,
        raise_to: u32,
        reasons: &mut Vec<Reason>,
    ) -> u32 {
        let stage = limits.bottleneck.stage.filter(|stage| *stage != IterationStage::Rollout);
        let Some(stage) = stage else {
            self.ran = None;
            return raise_to;
        };
        let ran = self.ran.unwrap_or(0).max(running);
        self.ran = Some(ran);
        let limit = ran.max(limits.terms.clamp(0)).max(1);
        if raise_to > limit {
            reasons.push(Reason::LimitedElsewhere { stage, wanted: raise_to, kept: limit });
        }
        raise_to.min(limit)
    }
}

/// Where replicas join only between two updates, one that would not be ready when the update under
/// way ends is not ordered on account of a step that it misses.
fn bound_by_join(
    limits: &RaiseLimits<'_>,
    running: u32,
    raise_to: u32,
    reasons: &mut Vec<Reason>,
) -> u32 {
    let terms = limits.terms;
    let limit = running.max(terms.clamp(0));
    let Some(remaining) = limits.step_remaining else { return raise_to };
    if !terms.joins_at_step_end || remaining >= terms.startup || raise_to <= limit {
        return raise_to;
    }
    reasons.push(Reason::MissesJoin { remaining, startup: terms.startup });
    limit
}
