//! The control keys in memory: a synchronous state machine, for the demo and the simulator.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::ledger::Ledger;
use ebbtide_core::time::UnixMillis;

use super::{
    CheckpointRecord, ClosingReport, ControlCommand, ControlReply, ControlView, DrainProgress,
    DrainRecord, DrainRequest, EngineRecord, HoldRecord, JournalLine, LeaderWrite, LifecycleRecord,
    NodeRecord, PurchaseRecord, REPORTS_KEPT, ReplicaView, ResizeConfirmation, ResizeRecord,
    StoreRecord, StragglerRecord, TrainerRecord, VersionRecord,
};

/// The control keys of one run.
#[derive(Debug, Default)]
pub struct MemoryControl {
    nodes: BTreeMap<NodeName, NodeRecord>,
    engines: BTreeMap<(ReplicaId, u16), EngineRecord>,
    drains: BTreeMap<ReplicaId, DrainRecord>,
    holds: BTreeMap<String, HoldRecord>,
    lifecycles: BTreeMap<String, LifecycleRecord>,
    stragglers: BTreeMap<ReplicaId, StragglerRecord>,
    reports: VecDeque<ClosingReport>,
    journal: VecDeque<JournalLine>,
    claims: BTreeSet<String>,
    newest_claim: u64,
    trainer: Option<TrainerRecord>,
    checkpoint: CheckpointRecord,
    resize: ResizeRecord,
    version: VersionRecord,
    reaper_beat: Option<UnixMillis>,
    ledger: Option<Ledger>,
    store: Option<StoreRecord>,
    purchases: BTreeMap<String, PurchaseRecord>,
}

impl MemoryControl {
    /// Carries out one command at `now`, the store's own clock.
    pub fn apply(&mut self, command: &ControlCommand, now: UnixMillis) -> ControlReply {
        match command {
            ControlCommand::PutNode(record) => {
                let record = NodeRecord { heartbeat: now, ..(**record).clone() };
                self.nodes.insert(record.node.clone(), record);
            }
            ControlCommand::PutEngine(record) => {
                let record = EngineRecord { heartbeat: now, ..(**record).clone() };
                self.engines.insert((record.replica.clone(), record.index), record);
            }
            ControlCommand::PutTrainer(record) => {
                let before = self.trainer.take();
                let (nodes, incarnation) =
                    before.map_or((None, None), |before| (before.nodes, before.incarnation));
                self.trainer = Some(TrainerRecord {
                    nodes: record.nodes.or(nodes),
                    incarnation: record.incarnation.clone().or(incarnation),
                    heartbeat: now,
                    ..record.clone()
                });
            }
            ControlCommand::RequestCheckpoint => {
                self.checkpoint.requested = Some(now);
                return ControlReply::Requested(now);
            }
            ControlCommand::ConfirmCheckpoint(request) => {
                self.checkpoint.confirmed = self.checkpoint.confirmed.max(Some(*request));
            }
            ControlCommand::RequestResize { leader, size } => {
                if !self.is_outdated(*leader) {
                    self.resize = self.resize.request(*size, now);
                }
                return ControlReply::Resize(self.resize.clone());
            }
            ControlCommand::ConfirmResize(said) => {
                self.confirm_resize(said, now);
                return ControlReply::Resize(self.resize.clone());
            }
            ControlCommand::ReleaseResize { leader, generation, silence_limit } => {
                let may =
                    |trainer| self.resize.may_release(*generation, trainer, *silence_limit, now);
                let may = self.trainer.as_ref().is_some_and(may);
                return ControlReply::MayRelease(may && !self.is_outdated(*leader));
            }
            ControlCommand::EndResize { leader, generation, how } => {
                if !self.is_outdated(*leader) {
                    self.resize = self.resize.end(*generation, how, now);
                }
                return ControlReply::Resize(self.resize.clone());
            }
            ControlCommand::PutVersion(record) => {
                if record.version > self.version.version {
                    self.version = VersionRecord { published_at: now, ..record.clone() };
                }
            }
            ControlCommand::PutHold(hold) => {
                self.holds.insert(hold.role.clone(), hold.clone());
            }
            ControlCommand::RemoveHold(role) => {
                self.holds.remove(role);
            }
            ControlCommand::AddReport(report) => self.add_report(report, now),
            ControlCommand::ReadReports(limit) => {
                return ControlReply::Reports(self.reports.iter().take(*limit).cloned().collect());
            }
            ControlCommand::ReadJournal(limit) => {
                return ControlReply::Journal(self.journal.iter().take(*limit).cloned().collect());
            }
            ControlCommand::RequestDrain(request) => return self.request_drain(request, now),
            ControlCommand::ReportDrain(progress) => return self.report_drain(progress),
            ControlCommand::BeatReaper => self.reaper_beat = Some(now),
            ControlCommand::Claim { generation, action } => {
                return ControlReply::Claimed(self.claim(*generation, action));
            }
            ControlCommand::Lead { generation, .. } if self.is_outdated(*generation) => {
                return ControlReply::Outdated;
            }
            ControlCommand::Lead { write, .. } => self.lead(write, now),
            ControlCommand::NameStore(name) => {
                let name = || StoreRecord { name: name.clone(), named_at: now };
                return ControlReply::Store(self.store.get_or_insert_with(name).name.clone());
            }
            ControlCommand::ReadPurchases => {
                return ControlReply::Purchases(Box::new(self.view(now).into_purchases()));
            }
            ControlCommand::Read => return ControlReply::View(Box::new(self.view(now))),
            ControlCommand::ReadReplica(replica) => {
                let view = self.view(now).into_replica(replica.clone());
                return ControlReply::Replica(Box::new(ReplicaView { members: None, ..view }));
            }
        }
        ControlReply::Done
    }

