//! What audits and operators read of a shard in memory.

use ebbtide_core::ids::{GroupId, Holder, NodeName, UnitId};
use ebbtide_core::time::UnixMillis;

use super::slots::Slot;
use super::{MemoryShard, StageQueues};
use crate::command::{AuditPart, Stage};
use crate::reply::Failure;
use crate::state::{Finding, GroupTrace, UnitSnapshot, UnitTrace};
use crate::status::ShardStatus;

impl MemoryShard {
    pub(super) fn status(&self, now: UnixMillis) -> ShardStatus {
        let mut status = self.counters.clone();
        status.now = now;
        status.ready = self.generate.ready.len() as u64;
        status.leased = self.generate.leases.len() as u64;
        status.reward_ready = self.reward.ready.len() as u64;
        status.reward_leased = self.reward.leases.len() as u64;
        status.sealed_waiting = self.sealed.len() as u64;
        status.sealed_taken = self.taken.values().map(|groups| groups.len() as u64).sum();
        status.failure_records = self.failures.len() as u64;
        let ready = self.generate.ready.values().chain(self.reward.ready.values());
        status.oldest_ready_at = ready.filter_map(|u| self.slot(u)).map(|s| s.enqueued_at).min();
        for holder in self.lease_holders() {
            *status.leased_by_node.entry(holder.node.clone()).or_default() += 1;
        }
        status
    }

    pub(super) fn held_by(&self, node: &NodeName) -> u64 {
        self.lease_holders().filter(|holder| holder.node == *node).count() as u64
    }

    /// The holder of every lease that stands.
    fn lease_holders(&self) -> impl Iterator<Item = &Holder> {
        let leases = self.generate.leases.iter().chain(&self.reward.leases);
        leases.filter_map(|(_, unit)| self.slot(unit)?.holder.as_ref())
    }

    pub(super) fn scan(&self) -> Vec<UnitSnapshot> {
        let groups = self.groups.values();
        let units = groups.flat_map(|group| group.spec.unit_ids());
        units.filter_map(|unit| self.snapshot(&unit)).collect()
    }

    pub(super) fn peek(&self, stage: Stage, limit: usize) -> Vec<UnitSnapshot> {
        let ready = self.queues(stage).ready.values().take(limit);
        ready.filter_map(|unit| self.snapshot(unit)).collect()
    }

    pub(super) fn trace(&self, id: &GroupId) -> GroupTrace {
        let forgotten_at = self.tombstones.get(id).copied();
        let Some(group) = self.groups.get(id) else {
            return GroupTrace { forgotten_at, ..GroupTrace::default() };
        };
        let trace = |(unit, slot): (UnitId, &Slot)| UnitTrace {
            unit: slot.snapshot(unit, group.is_sealed),
            chunks: slot.chunks.clone(),
            history: slot.history.clone(),
        };
        GroupTrace {
            spec: Some(group.spec.clone()),
            units: group.spec.unit_ids().zip(&group.slots).map(trace).collect(),
            forgotten_at,
        }
    }

    pub(super) fn failures(&self, after: &str, limit: usize) -> Vec<Failure> {
        let is_later = |failure: &&Failure| failure.record_id.as_str() > after;
        self.failures.iter().filter(is_later).take(limit).cloned().collect()
    }

    fn snapshot(&self, unit: &UnitId) -> Option<UnitSnapshot> {
        let group = self.groups.get(&unit.group)?;
        let slot = group.slots.get(usize::from(unit.slot))?;
        Some(slot.snapshot(unit.clone(), group.is_sealed))
    }

    /// In memory there is nothing to mend; what does not hold is a mistake in this code.
    pub(super) fn audit(&self, part: AuditPart) -> Vec<Finding> {
        let finding = |unit: &UnitId, problem: &str| Finding {
            subject: unit.to_string(),
            problem: problem.to_owned(),
        };
        match part {
            AuditPart::Groups => {
                let misplaced = self.scan().into_iter().filter(|unit| !self.is_in_place(unit));
                misplaced.map(|unit| finding(&unit.unit, "is in no queue")).collect()
            }
            AuditPart::Ready(stage) => {
                let is_wrong = |unit: &&UnitId| {
                    self.slot(unit)
                        .is_none_or(|slot| slot.state.is_final() || slot.state.is_leased())
                };
                let wrong = self.queues(stage).ready.values().filter(is_wrong);
                wrong.map(|unit| finding(unit, "is ready without reason")).collect()
            }
            AuditPart::Leases(stage) => {
                let leases = self.queues(stage).leases.iter().map(|(_, unit)| unit);
                let is_wrong =
                    |unit: &&UnitId| self.slot(unit).is_none_or(|slot| !slot.state.is_leased());
                leases.filter(is_wrong).map(|u| finding(u, "is leased without reason")).collect()
            }
            _ => Vec::new(),
        }
    }

    fn is_in_place(&self, unit: &UnitSnapshot) -> bool {
        let Some(slot) = self.slot(&unit.unit) else { return false };
        let Some(group) = self.groups.get(&unit.unit.group) else { return false };
        let score = slot.ready_score(group.spec.priority);
        let lease = (slot.lease_deadline, unit.unit.clone());
        let is_ready = |queues: &StageQueues| queues.ready.get(&score) == Some(&unit.unit);
        let is_leased = |queues: &StageQueues| queues.leases.contains(&lease);
        let here = self.queues(unit.stage);
        let elsewhere = match unit.stage {
            Stage::Generate => self.queues(Stage::Reward),
            Stage::Reward => self.queues(Stage::Generate),
        };
        let should_be_ready = !unit.state.is_final() && !unit.state.is_leased();
        is_ready(here) == should_be_ready
            && is_leased(here) == unit.state.is_leased()
            && !is_ready(elsewhere)
            && !is_leased(elsewhere)
    }
}
