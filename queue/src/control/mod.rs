//! Where agents, controller, trainer and operators meet: the control keys of a run.
//!
//! [`ControlCommand`] says everything that can be asked, [`MemoryControl`] carries it out in
//! memory and [`crate::redis`] on Redis; the keys are the truth, the wake channel is a hint.

mod drains;
mod fields;
mod leading;
mod memory;
mod purchases;
mod records;
mod reports;
mod resize;

use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::ledger::Ledger;
use ebbtide_core::time::UnixMillis;

pub use drains::{DrainProgress, DrainReason, DrainRecord, DrainRequest, DrainState, NodeNames};
pub use ebbtide_core::observation::TrainerPhase;
pub use fields::{FieldError, Fields, from_fields, to_fields};
pub use leading::LeaderWrite;
pub use memory::MemoryControl;
pub use purchases::{InstanceIds, PurchaseBook, PurchaseRecord, StoreRecord};
pub use records::{
    CheckpointRecord, EngineRecord, HoldRecord, LifecycleRecord, NodeRecord, NodeRole, NodeState,
    StragglerRecord, TrainerRecord, VersionRecord,
};
pub use reports::{ClosingReport, DrainOutcome, JournalLine, REPORTS_KEPT};
pub use resize::{ResizeConfirmation, ResizeRecord};

/// One operation on the control keys. Each may be repeated.
#[derive(Debug, Clone)]
pub enum ControlCommand {
    /// Writes a node's record; the store sets its heartbeat.
    PutNode(Box<NodeRecord>),
    /// Writes an engine's record; the store sets its heartbeat.
    PutEngine(Box<EngineRecord>),
    /// Writes the trainer's report; the store sets its heartbeat.
    PutTrainer(TrainerRecord),
    /// Asks the trainer for a checkpoint at its next safe point.
    RequestCheckpoint,
    /// Says that the trainer has carried out the request of this moment.
    ConfirmCheckpoint(UnixMillis),
    /// Asks the trainer for another size. A leader older than the newest that claimed anything is
    /// refused.
    RequestResize {
        /// Generation of the writer's leadership.
        leader: u64,
        /// Nodes that the trainer shall run on.
        size: u32,
    },
    /// Says, between two updates, that what was asked for may happen now; the store sets the
    /// trainer's heartbeat. Of another request or size, or by another trainer than the one that
    /// reports, it changes nothing.
    ConfirmResize(ResizeConfirmation),
    /// Asks, right before it is done, whether what the trainer has left may be terminated.
    ReleaseResize {
        /// Generation of the writer's leadership.
        leader: u64,
        /// The request.
        generation: u64,
        /// A trainer that has been silent for longer may have started again.
        silence_limit: Duration,
    },
    /// Ends the request of this generation, carried out or not; refused as a request is.
    EndResize {
        /// Generation of the writer's leadership.
        leader: u64,
        /// The request.
        generation: u64,
        /// How, in a word.
        how: String,
    },
    /// Publishes a policy version; a lower one changes nothing.
    PutVersion(VersionRecord),
    /// Holds a role; a hold that has ended is forgotten.
    PutHold(HoldRecord),
    /// Ends the hold of a role.
    RemoveHold(String),
    /// Adds a closing report; one of the same name changes nothing.
    AddReport(Box<ClosingReport>),
    /// Reads the newest closing reports, at most so many.
    ReadReports(usize),
    /// Reads the newest lines of the journal of sizing, at most so many.
    ReadJournal(usize),
    /// Asks for a drain. A leader older than the newest that claimed anything is refused.
    RequestDrain(DrainRequest),
    /// Reports progress of a drain, or cancels it; refused as a request is.
    ReportDrain(DrainProgress),
    /// Says that somebody reaps expired leases now.
    BeatReaper,
    /// Claims an action for a generation of leadership, before it is carried out where nothing
    /// refuses an older generation.
    Claim {
        /// The claiming leader's generation.
        generation: u64,
        /// Names the action; claimed once.
        action: String,
    },
    /// Writes what only the leader writes.
    Lead {
        /// The writing leader's generation, or 0 of an operator. One that is older than the newest
        /// that claimed anything is refused.
        generation: u64,
        /// What to write.
        write: LeaderWrite,
    },
    /// Gives the store this name, unless it has one.
    NameStore(String),
    /// Reads the name of the store and the purchases on record.
    ReadPurchases,
    /// Reads everything.
    Read,
    /// Reads what concerns one replica, but for its nodes.
    ReadReplica(ReplicaId),
}

/// The answer to a [`ControlCommand`].
#[derive(Debug, Clone, PartialEq)]
pub enum ControlReply {
    /// Done.
    Done,
    /// To drain commands: what holds now; `None` when there is no such drain, and to a request that
    /// was refused.
    Drain(Option<DrainRecord>),
    /// To [`ControlCommand::RequestCheckpoint`]: the moment of this request.
    Requested(UnixMillis),
    /// To commands about the trainer's size: what holds now.
    Resize(ResizeRecord),
    /// To [`ControlCommand::ReleaseResize`]: whether it may.
    MayRelease(bool),
    /// To [`ControlCommand::Claim`]: whether the claim was granted.
    Claimed(bool),
    /// To [`ControlCommand::Lead`]: a newer leader has claimed something; nothing was written.
    Outdated,
    /// To [`ControlCommand::ReadReports`]: the newest first.
    Reports(Vec<ClosingReport>),
    /// To [`ControlCommand::ReadJournal`]: the newest first.
    Journal(Vec<JournalLine>),
    /// To [`ControlCommand::NameStore`]: the name that holds.
    Store(String),
    /// To [`ControlCommand::ReadPurchases`].
    Purchases(Box<PurchaseBook>),
    /// To [`ControlCommand::Read`].
    View(Box<ControlView>),
    /// To [`ControlCommand::ReadReplica`].
    Replica(Box<ReplicaView>),
}

