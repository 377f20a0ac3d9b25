//! The queue in memory: one shard as a synchronous state machine.
//!
//! [`MemoryShard::apply`] takes a [`Command`] and `now` and gives the [`Reply`] that the Lua
//! scripts would give. It is the readable statement of the contract: the demo and the simulator
//! run on it, and the contract tests hold Redis to it. Nothing here reads a clock or waits.

mod groups;
mod inspect;
mod leases;
mod slots;
mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::{FencingToken, GroupId, Holder, PolicyVersion, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;

use crate::command::{Command, Stage, TakeWhich};
use crate::reply::{Failure, Reply, WriteReply};
use crate::state::{ScanPage, SlotState};
use crate::status::ShardStatus;
pub use leases::AGENT_PROCESS_PREFIX;
use slots::{Group, Slot};

/// How long an ended group is remembered, so that repeated calls are answered.
pub const DEFAULT_DEDUP_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Records of failed groups that a shard keeps. 10,000 = a day at seven failures a minute.
pub const FAILURES_LIMIT: usize = 10_000;

/// How long a grant is remembered for a LEASE that is repeated. An hour is far longer than any
/// client tries again.
const GRANT_MEMORY: Duration = Duration::from_secs(3600);

/// What all shards of a run have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardSettings {
    /// Whether samples are scored before their group is sealed.
    pub has_reward_stage: bool,
    /// How long ended groups are remembered.
    pub dedup_window: Duration,
}

impl Default for ShardSettings {
    fn default() -> Self {
        Self { has_reward_stage: false, dedup_window: DEFAULT_DEDUP_WINDOW }
    }
}

/// The last grant to a holder, for a LEASE that is repeated.
#[derive(Debug, Clone, PartialEq)]
struct Granted {
    request_id: String,
    at: UnixMillis,
    units: Vec<(UnitId, FencingToken)>,
}

/// What waits and what is held in one stage.
#[derive(Debug, Clone, Default, PartialEq)]
struct StageQueues {
    /// By score: resumed before fresh, then priority, then age.
    ready: BTreeMap<u64, UnitId>,
    leases: BTreeSet<(UnixMillis, UnitId)>,
}

/// One shard of the work queue and experience buffer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryShard {
    settings: ShardSettings,
    groups: BTreeMap<GroupId, Group>,
    generate: StageQueues,
    reward: StageQueues,
    grants: BTreeMap<(Holder, Stage), Granted>,
    sealed: VecDeque<GroupId>,
    taken: BTreeMap<String, Vec<GroupId>>,
    failures: VecDeque<Failure>,
    /// Groups with a moment at which they expire.
    expiries: BTreeSet<(UnixMillis, GroupId)>,
    tombstones: BTreeMap<GroupId, UnixMillis>,
    last_token: u64,
    last_sequence: u64,
    last_failure: u64,
    counters: ShardStatus,
}

