//! Calls of those who hold units: renew, write, and taking back what was left behind.

use std::collections::BTreeMap;

use ebbtide_core::ids::{Holder, UnitId};
use futures::future::join_all;

use super::{Hint, QueueError, WorkQueue};
use crate::command::{
    COMMAND_BYTES_LIMIT, COMMAND_UNITS_LIMIT, Command, ProgressLimits, Renewal, Then, UnitWrite,
};
use crate::reply::{Reply, WriteReply};

/// Bytes that one token takes on the wire at most: five of its id, four of its log-probability.
const TOKEN_BYTES: usize = 9;

/// Bytes around the tokens of one chunk, generously.
const CHUNK_OVERHEAD_BYTES: usize = 512;

impl WorkQueue {
    /// Renews leases; answers the units that are lost.
    ///
    /// # Errors
    /// A shard gave no answer; its leases may or may not be renewed. Those of the other shards are.
    pub async fn renew(
        &self,
        holder: &Holder,
        renewals: Vec<Renewal>,
        limits: ProgressLimits,
    ) -> Result<Vec<UnitId>, QueueError> {
        let (mut lost, mut failure) = (Vec::new(), None);
        for (shard, renewals) in self.by_shard(renewals, |renewal| &renewal.unit) {
            for batch in renewals.chunks(COMMAND_UNITS_LIMIT) {
                let holder = holder.clone();
                let renewals = batch.iter().map(|(_, renewal)| renewal.clone()).collect();
                let command = Command::Renew { holder, renewals, limits };
                match self.port.call(shard, command).await {
                    Ok(Reply::Lost(units)) => lost.extend(units),
                    Ok(other) => return Err(QueueError::unexpected("lost units", &other)),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
        }
        failure.map_or(Ok(lost), Err)
    }

    /// Writes to leased units, in as few calls as the limits allow; answers in the order given.
    ///
    /// All shards are written at the same time, and one that fails does not keep the others from
    /// being written: its units are answered with the error.
    pub async fn write(
        &self,
        holder: &Holder,
        writes: Vec<UnitWrite>,
    ) -> Vec<Result<WriteReply, QueueError>> {
        let count = writes.len();
        let gives_back = writes.iter().any(|write| write.then != Then::Continue);
        let shards = self.by_shard(writes, |write| &write.unit);
        let calls =
            shards.into_iter().map(|(shard, writes)| self.write_shard(shard, holder, writes));
        let mut replies: Vec<_> = (0..count).map(|_| Err(QueueError::no_reply())).collect();
        for answers in join_all(calls).await {
            for (index, answer) in answers {
                replies[index] = answer;
            }
        }
        if gives_back {
            self.port.wake(Hint::Work).await;
        }
        replies
    }

    pub(super) async fn write_shard(
        &self,
        shard: u16,
        holder: &Holder,
        writes: Vec<(usize, UnitWrite)>,
    ) -> Vec<(usize, Result<WriteReply, QueueError>)> {
        let mut answers = Vec::with_capacity(writes.len());
        for batch in within_limits(writes) {
            let (indexes, writes): (Vec<usize>, Vec<UnitWrite>) = batch.into_iter().unzip();
            let command = Command::Write { holder: holder.clone(), writes };
            let replies = match self.port.call(shard, command).await {
                Ok(Reply::Writes(replies)) if replies.len() == indexes.len() => Ok(replies),
                Ok(other) => Err(QueueError::unexpected("one reply for each write", &other)),
                Err(error) => Err(error),
            };
            for (place, index) in indexes.into_iter().enumerate() {
                answers.push((index, replies.as_ref().map(|r| r[place]).map_err(Clone::clone)));
            }
        }
        answers
    }

    /// Hands back what earlier agent processes of this holder's node still hold.
    ///
    /// # Errors
    /// A shard gave no answer; calling again does no harm.
    pub async fn reclaim(&self, holder: &Holder) -> Result<u64, QueueError> {
        let mut reclaimed = 0;
        for shard in 0..self.shard_count() {
            let command = Command::Reclaim { holder: holder.clone() };
            reclaimed += self.count_of(shard, command).await?;
        }
        if reclaimed > 0 {
            self.port.wake(Hint::Work).await;
        }
        Ok(reclaimed)
    }

    /// Returns units whose lease has expired to the ready queue, up to `limit` on each shard.
    ///
    /// # Errors
    /// Only after every shard was tried: the first one's error.
    pub async fn reap(&self, limit: usize) -> Result<u64, QueueError> {
        let mut reaped = 0;
        let mut failure = None;
        for shard in 0..self.shard_count() {
            match self.count_of(shard, Command::Reap { limit }).await {
                Ok(count) => reaped += count,
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if reaped > 0 {
            self.port.wake(Hint::Work).await;
        }
        failure.map_or(Ok(reaped), Err)
    }

    pub(super) async fn count_of(&self, shard: u16, command: Command) -> Result<u64, QueueError> {
        match self.port.call(shard, command).await? {
            Reply::Count(count) => Ok(count),
            other => Err(QueueError::unexpected("a count", &other)),
        }
    }

    /// Sorts items by the shard of their unit and remembers the place of each.
    pub(super) fn by_shard<T>(
        &self,
        items: Vec<T>,
        unit_of: impl Fn(&T) -> &UnitId,
    ) -> BTreeMap<u16, Vec<(usize, T)>> {
        let mut shards = BTreeMap::<u16, Vec<(usize, T)>>::new();
        for (index, item) in items.into_iter().enumerate() {
            shards.entry(self.shard_of(&unit_of(&item).group)).or_default().push((index, item));
        }
        shards
    }
}

/// Cuts writes into batches that one command may carry.
pub(super) fn within_limits(writes: Vec<(usize, UnitWrite)>) -> Vec<Vec<(usize, UnitWrite)>> {
    let mut batches: Vec<Vec<(usize, UnitWrite)>> = Vec::new();
    let mut bytes = 0;
    for write in writes {
        let chunks = write.1.tail.iter();
        let size: usize =
            chunks.map(|chunk| CHUNK_OVERHEAD_BYTES + chunk.token_ids.len() * TOKEN_BYTES).sum();
        let is_full = batches.last().is_none_or(|batch| {
            batch.len() >= COMMAND_UNITS_LIMIT || bytes + size > COMMAND_BYTES_LIMIT
        });
        if is_full {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(batch) = batches.last_mut() {
            batch.push(write);
        }
    }
    batches
}
