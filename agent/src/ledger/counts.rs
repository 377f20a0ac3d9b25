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
    /// Tokens received from engines and custom workers.
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
    /// Tokens that units had when they were leased, at each lease again.
    pub tokens_continued: u64,
}

impl AgentCounts {
    /// What two parts of an agent have done together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.units_leased += other.units_leased;
        self.units_completed += other.units_completed;
        self.units_faulted += other.units_faulted;
        for (cause, units) in other.units_handed_back {
            *self.units_handed_back.entry(cause).or_default() += units;
        }
        self.units_lost += other.units_lost;
        self.tokens_received += other.tokens_received;
        self.tokens_stored += other.tokens_stored;
        self.tokens_waiting += other.tokens_waiting;
        self.tokens_dropped += other.tokens_dropped;
        self.tokens_handed_back += other.tokens_handed_back;
        self.tokens_continued += other.tokens_continued;
        self
    }

    /// Units handed back, all causes together.
    pub fn handed_back_total(&self) -> u64 {
        self.units_handed_back.values().sum()
    }
}
