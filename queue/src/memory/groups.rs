//! How slots and groups end: sealed into the buffer or failed, taken, acknowledged.

use ebbtide_core::ids::{GroupId, UnitId};
use ebbtide_core::time::UnixMillis;

use super::slots::{Group, Slot};
use super::{FAILURES_LIMIT, MemoryShard};
use crate::reply::{Failure, TakenGroup, WriteReply};
use crate::state::SlotState;

impl MemoryShard {
    /// Ends a slot without a sample; its tokens are wasted, and its group settles.
    pub(super) fn end_slot(
        &mut self,
        unit: &UnitId,
        state: SlotState,
        cause: &str,
        detail: &str,
        now: UnixMillis,
    ) {
        self.leave_queues(unit);
        let Some(slot) = self.slot_mut(unit) else { return };
        let tokens = u64::from(slot.tokens());
        slot.remember(cause, detail, now);
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
        if !may_shrink {
            self.fail(&unit.group, cause, Some((unit, detail)), now);
            return;
        }
        if state == SlotState::Dead
            && let Some(group) = self.groups.get(&unit.group)
        {
            let failure = describe_failure(group, cause, Some((unit, detail)), now);
            self.record_failure(Failure { ends_group: false, ..failure });
        }
        self.settle(&unit.group, now);
    }

    /// Seals or fails a group whose slots are all final.
    pub(super) fn settle(&mut self, id: &GroupId, now: UnixMillis) {
        let current = self.counters.version;
        let Some(group) = self.groups.get_mut(id) else { return };
        if group.is_sealed || !group.slots.iter().all(|slot| slot.state.is_final()) {
            return;
        }
        if is_stale(group, current) {
            self.fail(id, "stale", None, now);
        } else if group.count(SlotState::Completed) < group.fewest_samples() {
            self.fail(id, "too_few_samples", None, now);
        } else {
            group.is_sealed = true;
            self.counters.tokens.accepted += group.tokens_of(|s| s == SlotState::Completed);
            self.counters.groups_sealed += 1;
            self.sealed.push_back(id.clone());
            let expires_at = group.spec.expires_at;
            self.forget_expiry(expires_at, id);
        }
    }

    pub(super) fn fail_group(&mut self, id: &GroupId, reason: &str, now: UnixMillis) -> WriteReply {
        match self.groups.get(id) {
            Some(group) if !group.is_sealed => {
                self.fail(id, reason, None, now);
                WriteReply::Ok
            }
            Some(_) => WriteReply::AlreadyDone,
            None if self.tombstones.contains_key(id) => WriteReply::AlreadyDone,
            None => WriteReply::Unknown,
        }
    }

