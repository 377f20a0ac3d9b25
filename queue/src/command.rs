//! What can be asked of one shard of the queue, and what it answers.
//!
//! The contract in types: every operation is a [`Command`], every answer a [`Reply`]. Both
//! implementations (Lua on Redis, [`crate::memory`]) take and give exactly these. Every command
//! may be sent again when its reply was lost; what the repetition answers stands at each command.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, GroupId, Holder, NodeName, PolicyVersion, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{Chunk, Finish, PromptGroup};

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
    /// Adds a group, all slots or none. Repeated: [`WriteReply::AlreadyDone`].
    Enqueue(Box<PromptGroup>),
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
    /// Returns units whose lease has expired to the ready queue.
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
    /// Ends a group as FAILED. Repeated: [`WriteReply::AlreadyDone`].
    FailGroup {
        /// The group to end.
        group: GroupId,
        /// Why, for its record.
        reason: String,
    },
    /// Raises the shard's policy version; a lower one changes nothing.
    SetVersion(PolicyVersion),
    /// Takes sealed groups for a trainer; its own unacknowledged ones come first.
    Take {
        /// The trainer process, by a name that survives its restart.
        consumer: String,
        /// Most groups to take.
        limit: usize,
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
    },
    /// Reads counters and depths.
    Status,
    /// Reads raw unit states, for audits.
    Scan {
        /// Where to go on; 0 begins.
        cursor: u64,
    },
    /// Reads the records of failed groups, oldest first.
    Failures {
        /// The place after which to go on; empty begins.
        after: String,
        /// Most records to read.
        limit: usize,
    },
}

/// Asks for units to work on.
#[derive(Debug, Clone)]
pub struct LeaseRequest {
    /// Who will hold them.
    pub holder: Holder,
    /// Names this request; one at a time per holder and shard.
    pub request_id: String,
    /// Most units to grant.
    pub limit: usize,
    /// How long the lease lasts without renewal.
    pub ttl: Duration,
    /// The weights that the worker serves.
    pub worker_version: PolicyVersion,
    /// Where to begin in the ready queue; [`LeaseReply::resume_at`] of the last reply, or 0.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// It stays leased (APPEND).
    Continue,
    /// It is COMPLETED; the last one seals its group (COMPLETE).
    Complete(Finish),
    /// It goes back to the ready queue with its tokens; never an attempt (HANDBACK).
    HandBack(HandBackCause),
    /// It goes back and the fault is counted as an attempt (NACK).
    Fault(String),
}

/// Why a holder gives a unit back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HandBackCause {
    /// The node has an interruption notice.
    Notice,
    /// The node is being drained for another reason.
    Drain,
    /// The agent ends (an upgrade) or ended earlier.
    AgentRestart,
    /// The engine will not serve it: not ready, paused too long, wrong weights.
    Engine,
    /// The weights rose and the group restarts under the new ones.
    Weights,
}

impl HandBackCause {
    /// The word on the wire and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Drain => "drain",
            Self::AgentRestart => "agent_restart",
            Self::Engine => "engine",
            Self::Weights => "weights",
        }
    }
}

/// The answer of a shard.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To [`Command::Enqueue`] and [`Command::FailGroup`].
    Write(WriteReply),
    /// To [`Command::Lease`].
    Lease(LeaseReply),
    /// To [`Command::Renew`]: the units whose lease is lost.
    Lost(Vec<UnitId>),
    /// To [`Command::Write`], in the order of the writes.
    Writes(Vec<WriteReply>),
    /// To [`Command::Reap`], [`Command::Reclaim`], [`Command::Acknowledge`] and
    /// [`Command::TakeOver`]: how many were affected.
    Count(u64),
    /// To [`Command::SetVersion`]: the version that now holds.
    Version(PolicyVersion),
    /// To [`Command::Take`].
    Taken(Vec<TakenGroup>),
    /// To [`Command::Status`].
    Status(Box<ShardStatus>),
    /// To [`Command::Scan`].
    Page(ScanPage),
    /// To [`Command::Failures`].
    Failures(Vec<GroupFailure>),
}

/// The answer to one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteReply {
    /// Done, or done before by this very write.
    Ok,
    /// The unit or group has ended, or this write was done before.
    AlreadyDone,
    /// Another holder or a newer token has the unit; nothing changed.
    Fenced,
    /// The tail does not begin where the stored tokens end; nothing changed.
    Offset(u32),
    /// No such unit.
    Unknown,
    /// Memory is short; nothing changed, try later.
    Busy,
    /// The chunk's weight version is lower than that of the tokens before it; nothing changed.
    BadVersion,
}

/// Units granted by one LEASE.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LeaseReply {
    /// The granted units.
    pub grants: Vec<Grant>,
    /// Where the next LEASE goes on when this one hit its scan limit with too few grants; 0 when
    /// the ready queue was seen to its end.
    pub resume_at: u64,
    /// The policy version that holds on the shard.
    pub current_version: PolicyVersion,
}

