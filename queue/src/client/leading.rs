//! Writes of the leading controller. Each names the generation of its leadership; 0 stands for
//! operators, as in requests for drains.

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::ledger::Ledger;

use super::{Hint, QueueError, WorkQueue};
use crate::control::{
    ControlCommand, ControlReply, LeaderWrite, LifecycleRecord, PurchaseRecord, StragglerRecord,
};

impl WorkQueue {
    /// Claims an action for a generation of leadership; `false` when an equal claim was made
    /// before or a newer generation has claimed anything.
    ///
    /// # Errors
    /// No answer: then the action must not be carried out.
    pub async fn claim(&self, generation: u64, action: &str) -> Result<bool, QueueError> {
        let command = ControlCommand::Claim { generation, action: action.to_owned() };
        match self.port.control(command).await? {
            ControlReply::Claimed(is_granted) => Ok(is_granted),
            other => Err(QueueError::unexpected("a claim", &other)),
        }
    }

    /// Removes a node that was terminated for good.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn remove_node(&self, generation: u64, node: &NodeName) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::RemoveNode(node.clone())).await
    }

    /// Forgets the drain of a replica whose instances are gone, and wakes those that stay.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn remove_drain(
        &self,
        generation: u64,
        replica: &ReplicaId,
    ) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::RemoveDrain(replica.clone())).await?;
        self.port.wake(Hint::Control).await;
        Ok(())
    }

    /// Remembers a lifecycle action that is to be completed.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn put_lifecycle(
        &self,
        generation: u64,
        record: LifecycleRecord,
    ) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::PutLifecycle(record)).await
    }

    /// Forgets the lifecycle action of an instance.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn remove_lifecycle(
        &self,
        generation: u64,
        instance_id: &str,
    ) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::RemoveLifecycle(instance_id.to_owned())).await
    }

    /// Names a replica that is slower than its peers.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn put_straggler(
        &self,
        generation: u64,
        record: StragglerRecord,
    ) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::PutStraggler(record)).await
    }

    /// Takes back that a replica is slower than its peers.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn remove_straggler(
        &self,
        generation: u64,
        replica: &ReplicaId,
    ) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::RemoveStraggler(replica.clone())).await
    }

    /// Puts a purchase on record, or what came of it.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn put_purchase(
        &self,
        generation: u64,
        record: PurchaseRecord,
    ) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::PutPurchase(record)).await
    }

    /// Takes a purchase off the record.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn remove_purchase(&self, generation: u64, purchase: &str) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::RemovePurchase(purchase.to_owned())).await
    }

    /// Writes the savings ledger of the run.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn put_ledger(&self, generation: u64, ledger: Ledger) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::PutLedger(Box::new(ledger))).await
    }

    /// Adds a line to the journal of sizing, of which about `kept` lines are kept.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn add_journal(
        &self,
        generation: u64,
        line: String,
        kept: usize,
    ) -> Result<(), QueueError> {
        self.lead(generation, LeaderWrite::AddJournal { line, kept }).await
    }

    async fn lead(&self, generation: u64, write: LeaderWrite) -> Result<(), QueueError> {
        match self.port.control(ControlCommand::Lead { generation, write }).await? {
            ControlReply::Done => Ok(()),
            ControlReply::Outdated => Err(QueueError::outdated()),
            other => Err(QueueError::unexpected("done", &other)),
        }
    }
}