/// Everything the control keys say, at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ControlView {
    /// The store's clock.
    pub now: UnixMillis,
    /// All nodes that ever reported and were not removed.
    pub nodes: Vec<NodeRecord>,
    /// All drains.
    pub drains: Vec<DrainRecord>,
    /// All engines.
    pub engines: Vec<EngineRecord>,
    /// Holds that have not ended.
    pub holds: Vec<HoldRecord>,
    /// Lifecycle actions that wait for their completion.
    pub lifecycles: Vec<LifecycleRecord>,
    /// Replicas that are slower than their peers.
    pub stragglers: Vec<StragglerRecord>,
    /// The trainer, once it reported.
    pub trainer: Option<TrainerRecord>,
    /// The checkpoint that the trainer was asked for.
    pub checkpoint: CheckpointRecord,
    /// The size that the trainer was asked for.
    pub resize: ResizeRecord,
    /// The published policy version; version 0 before the first.
    pub version: VersionRecord,
    /// When somebody last reaped.
    pub reaper_beat: Option<UnixMillis>,
    /// What the run has cost, once a controller has counted.
    pub ledger: Option<Ledger>,
    /// The store's name, once it was asked for.
    pub store: Option<StoreRecord>,
    /// Purchases that were not answered, or whose nodes do not show yet.
    pub purchases: Vec<PurchaseRecord>,
}

/// What the control keys say to one replica, at one moment. Reading it costs the same however many
/// nodes the run has: every agent does so each second.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaView {
    /// The store's clock.
    pub now: UnixMillis,
    /// The replica.
    pub replica: ReplicaId,
    /// Its drain, if there is one.
    pub drain: Option<DrainRecord>,
    /// Whether it is slower than its peers.
    pub straggler: Option<StragglerRecord>,
    /// The checkpoint that the trainer was asked for.
    pub checkpoint: CheckpointRecord,
    /// The published policy version; version 0 before the first.
    pub version: VersionRecord,
    /// When somebody last reaped.
    pub reaper_beat: Option<UnixMillis>,
    /// Its nodes; none when they were not read, which costs more.
    pub members: Option<Vec<NodeRecord>>,
}

impl ControlView {
    /// What of it concerns one replica.
    pub fn into_replica(self, replica: ReplicaId) -> ReplicaView {
        ReplicaView {
            now: self.now,
            drain: self.drains.into_iter().find(|drain| drain.replica == replica),
            straggler: self.stragglers.into_iter().find(|named| named.replica == replica),
            members: Some(self.nodes.into_iter().filter(|n| n.replica == replica).collect()),
            replica,
            checkpoint: self.checkpoint,
            version: self.version,
            reaper_beat: self.reaper_beat,
        }
    }

    /// What of it concerns purchases.
    pub fn into_purchases(self) -> PurchaseBook {
        PurchaseBook { now: self.now, store: self.store, purchases: self.purchases }
    }

    /// Nodes that stand idle although they stay, since their EP group lost another one, and for how
    /// long; the longest first. Those that have been silent for longer than `silence_limit` are
    /// unknown, not idle.
    pub fn idle_survivors(&self, silence_limit: Duration) -> Vec<(&NodeRecord, Duration)> {
        let is_heard = |node: &&NodeRecord| self.now.since(node.heartbeat) <= silence_limit;
        let idle = |node: &'_ NodeRecord| Some(self.now.since(node.idle_since?));
        let idle = self.nodes.iter().filter(is_heard).filter_map(|node| Some((node, idle(node)?)));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.node.cmp(&b.0.node)));
        idle
    }

    /// The drain of a replica, if there is one that was not cancelled.
    pub fn active_drain(&self, replica: &ReplicaId) -> Option<&DrainRecord> {
        self.drains
            .iter()
            .find(|drain| drain.replica == *replica && drain.state != DrainState::Cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivors_that_stand_idle_are_told_the_longest_first_and_silent_ones_are_not() {
        let now = UnixMillis(100_000);
        let node = |name: &str, idle_s: Option<u64>, silence_s| {
            let holder = format!("{name}/b/agent-p").parse().expect("valid");
            NodeRecord {
                idle_since: idle_s.map(|seconds| now.minus(Duration::from_secs(seconds))),
                heartbeat: now.minus(Duration::from_secs(silence_s)),
                ..NodeRecord::new(holder, NodeState::Drained)
            }
        };
        let nodes = vec![
            node("a", Some(5), 1),
            node("b", Some(30), 10),
            node("c", None, 0),
            node("d", Some(60), 11),
            node("e", Some(5), 0),
        ];
        let view = ControlView { now, nodes, ..ControlView::default() };
        let idle = view.idle_survivors(Duration::from_secs(10));
        let told = idle.iter().map(|(node, time)| (node.node.as_str(), time.as_secs()));
        let told: Vec<_> = told.collect();
        assert_eq!(told, [("b", 30), ("a", 5), ("e", 5)]);
    }
}
