//! Granting, renewing and taking back leases.

use std::collections::HashSet;
use std::time::Duration;

use ebbtide_core::ids::{FencingToken, Holder, UnitId};
use ebbtide_core::staleness::Admission;
use ebbtide_core::time::UnixMillis;

use super::MemoryShard;
use super::slots::Group;
use crate::command::{
    COMMAND_UNITS_LIMIT, Grant, HandBackCause, LEASE_REAPS_UNITS, LEASE_SCAN_LIMIT, LeaseReply,
    LeaseRequest, ProgressLimits, Renewal, SlotState, Waiting,
};

/// How the process part of an agent's holder begins, in contrast to a custom worker's.
pub const AGENT_PROCESS_PREFIX: &str = "agent-";

impl MemoryShard {
    pub(super) fn lease(&mut self, request: &LeaseRequest, now: UnixMillis) -> LeaseReply {
        if let Some(grants) = self.repeated_grant(request) {
            return LeaseReply { grants, resume_at: 0, current_version: self.counters.version };
        }
        self.reap(LEASE_REAPS_UNITS, now);
        let limit = request.limit.min(COMMAND_UNITS_LIMIT);
        let scanned: Vec<(u64, UnitId)> = self
            .ready
            .range(request.start_at..)
            .take(LEASE_SCAN_LIMIT)
            .map(|(score, unit)| (*score, unit.clone()))
            .collect();
        let mut granted = Vec::new();
        let mut last_seen = 0;
        for (score, unit) in &scanned {
            if granted.len() == limit {
                break;
            }
            last_seen = score + 1;
            if self.admit(unit, request, now) == Admission::Grant {
                granted.push((unit.clone(), self.grant(unit, request, now)));
            }
        }
        let saw_all = scanned.len() < LEASE_SCAN_LIMIT || granted.len() == limit;
        let grants = granted.iter().filter_map(|(unit, token)| self.describe(unit, *token));
        let reply = LeaseReply {
            grants: grants.collect(),
            resume_at: if saw_all { 0 } else { last_seen },
            current_version: self.counters.version,
        };
        self.grants.insert(request.holder.clone(), (request.request_id.clone(), granted));
        reply
    }

    fn repeated_grant(&self, request: &LeaseRequest) -> Option<Vec<Grant>> {
        let (request_id, granted) = self.grants.get(&request.holder)?;
        if *request_id != request.request_id {
            return None;
        }
        let still_held = granted.iter().filter(|(unit, token)| {
            self.slot(unit).is_some_and(|s| s.state.is_leased() && s.fencing_token == *token)
        });
        Some(still_held.filter_map(|(unit, token)| self.describe(unit, *token)).collect())
    }

    /// Decides on one ready unit; ends or resets it where that is due for everybody.
    fn admit(&mut self, unit: &UnitId, request: &LeaseRequest, now: UnixMillis) -> Admission {
        let current = self.counters.version;
        // The unit may be gone: the one before it may have failed their group.
        let Some(group) = self.groups.get(&unit.group) else { return Admission::Skip };
        let Some(slot) = group.slots.get(usize::from(unit.slot)) else { return Admission::Skip };
        if slot.state != SlotState::Enqueued {
            return Admission::Skip;
        }
        let has_expired = group.spec.expires_at.is_some_and(|expires_at| expires_at <= now);
        let admission = match slot.versions() {
            _ if has_expired => Admission::Expire,
            Some(partial) => group.terms().admit_resume(partial, request.worker_version, current),
            None if !request.allow_fresh => Admission::Skip,
            None => group.terms().admit_fresh(request.worker_version, current, slot.is_restarted),
        };
        match admission {
            Admission::Grant | Admission::Skip => admission,
            Admission::Expire => {
                let cause = if has_expired { "expired" } else { "stale" };
                self.end_slot(unit, SlotState::Expired, cause, now);
                Admission::Skip
            }
            Admission::Restart => {
                self.restart(unit);
                self.admit(unit, request, now)
            }
        }
    }

    /// Drops a unit's tokens; from then on it is fresh, for workers at the current version only.
    fn restart(&mut self, unit: &UnitId) {
        self.drop_ready(unit);
        let Some(slot) = self.slot_mut(unit) else { return };
        let dropped = u64::from(slot.tokens());
        slot.chunks.clear();
        slot.is_restarted = true;
        slot.tokens_preserved = 0;
        self.waste("restarted", dropped);
        self.make_ready(unit);
    }

    fn grant(&mut self, unit: &UnitId, request: &LeaseRequest, now: UnixMillis) -> FencingToken {
        self.drop_ready(unit);
        self.last_token += 1;
        let token = FencingToken(self.last_token);
        let deadline = now.plus(request.ttl);
        if let Some(slot) = self.slot_mut(unit) {
            slot.state = SlotState::Leased;
            slot.fencing_token = token;
            slot.holder = Some(request.holder.clone());
            slot.leased_at = now;
            slot.progress_at = now;
            slot.waiting_since = None;
            slot.lease_deadline = deadline;
            slot.tokens_at_lease = slot.tokens();
        }
        self.leases.insert((deadline, unit.clone()));
        token
    }

    fn describe(&self, unit: &UnitId, fencing_token: FencingToken) -> Option<Grant> {
        let group = self.groups.get(&unit.group)?;
        let slot = group.slots.get(usize::from(unit.slot))?;
        Some(Grant {
            unit: unit.clone(),
            fencing_token,
            group: group.spec.clone(),
            partial: slot.chunks.clone(),
            attempts: slot.attempts,
        })
    }

