//! Flow A, rollout: lease → admit → stream → store → complete.
//!
//! Work is claimed only while the lease gate is open and the engine is ready; the gate is looked
//! at again, under the ledger's lock, before a grant is used. Tokens are stored in batches, one
//! write for all units of the agent; what ends a unit is written at once. A queue that is away
//! stops nothing: streams go on, tokens wait, writes are repeated.

mod admission;
mod engines;
mod leases;
mod readings;
mod roster;
mod siblings;
mod startup;
mod streaming;
mod tending;
mod verdict;
mod weights;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_queue::client::{Backoff, Hint, LeaseTerms};
use ebbtide_queue::command::{HandBackCause, Stage};
use ebbtide_queue::reply::Grant;
use futures::{FutureExt, poll};
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::Instrument;

pub(crate) use admission::EngineHeld;
use engines::Trouble;
pub(crate) use engines::{Condition, EngineSlot};
pub(crate) use leases::{keep_renewed, report as report_settled};
pub(crate) use readings::EngineFigures;
use roster::Hosted;
pub(crate) use roster::Roster;
use siblings::{Homes, Room};
pub(crate) use startup::StartupParts;

use crate::kubernetes::NodeSight;
use crate::ledger::{Admission, AdmissionTerms};
use crate::pulse::Loop;
use crate::rhythm::all_of;
use crate::shared::Shared;

/// Pause before an empty queue is asked again because something may have changed: a hundred idle
/// agents must not storm the queue at every change.
const EMPTY_PAUSE: Duration = Duration::from_millis(100);

/// Longest time without asking for work when there is room: hints may get lost.
const IDLE_POLL: Duration = Duration::from_secs(1);

/// Beats of the loop that stores within the longest silence, when there is nothing to store.
const IDLE_BEATS: u32 = 6;

/// Bounds of the pause after a call that the queue did not answer.
const QUEUE_PAUSE_MIN: Duration = Duration::from_millis(50);
const QUEUE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Time in which the ends of streams that were aborted together are gathered.
const LEAVE_LINGER: Duration = Duration::from_millis(10);

/// Hosts the node's engines for as long as it is polled; dropping it cuts all streams.
pub(crate) async fn host(shared: Arc<Shared>, sights: watch::Receiver<NodeSight>) {
    let work = async {
        leases::reclaim(&shared).await;
        lease_and_stream(shared.clone()).await;
    };
    all_of([
        work.boxed(),
        store(&shared).boxed(),
        leases::keep(&shared).boxed(),
        roster::follow(&shared, sights).boxed(),
        tending::tend(&shared).boxed(),
    ])
    .await;
}

/// Claims work whenever an engine has room, and runs a stream for every unit.
async fn lease_and_stream(shared: Arc<Shared>) {
    let mut streams = JoinSet::new();
    let mut backoff = Backoff::new(QUEUE_PAUSE_MIN, QUEUE_PAUSE_MAX);
    let mut changes = shared.desk.subscribe();
    let mut homes = Homes::default();
    loop {
        shared.gate.opened().await;
        while streams.try_join_next().is_some() {}
        changes.mark_unchanged();
        // Listens before it asks, so that no hint falls between the two.
        let mut woken = pin!(shared.queue.woken(Hint::Work));
        let is_woken = poll!(&mut woken).is_ready();
        match claim_work(&shared, &mut homes, &mut streams).await {
            Claimed::Enough => backoff.reset(),
            Claimed::NoRoom => {
                let _ = timeout(IDLE_POLL, changes.changed()).await;
                // What one step of an engine ended comes together: one call for all of it.
                yield_now().await;
            }
            Claimed::QueueEmpty => {
                backoff.reset();
                let not_before = Instant::now() + EMPTY_PAUSE;
                if !is_woken {
                    let _ = timeout_at(shared.rhythm.next(IDLE_POLL), woken).await;
                }
                sleep_until(not_before).await;
            }
            Claimed::QueueAway => sleep(backoff.next_pause()).await,
        }
    }
}

