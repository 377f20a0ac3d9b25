//! What can be asked of one shard of the queue.
//!
//! The contract in types: every operation is a [`Command`], every answer a
//! [`Reply`](crate::reply::Reply). Both implementations (Lua on Redis, [`crate::memory`]) take and
//! give exactly these. Every command may be sent again when its reply was lost; what the repetition
//! answers stands at each command.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, GroupId, Holder, NodeName, PolicyVersion, UnitId};
pub use ebbtide_core::policy::Stage;
use ebbtide_core::sample::{Chunk, Finish, Score};
use ebbtide_core::work::PromptGroup;

pub use crate::hand_back::{DrainBehind, HandBack, HandBackCause};

/// Most units that one command may name. Lua's `unpack` fails at 8000 items; 1000 keeps one call
/// of a busy shard around ten milliseconds.
pub const COMMAND_UNITS_LIMIT: usize = 1000;

/// Most bytes that one command may carry: Redis serves nobody while it copies them.
pub const COMMAND_BYTES_LIMIT: usize = 4 << 20;

/// Expired units that a LEASE reaps on its way.
pub const LEASE_REAPS_UNITS: usize = 64;

/// Ready units that one LEASE looks at before it answers with a place to go on from.
pub const LEASE_SCAN_LIMIT: usize = 1000;

/// One operation on one shard.
#[derive(Debug, Clone)]
pub enum Command {
    /// Adds a group, all slots or none. Repeated: `AlreadyDone`.
    Enqueue(Box<PromptGroup>),
    /// Adds a group again that has failed, and deletes the record of that failure. `Unknown` when
    /// there is no such record. Repeated: `AlreadyDone`.
    Retry {
        /// The record of its failure.
        record_id: String,
        /// The group, as the record has it.
        group: Box<PromptGroup>,
    },
    /// Grants up to k units. Repeated with the same request id: the same grant.
    Lease(LeaseRequest),
    /// Moves lease deadlines forward and answers which leases are lost.
    Renew {
        /// Who holds the leases.
        holder: Holder,
        /// The leases to renew.
        renewals: Vec<Renewal>,
        /// How long a lease may go without a token or a declared wait.
        limits: ProgressLimits,
    },
    /// Stores tokens and moves units on; each one checked against token and holder.
    Write {
        /// Who holds the leases.
        holder: Holder,
        /// The writes, in order.
        writes: Vec<UnitWrite>,
    },
    /// First the writes of a holder, then its next LEASE: a whole cycle of a worker in one round
    /// trip.
    Exchange {
        /// The writes, in order; their holder is that of the lease.
        writes: Vec<UnitWrite>,
        /// The lease.
        lease: LeaseRequest,
    },
    /// Returns units whose lease has expired to the ready queue, ends groups whose time is over,
    /// and mends a few records that are out of place.
    Reap {
        /// Most units to return in this call.
        limit: usize,
    },
    /// Hands back, from their last checkpoint, all units that other agent processes of this node
    /// still hold. Repeated: nothing is left to do.
    Reclaim {
        /// The new agent process.
        holder: Holder,
    },
    /// Takes a leased unit from its holder and makes it ready, for an operator; no attempt.
    /// `AlreadyDone` when nobody holds it under that token. Repeated: `AlreadyDone`.
    Requeue {
        /// The unit.
        unit: UnitId,
        /// Under which it is held: its next holder keeps it.
        fencing_token: FencingToken,
    },
    /// Ends a group as FAILED. Repeated: `AlreadyDone`.
    FailGroup {
        /// The group to end.
        group: GroupId,
        /// Why, for its record.
        reason: String,
    },
    /// Ends a page of the groups that are not sealed as FAILED.
    CancelRun {
        /// Where to go on; 0 begins.
        cursor: u64,
        /// Why, for their records.
        reason: String,
    },
    /// Raises the shard's policy version; a lower one changes nothing and is counted.
    SetVersion(PolicyVersion),
    /// Takes sealed groups for a trainer.
    Take {
        /// The trainer process, by a name that survives its restart.
        consumer: String,
        /// Most groups to take.
        limit: usize,
        /// Which ones.
        which: TakeWhich,
    },
    /// Deletes taken groups. Repeated: counted as nothing.
    Acknowledge {
        /// The trainer that took them.
        consumer: String,
        /// The groups that it has finished with.
        groups: Vec<GroupId>,
    },
    /// Moves the unacknowledged groups of a lost trainer to another one.
    TakeOver {
        /// The lost trainer.
        from: String,
        /// Who gets its groups.
        to: String,
        /// Most groups to move in this call.
        limit: usize,
    },
    /// Forgets a trainer that has acknowledged everything. Answers how many groups it still has,
    /// and then forgets nothing.
    RemoveConsumer {
        /// The trainer.
        consumer: String,
    },
    /// Reads counters and depths.
    Status,
    /// Reads how many units are leased to holders of a node, expired leases that nobody reaped yet
    /// included. Costs the same however many nodes the run has.
    Held {
        /// The node.
        node: NodeName,
    },
    /// Reads raw unit states, for audits.
    Scan {
        /// Where to go on; 0 begins.
        cursor: u64,
    },
    /// Reads the units at the head of the ready queue, in the order in which they would be leased.
    Peek {
        /// Of which stage.
        stage: Stage,
        /// Most units to read.
        limit: usize,
    },
    /// Reads everything that is known of a group.
    Trace {
        /// The group.
        group: GroupId,
    },
    /// Reads the records of failed groups and dead units, oldest first.
    Failures {
        /// The place after which to go on; empty begins.
        after: String,
        /// Most records to read.
        limit: usize,
    },
    /// Deletes the record of a failure. Repeated: counted as nothing.
    DropFailure {
        /// The record.
        record_id: String,
    },
    /// Recomputes what must hold from one page of the raw keys, and mends what does not.
    Audit {
        /// What to look at.
        part: AuditPart,
        /// Where to go on; 0 begins.
        cursor: u64,
        /// Whether to mend what is found.
        repair: bool,
    },
}

