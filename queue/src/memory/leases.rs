//! Granting, renewing and taking back leases.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, GroupId, Holder, UnitId};
use ebbtide_core::staleness::Admission;
use ebbtide_core::time::UnixMillis;

use super::slots::Group;
use super::{GRANT_MEMORY, Granted, MemoryShard};
use crate::command::{
    COMMAND_UNITS_LIMIT, HandBack, HandBackCause, LEASE_REAPS_UNITS, LEASE_SCAN_LIMIT,
    LeaseRequest, ProgressLimits, Renewal, Stage, Waiting,
};
use crate::reply::{Grant, LeaseReply, WriteReply};
use crate::state::SlotState;

/// How the process part of an agent's holder begins, in contrast to a custom worker's.
pub const AGENT_PROCESS_PREFIX: &str = "agent-";

impl MemoryShard {
    pub(super) fn lease(&mut self, request: &LeaseRequest, now: UnixMillis) -> LeaseReply {
        if let Some(grants) = self.repeated_grant(request) {
            return LeaseReply { grants, resume_at: 0, current_version: self.counters.version };
        }
        self.reap(request.stage, LEASE_REAPS_UNITS, now);
        let ready = &self.queues(request.stage).ready;
        let limit = request.limit.min(COMMAND_UNITS_LIMIT);
        let scanned: Vec<(u64, UnitId)> = ready
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
        if !granted.is_empty() {
            let granted =
                Granted { request_id: request.request_id.clone(), at: now, units: granted };
            self.grants.insert((request.holder.clone(), request.stage), granted);
        }
        reply
    }