/// What one round of claiming came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimed {
    /// Everything that was asked for was granted.
    Enough,
    /// No engine has room.
    NoRoom,
    /// The queue had less than was asked for.
    QueueEmpty,
    /// The queue did not answer.
    QueueAway,
}

/// Asks for work for all engines that have room: one call for those with the same weights, so that
/// siblings of a prompt, which lie side by side in the ready queue, can go to one engine.
async fn claim_work(shared: &Arc<Shared>, homes: &mut Homes, streams: &mut JoinSet<()>) -> Claimed {
    let mut result = Claimed::NoRoom;
    // The newest weights first: they may take everything.
    for (version, rooms) in rooms_by_version(shared).into_iter().rev() {
        let room = rooms.iter().map(|room| room.units).sum();
        let turn = shared.lease_turn.lock().await;
        let Some(claim) = shared.gate.begin_claim() else { break };
        let terms = LeaseTerms {
            stage: Stage::Generate,
            holder: &shared.config.holder,
            ttl: shared.config.lease.ttl,
            worker_version: version,
        };
        let leased = shared.queue.lease_while(terms, room, || shared.gate.is_open()).await;
        drop(turn);
        let leased = match leased {
            Ok(leased) => leased,
            Err(error) => {
                tracing::debug!(%error, "no work leased");
                return Claimed::QueueAway;
            }
        };
        let is_enough = leased.grants.len() >= room;
        shared.note_run_version(leased.current_version);
        share_out(shared, version, leased.grants, rooms, homes, streams);
        drop(claim);
        if !shared.gate.is_open() {
            // A drain waits for the end of this claim.
            shared.desk.nudge();
        }
        result = if is_enough && result != Claimed::QueueEmpty {
            Claimed::Enough
        } else {
            Claimed::QueueEmpty
        };
    }
    result
}

/// The engines that have room, by their weights.
fn rooms_by_version(shared: &Shared) -> BTreeMap<PolicyVersion, Vec<Room>> {
    let now = Instant::now();
    let mut rooms: BTreeMap<PolicyVersion, Vec<Room>> = BTreeMap::new();
    for slot in shared.engines_in_service() {
        let Some(version) = slot.admits(now) else { continue };
        let units = slot.room(shared.desk.ledger().held_on(slot.index));
        if units > 0 {
            rooms.entry(version).or_default().push(Room { engine: slot.index, units });
        }
    }
    rooms
}

/// Gives each engine its share of what was granted. More than there is room for was meant for an
/// earlier call whose answer was lost: it goes back.
fn share_out(
    shared: &Arc<Shared>,
    version: PolicyVersion,
    mut grants: Vec<Grant>,
    rooms: Vec<Room>,
    homes: &mut Homes,
    streams: &mut JoinSet<()>,
) {
    let room = rooms.iter().map(|room| room.units).sum();
    let surplus = grants.split_off(grants.len().min(room));
    if let Some(first) = rooms.first().and_then(|room| shared.engines.at(room.engine))
        && !surplus.is_empty()
    {
        refuse(shared, &first.slot, version, surplus);
    }
    let groups: Vec<_> = grants.iter().map(|grant| &grant.group.group_id).collect();
    let engines = homes.place(&groups, rooms);
    let mut shares: BTreeMap<usize, Vec<Grant>> = BTreeMap::new();
    for (grant, engine) in grants.into_iter().zip(engines) {
        shares.entry(engine).or_default().push(grant);
    }
    for (engine, grants) in shares {
        let hosted = shared.engines.at(engine).expect("engines keep their numbers");
        admit(shared, &hosted, version, grants, streams);
    }
}