    fn lead(&mut self, write: &LeaderWrite, now: UnixMillis) {
        match write {
            LeaderWrite::RemoveNode(node) => self.remove_node(node),
            LeaderWrite::RemoveDrain(replica) => {
                self.drains.remove(replica);
            }
            LeaderWrite::PutLifecycle(record) => {
                let record = LifecycleRecord { seen_at: now, ..record.clone() };
                self.lifecycles.insert(record.instance_id.clone(), record);
            }
            LeaderWrite::RemoveLifecycle(instance_id) => {
                self.lifecycles.remove(instance_id);
            }
            LeaderWrite::PutStraggler(record) => {
                let record = StragglerRecord { named_at: now, ..record.clone() };
                self.stragglers.insert(record.replica.clone(), record);
            }
            LeaderWrite::RemoveStraggler(replica) => {
                self.stragglers.remove(replica);
            }
            LeaderWrite::PutPurchase(record) => {
                let record = PurchaseRecord { noted_at: now, ..record.clone() };
                self.purchases.insert(record.purchase.clone(), record);
            }
            LeaderWrite::RemovePurchase(purchase) => {
                self.purchases.remove(purchase);
            }
            LeaderWrite::PutLedger(ledger) => self.ledger = Some(**ledger),
            LeaderWrite::AddJournal { line, kept } => {
                self.journal.push_front(JournalLine { at: now, line: line.clone() });
                self.journal.truncate(*kept);
            }
        }
    }

    fn add_report(&mut self, report: &ClosingReport, now: UnixMillis) {
        if self.reports.iter().any(|known| known.name() == report.name()) {
            return;
        }
        self.reports.push_front(ClosingReport { at: now, ..report.clone() });
        self.reports.truncate(REPORTS_KEPT);
    }

    fn confirm_resize(&mut self, said: &ResizeConfirmation, now: UnixMillis) {
        let speaker = self.trainer.as_ref().and_then(|trainer| trainer.incarnation.as_ref());
        let Some(confirmed) = self.resize.confirm(said, speaker) else { return };
        self.resize = confirmed;
        if let Some(trainer) = &mut self.trainer {
            trainer.heartbeat = now;
            if !said.released.is_empty() {
                trainer.nodes = Some(said.size);
            }
        }
    }

    fn remove_node(&mut self, node: &NodeName) {
        let Some(record) = self.nodes.remove(node) else { return };
        let is_last = !self.nodes.values().any(|other| other.replica == record.replica);
        if is_last {
            self.engines.retain(|(replica, _), _| *replica != record.replica);
        }
    }

    fn request_drain(&mut self, request: &DrainRequest, now: UnixMillis) -> ControlReply {
        let before = self.drains.get(&request.replica);
        if self.is_outdated(request.generation) {
            return ControlReply::Drain(None);
        }
        let merged = request.merge(before, now);
        self.drains.insert(request.replica.clone(), merged.clone());
        ControlReply::Drain(Some(merged))
    }

    fn report_drain(&mut self, progress: &DrainProgress) -> ControlReply {
        let is_outdated = self.is_outdated(progress.generation);
        let Some(before) = self.drains.get_mut(&progress.replica) else {
            return ControlReply::Drain(None);
        };
        if let Some(merged) = progress.merge(before).filter(|_| !is_outdated) {
            *before = merged;
        }
        ControlReply::Drain(Some(before.clone()))
    }

    /// Whether a leader of this generation has been followed by another. 0 is no leader.
    fn is_outdated(&self, generation: u64) -> bool {
        generation != 0 && generation < self.newest_claim
    }

    fn claim(&mut self, generation: u64, action: &str) -> bool {
        if generation < self.newest_claim {
            return false;
        }
        self.newest_claim = generation;
        self.claims.insert(action.to_owned())
    }

    fn view(&self, now: UnixMillis) -> ControlView {
        ControlView {
            now,
            nodes: self.nodes.values().cloned().collect(),
            drains: self.drains.values().cloned().collect(),
            engines: self.engines.values().cloned().collect(),
            holds: self.holds.values().filter(|hold| hold.until > now).cloned().collect(),
            lifecycles: self.lifecycles.values().cloned().collect(),
            stragglers: self.stragglers.values().cloned().collect(),
            trainer: self.trainer.clone(),
            checkpoint: self.checkpoint,
            resize: self.resize.clone(),
            version: self.version.clone(),
            reaper_beat: self.reaper_beat,
            ledger: self.ledger,
            store: self.store.clone(),
            purchases: self.purchases.values().cloned().collect(),
        }
    }
}
