//! What workers ask for, carried out inside the agent: it ends with the agent, and not with the
//! connection on which it was asked.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::UnitId;
use ebbtide_queue::client::{Hint, LeaseTerms, QueueError};
use ebbtide_queue::command::{Renewal, UnitWrite, Waiting};
use ebbtide_queue::reply::WriteReply;
use futures::poll;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument;

use super::leasing::LeaseCall;
use super::tending::{note_lost, note_outcome};
use super::writing::{Sent, WriteTerms};
use super::{Answer, LeaseKey, TooMany, WorkerName, WorkerWrite};
use crate::shared::Shared;

/// Pause before an empty queue is asked again because something may have changed.
const EMPTY_PAUSE: Duration = Duration::from_millis(100);

/// Longest time between two tries while a call waits for work: hints may get lost.
const IDLE_POLL: Duration = Duration::from_secs(1);

/// Something that a worker asks for.
#[derive(Debug)]
pub(crate) enum Job {
    /// Work.
    Lease(LeaseJob, oneshot::Sender<LeaseOutcome>),
    /// Writes; answered in their order.
    Write(WriteJob, oneshot::Sender<Vec<Answer>>),
    /// Renewals; answered in their order.
    Renew(RenewJob, oneshot::Sender<Vec<Answer>>),
}

/// Asks for work.
#[derive(Debug)]
pub(crate) struct LeaseJob {
    pub(crate) call: LeaseCall,
    /// How long to wait for a first unit.
    pub(crate) wait: Duration,
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum LeaseOutcome {
    /// These were admitted, now or by the same call before.
    Granted(Vec<LeaseKey>),
    /// There is nothing that this worker may take.
    Empty,
    /// The lease gate is closed.
    Closed,
    /// The queue does not answer.
    Away(QueueError),
    /// A limit is reached.
    Refused(TooMany),
}

/// Asks for writes.
#[derive(Debug)]
pub(crate) struct WriteJob {
    pub(crate) worker: WorkerName,
    pub(crate) writes: Vec<WorkerWrite>,
}

/// Asks for renewals, and says what the units wait for.
#[derive(Debug)]
pub(crate) struct RenewJob {
    pub(crate) worker: WorkerName,
    pub(crate) leases: Vec<(LeaseKey, Waiting)>,
}

/// Carries out jobs for as long as it is polled; dropping it ends those under way.
pub(crate) async fn serve(shared: Arc<Shared>, mut jobs: mpsc::Receiver<Job>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(job) = jobs.recv() => {
                let shared = shared.clone();
                running.spawn(async move { carry_out(&shared, job).await }.in_current_span());
            }
            Some(_) = running.join_next() => {}
            else => std::future::pending().await,
        }
    }
}

/// Nobody may wait for the answer any more: what was done stands all the same.
async fn carry_out(shared: &Shared, job: Job) {
    match job {
        Job::Lease(job, mut answer) => {
            let outcome = lease(shared, job, &mut answer).await;
            drop(answer.send(outcome));
        }
        Job::Write(job, answer) => drop(answer.send(write(shared, job).await)),
        Job::Renew(job, answer) => drop(answer.send(renew(shared, job).await)),
    }
}

/// Asks until there is something, or until nobody waits any longer. A call to the queue that has
/// begun is never given up: what it grants would be nobody's.
async fn lease(
    shared: &Shared,
    job: LeaseJob,
    answer: &mut oneshot::Sender<LeaseOutcome>,
) -> LeaseOutcome {
    let until = Instant::now() + job.wait;
    loop {
        // Listens before it asks, so that no hint falls between the two.
        let mut woken = pin!(shared.queue.woken(Hint::Work));
        let is_woken = poll!(&mut woken).is_ready();
        let outcome = lease_once(shared, &job.call).await;
        let now = Instant::now();
        if !matches!(outcome, LeaseOutcome::Empty) || now >= until {
            return outcome;
        }
        let hint = async {
            sleep_until(until.min(now + EMPTY_PAUSE)).await;
            if !is_woken {
                let _ = timeout_at(until.min(now + IDLE_POLL), woken).await;
            }
        };
        tokio::select! {
            () = hint => {}
            () = shared.gate.closed() => {}
            () = answer.closed() => return outcome,
        }
    }
}

