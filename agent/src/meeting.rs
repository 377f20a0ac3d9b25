//! Meets the others in the queue's control keys: reads them, and reports the node.
//!
//! Read at least every interval, and soon after somebody says that something has changed. Reports
//! are written at every interval, and at once when the node's standing changes.

mod load;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::{Backoff, Hint, QueueError};
use ebbtide_queue::control::{EngineRecord, NodeRecord, NodeState, ReplicaView};
use futures::future::try_join_all;
use futures::poll;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::gate::ClosedFor;
use crate::hosting::{Condition, EngineFigures, EngineSlot};
use crate::interruption::SeenView;
use crate::kubernetes::Membership;
use crate::pulse::Loop;
use crate::shared::Shared;

use load::{EngineStanding, NodeLoad, clamped};

/// Silence of the controller's reaper after which agents with room reap.
const REAPER_SILENCE: Duration = Duration::from_secs(3);

/// Expired leases that one call returns on each shard.
const REAP_LIMIT: usize = 64;

/// Bounds of the pause while the queue is away.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Shortest time between a look because of a hint and the next one: a drain must reach every node
/// of its replica within 250 ms (issue and contract), so a hint may wait for a fraction of that.
const LOOK_PAUSE: Duration = Duration::from_millis(25);

/// Time limit of the last report.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// Reads and reports for as long as it is polled.
pub(crate) async fn meet(shared: &Shared, views: watch::Sender<Option<SeenView>>) {
    let meet_every = shared.config.pace.meet_every;
    let mut standing = shared.standing.subscribe();
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    let mut reporter = Reporter::default();
    let mut report_at = Instant::now();
    let mut was_regular = true;
    loop {
        let begun = Instant::now();
        shared.pulses.beat(Loop::Meeting, begun);
        // Listens before it reads, so that no hint falls between the two.
        let mut woken = pin!(shared.queue.woken(Hint::Control));
        let is_woken = poll!(&mut woken).is_ready();
        let is_report_due = begun >= report_at || standing.has_changed().unwrap_or(false);
        if is_report_due {
            // Before it is read for the report: what changes meanwhile is reported next.
            standing.mark_unchanged();
        }
        let met = exchange(shared, &views, &mut reporter, is_report_due).await;
        if is_report_due {
            // One that was not written stays due.
            report_at = if met.is_ok() { shared.rhythm.next(meet_every) } else { begun };
        }
        match met {
            Ok(()) => {
                if backoff.failures() > 0 {
                    tracing::info!("queue is back");
                    backoff.reset();
                }
                let is_regular = !is_woken && {
                    tokio::select! {
                        () = sleep_until(report_at) => true,
                        () = woken => false,
                        _ = standing.changed() => {
                            standing.mark_changed();
                            false
                        }
                    }
                };
                // Hints come in showers; one look answers many.
                if !was_regular {
                    sleep_until(begun + LOOK_PAUSE).await;
                }
                was_regular = is_regular;
            }
            Err(error) => {
                shared.queue_trouble.send_replace(Some(error.to_string()));
                if backoff.failures() == 0 {
                    tracing::warn!(%error, "queue does not answer, running work goes on");
                }
                tokio::time::sleep(backoff.next_pause()).await;
            }
        }
    }
}

async fn exchange(
    shared: &Shared,
    views: &watch::Sender<Option<SeenView>>,
    reporter: &mut Reporter,
    is_report_due: bool,
) -> Result<(), QueueError> {
    let clock = match reporter.server_clock {
        Some(clock) => clock,
        None => (look(shared).await?.now, Instant::now()),
    };
    let report =
        async { if is_report_due { reporter.report(shared, clock).await } else { Ok(()) } };
    // At the same time: an idle agent wakes up once.
    let (view, reported) = futures::join!(look(shared), report);
    let (view, at) = (view?, Instant::now());
    shared.queue_answered_at.send_replace(Some(at));
    shared.queue_trouble.send_replace(None);
    shared.note_run_version(view.version.version);
    shared.published.send_if_modified(|known| {
        let is_new = *known != view.version;
        known.clone_from(&view.version);
        is_new
    });
    reporter.server_clock = Some((view.now, at));
    shared.straggler.send_if_modified(|known| {
        let is_new = *known != view.straggler;
        known.clone_from(&view.straggler);
        is_new
    });
    if is_report_due {
        reap_for_the_controller(shared, &view).await;
    }
    views.send_replace(Some(SeenView { view: Arc::new(view), at }));
    reported
}

/// Reads what concerns the replica. Its nodes as well while it drains, if it has several and this
/// agent speaks for them: their readings cost as much as the run has nodes.
async fn look(shared: &Shared) -> Result<ReplicaView, QueueError> {
    let Membership { replica, leads, .. } = shared.membership();
    let is_group = replica != ReplicaId::from(shared.config.node());
    let is_draining = shared.standing.borrow().drain.is_some();
    if leads && is_group && is_draining {
        return Ok(shared.queue.view().await?.into_replica(replica));
    }
    shared.queue.replica_view(&replica).await
}

