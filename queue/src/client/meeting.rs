//! Calls on the control keys, by which agents, controller, trainer and operators meet.

use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::time::UnixMillis;

use super::{Hint, QueueError, WorkQueue};
use crate::control::{
    ClosingReport, ControlCommand, ControlReply, ControlView, DrainProgress, DrainRecord,
    DrainRequest, EngineRecord, HoldRecord, JournalLine, NodeRecord, PurchaseBook, ReplicaView,
    ResizeConfirmation, ResizeRecord, TrainerRecord,
};

impl WorkQueue {
    /// Everything the control keys say.
    ///
    /// # Errors
    /// No answer.
    pub async fn view(&self) -> Result<ControlView, QueueError> {
        match self.port.control(ControlCommand::Read).await? {
            ControlReply::View(view) => Ok(*view),
            other => Err(QueueError::unexpected("the control keys", &other)),
        }
    }

    /// What the control keys say to one replica, but for its nodes: cheap in a run of any size.
    ///
    /// # Errors
    /// No answer.
    pub async fn replica_view(&self, replica: &ReplicaId) -> Result<ReplicaView, QueueError> {
        match self.port.control(ControlCommand::ReadReplica(replica.clone())).await? {
            ControlReply::Replica(view) => Ok(*view),
            other => Err(QueueError::unexpected("the control keys", &other)),
        }
    }

    /// Gives the store this name, unless it has one; answers the name that holds.
    ///
    /// # Errors
    /// No answer.
    pub async fn name_store(&self, name: &str) -> Result<String, QueueError> {
        match self.port.control(ControlCommand::NameStore(name.to_owned())).await? {
            ControlReply::Store(name) => Ok(name),
            other => Err(QueueError::unexpected("the name of the store", &other)),
        }
    }

    /// The name of the store, and the purchases on record.
    ///
    /// # Errors
    /// No answer.
    pub async fn purchases(&self) -> Result<PurchaseBook, QueueError> {
        match self.port.control(ControlCommand::ReadPurchases).await? {
            ControlReply::Purchases(book) => Ok(*book),
            other => Err(QueueError::unexpected("the purchases", &other)),
        }
    }

    /// Writes a node's record.
    ///
    /// # Errors
    /// No answer.
    pub async fn put_node(&self, record: NodeRecord) -> Result<(), QueueError> {
        self.tell(ControlCommand::PutNode(Box::new(record))).await
    }

    /// Writes a node's record, and wakes all agents: it has news for another node of the replica.
    ///
    /// # Errors
    /// No answer.
    pub async fn announce_node(&self, record: NodeRecord) -> Result<(), QueueError> {
        self.put_node(record).await?;
        self.port.wake(Hint::Control).await;
        Ok(())
    }

    /// Writes an engine's record.
    ///
    /// # Errors
    /// No answer.
    pub async fn put_engine(&self, record: EngineRecord) -> Result<(), QueueError> {
        self.tell(ControlCommand::PutEngine(Box::new(record))).await
    }

    /// Writes the trainer's report.
    ///
    /// # Errors
    /// No answer.
    pub async fn put_trainer(&self, record: TrainerRecord) -> Result<(), QueueError> {
        self.tell(ControlCommand::PutTrainer(record)).await
    }

    /// Asks the trainer for a checkpoint at its next safe point; answers the moment of the request,
    /// on the server's clock. A confirmation of that moment or a later one answers it.
    ///
    /// # Errors
    /// No answer.
    pub async fn request_checkpoint(&self) -> Result<UnixMillis, QueueError> {
        let reply = self.port.control(ControlCommand::RequestCheckpoint).await?;
        self.port.wake(Hint::Control).await;
        match reply {
            ControlReply::Requested(moment) => Ok(moment),
            other => Err(QueueError::unexpected("a request for a checkpoint", &other)),
        }
    }

    /// Says, for the trainer, that it has carried out the request of this moment.
    ///
    /// # Errors
    /// No answer.
    pub async fn confirm_checkpoint(&self, request: UnixMillis) -> Result<(), QueueError> {
        self.tell(ControlCommand::ConfirmCheckpoint(request)).await?;
        self.port.wake(Hint::Control).await;
        Ok(())
    }

    /// Asks the trainer for another size, as the leader of this generation; answers the request
    /// that holds now. The size that is asked for already is not asked for anew.
    ///
    /// # Errors
    /// No answer, the writer's leadership is over, or `size` is 0.
    pub async fn request_resize(&self, leader: u64, size: u32) -> Result<ResizeRecord, QueueError> {
        let holds = self.resize(ControlCommand::RequestResize { leader, size }).await?;
        if holds.size != Some(size) {
            let problem = match size {
                0 => "a trainer of no nodes is none; it was asked for nothing",
                _ => "a newer leader has taken over; the trainer was asked for nothing",
            };
            return Err(QueueError::Protocol { problem: problem.to_owned() });
        }
        Ok(holds)
    }

