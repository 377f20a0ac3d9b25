//! What is kept for operators: closing reports, which say what each drain came to, and the journal
//! of sizing.

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::time::UnixMillis;
use serde::{Deserialize, Serialize};

use super::DrainReason;

/// Closing reports that a run keeps, the newest ones.
pub const REPORTS_KEPT: usize = 1000;

/// How a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainOutcome {
    /// Everything was finished or handed back in time.
    Drained,
    /// The deadline passed with something still held; lease expiry brings it back.
    Overdue,
    /// It was taken back before it was done.
    Cancelled,
}

/// What one drain came to, as the agent that led it saw it. Durations count from its beginning
/// there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClosingReport {
    /// The request behind it.
    pub request_id: String,
    /// What was drained.
    pub replica: ReplicaId,
    /// Whose agent reports.
    pub node: NodeName,
    /// Why.
    pub reason: DrainReason,
    /// Kind of the notice that the node had, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// How it ended.
    pub outcome: DrainOutcome,
    /// When it began, on the server's clock.
    pub begun_at: UnixMillis,
    /// Time from its beginning to its deadline, in ms.
    pub lead_ms: u64,
    /// Units held when it began.
    pub units_held: u64,
    /// Units that finished meanwhile.
    pub units_finished: u64,
    /// Units handed back meanwhile.
    pub units_handed_back: u64,
    /// Units still held when the deadline passed.
    pub units_left: u64,
    /// Tokens that units handed back took with them.
    pub tokens_preserved: u64,
    /// Tokens received here that the queue never got.
    pub tokens_wasted: u64,
    /// Time until the last unit was handed back, in ms; none was: no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_hand_back_ms: Option<u64>,
    /// Time until nothing was held and no stream was open, in ms.
    pub duration_ms: u64,
    /// Nodes of the replica.
    pub nodes: u32,
    /// What these nodes cost in that time, by the policy's prices; no value when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
    /// When it was written, on the server's clock; set by the store.
    #[serde(default)]
    pub at: UnixMillis,
}

/// A line of the journal of sizing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLine {
    /// When it was written, on the server's clock.
    pub at: UnixMillis,
    /// The line.
    pub line: String,
}

impl ClosingReport {
    /// Names it: one report for each request and node.
    pub fn name(&self) -> String {
        format!("{}/{}", self.request_id, self.node)
    }
}