/// Recovery must survive a dead controller: agents with room reap when nobody else does.
async fn reap_for_the_controller(shared: &Shared, view: &ReplicaView) {
    let silence = view.reaper_beat.map(|beat| view.now.since(beat));
    let engines = shared.engines.present();
    let capacity = engines * shared.config.engine_ceiling(engines);
    // Without engines nothing of that kind can keep it busy.
    let is_full = capacity > 0 && shared.desk.ledger().held() >= capacity;
    if is_full || silence.is_some_and(|silence| silence <= REAPER_SILENCE) {
        return;
    }
    match shared.queue.reap(REAP_LIMIT).await {
        Ok(0) => {}
        Ok(units) => tracing::info!(units, "expired leases returned in the controller's place"),
        Err(error) => tracing::debug!(%error, "expired leases not returned"),
    }
}

/// Remembers what the last report said, for the speed since then.
#[derive(Debug, Default)]
struct Reporter {
    /// What the store's clock showed, and when.
    server_clock: Option<(UnixMillis, Instant)>,
    last: Option<(Instant, u64)>,
    tokens_dropped: u64,
    drained_for: Option<String>,
}

impl Reporter {
    async fn report(
        &mut self,
        shared: &Shared,
        server_clock: (UnixMillis, Instant),
    ) -> Result<(), QueueError> {
        let tokens_per_second = self.speed(shared, Instant::now());
        let load = NodeLoad::of(shared, Instant::now());
        observe(shared, tokens_per_second, &load);
        let record = node_record(shared, tokens_per_second, &load, server_clock);
        // The one who speaks for the replica waits for this word of the others.
        let is_news = record.drained_for.is_some() && record.drained_for != self.drained_for;
        let drained_for = record.drained_for.clone();
        let node = async {
            if is_news && !shared.membership().leads {
                return shared.queue.announce_node(record).await;
            }
            shared.queue.put_node(record).await
        };
        let engines =
            engine_records(shared, &load).into_iter().map(|it| shared.queue.put_engine(it));
        let (node, engines) = futures::join!(node, try_join_all(engines));
        node?;
        self.drained_for = drained_for;
        engines.map(|_| ())
    }

    fn speed(&mut self, shared: &Shared, at: Instant) -> f64 {
        let counts = shared.counts();
        shared.metrics.tokens.dropped.inc_by(counts.tokens_dropped - self.tokens_dropped);
        self.tokens_dropped = counts.tokens_dropped;
        let received = counts.tokens_received;
        let speed = self.last.map(|(since, before)| {
            (received - before) as f64 / (at - since).as_secs_f64().max(f64::EPSILON)
        });
        self.last = Some((at, received));
        speed.unwrap_or(0.0)
    }
}

fn observe(shared: &Shared, tokens_per_second: f64, load: &NodeLoad) {
    let (held, waiting) = (shared.held(), shared.waiting_tokens());
    let now = Instant::now();
    let may_work = |slot: &&Arc<EngineSlot>| slot.admits(now).is_some() && !slot.is_in_trouble();
    let ready = shared.engines_in_service().iter().filter(may_work).count();
    let metrics = &shared.metrics;
    metrics.in_flight.set(i64::try_from(held).unwrap_or(i64::MAX));
    metrics.tokens.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    metrics.engines_ready.set(i64::try_from(ready).unwrap_or(i64::MAX));
    metrics.replica_slow.set(i64::from(shared.straggler.borrow().is_some()));
    metrics.gate_open.set(i64::from(shared.gate.is_open()));
    metrics.tokens.per_second.set(tokens_per_second);
    metrics.show_node(shared.config.role, &shared.identity());
    for (index, engine) in load.engines.iter().enumerate() {
        metrics.engines.show(index, &engine.figures, engine.places);
        metrics.engines.show_startup(index, &engine.startup);
    }
}

fn node_record(
    shared: &Shared,
    tokens_per_second: f64,
    load: &NodeLoad,
    (server_now, at): (UnixMillis, Instant),
) -> NodeRecord {
    let identity = shared.identity();
    let (notice, drain, drained_for) = {
        let standing = shared.standing.borrow();
        (standing.notice, standing.drain, standing.drained_for.clone())
    };
    let idle_since = drain.and_then(|drain| drain.idle_since);
    let pods_left = drain.and_then(|drain| drain.pods_left);
    let pods_left = pods_left.map(|pods| u32::try_from(pods).unwrap_or(u32::MAX));
    let notice_deadline = notice.and_then(|(_, deadline)| deadline);
    let held_directly = drain.and_then(|drain| drain.held_directly).unwrap_or(0);
    let held = shared.held() as u64 + held_directly;
    NodeRecord {
        node: shared.config.node().clone(),
        holder: shared.config.holder.clone(),
        replica: shared.membership().replica,
        role: shared.config.role,
        instance_id: identity.instance_id,
        zone: identity.zone,
        instance_type: identity.instance_type,
        market: identity.market,
        state: node_state(shared),
        fabric: shared.config.fabric,
        in_flight: u32::try_from(held).unwrap_or(u32::MAX),
        tokens_per_second,
        generating: load.generating(),
        capacity: load.capacity(),
        environment_waiting: shared.workers.workers().waiting_for_environment(),
        running: load.running(),
        waiting: load.waiting(),
        kv_cache_use: load.kv_cache_use(),
        weights_version: common_version(shared),
        notice_kind: notice.map(|(kind, _)| kind.as_str().to_owned()),
        notice_deadline: notice_deadline
            .map(|deadline| server_now.plus(deadline.saturating_duration_since(at))),
        pods_left,
        idle_since: idle_since.map(|since| server_now.minus(at.saturating_duration_since(since))),
        slow_since: shared.straggler.borrow().as_ref().map(|found| found.named_at),
        drained_for,
        heartbeat: server_now,
    }
}

