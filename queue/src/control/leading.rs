//! What only the leading controller writes. Each write carries the generation of its leadership: as
//! soon as a newer leader has claimed anything, those of the older one change nothing.

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::ledger::Ledger;

use super::{LifecycleRecord, PurchaseRecord, StragglerRecord};

/// One write of the leader. Each may be repeated.
#[derive(Debug, Clone)]
pub enum LeaderWrite {
    /// Removes a node that was terminated for good, with its engines.
    RemoveNode(NodeName),
    /// Forgets the drain of a replica whose instances are gone.
    RemoveDrain(ReplicaId),
    /// Remembers a lifecycle action that is to be completed; the store sets when it was seen.
    PutLifecycle(LifecycleRecord),
    /// Forgets the lifecycle action of an instance.
    RemoveLifecycle(String),
    /// Names a replica that is slower than its peers; the store sets when.
    PutStraggler(StragglerRecord),
    /// Takes that back.
    RemoveStraggler(ReplicaId),
    /// Writes the savings ledger of the run.
    PutLedger(Box<Ledger>),
    /// Puts a purchase on record, or what came of it; the store sets when.
    PutPurchase(PurchaseRecord),
    /// Takes the purchase of this name off the record.
    RemovePurchase(String),
    /// Adds a line to the journal of sizing and keeps about so many, the newest ones.
    AddJournal {
        /// The line.
        line: String,
        /// How many lines are kept.
        kept: usize,
    },
}
