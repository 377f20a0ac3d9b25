//! What custom workers hold through this agent: sessions, leased units, and the counts.
//!
//! A synchronous state machine behind one lock ([`WorkerDesk`]), beside the ledger of the engines.
//! Nothing is kept back: tokens are in the queue before the worker is answered, so that what the
//! agent has acknowledged survives the agent. Invariants: a unit has one worker; it is written
//! either for its worker or by the agent itself, never both at a time; a unit that its worker does
//! not tend, or has to let go, goes back once, and that is repeated until the queue has answered.

mod desk;
mod jobs;
mod leasing;
mod leaving;
mod limits;
mod session;
mod tending;
mod unit;
mod view;
mod writing;

use std::collections::BTreeMap;

use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_queue::command::Waiting;
use tokio::time::Instant;

pub(crate) use desk::WorkerDesk;
pub(crate) use jobs::{Job, LeaseJob, LeaseOutcome, RenewJob, WriteJob, serve};
pub(crate) use leasing::LeaseCall;
pub(crate) use limits::*;
pub(crate) use session::{TooMany, WorkerName};
pub(crate) use tending::tend;
pub(crate) use unit::{Grants, LeaseKey};
pub(crate) use view::{NodeNotice, UnitState, UnitView, View, view};
pub(crate) use writing::{Answer, NewTokens, WorkerWrite};

use crate::ledger::AgentCounts;
use session::Session;
use unit::HeldUnit;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    sessions: BTreeMap<WorkerName, Session>,
    units: BTreeMap<UnitId, HeldUnit>,
    counts: AgentCounts,
    /// When a unit was last handed back.
    last_hand_back: Option<Instant>,
    /// The agent has ended: whoever listens is let go.
    is_closed: bool,
}

impl Workers {
    /// Units held, whatever their phase.
    pub(crate) fn held(&self) -> usize {
        self.units.len()
    }

    /// Units whose workers say that they wait for their environment; `None` while none is held.
    pub(crate) fn waiting_for_environment(&self) -> Option<u32> {
        let waits = |unit: &&HeldUnit| unit.waiting == Waiting::Environment;
        let waiting = self.units.values().filter(waits).count();
        (!self.units.is_empty()).then(|| u32::try_from(waiting).unwrap_or(u32::MAX))
    }

    /// No unit is on its way out, as far as its worker has said.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.units.values().all(HeldUnit::is_at_rest)
    }

    /// What happened so far.
    pub(crate) fn counts(&self) -> AgentCounts {
        self.counts.clone()
    }

    /// When a unit was last handed back.
    pub(crate) fn last_hand_back(&self) -> Option<Instant> {
        self.last_hand_back
    }

    /// The agent has ended.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// The workers that have a session, with their units and notice streams.
    pub(crate) fn census(&self) -> Vec<(WorkerName, usize, usize)> {
        let units = |name: &WorkerName| self.units.values().filter(|u| u.worker == *name).count();
        let sessions = self.sessions.iter();
        sessions.map(|(name, session)| (name.clone(), units(name), session.streams)).collect()
    }

    /// The unit, while this worker holds it under this token.
    fn own_unit(&mut self, worker: &WorkerName, key: &LeaseKey) -> Option<&mut HeldUnit> {
        let unit = self.units.get_mut(&key.unit)?;
        (unit.worker == *worker && unit.fencing_token == key.fencing_token).then_some(unit)
    }

    /// Drops a unit that others turned out to have.
    fn drop_lost(&mut self, id: &UnitId) {
        if self.units.remove(id).is_some() {
            self.counts.units_lost += 1;
        }
    }

    /// The queue says that the lease under `token` is lost. A write under way is left to its
    /// answer, and so is a unit that goes back already.
    pub(crate) fn lose(&mut self, id: &UnitId, token: FencingToken) -> bool {
        let is_meant = |unit: &&HeldUnit| unit.fencing_token == token && unit.is_at_rest();
        let is_lost = self.units.get(id).filter(is_meant).is_some();
        if is_lost {
            self.drop_lost(id);
        }
        is_lost
    }
}

#[cfg(test)]
mod tests;
