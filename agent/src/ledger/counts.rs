//! What an agent has done, as numbers. They only rise, but for the tokens that wait.

use std::collections::BTreeMap;

use ebbtide_queue::command::HandBackCause;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Units granted to this agent.
    pub units_leased: u64,
    /// Units that it completed.
    pub units_completed: u64,
    /// Units that it gave back because of a model or engine fault.
    pub units_faulted: u64,
    /// Units that it handed back, by cause.
    pub units_handed_back: BTreeMap<HandBackCause, u64>,
    /// Units that others took over because the lease was lost.
    pub units_lost: u64,
    /// Tokens received from engines.
    pub tokens_received: u64,
    /// Tokens that the queue has acknowledged.
    pub tokens_stored: u64,
    /// Tokens received and neither stored nor dropped yet: what a kill at this moment costs.
    pub tokens_waiting: u64,
    /// Tokens received and thrown away, because the unit was no longer held here.
    pub tokens_dropped: u64,
    /// Tokens that units took with them when they were handed back, those of earlier holders
    /// included.
    pub tokens_handed_back: u64,
    /// Tokens of earlier holders from which this agent went on.
    pub tokens_continued: u64,
}

impl AgentCounts {
    /// Units handed back, all causes together.
    pub fn handed_back_total(&self) -> u64 {
        self.units_handed_back.values().sum()
    }
}