/// One granted unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// The unit.
    pub unit: UnitId,
    /// The token to write with.
    pub fencing_token: FencingToken,
    /// The group that it belongs to.
    pub group: std::sync::Arc<PromptGroup>,
    /// Tokens that earlier holders stored; empty for a fresh unit.
    pub partial: Vec<Chunk>,
    /// Model and engine faults so far.
    pub attempts: u16,
}

/// A sealed group in the hands of a trainer.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenGroup {
    /// The group.
    pub group: std::sync::Arc<PromptGroup>,
    /// Its complete samples, in the order of their slots.
    pub samples: Vec<ebbtide_core::work::Sample>,
    /// Slots without a sample (only of a group that may shrink).
    pub missing_slots: Vec<u16>,
    /// Whether it was handed to this trainer before and not acknowledged.
    pub is_redelivered: bool,
    /// The policy version when it was taken.
    pub taken_at_version: PolicyVersion,
}

/// Why a group failed, and what it had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFailure {
    /// Place of the record, for [`Command::Failures`].
    pub record_id: String,
    /// The group.
    pub group: GroupId,
    /// Why it failed: `dead`, `expired`, `stale`, or the text of FAIL_GROUP.
    pub reason: String,
    /// Slots in all.
    pub group_size: u16,
    /// Slots that were COMPLETED.
    pub completed: u16,
    /// Slots that were DEAD.
    pub dead: u16,
    /// Slots that were EXPIRED.
    pub expired: u16,
    /// Slots that became CANCELLED.
    pub cancelled: u16,
    /// The stored tokens that went to waste.
    pub tokens_wasted: u64,
}

/// Counters and depths of one shard, or summed over all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardStatus {
    /// Slots ever enqueued.
    pub enqueued: u64,
    /// Slots that ended COMPLETED.
    pub completed: u64,
    /// Slots that ended DEAD.
    pub dead: u64,
    /// Slots that ended EXPIRED.
    pub expired: u64,
    /// Slots that ended CANCELLED.
    pub cancelled: u64,
    /// Groups sealed.
    pub groups_sealed: u64,
    /// Groups failed, stale ones included.
    pub groups_failed: u64,
    /// Ready units.
    pub ready: u64,
    /// Leased units, expired ones that nobody reaped yet included.
    pub leased: u64,
    /// Sealed groups that no trainer has taken.
    pub sealed_waiting: u64,
    /// Sealed groups that a trainer has taken and not acknowledged.
    pub sealed_taken: u64,
    /// When the oldest ready unit was enqueued.
    pub oldest_ready_at: Option<UnixMillis>,
    /// Hand-backs by cause.
    pub hand_backs: std::collections::BTreeMap<String, u64>,
    /// Leases that ran out.
    pub lease_expiries: u64,
    /// Token counts.
    pub tokens: TokenCounts,
    /// Leased units per node.
    pub leased_by_node: std::collections::BTreeMap<NodeName, u64>,
    /// The policy version of the shard.
    pub version: PolicyVersion,
    /// The shard's clock when it answered.
    pub now: UnixMillis,
}

/// Every stored token, counted once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenCounts {
    /// Stored: appends and tails accepted.
    pub generated: u64,
    /// In sealed groups.
    pub accepted: u64,
    /// Of partials that a later holder continued from.
    pub preserved: u64,
    /// Thrown away, by cause.
    pub wasted: std::collections::BTreeMap<String, u64>,
}

impl TokenCounts {
    /// Thrown away, all causes together.
    pub fn wasted_total(&self) -> u64 {
        self.wasted.values().sum()
    }

    /// Stored, not yet sealed or thrown away.
    pub fn in_system(&self) -> u64 {
        self.generated.saturating_sub(self.accepted + self.wasted_total())
    }
}

/// The state of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// Ready to be leased.
    Enqueued,
    /// Leased, without a token of this lease yet.
    Leased,
    /// Leased, with tokens.
    Streaming,
    /// Final: it has its sample.
    Completed,
    /// Final: it used up its attempts.
    Dead,
    /// Final: it became too old.
    Expired,
    /// Final: its group ended before it.
    Cancelled,
}

impl SlotState {
    /// Whether the slot can still change.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Enqueued | Self::Leased | Self::Streaming)
    }

    /// Whether a holder has it.
    pub fn is_leased(self) -> bool {
        matches!(self, Self::Leased | Self::Streaming)
    }
}

/// One raw unit state, as an audit reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitSnapshot {
    /// The unit.
    pub unit: UnitId,
    /// Its state.
    pub state: SlotState,
    /// Stored tokens.
    pub tokens: u32,
    /// Who holds or last held it.
    pub holder: Option<Holder>,
    /// Its last fencing token.
    pub fencing_token: FencingToken,
    /// Model and engine faults.
    pub attempts: u16,
    /// Lost holders.
    pub infra_attempts: u16,
    /// Hand-backs.
    pub hand_backs: u16,
    /// Whether its group is sealed.
    pub is_sealed: bool,
}

/// One page of raw unit states.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanPage {
    /// Where to go on; 0 at the end.
    pub cursor: u64,
    /// The units of this page; a unit may appear in two pages when the shard changes meanwhile.
    pub units: Vec<UnitSnapshot>,
}
