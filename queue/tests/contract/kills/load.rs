//! A run at full speed: producers, workers that hand back some of their units, and a trainer, who
//! all keep a ledger of what they were told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ebbtide_core::ids::{GroupId, Holder};
use ebbtide_core::sample::Chunk;
use ebbtide_harness::{EVENT_LIMIT, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{HandBackCause, Then, UnitWrite};
use ebbtide_queue::reply::{Grant, TakenGroup, WriteReply};
use ebbtide_queue::status::ShardStatus;
use tokio::sync::{RwLock, Semaphore};
use tokio::task::JoinSet;

use super::ledger::{Counts, Ledger, Losses};
use crate::worlds::{assert_sums_hold, group, holder, stop, tokens};

/// Tokens of every finished response: two from the first call, two from the last.
pub const WHOLE: u32 = 4;
const GROUP_SIZE: u16 = 4;
const PRODUCERS: usize = 4;
const WORKERS: usize = 4;
/// Units that a worker holds at a time, written to in one call.
const BATCH: usize = 32;
/// Groups that are under way at a time: enough that all are busy, few enough to look at them all.
const OPEN_GROUPS: usize = 400;
/// A lease that nobody learnt of is free again after this.
const LEASE: Duration = Duration::from_secs(3);

/// The load, and what it knows.
pub struct Load {
    parties: Parties,
    producers: JoinSet<()>,
    others: JoinSet<()>,
}

#[derive(Clone)]
struct Parties {
    queue: WorkQueue,
    ledger: Arc<Mutex<Ledger>>,
    /// Whoever reads it makes a call; whoever writes it is alone.
    gate: Arc<RwLock<()>>,
    room: Arc<Semaphore>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    pub fn begin(queue: WorkQueue) -> Self {
        let parties = Parties {
            queue,
            ledger: Arc::default(),
            gate: Arc::default(),
            room: Arc::new(Semaphore::new(OPEN_GROUPS)),
            is_over: Arc::default(),
        };
        let (mut producers, mut others) = (JoinSet::new(), JoinSet::new());
        for number in 0..PRODUCERS {
            producers.spawn(parties.clone().produce(number));
        }
        for number in 0..WORKERS {
            others.spawn(parties.clone().work(holder(&format!("w{number}"))));
        }
        others.spawn(parties.clone().train());
        Self { parties, producers, others }
    }

    /// Waits until that many more units have been completed.
    pub async fn progress(&self, units: u64) {
        let enough = self.counts().completed + units;
        // A hundred a second is far below what the slowest of them does.
        let limit = EVENT_LIMIT + Duration::from_millis(10) * u32::try_from(units).unwrap();
        until("work to go on", limit, || async {
            (self.counts().completed >= enough).then_some(())
        })
        .await
        .unwrap_or_else(|error| panic!("{error}: {:?}", self.counts()));
    }

    pub fn counts(&self) -> Counts {
        self.parties.ledger().counts
    }

    pub fn losses(&self) -> Losses {
        self.parties.ledger().losses.clone()
    }

    /// Stops everybody for a moment and compares what is stored with what was acknowledged: all
    /// sums hold, and what is lost is noted. Groups that are lost are enqueued again.
    pub async fn check(&self) {
        let _alone = self.parties.gate.write().await;
        let queue = &self.parties.queue;
        let status =
            until("a status", EVENT_LIMIT, || async { queue.status().await.complete().ok() });
        let status = ShardStatus::sum(status.await.unwrap());
        let units =
            until("all units", EVENT_LIMIT, || async { queue.scan().await.ok() }).await.unwrap();
        assert_sums_hold(&status, &units);
        let findings = until("an audit", EVENT_LIMIT, || async { queue.audit(false).await.ok() });
        assert_eq!(findings.await.unwrap(), []);
        let lost = self.parties.ledger().compare(&units);
        for group in lost {
            until("the group to be enqueued again", EVENT_LIMIT, || async {
                queue.enqueue(group.clone()).await.ok()
            })
            .await
            .unwrap();
        }
    }

    /// Ends it where it stands; what its ledger says.
    pub async fn abandon(mut self) -> Ledger {
        self.producers.shutdown().await;
        self.others.shutdown().await;
        std::mem::take(&mut *self.parties.ledger())
    }

    /// Lets the run go on to its end: everything that was enqueued reaches the trainer.
    pub async fn finish(mut self) -> (Counts, Losses) {
        self.parties.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.producers.join_next().await {
            ended.expect("a producer");
        }
        let open = || self.parties.ledger().open_groups();
        until("the end of the run", EVENT_LIMIT, || async { (open() == 0).then_some(()) })
            .await
            .unwrap_or_else(|error| panic!("{error}: {} groups are open", open()));
        self.others.shutdown().await;
        self.check().await;
        (self.counts(), self.losses())
    }
}

impl Parties {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    /// Waits a little for something to happen: a call failed, or brought nothing.
    async fn wait(&self) {
        let _ = tokio::time::timeout(
            Duration::from_millis(20),
            self.queue.woken(ebbtide_queue::client::Hint::Work),
        )
        .await;
    }

    async fn produce(self, producer: usize) {
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            self.room.acquire().await.expect("is never closed").forget();
            let group = group(&format!("p{producer}-{number}"), GROUP_SIZE);
            loop {
                let _call = self.gate.read().await;
                let reply = self.queue.enqueue(group.clone()).await;
                if matches!(reply, Ok(WriteReply::Ok | WriteReply::AlreadyDone)) {
                    self.ledger().note_enqueued(group);
                    break;
                }
                drop(_call);
                self.wait().await;
            }
        }
    }

    async fn work(self, holder: Holder) {
        loop {
            let call = self.gate.read().await;
            let leased = self.queue.lease(&holder, BATCH, LEASE, Default::default()).await;
            let grants = leased.map(|leased| leased.grants).unwrap_or_default();
            for grant in &grants {
                self.ledger().note_granted(grant);
            }
            drop(call);
            if grants.is_empty() {
                self.wait().await;
                continue;
            }
            let kept = self.write(&holder, grants, append).await;
            self.write(&holder, kept, end).await;
        }
    }

    /// Writes to all of them until each is answered; those that are still held.
    async fn write(
        &self,
        holder: &Holder,
        grants: Vec<Grant>,
        next: fn(&Grant) -> UnitWrite,
    ) -> Vec<Grant> {
        let (mut open, mut kept) = (grants, Vec::new());
        let mut is_repeated = false;
        while !open.is_empty() {
            let call = self.gate.read().await;
            let writes: Vec<UnitWrite> = open.iter().map(next).collect();
            let replies = self.queue.write(holder, writes.clone()).await;
            let mut unanswered = Vec::new();
            for ((grant, write), reply) in open.into_iter().zip(&writes).zip(replies) {
                match reply {
                    Ok(reply) => {
                        self.note(write, reply, is_repeated);
                        kept.extend((reply == WriteReply::Ok).then_some(grant));
                    }
                    Err(_) => unanswered.push(grant),
                }
            }
            open = unanswered;
            drop(call);
            if !open.is_empty() {
                is_repeated = true;
                self.wait().await;
            }
        }
        kept
    }

    fn note(&self, write: &UnitWrite, reply: WriteReply, is_repeated: bool) {
        let mut ledger = self.ledger();
        match (&write.then, reply) {
            (Then::Complete(_), WriteReply::Ok) => ledger.note_completed(&write.unit),
            (Then::Complete(_), WriteReply::AlreadyDone) if is_repeated => {
                ledger.note_completed(&write.unit);
            }
            // One that was answered only when repeated may have come after its lease ran out.
            (Then::HandBack(_), WriteReply::Ok) => {
                let tokens = write.tail.last().map_or(0, Chunk::end);
                ledger.note_handed_back(&write.unit, tokens);
            }
            _ => {}
        }
    }

    async fn train(self) {
        let mut finished_with = Vec::new();
        loop {
            let call = self.gate.read().await;
            if finished_with.is_empty() {
                let taken = self.queue.take("t", 100).await.unwrap_or_default();
                finished_with = self.note_taken(&taken);
            }
            let is_idle = finished_with.is_empty();
            self.ledger().note_acknowledging(&finished_with);
            if !is_idle && self.queue.acknowledge("t", &finished_with).await.is_ok() {
                let mut ledger = self.ledger();
                let before = ledger.open_groups();
                ledger.note_acknowledged(&finished_with);
                self.room.add_permits(before - ledger.open_groups());
                finished_with.clear();
            }
            drop(call);
            if is_idle || !finished_with.is_empty() {
                self.wait().await;
            }
        }
    }

    fn note_taken(&self, taken: &[TakenGroup]) -> Vec<GroupId> {
        let mut ledger = self.ledger();
        for group in taken {
            ledger.note_taken(group, WHOLE);
        }
        taken.iter().map(|taken| taken.group.group_id.clone()).collect()
    }
}

/// Tokens that a unit has.
pub fn stored(grant: &Grant) -> u32 {
    grant.partial.last().map_or(0, Chunk::end)
}

/// The first write to a unit.
pub fn append(grant: &Grant) -> UnitWrite {
    let from = stored(grant);
    let tail = if from == 0 { vec![tokens(0, 2, 0)] } else { vec![] };
    write(grant, tail, Then::Continue)
}

/// The last write to a unit; one of each group is handed back the first time.
pub fn end(grant: &Grant) -> UnitWrite {
    let from = stored(grant).max(2);
    if grant.unit.slot == 0 && from < 3 {
        return write(grant, vec![tokens(2, 1, 0)], Then::HandBack(HandBackCause::Notice.into()));
    }
    let tail = if from < WHOLE { vec![tokens(from, WHOLE - from, 0)] } else { vec![] };
    write(grant, tail, Then::Complete(stop()))
}

pub fn write(grant: &Grant, tail: Vec<Chunk>, then: Then) -> UnitWrite {
    let (unit, fencing_token) = (grant.unit.clone(), grant.fencing_token);
    UnitWrite { unit, fencing_token, tail, then }
}
