//! The queue in memory: one shard as a synchronous state machine.
//!
//! [`MemoryShard::apply`] takes a [`Command`] and `now` and gives the [`Reply`] that the Lua
//! scripts would give. It is the readable statement of the contract: the demo and the simulator
//! run on it, and the contract tests hold Redis to it. Nothing here reads a clock or waits.

mod groups;
mod leases;
mod slots;
mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::{FencingToken, GroupId, Holder, PolicyVersion, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;

use crate::command::{
    Command, GroupFailure, Reply, ScanPage, ShardStatus, SlotState, UnitSnapshot, WriteReply,
};
pub use leases::AGENT_PROCESS_PREFIX;
use slots::{Group, Slot};

/// How long an ended group is remembered, so that repeated calls are answered.
pub const DEFAULT_DEDUP_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Records of failed groups that a shard keeps. 10,000 = a day at seven failures a minute.
pub const FAILURES_LIMIT: usize = 10_000;

/// One shard of the work queue and experience buffer.
#[derive(Debug)]
pub struct MemoryShard {
    dedup_window: Duration,
    groups: HashMap<GroupId, Group>,
    /// By score: resumed before fresh, then priority, then age.
    ready: BTreeMap<u64, UnitId>,
    leases: BTreeSet<(UnixMillis, UnitId)>,
    /// The last grant of each holder, for a LEASE that is repeated.
    grants: HashMap<Holder, (String, Vec<(UnitId, FencingToken)>)>,
    sealed: VecDeque<GroupId>,
    taken: BTreeMap<String, Vec<GroupId>>,
    failures: VecDeque<GroupFailure>,
    tombstones: BTreeMap<GroupId, UnixMillis>,
    last_token: u64,
    last_sequence: u64,
    last_failure: u64,
    counters: ShardStatus,
}

impl Default for MemoryShard {
    fn default() -> Self {
        Self::new(DEFAULT_DEDUP_WINDOW)
    }
}

impl MemoryShard {
    /// An empty shard that remembers ended groups for `dedup_window`.
    pub fn new(dedup_window: Duration) -> Self {
        Self {
            dedup_window,
            groups: HashMap::new(),
            ready: BTreeMap::new(),
            leases: BTreeSet::new(),
            grants: HashMap::new(),
            sealed: VecDeque::new(),
            taken: BTreeMap::new(),
            failures: VecDeque::new(),
            tombstones: BTreeMap::new(),
            last_token: 0,
            last_sequence: 0,
            last_failure: 0,
            counters: ShardStatus::default(),
        }
    }

    /// Carries out one command at `now`, the shard's own clock.
    pub fn apply(&mut self, command: &Command, now: UnixMillis) -> Reply {
        match command {
            Command::Enqueue(group) => Reply::Write(self.enqueue(group, now)),
            Command::Lease(request) => Reply::Lease(self.lease(request, now)),
            Command::Renew { holder, renewals, limits } => {
                Reply::Lost(self.renew(holder, renewals, limits, now))
            }
            Command::Write { holder, writes } => {
                Reply::Writes(writes.iter().map(|write| self.write(holder, write, now)).collect())
            }
            Command::Reap { limit } => Reply::Count(self.reap(*limit, now)),
            Command::Reclaim { holder } => Reply::Count(self.reclaim(holder, now)),
            Command::FailGroup { group, reason } => {
                Reply::Write(self.fail_group(group, reason, now))
            }
            Command::SetVersion(version) => Reply::Version(self.set_version(*version)),
            Command::Take { consumer, limit } => Reply::Taken(self.take(consumer, *limit, now)),
            Command::Acknowledge { consumer, groups } => {
                Reply::Count(self.acknowledge(consumer, groups, now))
            }
            Command::TakeOver { from, to } => Reply::Count(self.take_over(from, to)),
            Command::Status => Reply::Status(Box::new(self.status(now))),
            Command::Scan { cursor } => Reply::Page(self.scan(*cursor)),
            Command::Failures { after, limit } => Reply::Failures(self.failures(after, *limit)),
        }
    }

    fn enqueue(&mut self, group: &PromptGroup, now: UnixMillis) -> WriteReply {
        self.forget_old_groups(now);
        let id = &group.group_id;
        if self.groups.contains_key(id) || self.tombstones.contains_key(id) {
            return WriteReply::AlreadyDone;
        }
        let slots = group.unit_ids().map(|unit| {
            self.last_sequence += 1;
            let slot = Slot::enqueued(self.last_sequence, now);
            self.ready.insert(slot.score(group.priority), unit);
            slot
        });
        let record =
            Group { slots: slots.collect(), spec: Arc::new(group.clone()), is_sealed: false };
        self.groups.insert(id.clone(), record);
        self.counters.enqueued += u64::from(group.group_size);
        WriteReply::Ok
    }

    fn set_version(&mut self, version: PolicyVersion) -> PolicyVersion {
        self.counters.version = self.counters.version.max(version);
        self.counters.version
    }

    fn forget_old_groups(&mut self, now: UnixMillis) {
        // Sixteen a call keep up with any enqueue rate: each call adds at most one.
        let old: Vec<GroupId> = self
            .tombstones
            .iter()
            .filter(|(_, until)| **until <= now)
            .take(16)
            .map(|(group, _)| group.clone())
            .collect();
        for group in old {
            self.tombstones.remove(&group);
        }
    }

    fn status(&self, now: UnixMillis) -> ShardStatus {
        let mut status = self.counters.clone();
        status.now = now;
        status.ready = self.ready.len() as u64;
        status.leased = self.leases.len() as u64;
        status.sealed_waiting = self.sealed.len() as u64;
        status.sealed_taken = self.taken.values().map(|groups| groups.len() as u64).sum();
        status.oldest_ready_at =
            self.ready.values().filter_map(|unit| self.slot(unit)).map(|s| s.enqueued_at).min();
        for (_, unit) in &self.leases {
            if let Some(holder) = self.slot(unit).and_then(|slot| slot.holder.as_ref()) {
                *status.leased_by_node.entry(holder.node.clone()).or_default() += 1;
            }
        }
        status
    }

    /// In memory the whole shard is one page.
    fn scan(&self, _cursor: u64) -> ScanPage {
        let snapshots = self.groups.iter().flat_map(|(id, group)| {
            group.slots.iter().zip(0..).map(move |(slot, index)| UnitSnapshot {
                unit: UnitId { group: id.clone(), slot: index },
                state: slot.state,
                tokens: slot.tokens(),
                holder: slot.holder.clone(),
                fencing_token: slot.fencing_token,
                attempts: slot.attempts,
                infra_attempts: slot.infra_attempts,
                hand_backs: slot.hand_backs,
                is_sealed: group.is_sealed,
            })
        });
        ScanPage { cursor: 0, units: snapshots.collect() }
    }

    fn failures(&self, after: &str, limit: usize) -> Vec<GroupFailure> {
        let is_later = |failure: &&GroupFailure| failure.record_id.as_str() > after;
        self.failures.iter().filter(is_later).take(limit).cloned().collect()
    }

    fn slot(&self, unit: &UnitId) -> Option<&Slot> {
        self.groups.get(&unit.group)?.slots.get(usize::from(unit.slot))
    }

    fn slot_mut(&mut self, unit: &UnitId) -> Option<&mut Slot> {
        self.groups.get_mut(&unit.group)?.slots.get_mut(usize::from(unit.slot))
    }

    /// Puts a unit that nobody holds any longer back into the ready queue.
    fn make_ready(&mut self, unit: &UnitId) {
        self.drop_lease(unit);
        let Some(group) = self.groups.get_mut(&unit.group) else { return };
        let Some(slot) = group.slots.get_mut(usize::from(unit.slot)) else { return };
        slot.state = SlotState::Enqueued;
        self.ready.insert(slot.score(group.spec.priority), unit.clone());
    }

    fn drop_lease(&mut self, unit: &UnitId) {
        if let Some(deadline) = self.slot(unit).map(|slot| slot.lease_deadline) {
            self.leases.remove(&(deadline, unit.clone()));
        }
    }

    fn drop_ready(&mut self, unit: &UnitId) {
        let score = self.groups.get(&unit.group).and_then(|group| {
            let slot = group.slots.get(usize::from(unit.slot))?;
            Some(slot.score(group.spec.priority))
        });
        if let Some(score) = score {
            self.ready.remove(&score);
        }
    }
}
