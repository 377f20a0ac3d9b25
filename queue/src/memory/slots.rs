//! The records of a shard: one slot of a prompt group, and the group.

use std::sync::Arc;

use ebbtide_core::ids::{FencingToken, Holder, UnitId};
use ebbtide_core::sample::{Chunk, Finish, Sample, Score};
use ebbtide_core::staleness::{PartialVersions, StalenessTerms};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{OnDeadSlot, PromptGroup};

use crate::command::Stage;
use crate::state::{SlotState, SlotSummary, UnitEvent, UnitSnapshot};

/// Bits of a ready score: 1 for fresh, 12 for priority, 40 for the sequence number. Together 53,
/// the integers that the double of a Redis sorted set holds exactly.
const SEQUENCE_BITS: u32 = 40;
const PRIORITY_BITS: u32 = 12;

/// Place of a unit in the ready queue; lower comes first.
pub(crate) fn ready_score(is_resumed: bool, priority: i32, sequence: u64) -> u64 {
    let half = 1_i64 << (PRIORITY_BITS - 1);
    let shifted = i64::from(priority).clamp(-half, half - 1) + half;
    let priority = shifted.unsigned_abs();
    (u64::from(!is_resumed) << (SEQUENCE_BITS + PRIORITY_BITS))
        | (priority << SEQUENCE_BITS)
        | (sequence & ((1 << SEQUENCE_BITS) - 1))
}

/// Events that a unit's history keeps: its first and its last ones.
const HISTORY_LIMIT: usize = 32;

/// One slot of a group.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slot {
    pub state: SlotState,
    pub stage: Stage,
    pub fencing_token: FencingToken,
    /// Who holds it, or held it last.
    pub holder: Option<Holder>,
    pub chunks: Vec<Chunk>,
    /// Model and engine faults while it was generated.
    pub attempts: u16,
    /// Faults while it was scored.
    pub score_attempts: u16,
    pub infra_attempts: u16,
    pub hand_backs: u16,
    pub history: Vec<UnitEvent>,
    pub sequence: u64,
    pub enqueued_at: UnixMillis,
    pub leased_at: UnixMillis,
    pub lease_deadline: UnixMillis,
    /// Last token, or grant, or end of a declared wait.
    pub progress_at: UnixMillis,
    pub waiting_since: Option<UnixMillis>,
    /// Tokens it had when it was leased.
    pub tokens_at_lease: u32,
    /// Tokens already counted as preserved.
    pub tokens_preserved: u32,
    /// Its tokens were dropped because the version rose.
    pub is_restarted: bool,
    pub finish: Option<Finish>,
    /// The lease under which its generation was completed.
    pub generated_under: Option<FencingToken>,
    pub score: Option<Score>,
}

impl Slot {
    pub fn enqueued(sequence: u64, now: UnixMillis) -> Self {
        Self {
            state: SlotState::Enqueued,
            stage: Stage::Generate,
            fencing_token: FencingToken(0),
            holder: None,
            chunks: Vec::new(),
            attempts: 0,
            score_attempts: 0,
            infra_attempts: 0,
            hand_backs: 0,
            history: Vec::new(),
            sequence,
            enqueued_at: now,
            leased_at: now,
            lease_deadline: now,
            progress_at: now,
            waiting_since: None,
            tokens_at_lease: 0,
            tokens_preserved: 0,
            is_restarted: false,
            finish: None,
            generated_under: None,
            score: None,
        }
    }

    pub fn tokens(&self) -> u32 {
        self.chunks.last().map_or(0, Chunk::end)
    }

    pub fn all_attempts(&self) -> u16 {
        self.attempts.saturating_add(self.score_attempts)
    }

    pub fn remember(&mut self, what: &str, detail: &str, now: UnixMillis) {
        if self.history.len() >= HISTORY_LIMIT {
            self.history.remove(1);
        }
        self.history.push(UnitEvent {
            at: now,
            what: what.to_owned(),
            detail: detail.to_owned(),
            holder: self.holder.clone(),
            fencing_token: self.fencing_token,
            tokens: self.tokens(),
        });
    }

    pub fn snapshot(&self, unit: UnitId, is_sealed: bool) -> UnitSnapshot {
        UnitSnapshot {
            unit,
            state: self.state,
            stage: self.stage,
            tokens: self.tokens(),
            versions: self.versions(),
            holder: self.holder.clone(),
            fencing_token: self.fencing_token,
            attempts: self.all_attempts(),
            infra_attempts: self.infra_attempts,
            hand_backs: self.hand_backs,
            is_sealed,
            enqueued_at: self.enqueued_at,
            leased_at: self.holder.as_ref().map(|_| self.leased_at),
            lease_deadline: self.state.is_leased().then_some(self.lease_deadline),
        }
    }

    pub fn summary(&self) -> SlotSummary {
        SlotSummary {
            state: self.state,
            tokens: self.tokens(),
            attempts: self.all_attempts(),
            infra_attempts: self.infra_attempts,
            hand_backs: self.hand_backs,
            holder: self.holder.clone(),
        }
    }

    pub fn ready_score(&self, priority: i32) -> u64 {
        ready_score(!self.chunks.is_empty(), priority, self.sequence)
    }

    pub fn versions(&self) -> Option<PartialVersions> {
        let (first, last) = (self.chunks.first()?, self.chunks.last()?);
        Some(PartialVersions { first: first.weight_version, last: last.weight_version })
    }

    /// The sample of a complete slot.
    pub fn sample(&self, group: &PromptGroup, slot: u16) -> Option<Sample> {
        Some(Sample {
            unit: group.unit_id(slot),
            finish: self.finish.clone()?,
            chunks: self.chunks.clone(),
            score: self.score.clone(),
            attempts: self.all_attempts(),
            infra_attempts: self.infra_attempts,
            hand_backs: self.hand_backs,
        })
    }
}

/// One prompt group with its slots.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub spec: Arc<PromptGroup>,
    pub slots: Vec<Slot>,
    pub is_sealed: bool,
}

impl Group {
    pub fn terms(&self) -> StalenessTerms {
        StalenessTerms {
            max_lag: self.spec.max_lag,
            resume_policy: self.spec.resume_policy,
            min_policy_version: self.spec.min_policy_version,
        }
    }

    pub fn count(&self, state: SlotState) -> u16 {
        let matching = self.slots.iter().filter(|slot| slot.state == state).count();
        u16::try_from(matching).unwrap_or(u16::MAX)
    }

    /// Fewest complete samples with which the group may be sealed.
    pub fn fewest_samples(&self) -> u16 {
        match self.spec.on_dead_slot {
            OnDeadSlot::Fail => self.spec.group_size,
            OnDeadSlot::Shrink { min_samples } => min_samples,
        }
    }

    /// Stored tokens of the slots in `state`.
    pub fn tokens_of(&self, is_counted: impl Fn(SlotState) -> bool) -> u64 {
        let counted = self.slots.iter().filter(|slot| is_counted(slot.state));
        counted.map(|slot| u64::from(slot.tokens())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_order_is_resumed_then_priority_then_age() {
        let ordered = [
            ready_score(true, -5, 9),
            ready_score(true, 0, 3),
            ready_score(true, 0, 4),
            ready_score(false, -2048, 8),
            ready_score(false, 2047, 1),
        ];
        assert!(ordered.is_sorted());
        assert!(ordered[4] < (1 << 53), "a double holds it exactly");
    }
}
