//! What can happen next, and what comes of it.

use std::sync::Arc;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::sample::{Chunk, Score};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::command::{
    Command, HandBackCause, LeaseRequest, ProgressLimits, Renewal, Stage, TakeWhich, Then,
    UnitWrite, Waiting,
};
use ebbtide_queue::memory::MemoryShard;
use ebbtide_queue::reply::{Reply, WriteReply};

use super::ledger::Law;
use super::mistakes::Mistake;
use super::model::{KnownLease, LEASE, Protocol, Situation, Worker, holder, identity_of};
use crate::worlds::{group_id, stop, tokens};

/// One step. `lease` is the number of a lease among those that the worker was told of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    Lease {
        worker: usize,
        stage: Stage,
        is_answered: bool,
    },
    /// The newest request once more, although it was answered.
    RepeatLease {
        worker: usize,
        stage: Stage,
    },
    Write {
        worker: usize,
        lease: usize,
        count: u32,
        end: End,
        is_answered: bool,
    },
    Renew {
        worker: usize,
        lease: usize,
    },
    Reap,
    ClockMovesOn,
    EnqueueAgain,
    RaiseVersion,
    LoadWeights {
        worker: usize,
    },
    Take {
        is_answered: bool,
    },
    Acknowledge,
    /// By an operator.
    Requeue {
        slot: u16,
    },
    /// By a new process on the first worker's node.
    Reclaim,
    FailGroup,
    /// The replica catches up, as it does before a caller in durability safe is answered.
    Replicate,
    FailOver,
}

impl Action {
    pub fn is_lease(self) -> bool {
        matches!(self, Self::Lease { .. } | Self::RepeatLease { .. })
    }
}

/// How a write ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Append,
    Complete,
    HandBack,
    Fault,
}

impl Protocol {
    pub fn possible(&self, situation: &Situation, actions: &mut Vec<Action>) {
        for worker in 0..situation.around.workers.len() {
            self.possible_of(worker, situation, actions);
        }
        actions.extend([Action::Reap, Action::EnqueueAgain]);
        for is_answered in [true, false] {
            actions.push(Action::Take { is_answered });
        }
        if situation.around.deliveries > 0 {
            actions.push(Action::Acknowledge);
        }
        if situation.around.ticks_left > 0 {
            actions.push(Action::ClockMovesOn);
        }
        if situation.version.0 < self.bounds.versions {
            actions.push(Action::RaiseVersion);
        }
        if situation.around.interventions_left > 0 {
            actions.extend([Action::Reclaim, Action::FailGroup]);
            actions.extend((0..self.bounds.slots).map(|slot| Action::Requeue { slot }));
        }
        if situation.around.fail_overs_left > 0 {
            actions.extend([Action::Replicate, Action::FailOver]);
        }
    }

    fn possible_of(&self, worker: usize, situation: &Situation, actions: &mut Vec<Action>) {
        let known = &situation.around.workers[worker];
        for stage in self.stages().iter().copied() {
            if situation.ledger.grants < self.bounds.grants {
                actions.push(Action::Lease { worker, stage, is_answered: true });
                actions.push(Action::Lease { worker, stage, is_answered: false });
            }
            let requests = known.requests[stage as usize];
            let id = request_id(stage, requests.newest);
            if situation.ledger.was_granted(worker, stage, &id) {
                actions.push(Action::RepeatLease { worker, stage });
            }
        }
        for (lease, known) in known.leases.iter().enumerate() {
            let write =
                |count, end, is_answered| Action::Write { worker, lease, count, end, is_answered };
            let room =
                u32::from(known.stage == Stage::Generate && known.stored < self.bounds.tokens);
            for count in 0..=room {
                actions.push(write(count, End::HandBack, true));
                if known.stored + count > 0 {
                    actions.push(write(count, End::Complete, true));
                }
            }
            if room > 0 {
                actions.extend([true, false].map(|answered| write(1, End::Append, answered)));
            }
            actions.push(write(0, End::Fault, true));
            actions.push(Action::Renew { worker, lease });
        }
        if known.version < situation.version {
            actions.push(Action::LoadWeights { worker });
        }
    }

    fn carry_out(&self, situation: &mut Situation, command: &Command) -> Reply {
        let mut shard = MemoryShard::clone(&situation.shard);
        let reply = self.mistake.carry_out(&mut shard, command, situation.around.now);
        if shard != *situation.shard {
            situation.shard_identity = identity_of(&shard);
            situation.shard = Arc::new(shard);
        }
        reply
    }

