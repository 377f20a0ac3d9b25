//! The raw state of units and groups, for audits and operators.

use std::sync::Arc;

use ebbtide_core::ids::{FencingToken, Holder, UnitId};
use ebbtide_core::sample::Chunk;
use ebbtide_core::staleness::PartialVersions;
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;

use crate::command::Stage;

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
    /// What is done, or to be done, with it.
    pub stage: Stage,
    /// Stored tokens.
    pub tokens: u32,
    /// The weights of its first and its last token.
    pub versions: Option<PartialVersions>,
    /// Who holds or last held it.
    pub holder: Option<Holder>,
    /// Its last fencing token.
    pub fencing_token: FencingToken,
    /// Model, engine and scorer faults.
    pub attempts: u16,
    /// Lost holders.
    pub infra_attempts: u16,
    /// Hand-backs.
    pub hand_backs: u16,
    /// Whether its group is sealed.
    pub is_sealed: bool,
    /// When its group was enqueued.
    pub enqueued_at: UnixMillis,
    /// When it was leased last, if it ever was.
    pub leased_at: Option<UnixMillis>,
    /// When its lease ends, if it has one.
    pub lease_deadline: Option<UnixMillis>,
}

/// One page of raw unit states.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanPage {
    /// Where to go on; 0 at the end.
    pub cursor: u64,
    /// The units of this page; a unit may appear in two pages when the shard changes meanwhile.
    pub units: Vec<UnitSnapshot>,
}

/// One event in the life of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UnitEvent {
    /// When, on the queue's clock.
    pub at: UnixMillis,
    /// `handed_back`, `fault`, `lease_expired`, `restarted`, `generated`, `dead`, `expired`,
    /// `stale` or `damaged`.
    pub what: String,
    /// The text of a fault; of a hand-back its cause and the drain behind it, as
    /// [`DrainBehind::of_detail`](crate::command::DrainBehind::of_detail) reads them.
    pub detail: String,
    /// Who held it then, or had held it last.
    pub holder: Option<Holder>,
    /// The fencing token of that lease.
    pub fencing_token: FencingToken,
    /// Tokens that it had.
    pub tokens: u32,
}

/// A slot at the end of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSummary {
    /// Its state.
    pub state: SlotState,
    /// Stored tokens.
    pub tokens: u32,
    /// Model, engine and scorer faults.
    pub attempts: u16,
    /// Lost holders.
    pub infra_attempts: u16,
    /// Hand-backs.
    pub hand_backs: u16,
    /// Who held it last.
    pub holder: Option<Holder>,
}

/// Everything that a shard knows of a group.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupTrace {
    /// The group as it was enqueued; `None` when it has ended or never was.
    pub spec: Option<Arc<PromptGroup>>,
    /// Its units, in the order of their slots.
    pub units: Vec<UnitTrace>,
    /// Until when the ended group is remembered.
    pub forgotten_at: Option<UnixMillis>,
}

/// The life of one unit.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitTrace {
    /// How it stands.
    pub unit: UnitSnapshot,
    /// Its tokens: each chunk says who made it, when, and under which weights.
    pub chunks: Vec<Chunk>,
    /// What befell it between, oldest first; of a long life the first and the last events.
    pub history: Vec<UnitEvent>,
}

/// Something that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The unit, group, field or node.
    pub subject: String,
    /// What is wrong with it.
    pub problem: String,
}