/// The parts of a shard that an audit walks through, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuditPart {
    /// Every group with its slots: places in the queues, stored tokens, counts, the buffer.
    Groups,
    /// Unit records without a group.
    Units,
    /// Prompts without a group.
    Specs,
    /// Histories without a group.
    History,
    /// Tokens without a group.
    Chunks,
    /// Ready units of a stage that should not be.
    Ready(Stage),
    /// Leases of a stage that should not be.
    Leases(Stage),
    /// How many units each node holds.
    Held,
}

impl AuditPart {
    /// Every part. Groups come first: their repair removes what the others would find.
    pub const ALL: [Self; 10] = [
        Self::Groups,
        Self::Units,
        Self::Specs,
        Self::History,
        Self::Chunks,
        Self::Ready(Stage::Generate),
        Self::Ready(Stage::Reward),
        Self::Leases(Stage::Generate),
        Self::Leases(Stage::Reward),
        Self::Held,
    ];
}

/// Which sealed groups a trainer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TakeWhich {
    /// Those that it took before and has not acknowledged.
    Own,
    /// Those that nobody has taken.
    New,
}

/// Asks for units to work on.
#[derive(Debug, Clone)]
pub struct LeaseRequest {
    /// What the worker does.
    pub stage: Stage,
    /// Who will hold them.
    pub holder: Holder,
    /// Names this request; one at a time per holder, stage and shard.
    pub request_id: String,
    /// Most units to grant.
    pub limit: usize,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
    /// The weights that the worker serves; of no account to a scorer.
    pub worker_version: PolicyVersion,
    /// Where to begin in the ready queue; `resume_at` of the last reply, or 0.
    pub start_at: u64,
    /// Whether units without tokens may be granted (not while memory is short).
    pub allow_fresh: bool,
}

/// One lease to renew.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// The leased unit.
    pub unit: UnitId,
    /// Its fencing token.
    pub fencing_token: FencingToken,
    /// How long the lease shall last from now; never past a drain deadline.
    pub ttl: Duration,
    /// What the unit waits for, if it makes no tokens.
    pub waiting: Waiting,
}

/// What suspends a unit's progress limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waiting {
    /// Nothing: tokens are expected.
    #[default]
    Nothing,
    /// Its environment (a tool, a simulator) works.
    Environment,
    /// Its engine is paused while weights are loaded.
    EnginePause,
}

/// How long a leased unit may go without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgressLimits {
    /// Without a declared wait.
    pub idle: Duration,
    /// While its environment works.
    pub environment: Duration,
    /// While its engine is paused.
    pub engine_pause: Duration,
}

impl Default for ProgressLimits {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            environment: Duration::from_secs(600),
            engine_pause: Duration::from_secs(300),
        }
    }
}

impl ProgressLimits {
    /// The limit that applies to a unit that waits like this.
    pub fn of(&self, waiting: Waiting) -> Duration {
        match waiting {
            Waiting::Nothing => self.idle,
            Waiting::Environment => self.environment,
            Waiting::EnginePause => self.engine_pause,
        }
    }
}

/// One write to one leased unit: its new tokens, then what becomes of it.
#[derive(Debug, Clone)]
pub struct UnitWrite {
    /// The leased unit.
    pub unit: UnitId,
    /// Its fencing token.
    pub fencing_token: FencingToken,
    /// New tokens, contiguous; chunks that are stored already are skipped.
    pub tail: Vec<Chunk>,
    /// What becomes of the unit once the tail is stored.
    pub then: Then,
}

/// What becomes of a unit after its tail is stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    /// It stays leased (APPEND).
    Continue,
    /// Its generation is over (COMPLETE): it goes on to its score, or is COMPLETED in a run without
    /// a reward stage; the last one seals its group.
    Complete(Finish),
    /// It is scored and COMPLETED (COMPLETE of the reward stage).
    Score(Score),
    /// It goes back to the ready queue with its tokens; never an attempt (HANDBACK).
    HandBack(HandBack),
    /// It goes back and the fault is counted as an attempt (NACK).
    Fault(String),
}