/// Takes in what was granted, or hands it back when the gate has closed meanwhile.
fn admit(
    shared: &Arc<Shared>,
    hosted: &Hosted,
    version: PolicyVersion,
    grants: Vec<Grant>,
    streams: &mut JoinSet<()>,
) {
    let slot = &hosted.slot;
    let terms = admission_terms(shared, slot, version);
    let now = Instant::now();
    let mut wrong_model = None;
    shared.desk.change(|ledger| {
        for grant in grants {
            if !shared.gate.is_open() {
                ledger.refuse(grant, &terms, shared.leaving_why(), now);
                continue;
            }
            if hosted.gone.is_cancelled() {
                ledger.refuse(grant, &terms, HandBackCause::Engine.into(), now);
                continue;
            }
            if slot.takes_nothing_more() {
                ledger.refuse(grant, &terms, HandBackCause::Weights.into(), now);
                continue;
            }
            shared.metrics.tokens.note_continued(&grant);
            match ledger.admit(grant, &terms, now) {
                Admission::Stream(job) => {
                    let stream = streaming::run_stream(shared.clone(), slot.clone(), *job);
                    streams.spawn(stream.in_current_span());
                }
                Admission::Ended => shared.metrics.streams.note_complete(),
                Admission::WrongModel(why) => wrong_model = Some(why),
            }
        }
    });
    if let Some(why) = wrong_model {
        tracing::warn!(engine = slot.engine.address(), why, "engine serves another model");
        slot.hold_off(Trouble::WrongModel(why), now);
    }
}

/// Takes in what was granted only to hand it back.
fn refuse(shared: &Shared, slot: &EngineSlot, version: PolicyVersion, grants: Vec<Grant>) {
    let terms = admission_terms(shared, slot, version);
    let now = Instant::now();
    shared.desk.change(|ledger| {
        for grant in grants {
            ledger.refuse(grant, &terms, HandBackCause::Engine.into(), now);
        }
    });
}

fn admission_terms(shared: &Shared, slot: &EngineSlot, version: PolicyVersion) -> AdmissionTerms {
    let facts = slot.facts();
    AdmissionTerms {
        engine: slot.index,
        engine_name: facts.name,
        models: facts.models,
        engine_version: version,
        run_version: *shared.run_version.borrow(),
        holder: shared.config.holder.clone(),
        fabric: shared.config.fabric,
    }
}

/// Stores tokens as they are due, and ends as they come; repeats what was not answered.
async fn store(shared: &Shared) {
    let pace = shared.config.pace;
    let mut changes = shared.desk.subscribe();
    let mut backoff = Backoff::new(QUEUE_PAUSE_MIN, QUEUE_PAUSE_MAX);
    let mut append_at = Instant::now() + pace.append_every;
    loop {
        shared.pulses.beat(Loop::Store, Instant::now());
        let wake_at = {
            let ledger = shared.desk.ledger();
            let idle = pace.silence_limit / IDLE_BEATS;
            let next = if ledger.held() == 0 { Instant::now() + idle } else { append_at };
            ledger.next_write_by().map_or(next, |write_by| write_by.min(next))
        };
        tokio::select! {
            () = sleep_until(wake_at) => {}
            _ = changes.changed() => {}
        }
        if shared.desk.ledger().next_write_by().is_some() {
            // Streams that are aborted together end together: one batch for them.
            sleep(LEAVE_LINGER).await;
        }
        let now = Instant::now();
        let is_due = now >= append_at;
        if is_due {
            append_at = now + pace.append_every;
        }
        let (writes, sent) = shared.desk.ledger().collect(is_due, pace.append_tokens, now);
        if writes.is_empty() {
            continue;
        }
        let replies = shared.queue.write(&shared.config.holder, writes).await;
        let settled = shared.desk.change(|ledger| ledger.settle(sent, replies, Instant::now()));
        leases::report(shared, &settled);
        match settled.retry {
            None => backoff.reset(),
            Some(problem) => {
                let failures = backoff.failures();
                let pause = backoff.next_pause();
                if failures == 0 {
                    tracing::warn!(problem, "writes not answered, tokens wait");
                }
                sleep(pause).await;
                append_at = Instant::now();
            }
        }
    }
}
