//! What a shard answers.

use std::sync::Arc;

use ebbtide_core::ids::{FencingToken, GroupId, PolicyVersion, UnitId};
use ebbtide_core::sample::{Chunk, Finish, Sample};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;

#[allow(unused_imports, reason = "the documentation links to it")]
use crate::command::Command;
use crate::state::{Finding, GroupTrace, ScanPage, SlotSummary, UnitEvent, UnitSnapshot};
use crate::status::ShardStatus;

/// The answer of a shard.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To [`Command::Enqueue`], [`Command::Retry`], [`Command::Requeue`] and
    /// [`Command::FailGroup`].
    Write(WriteReply),
    /// To [`Command::Lease`].
    Lease(LeaseReply),
    /// To [`Command::Exchange`].
    Exchanged(Vec<WriteReply>, LeaseReply),
    /// To [`Command::Renew`]: the units whose lease is lost.
    Lost(Vec<UnitId>),
    /// To [`Command::Write`], in the order of the writes.
    Writes(Vec<WriteReply>),
    /// To [`Command::Reap`], [`Command::Reclaim`], [`Command::Acknowledge`],
    /// [`Command::TakeOver`], [`Command::RemoveConsumer`], [`Command::Held`] and
    /// [`Command::DropFailure`].
    Count(u64),
    /// To [`Command::CancelRun`]: where to go on, 0 at the end, and how many groups were ended.
    Cancelled(u64, u64),
    /// To [`Command::SetVersion`]: the version that now holds.
    Version(PolicyVersion),
    /// To [`Command::Take`].
    Taken(Vec<TakenGroup>),
    /// To [`Command::Status`].
    Status(Box<ShardStatus>),
    /// To [`Command::Scan`].
    Page(ScanPage),
    /// To [`Command::Peek`].
    Units(Vec<UnitSnapshot>),
    /// To [`Command::Trace`].
    Trace(Box<GroupTrace>),
    /// To [`Command::Failures`].
    Failures(Vec<Failure>),
    /// To [`Command::Audit`]: where to go on, 0 at the end of the part, and what was found.
    Findings(u64, Vec<Finding>),
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
    /// A score for a unit that is being generated, or tokens for one that is being scored; nothing
    /// changed.
    WrongStage,
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
    pub group: Arc<PromptGroup>,
    /// Tokens that earlier holders stored; empty for a fresh unit, the response to a scorer.
    pub partial: Vec<Chunk>,
    /// How the response ended; only a scorer is told.
    pub finish: Option<Finish>,
    /// Faults in this stage so far.
    pub attempts: u16,
}

/// A sealed group in the hands of a trainer.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenGroup {
    /// The group.
    pub group: Arc<PromptGroup>,
    /// Its complete samples, in the order of their slots.
    pub samples: Vec<Sample>,
    /// Slots without a sample (only of a group that may shrink).
    pub missing_slots: Vec<u16>,
    /// Whether it was handed to this trainer before and not acknowledged.
    pub is_redelivered: bool,
    /// The policy version when it was taken.
    pub taken_at_version: PolicyVersion,
}

/// Why a group failed, or a unit died in a group that goes on without it, and what there was.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// Place of the record, for [`Command::Failures`].
    pub record_id: String,
    /// When it happened; `None` when the record does not tell.
    pub failed_at: Option<UnixMillis>,
    /// The group.
    pub group: GroupId,
    /// Whether the group has ended with this; otherwise only the unit is dead.
    pub ends_group: bool,
    /// Why: `dead`, `expired`, `stale`, `too_few_samples`, `damaged`, or the text of FAIL_GROUP.
    pub reason: String,
    /// The unit that brought it about, if one did.
    pub culprit: Option<UnitId>,
    /// What its last holder said of the fault.
    pub detail: String,
    /// The life of that unit.
    pub history: Vec<UnitEvent>,
    /// Every slot as it was at the end.
    pub slots: Vec<SlotSummary>,
    /// The group as it was enqueued, to enqueue it again; `None` when it was lost.
    pub spec: Option<Arc<PromptGroup>>,
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