/// How far the node is on its way into or out of service.
pub(crate) fn node_state(shared: &Shared) -> NodeState {
    if let Some(drain) = shared.standing.borrow().drain {
        return if drain.is_drained { NodeState::Drained } else { NodeState::Draining };
    }
    if shared.gate.is_closed_for(ClosedFor::KeysUnread) {
        return NodeState::Starting;
    }
    if !shared.gate.is_open() {
        return NodeState::NotReady;
    }
    if shared.engines.is_awaited() {
        return NodeState::Starting;
    }
    let engines = shared.engines_in_service();
    let conditions: Vec<Condition> = engines.iter().map(|slot| slot.condition()).collect();
    let has = |is_such: fn(&Condition) -> bool| conditions.iter().any(is_such);
    if conditions.is_empty() || has(|condition| matches!(condition, Condition::Ready(_))) {
        NodeState::Ready
    } else if has(|condition| matches!(condition, Condition::Loading(_))) {
        NodeState::Loading
    } else if has(|condition| matches!(condition, Condition::Starting(_))) {
        NodeState::Starting
    } else {
        NodeState::NotReady
    }
}

/// The weights of the engines, when all that are ready agree.
fn common_version(shared: &Shared) -> Option<ebbtide_core::ids::PolicyVersion> {
    let engines = shared.engines_in_service();
    let mut versions = engines.iter().filter_map(|slot| match slot.condition() {
        Condition::Ready(version) => Some(version),
        _ => None,
    });
    let first = versions.next()?;
    versions.all(|version| version == first).then_some(first)
}

fn engine_records(shared: &Shared, load: &NodeLoad) -> Vec<EngineRecord> {
    let replica = shared.membership().replica;
    let record = |(slot, standing): (&Arc<EngineSlot>, &EngineStanding)| {
        let (weights_version, state) = match slot.condition() {
            Condition::Ready(version) => (Some(version), "ready".to_owned()),
            Condition::Starting(None) => (None, "starting".to_owned()),
            Condition::Starting(Some(why)) => (None, format!("starting: {why}")),
            Condition::Loading(why) | Condition::NotReady(why) => (None, why),
        };
        let startup = standing.startup;
        let seconds = |part: Option<Duration>| part.map(|part| part.as_secs_f64());
        let EngineFigures { running, waiting, kv_cache_use, .. } = standing.figures;
        EngineRecord {
            replica: replica.clone(),
            index: u16::try_from(slot.index).unwrap_or(u16::MAX),
            address: slot.engine.address().to_owned(),
            kind: slot.engine.kind().to_owned(),
            engine: slot.facts().name,
            weights_version,
            state,
            places: Some(clamped(standing.places as u64)),
            running,
            waiting,
            kv_cache_use,
            tokens_per_second: standing.figures.tokens_per_second,
            first_token_seconds: standing.figures.first_token_seconds,
            preemptions: standing.figures.preemptions,
            prefix_hit_share: standing.figures.prefix_hit_share,
            expert_balance: standing.figures.expert_balance,
            startup_node_seconds: seconds(startup.node),
            startup_image_seconds: seconds(startup.image),
            startup_engine_seconds: seconds(startup.engine),
            startup_weights_seconds: seconds(startup.weights),
            startup_first_token_seconds: seconds(startup.first_token),
            heartbeat: UnixMillis::default(),
        }
    };
    shared.engines_in_service().iter().zip(&load.engines).map(record).collect()
}

/// The last report of a process that ends; nobody waits long for it.
pub(crate) async fn say_goodbye(shared: &Shared) {
    let goodbye = async {
        let view = shared.queue.replica_view(&shared.membership().replica).await?;
        let now = Instant::now();
        let record = node_record(shared, 0.0, &NodeLoad::of(shared, now), (view.now, now));
        shared.queue.put_node(record).await
    };
    match timeout(GOODBYE_LIMIT, goodbye).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "last report not written"),
        Err(_) => tracing::debug!("last report not answered"),
    }
}