    pub(super) fn renew(
        &mut self,
        holder: &Holder,
        renewals: &[Renewal],
        limits: &ProgressLimits,
        now: UnixMillis,
    ) -> Vec<UnitId> {
        let is_lost = |renewal: &&Renewal| !self.renew_one(holder, renewal, limits, now);
        renewals.iter().filter(is_lost).map(|renewal| renewal.unit.clone()).collect()
    }

    /// Whether the holder still has the unit afterwards.
    fn renew_one(
        &mut self,
        holder: &Holder,
        renewal: &Renewal,
        limits: &ProgressLimits,
        now: UnixMillis,
    ) -> bool {
        let unit = &renewal.unit;
        let Some(group) = self.groups.get_mut(&unit.group) else { return false };
        let max_leased = Duration::from_millis(u64::from(group.spec.max_leased_ms));
        let Some(slot) = group.slots.get_mut(usize::from(unit.slot)) else { return false };
        let is_held = slot.state.is_leased()
            && slot.fencing_token == renewal.fencing_token
            && slot.holder.as_ref() == Some(holder);
        if !is_held {
            return false;
        }
        match (renewal.waiting, slot.waiting_since) {
            (Waiting::Nothing, Some(_)) => {
                slot.waiting_since = None;
                slot.progress_at = now;
            }
            (Waiting::Environment | Waiting::EnginePause, None) => slot.waiting_since = Some(now),
            _ => {}
        }
        let quiet_since = slot.waiting_since.unwrap_or(slot.progress_at);
        let is_stuck = now.since(quiet_since) > limits.of(renewal.waiting);
        let is_overdue = !max_leased.is_zero() && now.since(slot.leased_at) > max_leased;
        if is_stuck || is_overdue {
            self.fault(unit, now);
            return false;
        }
        let old_deadline = slot.lease_deadline;
        slot.lease_deadline = now.plus(renewal.ttl);
        let new_deadline = slot.lease_deadline;
        self.leases.remove(&(old_deadline, unit.clone()));
        self.leases.insert((new_deadline, unit.clone()));
        true
    }

    pub(super) fn reap(&mut self, limit: usize, now: UnixMillis) -> u64 {
        let expired: Vec<UnitId> = self
            .leases
            .iter()
            .take_while(|(deadline, _)| *deadline <= now)
            .take(limit.min(COMMAND_UNITS_LIMIT))
            .map(|(_, unit)| unit.clone())
            .collect();
        let mut reaped = 0;
        for unit in &expired {
            // Ending an earlier one may have cancelled this one.
            if !self.slot(unit).is_some_and(|slot| slot.state.is_leased()) {
                continue;
            }
            self.counters.lease_expiries += 1;
            reaped += 1;
            self.lose_holder(unit, now);
        }
        reaped
    }

    fn lose_holder(&mut self, unit: &UnitId, now: UnixMillis) {
        let Some(limit) = self.groups.get(&unit.group).map(|g| g.spec.max_infra_attempts) else {
            return;
        };
        let Some(slot) = self.slot_mut(unit) else { return };
        slot.infra_attempts = slot.infra_attempts.saturating_add(1);
        let is_used_up = limit > 0 && slot.infra_attempts >= limit;
        if is_used_up {
            self.end_slot(unit, SlotState::Dead, "dead", now);
        } else {
            self.make_ready(unit);
        }
    }

    pub(super) fn reclaim(&mut self, claimant: &Holder, _now: UnixMillis) -> u64 {
        let is_earlier = |holder: &Holder| {
            let is_other_boot = holder.boot_id != claimant.boot_id;
            let is_other_agent = holder.process != claimant.process
                && holder.process.starts_with(AGENT_PROCESS_PREFIX);
            holder.node == claimant.node && (is_other_boot || is_other_agent)
        };
        let orphans: HashSet<UnitId> = self
            .leases
            .iter()
            .map(|(_, unit)| unit)
            .filter(|unit| {
                self.slot(unit).and_then(|slot| slot.holder.as_ref()).is_some_and(is_earlier)
            })
            .cloned()
            .collect();
        for unit in &orphans {
            self.hand_back(unit, HandBackCause::AgentRestart);
        }
        orphans.len() as u64
    }

    pub(super) fn hand_back(&mut self, unit: &UnitId, cause: HandBackCause) {
        *self.counters.hand_backs.entry(cause.as_str().to_owned()).or_default() += 1;
        if let Some(slot) = self.slot_mut(unit) {
            slot.hand_backs = slot.hand_backs.saturating_add(1);
        }
        self.make_ready(unit);
    }

    /// A model or engine fault: back to the queue, or DEAD when the attempts are used up.
    pub(super) fn fault(&mut self, unit: &UnitId, now: UnixMillis) {
        let Some(limit) = self.groups.get(&unit.group).map(|g: &Group| g.spec.max_attempts) else {
            return;
        };
        let Some(slot) = self.slot_mut(unit) else { return };
        slot.attempts = slot.attempts.saturating_add(1);
        if slot.attempts >= limit {
            self.end_slot(unit, SlotState::Dead, "dead", now);
        } else {
            self.make_ready(unit);
        }
    }
}