    /// Ends a group as FAILED: what is not final is cancelled, every token is wasted.
    fn fail(
        &mut self,
        id: &GroupId,
        reason: &str,
        culprit: Option<(&UnitId, &str)>,
        now: UnixMillis,
    ) {
        let Some(group) = self.groups.get(id) else { return };
        let open: Vec<UnitId> = group
            .spec
            .unit_ids()
            .filter(|unit| !group.slots[usize::from(unit.slot)].state.is_final())
            .collect();
        for unit in &open {
            self.leave_queues(unit);
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
        self.counters.groups_failed += 1;
        let failure = describe_failure(&group, reason, culprit, now);
        self.record_failure(Failure { tokens_wasted: complete + partial, ..failure });
        self.bury(&group, now);
    }

    /// Ends every group that is not sealed.
    pub(super) fn cancel_run(&mut self, reason: &str, now: UnixMillis) -> u64 {
        let open = self.groups.iter().filter(|(_, group)| !group.is_sealed);
        let open: Vec<GroupId> = open.map(|(id, _)| id.clone()).collect();
        for id in &open {
            self.fail(id, reason, None, now);
        }
        open.len() as u64
    }

    /// Leaves a tombstone for a group that has been removed, so that repeated calls are answered.
    fn bury(&mut self, group: &Group, now: UnixMillis) {
        let id = &group.spec.group_id;
        self.forget_expiry(group.spec.expires_at, id);
        self.tombstones.insert(id.clone(), now.plus(self.settings.dedup_window));
    }

    fn forget_expiry(&mut self, expires_at: Option<UnixMillis>, id: &GroupId) {
        if let Some(expires_at) = expires_at {
            self.expiries.remove(&(expires_at, id.clone()));
        }
    }

    fn record_failure(&mut self, failure: Failure) {
        self.last_failure += 1;
        let record_id = format!("{:020}", self.last_failure);
        self.failures.push_back(Failure { record_id, ..failure });
        if self.failures.len() > FAILURES_LIMIT {
            self.failures.pop_front();
        }
    }

    pub(super) fn waste(&mut self, cause: &str, tokens: u64) {
        if tokens > 0 {
            *self.counters.tokens.wasted.entry(cause.to_owned()).or_default() += tokens;
        }
    }

    /// What a consumer took before and has not acknowledged.
    pub(super) fn take_own(
        &mut self,
        consumer: &str,
        limit: usize,
        now: UnixMillis,
    ) -> Vec<TakenGroup> {
        let own = self.taken.get(consumer).cloned().unwrap_or_default();
        let mut batch = Vec::new();
        for id in own {
            if batch.len() == limit {
                break;
            }
            if self.is_stale_group(&id) {
                self.expire_sealed(&id, now);
            } else {
                batch.extend(self.describe_taken(&id, true));
            }
        }
        batch
    }

    /// What nobody has taken.
    pub(super) fn take_new(
        &mut self,
        consumer: &str,
        limit: usize,
        now: UnixMillis,
    ) -> Vec<TakenGroup> {
        let mut batch = Vec::new();
        while batch.len() < limit {
            let Some(id) = self.sealed.pop_front() else { break };
            if self.is_stale_group(&id) {
                self.expire_sealed(&id, now);
                continue;
            }
            batch.extend(self.describe_taken(&id, false));
            self.taken.entry(consumer.to_owned()).or_default().push(id);
        }
        batch
    }

    fn is_stale_group(&self, id: &GroupId) -> bool {
        self.groups.get(id).is_some_and(|group| is_stale(group, self.counters.version))
    }

    /// SEALED → FAILED(stale): its slots stay COMPLETED, its tokens go from accepted to wasted.
    fn expire_sealed(&mut self, id: &GroupId, now: UnixMillis) {
        let Some(group) = self.groups.remove(id) else { return };
        let tokens = group.tokens_of(|state| state == SlotState::Completed);
        self.counters.tokens.accepted -= tokens;
        self.waste("stale", tokens);
        self.counters.groups_failed += 1;
        let failure = describe_failure(&group, "stale", None, now);
        self.record_failure(Failure { tokens_wasted: tokens, ..failure });
        self.bury(&group, now);
        for ids in self.taken.values_mut() {
            ids.retain(|taken| taken != id);
        }
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
            if is_sealed
                && !is_elsewhere
                && !is_waiting
                && let Some(group) = self.groups.remove(id)
            {
                self.bury(&group, now);
            }
        }
        acknowledged as u64
    }

    pub(super) fn take_over(&mut self, from: &str, to: &str, limit: usize) -> u64 {
        let Some(groups) = self.taken.get_mut(from) else { return 0 };
        let moved: Vec<GroupId> = groups.drain(..groups.len().min(limit)).collect();
        let count = moved.len() as u64;
        if groups.is_empty() {
            self.taken.remove(from);
        }
        self.taken.entry(to.to_owned()).or_default().extend(moved);
        count
    }
}

/// Whether the oldest span of a complete sample is beyond the group's staleness bound.
fn is_stale(group: &Group, current: ebbtide_core::ids::PolicyVersion) -> bool {
    let complete = group.slots.iter().filter(|slot| slot.state == SlotState::Completed);
    let firsts = complete.filter_map(|slot| slot.versions()).map(|versions| versions.first);
    firsts.min().is_some_and(|first| group.terms().is_stale(first, current))
}

fn describe_failure(
    group: &Group,
    reason: &str,
    culprit: Option<(&UnitId, &str)>,
    now: UnixMillis,
) -> Failure {
    let slot_of = |unit: &UnitId| group.slots.get(usize::from(unit.slot));
    Failure {
        record_id: String::new(),
        failed_at: Some(now),
        group: group.spec.group_id.clone(),
        ends_group: true,
        reason: reason.to_owned(),
        culprit: culprit.map(|(unit, _)| unit.clone()),
        detail: culprit.map_or(String::new(), |(_, detail)| detail.to_owned()),
        history: culprit
            .and_then(|(unit, _)| slot_of(unit))
            .map_or_else(Vec::new, |slot| slot.history.clone()),
        slots: group.slots.iter().map(Slot::summary).collect(),
        spec: Some(group.spec.clone()),
        group_size: group.spec.group_size,
        completed: group.count(SlotState::Completed),
        dead: group.count(SlotState::Dead),
        expired: group.count(SlotState::Expired),
        cancelled: group.count(SlotState::Cancelled),
        tokens_wasted: 0,
    }
}