    fn repeated_grant(&self, request: &LeaseRequest) -> Option<Vec<Grant>> {
        let granted = self.grants.get(&(request.holder.clone(), request.stage))?;
        if granted.request_id != request.request_id {
            return None;
        }
        let still_held = granted.units.iter().filter(|(unit, token)| {
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
            partial if slot.stage == Stage::Reward => {
                let is_stale = partial.is_some_and(|p| group.terms().is_stale(p.first, current));
                if is_stale { Admission::Expire } else { Admission::Grant }
            }
            Some(partial) => group.terms().admit_resume(partial, request.worker_version, current),
            None if !request.allow_fresh => Admission::Skip,
            None => group.terms().admit_fresh(request.worker_version, current, slot.is_restarted),
        };
        match admission {
            Admission::Grant | Admission::Skip => admission,
            Admission::Expire => {
                let cause = if has_expired { "expired" } else { "stale" };
                self.end_slot(unit, SlotState::Expired, cause, "", now);
                Admission::Skip
            }
            Admission::Restart => {
                self.restart(unit, now);
                self.admit(unit, request, now)
            }
        }
    }

    /// Drops a unit's tokens; from then on it is fresh, for workers at the current version only.
    fn restart(&mut self, unit: &UnitId, now: UnixMillis) {
        self.leave_queues(unit);
        let Some(slot) = self.slot_mut(unit) else { return };
        let dropped = u64::from(slot.tokens());
        slot.remember("restarted", "", now);
        slot.chunks.clear();
        slot.is_restarted = true;
        slot.tokens_preserved = 0;
        self.waste("restarted", dropped);
        self.make_ready(unit);
    }

    fn grant(&mut self, unit: &UnitId, request: &LeaseRequest, now: UnixMillis) -> FencingToken {
        self.leave_queues(unit);
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
        self.queues_mut(request.stage).leases.insert((deadline, unit.clone()));
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
            finish: slot.finish.clone(),
            attempts: match slot.stage {
                Stage::Generate => slot.attempts,
                Stage::Reward => slot.score_attempts,
            },
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
        // Scoring makes no tokens: its limit is always that of the environment.
        let waiting = match slot.stage {
            Stage::Generate => renewal.waiting,
            Stage::Reward => Waiting::Environment,
        };
        match (waiting, slot.waiting_since) {
            (Waiting::Nothing, Some(_)) => {
                slot.waiting_since = None;
                slot.progress_at = now;
            }
            (Waiting::Environment | Waiting::EnginePause, None) => {
                let is_scored = slot.stage == Stage::Reward;
                slot.waiting_since = Some(if is_scored { slot.leased_at } else { now });
            }
            _ => {}
        }
        let quiet_since = slot.progress_at.max(slot.waiting_since.unwrap_or_default());
        if now.since(quiet_since) > limits.of(waiting) {
            self.fault(unit, "no progress", now);
            return false;
        }
        if !max_leased.is_zero() && now.since(slot.leased_at) > max_leased {
            self.fault(unit, "leased too long", now);
            return false;
        }
        let old = (slot.lease_deadline, unit.clone());
        slot.lease_deadline = now.plus(renewal.ttl);
        let (new, stage) = ((slot.lease_deadline, unit.clone()), slot.stage);
        let leases = &mut self.queues_mut(stage).leases;
        leases.remove(&old);
        leases.insert(new);
        true
    }

    /// REAP: also ends groups whose time is over, and forgets grants that nobody asks for again.
    pub(super) fn reap_all(&mut self, limit: usize, now: UnixMillis) -> u64 {
        let stages = [Stage::Generate, Stage::Reward];
        let reaped = stages.map(|stage| self.reap(stage, limit, now)).iter().sum();
        self.expire_due(limit, now);
        self.grants.retain(|_, granted| now.since(granted.at) < GRANT_MEMORY);
        reaped
    }

    fn reap(&mut self, stage: Stage, limit: usize, now: UnixMillis) -> u64 {
        let leases = self.queues(stage).leases.iter();
        let expired: Vec<UnitId> = leases
            .take_while(|(deadline, _)| *deadline <= now)
            .take(limit.min(COMMAND_UNITS_LIMIT))
            .map(|(_, unit)| unit.clone())
            .collect();
        let mut reaped = 0;
        for unit in &expired {
            // Ending an earlier one may have cancelled this one.
            if self.slot(unit).is_some_and(|slot| slot.state.is_leased()) {
                reaped += 1;
                self.lose_holder(unit, now);
            }
        }
        reaped
    }

    /// Ends what is still open of groups whose time is over.
    fn expire_due(&mut self, limit: usize, now: UnixMillis) {
        let due = self.expiries.iter().take_while(|(expires_at, _)| *expires_at <= now);
        let due: Vec<(UnixMillis, GroupId)> = due.take(limit).cloned().collect();
        for expiry in due {
            self.expiries.remove(&expiry);
            let size = self.groups.get(&expiry.1).map_or(0, |group| group.spec.group_size);
            for slot in 0..size {
                let unit = UnitId { group: expiry.1.clone(), slot };
                if self.slot(&unit).is_some_and(|slot| !slot.state.is_final()) {
                    self.end_slot(&unit, SlotState::Expired, "expired", "", now);
                }
            }
        }
    }

    fn lose_holder(&mut self, unit: &UnitId, now: UnixMillis) {
        let Some(limit) = self.groups.get(&unit.group).map(|g| g.spec.max_infra_attempts) else {
            return;
        };
        self.counters.lease_expiries += 1;
        let Some(slot) = self.slot_mut(unit) else { return };
        slot.infra_attempts = slot.infra_attempts.saturating_add(1);
        slot.remember("lease_expired", "", now);
        let is_used_up = limit > 0 && slot.infra_attempts >= limit;
        if is_used_up {
            self.end_slot(unit, SlotState::Dead, "dead", "holders lost", now);
        } else {
            self.make_ready(unit);
        }
    }

    pub(super) fn reclaim(&mut self, claimant: &Holder, now: UnixMillis) -> u64 {
        let is_earlier = |holder: &Holder| {
            let is_other_boot = holder.boot_id != claimant.boot_id;
            let is_other_agent = holder.process != claimant.process
                && holder.process.starts_with(AGENT_PROCESS_PREFIX);
            holder.node == claimant.node && (is_other_boot || is_other_agent)
        };
        let leases = self.generate.leases.iter().chain(&self.reward.leases);
        let orphans: Vec<UnitId> = leases
            .map(|(_, unit)| unit)
            .filter(|unit| {
                self.slot(unit).and_then(|slot| slot.holder.as_ref()).is_some_and(is_earlier)
            })
            .cloned()
            .collect();
        for unit in &orphans {
            self.hand_back(unit, HandBackCause::AgentRestart.into(), now);
        }
        orphans.len() as u64
    }

    pub(super) fn requeue(
        &mut self,
        unit: &UnitId,
        token: FencingToken,
        now: UnixMillis,
    ) -> WriteReply {
        match self.slot(unit) {
            None => self.ended_or_unknown(unit),
            Some(slot) if slot.state.is_leased() && slot.fencing_token == token => {
                self.hand_back(unit, HandBackCause::Operator.into(), now);
                WriteReply::Ok
            }
            Some(_) => WriteReply::AlreadyDone,
        }
    }

    pub(super) fn hand_back(&mut self, unit: &UnitId, hand_back: HandBack, now: UnixMillis) {
        let cause = hand_back.cause.as_str();
        *self.counters.hand_backs.entry(cause.to_owned()).or_default() += 1;
        if let Some(slot) = self.slot_mut(unit) {
            slot.hand_backs = slot.hand_backs.saturating_add(1);
            slot.remember("handed_back", &hand_back.to_string(), now);
        }
        self.make_ready(unit);
    }

    /// A model or engine fault: back to the queue, or DEAD when the attempts are used up.
    /// Generation and scoring have their attempts apart.
    pub(super) fn fault(&mut self, unit: &UnitId, detail: &str, now: UnixMillis) {
        let Some(limit) = self.groups.get(&unit.group).map(|g: &Group| g.spec.max_attempts) else {
            return;
        };
        let Some(slot) = self.slot_mut(unit) else { return };
        let attempts = match slot.stage {
            Stage::Generate => &mut slot.attempts,
            Stage::Reward => &mut slot.score_attempts,
        };
        *attempts = attempts.saturating_add(1);
        let is_used_up = *attempts >= limit;
        slot.remember("fault", detail, now);
        if is_used_up {
            self.end_slot(unit, SlotState::Dead, "dead", detail, now);
        } else {
            self.make_ready(unit);
        }
    }
}
