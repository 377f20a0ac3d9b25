//! Calls of the trainer and of operators: enqueue, take, acknowledge, versions, and what stands.

use ebbtide_core::ids::{GroupId, PolicyVersion};
use ebbtide_core::work::{GroupError, PromptGroup};
use thiserror::Error;

use super::{Gathered, QueueError, WorkQueue};
use crate::command::{
    Command, GroupFailure, Reply, ShardStatus, TakenGroup, UnitSnapshot, WriteReply,
};
use crate::control::{ControlCommand, VersionRecord};

/// Pages of raw unit states that one scan reads from a shard. 20,000 × 500 = ten million units.
const SCAN_PAGES_LIMIT: usize = 20_000;

/// Why a group was not enqueued.
#[derive(Debug, Clone, Error)]
pub enum EnqueueError {
    /// The group is not valid; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] GroupError),
    /// The queue did not take it; the same call may be repeated.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl WorkQueue {
    /// Enqueues a group, all slots or none. Repeating it is harmless.
    ///
    /// # Errors
    /// An invalid group, or no answer.
    pub async fn enqueue(&self, group: PromptGroup) -> Result<WriteReply, EnqueueError> {
        group.check()?;
        let shard = self.shard_of(&group.group_id);
        let reply = self.port.call(shard, Command::Enqueue(Box::new(group))).await?;
        let reply = write_reply(reply)?;
        self.port.wake().await;
        Ok(reply)
    }

    /// Takes up to `limit` sealed groups; this consumer's unacknowledged ones come first.
    ///
    /// # Errors
    /// Only when no shard answered.
    pub async fn take(&self, consumer: &str, limit: usize) -> Result<Vec<TakenGroup>, QueueError> {
        let mut batch = Vec::new();
        let mut failure = None;
        let mut answered = 0;
        for shard in self.shards_in_turn() {
            if batch.len() >= limit {
                break;
            }
            let command =
                Command::Take { consumer: consumer.to_owned(), limit: limit - batch.len() };
            match self.port.call(shard, command).await {
                Ok(Reply::Taken(groups)) => {
                    answered += 1;
                    batch.extend(groups);
                }
                Ok(other) => return Err(QueueError::unexpected("taken groups", &other)),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) if answered == 0 => Err(error),
            _ => Ok(batch),
        }
    }

    /// Deletes groups that the trainer has finished with; answers how many were its own.
    ///
    /// # Errors
    /// A shard gave no answer; repeating the call is harmless.
    pub async fn acknowledge(&self, consumer: &str, groups: &[GroupId]) -> Result<u64, QueueError> {
        let mut acknowledged = 0;
        for shard in 0..self.shard_count() {
            let groups: Vec<GroupId> =
                groups.iter().filter(|group| self.shard_of(group) == shard).cloned().collect();
            if groups.is_empty() {
                continue;
            }
            let command = Command::Acknowledge { consumer: consumer.to_owned(), groups };
            acknowledged += self.count_of(shard, command).await?;
        }
        Ok(acknowledged)
    }

    /// Moves the unacknowledged groups of a lost trainer to another; answers how many.
    ///
    /// # Errors
    /// A shard gave no answer; repeating the call is harmless.
    pub async fn take_over(&self, from: &str, to: &str) -> Result<u64, QueueError> {
        let mut moved = 0;
        for shard in 0..self.shard_count() {
            let command = Command::TakeOver { from: from.to_owned(), to: to.to_owned() };
            moved += self.count_of(shard, command).await?;
        }
        Ok(moved)
    }

    /// Ends a group as FAILED.
    ///
    /// # Errors
    /// No answer; repeating the call is harmless.
    pub async fn fail_group(
        &self,
        group: &GroupId,
        reason: &str,
    ) -> Result<WriteReply, QueueError> {
        let command = Command::FailGroup { group: group.clone(), reason: reason.to_owned() };
        write_reply(self.port.call(self.shard_of(group), command).await?)
    }

