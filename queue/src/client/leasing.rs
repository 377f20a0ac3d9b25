//! Calls of those who work on units: lease, renew, write, and taking back what was left behind.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use ebbtide_core::ids::{Holder, PolicyVersion, UnitId};

use super::{Hint, QueueError, WorkQueue};
use crate::command::{
    COMMAND_BYTES_LIMIT, COMMAND_UNITS_LIMIT, Command, LeaseRequest, ProgressLimits, Renewal,
    Stage, Then, UnitWrite,
};
use crate::reply::{Grant, LeaseReply, Reply, WriteReply};

/// Pages of the ready queue that one lease call reads from a shard whose head it may not take:
/// 10 × 1000 units. The next call goes on behind them.
const LEASE_PAGES_LIMIT: usize = 10;

/// Bytes that one token takes on the wire at most: five of its id, four of its log-probability.
const TOKEN_BYTES: usize = 9;

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
    /// How many shards gave an answer.
    answers: usize,
}

impl Leased {
    fn add(&mut self, reply: LeaseReply) {
        self.answers += 1;
        self.current_version = self.current_version.max(reply.current_version);
        self.grants.extend(reply.grants);
    }

    fn unless_nobody_answered(self) -> Result<Self, QueueError> {
        match self.missing.first() {
            Some((_, error)) if self.answers == 0 => Err(error.clone()),
            _ => Ok(self),
        }
    }
}

/// On what terms a worker leases.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTerms<'a> {
    /// What the worker does.
    pub stage: Stage,
    /// Who will hold the units.
    pub holder: &'a Holder,
    /// How long the leases last without renewal.
    pub ttl: Duration,
    /// The weights that the worker serves; of no account to a scorer.
    pub worker_version: PolicyVersion,
}