/// Asks the queue once. The gate is looked at before the claim, and again under the lock.
async fn lease_once(shared: &Shared, call: &LeaseCall) -> LeaseOutcome {
    let lease = shared.config.lease;
    // The queue remembers one lease call of a holder: they go one after the other.
    let turn = shared.lease_turn.lock().await;
    let request_id = call.request_id.as_deref();
    let room = {
        let mut workers = shared.workers.workers();
        if let Some(keys) = workers.granted_before(&call.worker, request_id) {
            return LeaseOutcome::Granted(keys);
        }
        match workers.room(&call.worker, lease.ttl, Instant::now()) {
            Ok(room) => room,
            Err(limit) => return LeaseOutcome::Refused(limit),
        }
    };
    let Some(claim) = shared.gate.begin_claim() else { return LeaseOutcome::Closed };
    let asked = LeaseTerms {
        stage: call.stage,
        holder: &shared.config.holder,
        ttl: lease.ttl,
        worker_version: call.version,
    };
    let call = &LeaseCall { limit: call.limit.min(room), ..call.clone() };
    let leased = shared.queue.lease_while(asked, call.limit, || shared.gate.is_open()).await;
    drop(turn);
    let leased = match leased {
        Ok(leased) => leased,
        Err(error) => return LeaseOutcome::Away(error),
    };
    shared.note_run_version(leased.current_version);
    let run_version = *shared.run_version.borrow();
    let now = Instant::now();
    let keys = shared.workers.change(|workers| {
        if shared.gate.is_open() {
            leased.grants.iter().for_each(|grant| shared.metrics.tokens.note_continued(grant));
            return workers.admit(leased.grants, call, run_version, now);
        }
        let why = shared.leaving_why();
        leased.grants.into_iter().for_each(|grant| workers.refuse(grant, call, why, now));
        Vec::new()
    });
    drop(claim);
    if !shared.gate.is_open() {
        // A drain waits for the end of this claim.
        shared.desk.nudge();
        return LeaseOutcome::Closed;
    }
    if keys.is_empty() { LeaseOutcome::Empty } else { LeaseOutcome::Granted(keys) }
}

async fn write(shared: &Shared, job: WriteJob) -> Vec<Answer> {
    let WriteJob { worker, writes } = job;
    let is_engines: Vec<bool> = {
        let ledger = shared.desk.ledger();
        let keys = writes.iter().map(|write| &write.key);
        keys.map(|key| ledger.holds(&key.unit, key.fencing_token)).collect()
    };
    let terms = WriteTerms {
        holder: shared.config.holder.clone(),
        fabric: shared.config.fabric,
        wall_now: (shared.wall_clock)(),
        drain_why: shared.drain_why(),
    };
    let mut answers: Vec<Answer> = writes.iter().map(|_| Answer::fenced()).collect();
    let mut begun: Vec<(usize, UnitWrite, Sent)> = Vec::new();
    {
        let (mut workers, now) = (shared.workers.workers(), Instant::now());
        workers.note_heard(&worker, now);
        for (place, write) in writes.into_iter().enumerate().filter(|(at, _)| !is_engines[*at]) {
            if let Some((write, sent)) = workers.begin_write(&worker, write, &terms, now) {
                begun.push((place, write, sent));
            }
        }
    }
    let (mut places, mut sent, mut sending) = (Vec::new(), Vec::new(), Vec::new());
    for (place, write, what) in begun {
        places.push(place);
        sending.push(write);
        sent.push(what);
    }
    let replies = shared.queue.write(&shared.config.holder, sending).await;
    let (settled, outcome) = shared.workers.workers().settle(sent, replies, Instant::now());
    // Tokens alone are no news: appends come by the hundred a second.
    if outcome.has_ends() || settled.iter().any(|answer| answer.release_by.is_some()) {
        shared.workers.nudge();
    }
    note_outcome(shared, &outcome);
    for (place, answer) in places.into_iter().zip(settled) {
        answers[place] = answer;
    }
    answers
}

async fn renew(shared: &Shared, job: RenewJob) -> Vec<Answer> {
    let now = Instant::now();
    let ttl = shared.lease_ttl(now);
    let renewals: Vec<Option<Renewal>> = {
        let mut workers = shared.workers.workers();
        workers.note_heard(&job.worker, now);
        let renewal = |(key, waiting): &(LeaseKey, Waiting)| {
            workers.renewal(&job.worker, key, *waiting, ttl, now)
        };
        job.leases.iter().map(renewal).collect()
    };
    let sending: Vec<Renewal> = renewals.iter().flatten().cloned().collect();
    let limits = shared.config.lease.progress;
    let renewed = if sending.is_empty() || ttl.is_zero() {
        Ok(Vec::new())
    } else {
        shared.queue.renew(&shared.config.holder, sending, limits).await
    };
    let lost: BTreeSet<UnitId> = renewed.iter().flatten().cloned().collect();
    for renewal in renewals.iter().flatten().filter(|renewal| lost.contains(&renewal.unit)) {
        note_lost(shared, &renewal.unit, renewal.fencing_token);
    }
    let workers = shared.workers.workers();
    let answer = |renewal: Option<Renewal>| match (renewal, &renewed) {
        (Some(renewal), Ok(_)) if !lost.contains(&renewal.unit) => {
            Answer { reply: Ok(WriteReply::Ok), release_by: workers.release_by(&renewal) }
        }
        (Some(renewal), Err(error)) => {
            Answer { reply: Err(error.clone()), release_by: workers.release_by(&renewal) }
        }
        _ => Answer::fenced(),
    };
    renewals.into_iter().map(answer).collect()
}