    /// Publishes a policy version: every shard first, then the control key. Never lowers one;
    /// answers the version that holds.
    ///
    /// # Errors
    /// A shard gave no answer; repeating the call is harmless.
    pub async fn set_version(&self, record: VersionRecord) -> Result<PolicyVersion, QueueError> {
        let mut holds = record.version;
        for shard in 0..self.shard_count() {
            match self.port.call(shard, Command::SetVersion(record.version)).await? {
                Reply::Version(version) => holds = holds.max(version),
                other => return Err(QueueError::unexpected("a version", &other)),
            }
        }
        if holds > record.version {
            let (asked, holds) = (record.version.0, holds.0);
            tracing::error!(asked, holds, "policy version refused: it never falls within a run");
        }
        self.port.control(ControlCommand::PutVersion(record)).await?;
        self.port.wake().await;
        Ok(holds)
    }

    /// Counters and depths of every shard that answers.
    pub async fn status(&self) -> Gathered<ShardStatus> {
        let calls = (0..self.shard_count()).map(|shard| async move {
            match self.port.call(shard, Command::Status).await {
                Ok(Reply::Status(status)) => Ok(*status),
                Ok(other) => Err((shard, QueueError::unexpected("a status", &other))),
                Err(error) => Err((shard, error)),
            }
        });
        let mut gathered = Gathered { answers: Vec::new(), missing: Vec::new() };
        for answer in futures::future::join_all(calls).await {
            match answer {
                Ok(status) => gathered.answers.push(status),
                Err(missing) => gathered.missing.push(missing),
            }
        }
        gathered
    }

    /// The raw state of every unit, for audits; consistent only while nothing else writes.
    ///
    /// # Errors
    /// A shard gave no answer.
    pub async fn scan(&self) -> Result<Vec<UnitSnapshot>, QueueError> {
        let mut units = Vec::new();
        for shard in 0..self.shard_count() {
            let mut cursor = 0;
            for _ in 0..SCAN_PAGES_LIMIT {
                match self.port.call(shard, Command::Scan { cursor }).await? {
                    Reply::Page(page) => {
                        units.extend(page.units);
                        cursor = page.cursor;
                    }
                    other => return Err(QueueError::unexpected("a page of units", &other)),
                }
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(units)
    }

    /// The records of failed groups on one shard after `after`, oldest first.
    ///
    /// # Errors
    /// The shard gave no answer.
    pub async fn failures(
        &self,
        shard: u16,
        after: &str,
        limit: usize,
    ) -> Result<Vec<GroupFailure>, QueueError> {
        let command = Command::Failures { after: after.to_owned(), limit };
        match self.port.call(shard, command).await? {
            Reply::Failures(records) => Ok(records),
            other => Err(QueueError::unexpected("failure records", &other)),
        }
    }
}

fn write_reply(reply: Reply) -> Result<WriteReply, QueueError> {
    match reply {
        Reply::Write(reply) => Ok(reply),
        other => Err(QueueError::unexpected("a write reply", &other)),
    }
}

impl ShardStatus {
    /// The counts of several shards together; versions and moments by their largest.
    pub fn sum(shards: impl IntoIterator<Item = Self>) -> Self {
        shards.into_iter().fold(Self::default(), Self::plus)
    }

    fn plus(mut self, other: Self) -> Self {
        self.enqueued += other.enqueued;
        self.completed += other.completed;
        self.dead += other.dead;
        self.expired += other.expired;
        self.cancelled += other.cancelled;
        self.groups_sealed += other.groups_sealed;
        self.groups_failed += other.groups_failed;
        self.ready += other.ready;
        self.leased += other.leased;
        self.sealed_waiting += other.sealed_waiting;
        self.sealed_taken += other.sealed_taken;
        self.lease_expiries += other.lease_expiries;
        self.oldest_ready_at = match (self.oldest_ready_at, other.oldest_ready_at) {
            (Some(own), Some(others)) => Some(own.min(others)),
            (own, others) => own.or(others),
        };
        for (cause, count) in other.hand_backs {
            *self.hand_backs.entry(cause).or_default() += count;
        }
        for (node, count) in other.leased_by_node {
            *self.leased_by_node.entry(node).or_default() += count;
        }
        self.tokens.generated += other.tokens.generated;
        self.tokens.accepted += other.tokens.accepted;
        self.tokens.preserved += other.tokens.preserved;
        for (cause, count) in other.tokens.wasted {
            *self.tokens.wasted.entry(cause).or_default() += count;
        }
        self.version = self.version.max(other.version);
        self.now = self.now.max(other.now);
        self
    }
}
