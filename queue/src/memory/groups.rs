//! How slots and groups end: sealed into the buffer or failed, taken, acknowledged.

use ebbtide_core::ids::{GroupId, UnitId};
use ebbtide_core::time::UnixMillis;

use super::slots::Group;
use super::{FAILURES_LIMIT, MemoryShard};
use crate::command::{GroupFailure, SlotState, TakenGroup, WriteReply};

impl MemoryShard {
    /// Ends a slot without a sample; its tokens are wasted, and its group settles.
    pub(super) fn end_slot(
        &mut self,
        unit: &UnitId,
        state: SlotState,
        cause: &str,
        now: UnixMillis,
    ) {
        self.drop_ready(unit);
        self.drop_lease(unit);
        let Some(slot) = self.slot_mut(unit) else { return };
        let tokens = u64::from(slot.tokens());
        slot.state = state;
        slot.chunks.clear();
        match state {
            SlotState::Dead => self.counters.dead += 1,
            SlotState::Expired => self.counters.expired += 1,
            _ => {}
        }
        self.waste(cause, tokens);
        let may_shrink = self
            .groups
            .get(&unit.group)
            .is_some_and(|group| group.fewest_samples() < group.spec.group_size);
        if may_shrink {
            self.settle(&unit.group, now);
        } else {
            self.fail(&unit.group, cause, now);
        }
    }

    /// Seals or fails a group whose slots are all final.
    pub(super) fn settle(&mut self, id: &GroupId, now: UnixMillis) {
        let current = self.counters.version;
        let Some(group) = self.groups.get_mut(id) else { return };
        if group.is_sealed || !group.slots.iter().all(|slot| slot.state.is_final()) {
            return;
        }
        if is_stale(group, current) {
            self.fail(id, "stale", now);
        } else if group.count(SlotState::Completed) < group.fewest_samples() {
            self.fail(id, "too_few_samples", now);
        } else {
            group.is_sealed = true;
            self.counters.tokens.accepted += group.tokens_of(|s| s == SlotState::Completed);
            self.counters.groups_sealed += 1;
            self.sealed.push_back(id.clone());
        }
    }

    pub(super) fn fail_group(&mut self, id: &GroupId, reason: &str, now: UnixMillis) -> WriteReply {
        match self.groups.get(id) {
            Some(group) if !group.is_sealed => {
                self.fail(id, reason, now);
                WriteReply::Ok
            }
            Some(_) => WriteReply::AlreadyDone,
            None if self.tombstones.contains_key(id) => WriteReply::AlreadyDone,
            None => WriteReply::Unknown,
        }
    }

    /// Ends a group as FAILED: what is not final is cancelled, every token is wasted.
    fn fail(&mut self, id: &GroupId, reason: &str, now: UnixMillis) {
        let Some(group) = self.groups.get(id) else { return };
        let open: Vec<UnitId> = group
            .spec
            .unit_ids()
            .filter(|unit| !group.slots[usize::from(unit.slot)].state.is_final())
            .collect();
        for unit in &open {
            self.drop_ready(unit);
            self.drop_lease(unit);
            self.counters.cancelled += 1;
            if let Some(slot) = self.slot_mut(unit) {
                slot.state = SlotState::Cancelled;
            }
        }
        let Some(group) = self.groups.remove(id) else { return };
        let complete = group.tokens_of(|state| state == SlotState::Completed);
        let partial = group.tokens_of(|state| state == SlotState::Cancelled);
        self.waste(if reason == "stale" { "stale" } else { "group_failed" }, complete);
        self.waste("cancelled", partial);
        self.record_failure(&group, reason, complete + partial);
        self.tombstones.insert(id.clone(), now.plus(self.dedup_window));
    }

    fn record_failure(&mut self, group: &Group, reason: &str, tokens_wasted: u64) {
        self.counters.groups_failed += 1;
        self.last_failure += 1;
        self.failures.push_back(GroupFailure {
            record_id: format!("{:020}", self.last_failure),
            group: group.spec.group_id.clone(),
            reason: reason.to_owned(),
            group_size: group.spec.group_size,
            completed: group.count(SlotState::Completed),
            dead: group.count(SlotState::Dead),
            expired: group.count(SlotState::Expired),
            cancelled: group.count(SlotState::Cancelled),
            tokens_wasted,
        });
        if self.failures.len() > FAILURES_LIMIT {
            self.failures.pop_front();
        }
    }