    pub fn take_step(&self, situation: &mut Situation, action: Action) {
        match action {
            Action::Lease { worker, stage, is_answered } => {
                let requests = &mut situation.around.workers[worker].requests[stage as usize];
                // A number that brought nothing may as well be used again.
                let is_used = |number| {
                    let id = request_id(stage, number);
                    situation.ledger.was_granted(worker, stage, &id)
                };
                let is_over = !requests.is_unanswered && is_used(requests.newest);
                requests.newest += u32::from(is_over);
                let newest = requests.newest;
                self.lease(situation, worker, stage, is_answered);
                let is_granted =
                    situation.ledger.was_granted(worker, stage, &request_id(stage, newest));
                situation.around.workers[worker].requests[stage as usize].is_unanswered =
                    is_granted && !is_answered;
            }
            Action::RepeatLease { worker, stage } => {
                situation.around.workers[worker].requests[stage as usize].is_unanswered = false;
                self.lease(situation, worker, stage, true);
            }
            Action::Write { worker, lease, count, end, is_answered } => {
                let known = situation.around.workers[worker].leases[lease].clone();
                let reply = self.write(situation, worker, &known, count, end);
                if is_answered && end == End::Append && reply == WriteReply::Ok {
                    situation.around.workers[worker].leases[lease].stored += count;
                }
            }
            Action::Renew { worker, lease } => self.renew(situation, worker, lease),
            Action::Reap => {
                self.carry_out(situation, &Command::Reap { limit: 100 });
                situation.ledger.note_reap(None, situation.around.now);
            }
            Action::ClockMovesOn => {
                situation.around.ticks_left -= 1;
                situation.around.now = situation.around.now.plus(LEASE);
            }
            Action::EnqueueAgain => {
                let again = Command::Enqueue(Box::new(self.group.clone()));
                let reply = self.carry_out(situation, &again);
                let is_known = reply == Reply::Write(WriteReply::AlreadyDone);
                situation.ledger.hold(Law::GroupIsEnqueuedOnce, is_known);
            }
            Action::RaiseVersion => {
                let version = PolicyVersion(situation.version.0 + 1);
                self.carry_out(situation, &Command::SetVersion(version));
                situation.version = version;
                // From now on tokens may be too old.
                situation.ledger.may_fail = true;
            }
            Action::LoadWeights { worker } => {
                situation.around.workers[worker].version = situation.version;
            }
            Action::Take { is_answered } => self.take(situation, is_answered),
            Action::Acknowledge => {
                let (consumer, groups) = ("t".to_owned(), vec![group_id("g")]);
                self.carry_out(situation, &Command::Acknowledge { consumer, groups });
                situation.ledger.is_acknowledged = true;
            }
            Action::Requeue { .. } | Action::Reclaim | Action::FailGroup => {
                situation.around.interventions_left -= 1;
                self.intervene(situation, action);
            }
            Action::Replicate => situation.replicate(),
            Action::FailOver => situation.fail_over(),
        }
    }

    fn lease(&self, situation: &mut Situation, worker: usize, stage: Stage, is_answered: bool) {
        let known = &situation.around.workers[worker];
        let number = known.requests[stage as usize].newest;
        let request = self.lease_request(worker, stage, number, known.version);
        let reply = match self.carry_out(situation, &Command::Lease(request.clone())) {
            Reply::Lease(reply) => reply,
            other => panic!("wanted a lease, got {other:?}"),
        };
        let drops_tokens = self.drops_tokens(situation);
        let now = situation.around.now;
        situation.ledger.note_lease(worker, &request, &reply, drops_tokens, now);
        if is_answered {
            situation.around.workers[worker].learn(&reply.grants, stage);
        }
    }

    fn lease_request(
        &self,
        worker: usize,
        stage: Stage,
        number: u32,
        worker_version: PolicyVersion,
    ) -> LeaseRequest {
        LeaseRequest {
            stage,
            holder: holder(worker),
            request_id: request_id(stage, number),
            // One of them asks for everything, the other for one unit at a time.
            limit: if worker == 0 { usize::from(self.bounds.slots) } else { 1 },
            ttl: LEASE,
            worker_version,
            start_at: 0,
            allow_fresh: true,
        }
    }

    fn write(
        &self,
        situation: &mut Situation,
        worker: usize,
        known: &KnownLease,
        count: u32,
        end: End,
    ) -> WriteReply {
        let write = self.unit_write(worker, known, count, end);
        let before = situation.shard_identity;
        let command = Command::Write { holder: holder(worker), writes: vec![write.clone()] };
        let reply = match self.carry_out(situation, &command) {
            Reply::Writes(replies) => replies[0],
            other => panic!("wanted one reply, got {other:?}"),
        };
        let has_changed = before != situation.shard_identity;
        situation.ledger.note_write(worker, &write, reply, has_changed);
        reply
    }

