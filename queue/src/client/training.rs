//! Calls of the trainer and of operators: enqueue, take, acknowledge, versions, and what stands.

use ebbtide_core::ids::{GroupId, PolicyVersion};
use ebbtide_core::work::{GroupError, PromptGroup};
use thiserror::Error;

use super::{Hint, QueueError, SCAN_PAGES_LIMIT, WorkQueue};
use crate::command::{COMMAND_UNITS_LIMIT, Command, TakeWhich};
use crate::control::{ControlCommand, VersionRecord};
use crate::reply::{Reply, TakenGroup, WriteReply};

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
        self.port.wake(Hint::Work).await;
        Ok(reply)
    }

    /// Takes up to `limit` sealed groups; this consumer's unacknowledged ones, of all shards, come
    /// first.
    ///
    /// # Errors
    /// Only when no shard answered.
    pub async fn take(&self, consumer: &str, limit: usize) -> Result<Vec<TakenGroup>, QueueError> {
        let mut batch = Vec::new();
        let mut failure = None;
        let mut answered = 0;
        let shards: Vec<u16> = self.shards_in_turn().collect();
        for which in [TakeWhich::Own, TakeWhich::New] {
            for shard in &shards {
                if batch.len() >= limit {
                    return Ok(batch);
                }
                let (consumer, limit) = (consumer.to_owned(), limit - batch.len());
                let command = Command::Take { consumer, limit, which };
                match self.port.call(*shard, command).await {
                    Ok(Reply::Taken(groups)) => {
                        answered += 1;
                        batch.extend(groups);
                    }
                    Ok(other) => return Err(QueueError::unexpected("taken groups", &other)),
                    Err(error) => failure = failure.or(Some(error)),
                }
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
            loop {
                let (from, to) = (from.to_owned(), to.to_owned());
                let command = Command::TakeOver { from, to, limit: COMMAND_UNITS_LIMIT };
                let count = self.count_of(shard, command).await?;
                moved += count;
                if count < COMMAND_UNITS_LIMIT as u64 {
                    break;
                }
            }
        }
        Ok(moved)
    }

    /// Forgets a trainer that is gone for good. Answers how many groups it has not acknowledged;
    /// unless that is none, it is not forgotten: another one must take them over first.
    ///
    /// # Errors
    /// A shard gave no answer; repeating the call is harmless.
    pub async fn remove_consumer(&self, consumer: &str) -> Result<u64, QueueError> {
        let mut pending = 0;
        for shard in 0..self.shard_count() {
            let command = Command::RemoveConsumer { consumer: consumer.to_owned() };
            pending += self.count_of(shard, command).await?;
        }
        Ok(pending)
    }

    /// Ends every group that is not sealed as FAILED; answers how many. Groups that are enqueued
    /// meanwhile may be left.
    ///
    /// # Errors
    /// A shard gave no answer; repeating the call goes on.
    pub async fn cancel_run(&self, reason: &str) -> Result<u64, QueueError> {
        let mut ended = 0;
        for shard in 0..self.shard_count() {
            let mut cursor = 0;
            for _ in 0..SCAN_PAGES_LIMIT {
                let command = Command::CancelRun { cursor, reason: reason.to_owned() };
                match self.port.call(shard, command).await? {
                    Reply::Cancelled(next, count) => {
                        cursor = next;
                        ended += count;
                    }
                    other => return Err(QueueError::unexpected("ended groups", &other)),
                }
                if cursor == 0 {
                    break;
                }
            }
        }
        self.port.wake(Hint::Work).await;
        Ok(ended)
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
        self.port.wake(Hint::Control).await;
        Ok(holds)
    }
}

pub(super) fn write_reply(reply: Reply) -> Result<WriteReply, QueueError> {
    match reply {
        Reply::Write(reply) => Ok(reply),
        other => Err(QueueError::unexpected("a write reply", &other)),
    }
}
