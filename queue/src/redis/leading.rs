//! Writes of the leading controller on Redis, each refused there once a newer leader has claimed
//! anything.

use serde::Serialize;

use super::control::{key, put_arguments, read_all, record_keys};
use super::library::Function;
use super::{CALL_TRIES, RedisPort};
use crate::client::QueueError;
use crate::control::{ControlReply, LeaderWrite};

/// What the functions answer to a leader that was followed by another.
const OUTDATED: i64 = -1;

pub(super) async fn carry_out(
    port: &RedisPort,
    generation: u64,
    write: LeaderWrite,
) -> Result<ControlReply, QueueError> {
    let leader = Leader { port, generation };
    match write {
        LeaderWrite::RemoveNode(node) => leader.remove_node(node.as_str()).await,
        LeaderWrite::RemoveDrain(replica) => leader.remove("drain", replica.as_str()).await,
        LeaderWrite::PutLifecycle(record) => {
            leader.put("lifecycle", &record.instance_id, "seen_at", &record).await
        }
        LeaderWrite::RemoveLifecycle(instance) => leader.remove("lifecycle", &instance).await,
        LeaderWrite::PutStraggler(record) => {
            leader.put("straggler", record.replica.as_str(), "named_at", &record).await
        }
        LeaderWrite::RemoveStraggler(replica) => leader.remove("straggler", replica.as_str()).await,
        LeaderWrite::PutPurchase(record) => {
            leader.put("purchase", &record.purchase, "noted_at", &record).await
        }
        LeaderWrite::RemovePurchase(purchase) => leader.remove("purchase", &purchase).await,
        LeaderWrite::PutLedger(ledger) => leader.put("ledger", "", "", &*ledger).await,
        LeaderWrite::AddJournal { line, kept } => leader.add_journal(line, kept).await,
    }
}

/// Who writes.
struct Leader<'a> {
    port: &'a RedisPort,
    generation: u64,
}

impl Leader<'_> {
    async fn put<T: Serialize>(
        &self,
        kind: &str,
        member: &str,
        stamp: &str,
        record: &T,
    ) -> Result<ControlReply, QueueError> {
        let arguments = put_arguments([member, "replace", stamp], record);
        self.call(Function::ControlPut, record_keys(self.port, kind, member), arguments).await
    }

    async fn remove(&self, kind: &str, member: &str) -> Result<ControlReply, QueueError> {
        let keys = record_keys(self.port, kind, member);
        self.call(Function::ControlRemove, keys, vec![member.into()]).await
    }

    async fn remove_node(&self, node: &str) -> Result<ControlReply, QueueError> {
        let ControlReply::View(view) = read_all(self.port).await? else {
            return Ok(ControlReply::Done);
        };
        let record = view.nodes.iter().find(|record| record.node.as_str() == node);
        let replica = record.map(|record| &record.replica);
        let is_last =
            view.nodes.iter().filter(|other| Some(&other.replica) == replica).count() == 1;
        for engine in view.engines.iter().filter(|e| is_last && Some(&e.replica) == replica) {
            let member = format!("{}:{}", engine.replica, engine.index);
            let removed = self.remove("engine", &member).await?;
            if removed == ControlReply::Outdated {
                return Ok(removed);
            }
        }
        self.remove("node", node).await
    }

    /// Repeated after a lost answer, it adds the same line again: readers see the same moment
    /// twice.
    async fn add_journal(&self, line: String, kept: usize) -> Result<ControlReply, QueueError> {
        let journal = [key(self.port, "journal", "")];
        let arguments = vec![line.into_bytes(), kept.max(1).to_string().into_bytes()];
        self.call(Function::ControlJournal, journal, arguments).await
    }

    /// Every function of a leader has the newest generation as its last key, and its own before
    /// all other arguments.
    async fn call<const N: usize>(
        &self,
        function: Function,
        keys: [String; N],
        arguments: Vec<Vec<u8>>,
    ) -> Result<ControlReply, QueueError> {
        let newest = key(self.port, "generation", "");
        let keys: Vec<String> = keys.into_iter().chain([newest]).collect();
        let own = self.generation.to_string().into_bytes();
        let arguments: Vec<Vec<u8>> = [own].into_iter().chain(arguments).collect();
        let answer: i64 = self.port.call_function(function, &keys, &arguments, CALL_TRIES).await?;
        Ok(if answer == OUTDATED { ControlReply::Outdated } else { ControlReply::Done })
    }
}
