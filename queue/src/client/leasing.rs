//! Calls of those who want units: lease, alone or together with writes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use ebbtide_core::ids::{Holder, PolicyVersion};
use futures::future::join_all;

use super::holding::within_limits;
use super::{Hint, QueueError, WorkQueue};
use crate::command::{Command, LeaseRequest, Stage, Then, UnitWrite};
use crate::reply::{Grant, LeaseReply, Reply, WriteReply};

/// Pages of the ready queue that one lease call reads from a shard whose head it may not take:
/// 10 × 1000 units. The next call goes on behind them.
const LEASE_PAGES_LIMIT: usize = 10;

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

    fn join(&mut self, other: Self) {
        self.answers += other.answers;
        self.current_version = self.current_version.max(other.current_version);
        self.grants.extend(other.grants);
        self.missing.extend(other.missing);
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
    /// Shards are asked one after the other until there is enough, so that siblings come together.
    /// A client that found nothing asks all of them at once, each for its share: while there is no
    /// work that is one round trip, and the shards share in it when there is some again.
    ///
    /// # Errors
    /// Only when no shard answered.
    pub async fn lease_while(
        &self,
        terms: LeaseTerms<'_>,
        limit: usize,
        may_go_on: impl Fn() -> bool + Send + Sync,
    ) -> Result<Leased, QueueError> {
        let mut leased = Leased::default();
        let mut shards: Vec<u16> = self.shards_in_turn().collect();
        let share = limit / shards.len();
        if self.found_nothing.load(Ordering::Relaxed) && share > 0 && may_go_on() {
            let asked =
                shards.iter().map(|shard| self.lease_from(*shard, terms, share, &may_go_on));
            let mut have_more = Vec::new();
            for (shard, part) in shards.iter().zip(join_all(asked).await) {
                if part.grants.len() >= share {
                    have_more.push(*shard);
                }
                leased.join(part);
            }
            shards = have_more;
        }
        for shard in shards {
            let room = limit.saturating_sub(leased.grants.len());
            if room == 0 || !may_go_on() {
                break;
            }
            leased.join(self.lease_from(shard, terms, room, &may_go_on).await);
        }
        self.found_nothing.store(leased.grants.is_empty(), Ordering::Relaxed);
        leased.unless_nobody_answered()
    }

    /// Asks one shard, page after page, for up to `limit` units.
    async fn lease_from(
        &self,
        shard: u16,
        terms: LeaseTerms<'_>,
        limit: usize,
        may_go_on: impl Fn() -> bool,
    ) -> Leased {
        let mut leased = Leased::default();
        for _ in 0..LEASE_PAGES_LIMIT {
            let request = self.lease_request(shard, terms, limit - leased.grants.len());
            let reply = match self.port.call(shard, Command::Lease(request)).await {
                Ok(Reply::Lease(reply)) => reply,
                Ok(other) => {
                    leased.missing.push((shard, QueueError::unexpected("a lease", &other)));
                    break;
                }
                Err(error) => {
                    leased.missing.push((shard, error));
                    break;
                }
            };
            self.note_answer(shard, terms, &reply);
            let has_seen_all = reply.resume_at == 0;
            leased.add(reply);
            if has_seen_all || leased.grants.len() >= limit || !may_go_on() {
                break;
            }
        }
        leased
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
            let room = limit.saturating_sub(leased.grants.len());
            if room == 0 {
                break;
            }
            leased.join(self.lease_from(shard, terms, room, || true).await);
        }
        if gives_back {
            self.port.wake(Hint::Work).await;
        }
        (replies, leased)
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
