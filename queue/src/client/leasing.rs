//! Calls of those who work on units: lease, renew, write, and taking back what was left behind.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use ebbtide_core::ids::{Holder, PolicyVersion, UnitId};

use super::{QueueError, WorkQueue};
use crate::command::{
    COMMAND_BYTES_LIMIT, COMMAND_UNITS_LIMIT, Command, Grant, LeaseReply, LeaseRequest,
    ProgressLimits, Renewal, Reply, UnitWrite, WriteReply,
};

/// Pages of the ready queue that one lease call reads from a shard whose head it may not take.
/// 10 × 1000 units; a longer head of units that this worker may not take hides those behind it.
const LEASE_PAGES_LIMIT: usize = 10;

/// Bytes that one token takes on the wire: id and log-probability.
const TOKEN_BYTES: usize = 8;

/// Bytes around the tokens of one chunk, generously.
const CHUNK_OVERHEAD_BYTES: usize = 512;

/// What one lease call brought.
#[derive(Debug, Default)]
pub struct Leased {
    /// The granted units.
    pub grants: Vec<Grant>,
    /// The newest policy version that a shard answered with.
    pub current_version: PolicyVersion,
    /// Why fewer shards were asked than there are.
    pub missing: Vec<(u16, QueueError)>,
}

/// On what terms a worker leases.
#[derive(Clone, Copy)]
struct Terms<'a> {
    holder: &'a Holder,
    ttl: Duration,
    worker_version: PolicyVersion,
}

impl WorkQueue {
    /// Leases up to `limit` units for a worker that serves `worker_version`.
    ///
    /// # Errors
    /// Only when no shard answered.
    pub async fn lease(
        &self,
        holder: &Holder,
        limit: usize,
        ttl: Duration,
        worker_version: PolicyVersion,
    ) -> Result<Leased, QueueError> {
        self.lease_while(holder, limit, ttl, worker_version, || true).await
    }

    /// As [`WorkQueue::lease`], but asks no further shard once `may_go_on` says no: a holder that
    /// must not claim any more keeps what it was granted until then, and claims nothing after.
    ///
    /// # Errors
    /// Only when no shard answered.
    pub async fn lease_while(
        &self,
        holder: &Holder,
        limit: usize,
        ttl: Duration,
        worker_version: PolicyVersion,
        may_go_on: impl Fn() -> bool + Send,
    ) -> Result<Leased, QueueError> {
        let mut leased = Leased::default();
        let mut answered = 0;
        for shard in self.shards_in_turn() {
            if leased.grants.len() >= limit || !may_go_on() {
                break;
            }
            let terms = Terms { holder, ttl, worker_version };
            let wanted = limit - leased.grants.len();
            let (pages, failure) = self.lease_from(shard, terms, wanted, &may_go_on).await;
            for page in pages {
                answered += 1;
                leased.current_version = leased.current_version.max(page.current_version);
                leased.grants.extend(page.grants);
            }
            leased.missing.extend(failure.map(|error| (shard, error)));
        }
        match leased.missing.first() {
            Some((_, error)) if answered == 0 => Err(error.clone()),
            _ => Ok(leased),
        }
    }

    /// Asks one shard, page after page; gives what was granted even when a later page failed.
    async fn lease_from(
        &self,
        shard: u16,
        terms: Terms<'_>,
        limit: usize,
        may_go_on: impl Fn() -> bool,
    ) -> (Vec<LeaseReply>, Option<QueueError>) {
        let (mut pages, mut granted, mut start_at) = (Vec::new(), 0, 0);
        for _ in 0..LEASE_PAGES_LIMIT {
            if granted >= limit || (start_at == 0 && !pages.is_empty()) || !may_go_on() {
                break;
            }
            let request = LeaseRequest {
                holder: terms.holder.clone(),
                request_id: self.request_id(shard, terms.holder),
                limit: limit - granted,
                ttl: terms.ttl,
                worker_version: terms.worker_version,
                start_at,
                allow_fresh: true,
            };
            let reply = match self.port.call(shard, Command::Lease(request)).await {
                Ok(Reply::Lease(reply)) => reply,
                Ok(other) => return (pages, Some(QueueError::unexpected("a lease", &other))),
                Err(error) => return (pages, Some(error)),
            };
            self.unanswered().remove(&(shard, terms.holder.clone()));
            granted += reply.grants.len();
            start_at = reply.resume_at;
            pages.push(reply);
        }
        (pages, None)
    }

    /// The id of a holder's next LEASE on a shard: that of the last one as long as it has not been
    /// answered, so that what it granted is learnt and does not lie idle until it expires.
    fn request_id(&self, shard: u16, holder: &Holder) -> String {
        let fresh = || self.requests.fetch_add(1, Ordering::Relaxed).to_string();
        self.unanswered().entry((shard, holder.clone())).or_insert_with(fresh).clone()
    }

    fn unanswered(&self) -> MutexGuard<'_, HashMap<(u16, Holder), String>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        let gives_back = writes.iter().any(|write| write.then != crate::command::Then::Continue);
        let shards = self.by_shard(writes, |write| &write.unit);
        let calls =
            shards.into_iter().map(|(shard, writes)| self.write_shard(shard, holder, writes));
        let mut replies: Vec<_> = (0..count)
            .map(|_| Err(QueueError::Protocol { problem: "no reply".to_owned() }))
            .collect();
        for answers in futures::future::join_all(calls).await {
            for (index, answer) in answers {
                replies[index] = answer;
            }
        }
        if gives_back {
            self.port.wake().await;
        }
        replies
    }

    async fn write_shard(
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
            self.port.wake().await;
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
            self.port.wake().await;
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
    fn by_shard<T>(
        &self,
        items: Vec<T>,
        unit_of: impl Fn(&T) -> &UnitId,
    ) -> std::collections::BTreeMap<u16, Vec<(usize, T)>> {
        let mut shards = std::collections::BTreeMap::<u16, Vec<(usize, T)>>::new();
        for (index, item) in items.into_iter().enumerate() {
            shards.entry(self.shard_of(&unit_of(&item).group)).or_default().push((index, item));
        }
        shards
    }
}

/// Cuts writes into batches that one command may carry.
fn within_limits(writes: Vec<(usize, UnitWrite)>) -> Vec<Vec<(usize, UnitWrite)>> {
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