    /// Says, for the trainer and between two updates, that what it was asked for may happen now.
    /// `false` when that request is not the one that holds, or another trainer reports: nothing has
    /// changed, and the trainer goes on as it was.
    ///
    /// # Errors
    /// No answer: say it again.
    pub async fn confirm_resize(&self, said: ResizeConfirmation) -> Result<bool, QueueError> {
        let (generation, incarnation) = (said.generation, said.incarnation.clone());
        let holds = self.resize(ControlCommand::ConfirmResize(said)).await?;
        let is_taken = holds.generation == generation && holds.confirmed == generation;
        Ok(is_taken && holds.confirmed_by == incarnation)
    }

    /// Whether what the trainer has left under this request may be terminated now, by the leader of
    /// generation `leader`: its word holds, it has not started again, and was heard within
    /// `silence_limit`. Asked right before it is done.
    ///
    /// # Errors
    /// No answer.
    pub async fn may_release(
        &self,
        leader: u64,
        generation: u64,
        silence_limit: Duration,
    ) -> Result<bool, QueueError> {
        let command = ControlCommand::ReleaseResize { leader, generation, silence_limit };
        match self.port.control(command).await? {
            ControlReply::MayRelease(may) => Ok(may),
            other => Err(QueueError::unexpected("what the trainer has left", &other)),
        }
    }

    /// Ends a request to the trainer, carried out or not, as the leader of generation `leader`;
    /// `how` says in a word how it ended.
    ///
    /// # Errors
    /// No answer.
    pub async fn end_resize(
        &self,
        leader: u64,
        generation: u64,
        how: &str,
    ) -> Result<(), QueueError> {
        let how = how.to_owned();
        self.resize(ControlCommand::EndResize { leader, generation, how }).await?;
        Ok(())
    }

    async fn resize(&self, command: ControlCommand) -> Result<ResizeRecord, QueueError> {
        let reply = self.port.control(command).await?;
        self.port.wake(Hint::Control).await;
        match reply {
            ControlReply::Resize(record) => Ok(record),
            other => Err(QueueError::unexpected("the trainer's size", &other)),
        }
    }

    /// Keeps a closing report; one for the same request and node is kept once.
    ///
    /// # Errors
    /// No answer.
    pub async fn add_report(&self, report: ClosingReport) -> Result<(), QueueError> {
        self.tell(ControlCommand::AddReport(Box::new(report))).await
    }

    /// The newest closing reports, at most `limit`, the newest first.
    ///
    /// # Errors
    /// No answer.
    pub async fn reports(&self, limit: usize) -> Result<Vec<ClosingReport>, QueueError> {
        match self.port.control(ControlCommand::ReadReports(limit)).await? {
            ControlReply::Reports(reports) => Ok(reports),
            other => Err(QueueError::unexpected("closing reports", &other)),
        }
    }

    /// The newest lines of the journal of sizing, at most `limit`, the newest first.
    ///
    /// # Errors
    /// No answer.
    pub async fn journal(&self, limit: usize) -> Result<Vec<JournalLine>, QueueError> {
        match self.port.control(ControlCommand::ReadJournal(limit)).await? {
            ControlReply::Journal(lines) => Ok(lines),
            other => Err(QueueError::unexpected("the journal", &other)),
        }
    }

    /// Ends the hold of a role.
    ///
    /// # Errors
    /// No answer.
    pub async fn remove_hold(&self, role: &str) -> Result<(), QueueError> {
        self.tell(ControlCommand::RemoveHold(role.to_owned())).await
    }

    /// Holds a role.
    ///
    /// # Errors
    /// No answer.
    pub async fn put_hold(&self, record: HoldRecord) -> Result<(), QueueError> {
        self.tell(ControlCommand::PutHold(record)).await
    }

    /// Says that somebody reaps expired leases now.
    ///
    /// # Errors
    /// No answer.
    pub async fn beat_reaper(&self) -> Result<(), QueueError> {
        self.tell(ControlCommand::BeatReaper).await
    }

    /// Asks for a drain and wakes the replica's agents; answers what holds now.
    ///
    /// # Errors
    /// No answer, or the writer's leadership is over.
    pub async fn request_drain(&self, request: DrainRequest) -> Result<DrainRecord, QueueError> {
        let reply = self.port.control(ControlCommand::RequestDrain(request)).await?;
        self.port.wake(Hint::Control).await;
        match reply {
            ControlReply::Drain(Some(record)) => Ok(record),
            ControlReply::Drain(None) => Err(QueueError::outdated()),
            other => Err(QueueError::unexpected("the drain", &other)),
        }
    }

    /// Reports progress of a drain; answers what holds now, `None` when there is no such drain.
    /// The report was taken exactly when the answer carries its state.
    ///
    /// # Errors
    /// No answer.
    pub async fn report_drain(
        &self,
        progress: DrainProgress,
    ) -> Result<Option<DrainRecord>, QueueError> {
        let reply = self.port.control(ControlCommand::ReportDrain(progress)).await?;
        self.port.wake(Hint::Control).await;
        match reply {
            ControlReply::Drain(record) => Ok(record),
            other => Err(QueueError::unexpected("the drain", &other)),
        }
    }

    async fn tell(&self, command: ControlCommand) -> Result<(), QueueError> {
        match self.port.control(command).await? {
            ControlReply::Done => Ok(()),
            other => Err(QueueError::unexpected("done", &other)),
        }
    }
}