    fn unit_write(&self, worker: usize, known: &KnownLease, count: u32, end: End) -> UnitWrite {
        UnitWrite {
            unit: self.group.unit_id(known.slot),
            fencing_token: known.token,
            tail: (known.stored..known.stored + count).map(|at| token(worker, known, at)).collect(),
            then: match (end, known.stage) {
                (End::Append, _) => Then::Continue,
                (End::Complete, Stage::Generate) => Then::Complete(stop()),
                (End::Complete, Stage::Reward) => Then::Score(score()),
                (End::HandBack, _) => Then::HandBack(HandBackCause::Notice.into()),
                (End::Fault, _) => Then::Fault("fault".to_owned()),
            },
        }
    }

    fn renew(&self, situation: &mut Situation, worker: usize, lease: usize) {
        let known = situation.around.workers[worker].leases[lease].clone();
        let renewal = Renewal {
            unit: self.group.unit_id(known.slot),
            fencing_token: known.token,
            ttl: LEASE,
            waiting: Waiting::Nothing,
        };
        let (renewals, limits) = (vec![renewal], ProgressLimits::default());
        let command = Command::Renew { holder: holder(worker), renewals, limits };
        let is_lost = self.carry_out(situation, &command) != Reply::Lost(Vec::new());
        let deadline = situation.around.now.plus(LEASE);
        situation.ledger.note_renewal(worker, known.slot, known.token, is_lost, deadline);
    }

    fn take(&self, situation: &mut Situation, is_answered: bool) {
        // As a client does it: its own first.
        let mut taken = Vec::new();
        for which in [TakeWhich::Own, TakeWhich::New] {
            let command = Command::Take { consumer: "t".to_owned(), limit: 1, which };
            match self.carry_out(situation, &command) {
                Reply::Taken(more) => taken = more,
                other => panic!("wanted groups, got {other:?}"),
            }
            if !taken.is_empty() {
                break;
            }
        }
        for group in &taken {
            let ledger = &mut situation.ledger;
            let is_whole = group.samples.len() == usize::from(self.bounds.slots)
                && ledger.completed() == group.samples.len();
            let is_accepted =
                group.samples.iter().all(|s| s.token_ids() == ledger.accepted(s.unit.slot));
            ledger.hold(Law::PublishedTokensAreTheAcceptedOnes, is_whole && is_accepted);
            if is_answered && !group.is_redelivered {
                situation.around.deliveries += 1;
            } else if is_answered {
                situation.around.deliveries = situation.around.deliveries.max(1);
            }
        }
        if situation.around.deliveries > 1 {
            situation.around.broken.insert(Law::GroupIsPublishedOnce);
        }
        if is_answered && self.mistake != Mistake::TakesWithoutWaiting {
            situation.replicate();
        }
    }

    fn intervene(&self, situation: &mut Situation, action: Action) {
        match action {
            Action::Requeue { slot } => {
                let fencing_token = situation.ledger.newest_token(usize::from(slot));
                let unit = self.group.unit_id(slot);
                self.carry_out(situation, &Command::Requeue { unit, fencing_token });
                situation.ledger.note_requeue(usize::from(slot));
            }
            Action::Reclaim => {
                let holder = "n/boot-1/agent-c".parse().unwrap();
                self.carry_out(situation, &Command::Reclaim { holder });
                situation.ledger.note_reclaim(0);
            }
            _ => {
                let (group, reason) = (group_id("g"), "unwanted".to_owned());
                self.carry_out(situation, &Command::FailGroup { group, reason });
                situation.ledger.may_fail = true;
            }
        }
    }

    /// The first worker, under the newest weights, takes what is ready in a stage and completes it.
    pub fn finish_all(
        &self,
        shard: &mut MemoryShard,
        stage: Stage,
        version: PolicyVersion,
        now: UnixMillis,
    ) {
        let lease = Command::Lease(self.lease_request(0, stage, u32::MAX, version));
        let granted = match self.mistake.carry_out(shard, &lease, now) {
            Reply::Lease(granted) => granted.grants,
            other => panic!("wanted a lease, got {other:?}"),
        };
        let mut worker = Worker { version, ..Worker::default() };
        worker.learn(&granted, stage);
        for known in worker.leases {
            let count = u32::from(stage == Stage::Generate && known.stored < self.bounds.tokens);
            let writes = vec![self.unit_write(0, &known, count, End::Complete)];
            self.mistake.carry_out(shard, &Command::Write { holder: holder(0), writes }, now);
        }
    }
}

fn request_id(stage: Stage, number: u32) -> String {
    format!("{stage:?}-{number}")
}

/// One token that tells who made it, under which lease, and its place.
fn token(worker: usize, known: &KnownLease, at: u32) -> Chunk {
    let mut chunk = tokens(at, 1, known.version.0);
    let number = (worker as u64 + 1) * 10_000 + known.token.0 * 100 + u64::from(at);
    chunk.token_ids = vec![i32::try_from(number).unwrap()];
    chunk
}

fn score() -> Score {
    Score { value: 1.0, scorer_version: "rule/1".to_owned(), metadata: Vec::new() }
}
