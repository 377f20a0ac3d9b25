//! What an onlooker knows who hears every call and every reply, and the laws by which he judges
//! them. He never looks into the shard to learn who may write.

use std::collections::{BTreeMap, BTreeSet};

use ebbtide_core::ids::FencingToken;
use ebbtide_core::sample::Chunk;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::command::{LeaseRequest, Stage, Then, UnitWrite};
use ebbtide_queue::reply::{LeaseReply, WriteReply};
use ebbtide_queue::state::GroupTrace;

/// What must hold of every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Law {
    OnlyTheHolderWrites,
    RefusalChangesNothing,
    RepeatedRequestGrantsNothingNew,
    LiveLeaseIsKept,
    TokensRise,
    AcceptedTokensStayAndNoOthersAppear,
    LeasesAreWhereTheyWereGranted,
    SlotIsCompletedOnce,
    GroupIsEnqueuedOnce,
    GroupIsPublishedOnce,
    PublishedTokensAreTheAcceptedOnes,
    RenewSaysWhoHolds,
    GroupFailsOnlyForAReason,
}

/// The newest lease of a slot, until its holder writes its end or it is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lease {
    worker: usize,
    token: FencingToken,
    deadline: UnixMillis,
    stage: Stage,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Slot {
    lease: Option<Lease>,
    newest_token: FencingToken,
    accepted: Vec<i32>,
    completions: u32,
    faults: u16,
}

/// A request, and the slots and tokens that it was given.
type Granted = (String, Vec<(u16, FencingToken)>);

/// What has happened to the shard; falls back with it when a replica takes its place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    is_scored: bool,
    max_attempts: u16,
    slots: Vec<Slot>,
    /// What the newest request of each worker was granted.
    requests: BTreeMap<(usize, Stage), Granted>,
    /// Leases granted.
    pub grants: u64,
    /// The group may fail whatever its slots have gone through.
    pub may_fail: bool,
    pub is_acknowledged: bool,
    pub broken: BTreeSet<Law>,
}

impl Ledger {
    pub fn new(group_size: u16, is_scored: bool, max_attempts: u16) -> Self {
        let slots = vec![Slot::default(); usize::from(group_size)];
        Self { is_scored, max_attempts, slots, ..Self::default() }
    }

    pub fn hold(&mut self, law: Law, holds: bool) {
        if !holds {
            self.broken.insert(law);
        }
    }

    /// A LEASE takes back what has run out in its stage, then grants. `drops_tokens`: responses may
    /// be begun anew.
    pub fn note_lease(
        &mut self,
        worker: usize,
        request: &LeaseRequest,
        reply: &LeaseReply,
        drops_tokens: bool,
        now: UnixMillis,
    ) {
        let place = (worker, request.stage);
        let before = self.requests.get(&place).filter(|(id, _)| *id == request.request_id);
        let before = before.map(|(_, granted)| granted.clone());
        if before.is_none() {
            self.note_reap(Some(request.stage), now);
        }
        let mut granted = Vec::new();
        for grant in &reply.grants {
            let lease = (grant.unit.slot, grant.fencing_token);
            granted.push(lease);
            let partial = token_ids(&grant.partial);
            let slot = &mut self.slots[usize::from(grant.unit.slot)];
            let is_kept = partial == slot.accepted || (drops_tokens && partial.is_empty());
            slot.accepted = partial;
            let (is_free, rises) = (slot.lease.is_none(), grant.fencing_token > slot.newest_token);
            if before.is_none() {
                let (token, stage) = (grant.fencing_token, request.stage);
                let deadline = now.plus(request.ttl);
                slot.lease = Some(Lease { worker, token, deadline, stage });
                slot.newest_token = token;
                self.grants += 1;
                self.hold(Law::LiveLeaseIsKept, is_free);
                self.hold(Law::TokensRise, rises);
            }
            let is_known = before.as_ref().is_none_or(|before| before.contains(&lease));
            self.hold(Law::RepeatedRequestGrantsNothingNew, is_known);
            self.hold(Law::AcceptedTokensStayAndNoOthersAppear, is_kept);
        }
        if before.is_none() && !granted.is_empty() {
            self.requests.insert(place, (request.request_id.clone(), granted));
        }
    }

    /// Whether a worker's newest request is this one, and was granted something.
    pub fn was_granted(&self, worker: usize, stage: Stage, request_id: &str) -> bool {
        self.requests.get(&(worker, stage)).is_some_and(|(newest, _)| newest == request_id)
    }