impl MemoryShard {
    /// An empty shard.
    pub fn new(settings: ShardSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Carries out one command at `now`, the shard's own clock.
    pub fn apply(&mut self, command: &Command, now: UnixMillis) -> Reply {
        match command {
            Command::Enqueue(group) => Reply::Write(self.enqueue(group, now)),
            Command::Retry { record_id, group } => Reply::Write(self.retry(record_id, group, now)),
            Command::Lease(request) => Reply::Lease(self.lease(request, now)),
            Command::Renew { holder, renewals, limits } => {
                Reply::Lost(self.renew(holder, renewals, limits, now))
            }
            Command::Write { holder, writes } => Reply::Writes(self.write_all(holder, writes, now)),
            Command::Exchange { writes, lease } => {
                let replies = self.write_all(&lease.holder, writes, now);
                Reply::Exchanged(replies, self.lease(lease, now))
            }
            Command::Reap { limit } => Reply::Count(self.reap_all(*limit, now)),
            Command::Reclaim { holder } => Reply::Count(self.reclaim(holder, now)),
            Command::Requeue { unit, fencing_token } => {
                Reply::Write(self.requeue(unit, *fencing_token, now))
            }
            Command::FailGroup { group, reason } => {
                Reply::Write(self.fail_group(group, reason, now))
            }
            Command::CancelRun { reason, .. } => Reply::Cancelled(0, self.cancel_run(reason, now)),
            Command::SetVersion(version) => Reply::Version(self.set_version(*version)),
            Command::Take { consumer, limit, which } => Reply::Taken(match which {
                TakeWhich::Own => self.take_own(consumer, *limit, now),
                TakeWhich::New => self.take_new(consumer, *limit, now),
            }),
            Command::Acknowledge { consumer, groups } => {
                Reply::Count(self.acknowledge(consumer, groups, now))
            }
            Command::TakeOver { from, to, limit } => Reply::Count(self.take_over(from, to, *limit)),
            Command::RemoveConsumer { consumer } => {
                Reply::Count(self.taken.get(consumer).map_or(0, |groups| groups.len() as u64))
            }
            Command::Status => Reply::Status(Box::new(self.status(now))),
            Command::Held { node } => Reply::Count(self.held_by(node)),
            Command::Scan { .. } => Reply::Page(ScanPage { cursor: 0, units: self.scan() }),
            Command::Peek { stage, limit } => Reply::Units(self.peek(*stage, *limit)),
            Command::Trace { group } => Reply::Trace(Box::new(self.trace(group))),
            Command::Failures { after, limit } => Reply::Failures(self.failures(after, *limit)),
            Command::DropFailure { record_id } => Reply::Count(self.drop_failure(record_id)),
            Command::Audit { part, .. } => Reply::Findings(0, self.audit(*part)),
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
            self.generate.ready.insert(slot.ready_score(group.priority), unit);
            slot
        });
        let record =
            Group { slots: slots.collect(), spec: Arc::new(group.clone()), is_sealed: false };
        self.groups.insert(id.clone(), record);
        if let Some(expires_at) = group.expires_at {
            self.expiries.insert((expires_at, id.clone()));
        }
        self.counters.enqueued += u64::from(group.group_size);
        WriteReply::Ok
    }

    /// Enqueues a group again that has failed, in the place of the record of that failure.
    fn retry(&mut self, record_id: &str, group: &PromptGroup, now: UnixMillis) -> WriteReply {
        if self.groups.contains_key(&group.group_id) {
            return WriteReply::AlreadyDone;
        }
        if self.drop_failure(record_id) == 0 {
            return WriteReply::Unknown;
        }
        self.tombstones.remove(&group.group_id);
        self.enqueue(group, now)
    }

    fn drop_failure(&mut self, record_id: &str) -> u64 {
        let before = self.failures.len();
        self.failures.retain(|failure| failure.record_id != record_id);
        (before - self.failures.len()) as u64
    }

    fn set_version(&mut self, version: PolicyVersion) -> PolicyVersion {
        if version < self.counters.version {
            self.counters.versions_refused += 1;
        }
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

    fn slot(&self, unit: &UnitId) -> Option<&Slot> {
        self.groups.get(&unit.group)?.slots.get(usize::from(unit.slot))
    }

    fn slot_mut(&mut self, unit: &UnitId) -> Option<&mut Slot> {
        self.groups.get_mut(&unit.group)?.slots.get_mut(usize::from(unit.slot))
    }

    fn queues(&self, stage: Stage) -> &StageQueues {
        match stage {
            Stage::Generate => &self.generate,
            Stage::Reward => &self.reward,
        }
    }

    fn queues_mut(&mut self, stage: Stage) -> &mut StageQueues {
        match stage {
            Stage::Generate => &mut self.generate,
            Stage::Reward => &mut self.reward,
        }
    }

    /// Puts a unit that nobody holds any longer back into the ready queue of its stage.
    fn make_ready(&mut self, unit: &UnitId) {
        self.leave_queues(unit);
        let Some(group) = self.groups.get_mut(&unit.group) else { return };
        let Some(slot) = group.slots.get_mut(usize::from(unit.slot)) else { return };
        slot.state = SlotState::Enqueued;
        let (score, stage) = (slot.ready_score(group.spec.priority), slot.stage);
        self.queues_mut(stage).ready.insert(score, unit.clone());
    }

    /// Takes a unit out of the ready queue and the leases, wherever it stands.
    fn leave_queues(&mut self, unit: &UnitId) {
        let Some(group) = self.groups.get(&unit.group) else { return };
        let Some(slot) = group.slots.get(usize::from(unit.slot)) else { return };
        let score = slot.ready_score(group.spec.priority);
        let lease = (slot.lease_deadline, unit.clone());
        for queues in [&mut self.generate, &mut self.reward] {
            queues.leases.remove(&lease);
            if queues.ready.get(&score) == Some(unit) {
                queues.ready.remove(&score);
            }
        }
    }
}