    pub(super) fn waste(&mut self, cause: &str, tokens: u64) {
        if tokens > 0 {
            *self.counters.tokens.wasted.entry(cause.to_owned()).or_default() += tokens;
        }
    }

    pub(super) fn take(
        &mut self,
        consumer: &str,
        limit: usize,
        now: UnixMillis,
    ) -> Vec<TakenGroup> {
        let own = self.taken.get(consumer).cloned().unwrap_or_default();
        let mut batch: Vec<TakenGroup> =
            own.iter().take(limit).filter_map(|id| self.describe_taken(id, true)).collect();
        while batch.len() < limit {
            let Some(id) = self.sealed.pop_front() else { break };
            let current = self.counters.version;
            if self.groups.get(&id).is_some_and(|group| is_stale(group, current)) {
                self.expire_sealed(&id, now);
                continue;
            }
            batch.extend(self.describe_taken(&id, false));
            self.taken.entry(consumer.to_owned()).or_default().push(id);
        }
        batch
    }

    /// SEALED → FAILED(stale): its slots stay COMPLETED, its tokens go from accepted to wasted.
    fn expire_sealed(&mut self, id: &GroupId, now: UnixMillis) {
        let Some(group) = self.groups.remove(id) else { return };
        let tokens = group.tokens_of(|state| state == SlotState::Completed);
        self.counters.tokens.accepted -= tokens;
        self.waste("stale", tokens);
        self.record_failure(&group, "stale", tokens);
        self.tombstones.insert(id.clone(), now.plus(self.dedup_window));
    }

    fn describe_taken(&self, id: &GroupId, is_redelivered: bool) -> Option<TakenGroup> {
        let group = self.groups.get(id)?;
        let slots = || group.slots.iter().zip(0_u16..);
        Some(TakenGroup {
            group: group.spec.clone(),
            samples: slots().filter_map(|(slot, index)| slot.sample(&group.spec, index)).collect(),
            missing_slots: slots()
                .filter(|(slot, _)| slot.state != SlotState::Completed)
                .map(|(_, index)| index)
                .collect(),
            is_redelivered,
            taken_at_version: self.counters.version,
        })
    }

    pub(super) fn acknowledge(
        &mut self,
        consumer: &str,
        groups: &[GroupId],
        now: UnixMillis,
    ) -> u64 {
        let Some(taken) = self.taken.get_mut(consumer) else { return 0 };
        let before = taken.len();
        taken.retain(|id| !groups.contains(id));
        let acknowledged = before - taken.len();
        if taken.is_empty() {
            self.taken.remove(consumer);
        }
        for id in groups {
            let is_elsewhere = self.taken.values().any(|ids| ids.contains(id));
            let is_waiting = self.sealed.contains(id);
            let is_sealed = self.groups.get(id).is_some_and(|group| group.is_sealed);
            if is_sealed && !is_elsewhere && !is_waiting {
                self.groups.remove(id);
                self.tombstones.insert(id.clone(), now.plus(self.dedup_window));
            }
        }
        acknowledged as u64
    }

    pub(super) fn take_over(&mut self, from: &str, to: &str) -> u64 {
        let Some(groups) = self.taken.remove(from) else { return 0 };
        let moved = groups.len() as u64;
        self.taken.entry(to.to_owned()).or_default().extend(groups);
        moved
    }
}

/// Whether the oldest span of a complete sample is beyond the group's staleness bound.
fn is_stale(group: &Group, current: ebbtide_core::ids::PolicyVersion) -> bool {
    let complete = group.slots.iter().filter(|slot| slot.state == SlotState::Completed);
    let firsts = complete.filter_map(|slot| slot.versions()).map(|versions| versions.first);
    firsts.min().is_some_and(|first| group.terms().is_stale(first, current))
}