    /// What has run out belongs to nobody any longer.
    pub fn note_reap(&mut self, stage: Option<Stage>, now: UnixMillis) {
        self.take_back(|_, lease| {
            lease.deadline <= now && stage.is_none_or(|stage| stage == lease.stage)
        });
    }

    /// The token of the newest lease of a slot.
    pub fn newest_token(&self, slot: usize) -> FencingToken {
        self.slots[slot].newest_token
    }

    /// An operator takes one slot from its holder.
    pub fn note_requeue(&mut self, slot: usize) {
        self.take_back(|index, _| index == slot);
    }

    /// A new process of a worker's node takes back all that the worker holds.
    pub fn note_reclaim(&mut self, worker: usize) {
        self.take_back(|_, lease| lease.worker == worker);
    }

    fn take_back(&mut self, is_taken: impl Fn(usize, &Lease) -> bool) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.lease = slot.lease.filter(|lease| !is_taken(index, lease));
        }
    }

    fn is_held(&self, worker: usize, slot: u16, token: FencingToken) -> bool {
        let lease = self.slots[usize::from(slot)].lease;
        lease.is_some_and(|lease| lease.worker == worker && lease.token == token)
    }

    /// A renewal, and whether the unit was answered as lost.
    pub fn note_renewal(
        &mut self,
        worker: usize,
        slot: u16,
        token: FencingToken,
        is_lost: bool,
        deadline: UnixMillis,
    ) {
        let is_held = self.is_held(worker, slot, token);
        self.hold(Law::RenewSaysWhoHolds, is_held != is_lost);
        if let Some(lease) = self.slots[usize::from(slot)].lease.as_mut().filter(|_| !is_lost) {
            lease.deadline = deadline;
        }
    }

    /// A write, and whether the shard is another one than before.
    pub fn note_write(
        &mut self,
        worker: usize,
        write: &UnitWrite,
        reply: WriteReply,
        has_changed: bool,
    ) {
        if reply != WriteReply::Ok {
            self.hold(Law::RefusalChangesNothing, !has_changed);
            return;
        }
        let is_held = self.is_held(worker, write.unit.slot, write.fencing_token);
        let is_scored = self.is_scored;
        let slot = &mut self.slots[usize::from(write.unit.slot)];
        let mut is_same = true;
        for chunk in &write.tail {
            for (id, place) in chunk.token_ids.iter().zip(chunk.offset as usize..) {
                match slot.accepted.get(place) {
                    Some(known) => is_same &= known == id,
                    None => slot.accepted.push(*id),
                }
            }
        }
        match &write.then {
            Then::Continue => {}
            Then::Complete(_) => slot.completions += u32::from(!is_scored),
            Then::Score(_) => slot.completions += 1,
            Then::HandBack(_) => {}
            Then::Fault(_) => slot.faults += 1,
        }
        if write.then != Then::Continue {
            slot.lease = None;
        }
        let (completions, faults) = (slot.completions, slot.faults);
        self.may_fail |= faults >= self.max_attempts;
        self.hold(Law::OnlyTheHolderWrites, is_held);
        self.hold(Law::AcceptedTokensStayAndNoOthersAppear, is_same);
        self.hold(Law::SlotIsCompletedOnce, completions <= 1);
    }

    /// Compares with what the shard itself says of the group. `drops_tokens`: responses may have
    /// been begun anew.
    pub fn compare(&mut self, trace: &GroupTrace, drops_tokens: bool) {
        if trace.spec.is_none() {
            self.take_back(|_, _| true);
            let has_reason = self.may_fail || self.is_acknowledged;
            self.hold(Law::GroupFailsOnlyForAReason, has_reason);
            return;
        }
        for unit in &trace.units {
            let slot = &mut self.slots[usize::from(unit.unit.unit.slot)];
            if drops_tokens && unit.chunks.is_empty() {
                slot.accepted.clear();
            }
            let is_same = token_ids(&unit.chunks) == slot.accepted;
            let is_leased = unit.unit.state.is_leased() == slot.lease.is_some();
            self.hold(Law::AcceptedTokensStayAndNoOthersAppear, is_same);
            self.hold(Law::LeasesAreWhereTheyWereGranted, is_leased);
        }
    }

    /// The accepted tokens of a slot.
    pub fn accepted(&self, slot: u16) -> &[i32] {
        &self.slots[usize::from(slot)].accepted
    }

    /// Slots that have their sample.
    pub fn completed(&self) -> usize {
        self.slots.iter().filter(|slot| slot.completions > 0).count()
    }
}

fn token_ids(chunks: &[Chunk]) -> Vec<i32> {
    chunks.iter().flat_map(|chunk| chunk.token_ids.iter().copied()).collect()
}