impl WorkQueue {
    /// Leases up to `limit` units to generate, for a worker that serves `worker_version`.
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
        let terms = LeaseTerms { stage: Stage::Generate, holder, ttl, worker_version };
        self.lease_while(terms, limit, || true).await
    }

    /// Leases up to `limit` responses to score.
    ///
    /// # Errors
    /// Only when no shard answered.
    pub async fn lease_to_score(
        &self,
        holder: &Holder,
        limit: usize,
        ttl: Duration,
    ) -> Result<Leased, QueueError> {
        let worker_version = PolicyVersion::default();
        let terms = LeaseTerms { stage: Stage::Reward, holder, ttl, worker_version };
        self.lease_while(terms, limit, || true).await
    }

    /// Leases up to `limit` units, but asks no further shard once `may_go_on` says no: a holder
    /// that must not claim any more keeps what it was granted until then, and claims nothing after.
    ///
    /// # Errors
    /// Only when no shard answered.
    pub async fn lease_while(
        &self,
        terms: LeaseTerms<'_>,
        limit: usize,
        may_go_on: impl Fn() -> bool + Send,
    ) -> Result<Leased, QueueError> {
        let mut leased = Leased::default();
        for shard in self.shards_in_turn() {
            if leased.grants.len() >= limit || !may_go_on() {
                break;
            }
            self.lease_from(shard, terms, limit, &may_go_on, &mut leased).await;
        }
        leased.unless_nobody_answered()
    }

    /// Asks one shard, page after page, until `leased` has `limit` grants.
    async fn lease_from(
        &self,
        shard: u16,
        terms: LeaseTerms<'_>,
        limit: usize,
        may_go_on: impl Fn() -> bool,
        leased: &mut Leased,
    ) {
        for _ in 0..LEASE_PAGES_LIMIT {
            let request = self.lease_request(shard, terms, limit - leased.grants.len());
            let reply = match self.port.call(shard, Command::Lease(request)).await {
                Ok(Reply::Lease(reply)) => reply,
                Ok(other) => {
                    leased.missing.push((shard, QueueError::unexpected("a lease", &other)));
                    return;
                }
                Err(error) => {
                    leased.missing.push((shard, error));
                    return;
                }
            };
            self.note_answer(shard, terms, &reply);
            let has_seen_all = reply.resume_at == 0;
            leased.add(reply);
            if has_seen_all || leased.grants.len() >= limit || !may_go_on() {
                return;
            }
        }
    }

    fn lease_request(&self, shard: u16, terms: LeaseTerms<'_>, limit: usize) -> LeaseRequest {
        let place = LeasePlace::new(shard, terms);
        let mut places = self.places();
        let place = places.entry(place).or_default();
        let fresh = || self.requests.fetch_add(1, Ordering::Relaxed).to_string();
        LeaseRequest {
            stage: terms.stage,
            holder: terms.holder.clone(),
            request_id: place.unanswered.get_or_insert_with(fresh).clone(),
            limit,
            ttl: terms.ttl,
            worker_version: terms.worker_version,
            start_at: place.start_at,
            allow_fresh: true,
        }
    }

    fn note_answer(&self, shard: u16, terms: LeaseTerms<'_>, reply: &LeaseReply) {
        let answered = LeaseProgress { unanswered: None, start_at: reply.resume_at };
        self.places().insert(LeasePlace::new(shard, terms), answered);
    }

    fn places(&self) -> MutexGuard<'_, HashMap<LeasePlace, LeaseProgress>> {
        self.lease_places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to leased units and leases up to `limit` others: on each shard that is written to,
    /// both in one round trip; if that brings fewer, the other shards are asked as well.
    pub async fn exchange(
        &self,
        terms: LeaseTerms<'_>,
        writes: Vec<UnitWrite>,
        limit: usize,
    ) -> (Vec<Result<WriteReply, QueueError>>, Leased) {
        let mut replies: Vec<_> = writes.iter().map(|_| Err(QueueError::no_reply())).collect();
        let gives_back = writes.iter().any(|write| write.then != Then::Continue);
        let mut leased = Leased::default();
        for (shard, writes) in self.by_shard(writes, |write| &write.unit) {
            let mut batches = within_limits(writes);
            // All but the last batch are only written.
            let last = batches.pop().unwrap_or_default();
            for batch in batches {
                for (index, answer) in self.write_shard(shard, terms.holder, batch).await {
                    replies[index] = answer;
                }
            }
            let room = limit.saturating_sub(leased.grants.len()).min(last.len());
            let (indexes, writes): (Vec<usize>, Vec<UnitWrite>) = last.into_iter().unzip();
            let lease = self.lease_request(shard, terms, room);
            match self.port.call(shard, Command::Exchange { writes, lease }).await {
                Ok(Reply::Exchanged(answers, reply)) if answers.len() == indexes.len() => {
                    self.note_answer(shard, terms, &reply);
                    leased.add(reply);
                    for (index, answer) in indexes.into_iter().zip(answers) {
                        replies[index] = Ok(answer);
                    }
                }
                Ok(other) => {
                    let error = QueueError::unexpected("one reply for each write", &other);
                    leased.missing.push((shard, error));
                }
                Err(error) => {
                    for index in indexes {
                        replies[index] = Err(error.clone());
                    }
                    leased.missing.push((shard, error));
                }
            }
        }
        for shard in self.shards_in_turn() {
            if leased.grants.len() >= limit {
                break;
            }
            self.lease_from(shard, terms, limit, || true, &mut leased).await;
        }
        if gives_back {
            self.port.wake(Hint::Work).await;
        }
        (replies, leased)
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
        let gives_back = writes.iter().any(|write| write.then != Then::Continue);
        let shards = self.by_shard(writes, |write| &write.unit);
        let calls =
            shards.into_iter().map(|(shard, writes)| self.write_shard(shard, holder, writes));
        let mut replies: Vec<_> = (0..count).map(|_| Err(QueueError::no_reply())).collect();
        for answers in futures::future::join_all(calls).await {
            for (index, answer) in answers {
                replies[index] = answer;
            }
        }
        if gives_back {
            self.port.wake(Hint::Work).await;
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

/// Where a worker leases.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LeasePlace {
    shard: u16,
    stage: Stage,
    holder: Holder,
}

impl LeasePlace {
    fn new(shard: u16, terms: LeaseTerms<'_>) -> Self {
        Self { shard, stage: terms.stage, holder: terms.holder.clone() }
    }
}

/// What is remembered of a place between two calls.
#[derive(Debug, Clone, Default)]
pub(super) struct LeaseProgress {
    /// The id of a LEASE that has not been answered. The next one bears it too, so that what it
    /// granted is learnt and does not lie idle until it expires.
    unanswered: Option<String>,
    /// Where the next LEASE begins: behind a head of units that this worker may not take, if that
    /// is longer than one call looks at.
    start_at: u64,
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
