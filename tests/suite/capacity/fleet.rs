//! Provider `fleet` on moto, with AWS's own ways in front of it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_controller::capacity::fleet::FleetCapacity;
use ebbtide_controller::capacity::{Capacity, CapacityError, Desk};
use ebbtide_controller::leader::Leadership;
use ebbtide_controller::metrics::Metrics;
use ebbtide_core::observation::{FailureKind, InstanceId, PoolSize};
use ebbtide_core::policy::Pool;
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{Moto, Redis, require, until};
use ebbtide_queue::client::{MemoryPort, WorkQueue, wall_clock_now};
use ebbtide_queue::control::{NodeRecord, NodeState};
use ebbtide_queue::memory::ShardSettings;
use tokio::sync::watch;

use super::faulty_aws::{Fault, FaultyAws};
use super::world::{ids, look, pool};
use crate::aws::{live_instances, template};
use crate::programs::{ControllerProgram, EVENT_LIMIT, policy_file, queue};

const POOL: &str = "provider: fleet, zone: us-east-1a, instanceType: p5en.48xlarge, \
    fleet: {launchTemplate: rollout}";

thread_local! {
    /// How far the clock of this test's stores is ahead.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn store_clock() -> UnixMillis {
    wall_clock_now().plus(AHEAD.get())
}

fn pass(time: Duration) {
    AHEAD.set(AHEAD.get() + time);
}

struct World {
    moto: Moto,
    aws: FaultyAws,
    /// The run's store.
    store: WorkQueue,
    capacity: Arc<dyn Capacity>,
    pool: Pool,
}

impl World {
    async fn start(moto: Moto) -> Self {
        template(&moto, "rollout", "p5en.48xlarge", false).await;
        let aws = FaultyAws::start(&moto).await;
        let store = new_store();
        let capacity = capacity(&aws, &store, 1).await;
        Self { moto, aws, store, capacity, pool: pool(POOL) }
    }

    /// Another controller of the same run, which leads from now on.
    async fn successor(&self, generation: u64) -> Arc<dyn Capacity> {
        assert!(self.store.claim(generation, &format!("{generation} leads")).await.unwrap());
        capacity(&self.aws, &self.store, generation).await
    }

    async fn live(&self) -> usize {
        live_instances(&self.moto).await.len()
    }

    async fn desired(&self) -> u32 {
        self.size(&self.capacity).await.desired
    }

    async fn size(&self, capacity: &Arc<dyn Capacity>) -> PoolSize {
        let view = look(capacity, &self.pool).await;
        view.size.known().unwrap_or_else(|| panic!("{view:?}")).clone()
    }

    async fn failures(&self) -> Vec<FailureKind> {
        let view = look(&self.capacity, &self.pool).await;
        let failures = &view.activities.known().unwrap().failures;
        failures.iter().map(|failure| failure.kind).collect()
    }
}

fn new_store() -> WorkQueue {
    WorkQueue::new(Arc::new(MemoryPort::new(1, ShardSettings::default(), store_clock)))
}

/// The provider of a controller that leads in this generation.
async fn capacity(aws: &FaultyAws, store: &WorkQueue, generation: u64) -> Arc<dyn Capacity> {
    let calls = Metrics::new().unwrap().api_calls;
    let run = "run".parse().unwrap();
    let capacity = FleetCapacity::new(&aws.config().await, run, calls, wall_clock_now);
    let leads = watch::channel(Some(Leadership { generation, until: None })).1;
    capacity.keep_books(&Desk { queue: store.clone(), leadership: leads });
    Arc::new(capacity)
}

#[tokio::test]
async fn replicas_are_bought_whole_and_exactly_the_named_ones_end() {
    let world = World::start(require!(Moto::start().await)).await;
    let (capacity, pool) = (&world.capacity, &world.pool);
    assert_eq!(world.desired().await, 0);
    capacity.raise(pool, 0, 4, 2).await.unwrap();
    assert_eq!(world.aws.calls("CreateFleet"), 2, "one for each replica");
    let view = look(capacity, pool).await;
    let size = view.size.known().unwrap();
    assert_eq!((size.desired, size.instances.len()), (4, 4));
    assert!(size.instances.iter().all(|one| one.node.is_some()), "{size:?}");
    let moved = capacity.raise(pool, 2, 6, 2).await.unwrap_err();
    assert!(matches!(moved, CapacityError::Moved { got: 4, .. }), "{moved}");

    let all = ids(&size.instances);
    let named: Vec<_> = all.iter().take(2).cloned().collect();
    for _ in 0..2 {
        capacity.terminate(pool, &named).await.unwrap();
        let left: BTreeSet<String> = live_instances(&world.moto).await.into_iter().collect();
        let expected = all.iter().skip(2).map(|id| id.0.clone()).collect();
        assert_eq!(left, expected);
    }
    assert_eq!(capacity.find_gone(&[pool], &named).await.unwrap().len(), 2);
    let stranger = Pool { name: "other".parse().unwrap(), ..super::world::pool(POOL) };
    capacity.terminate(&stranger, &all.iter().cloned().collect::<Vec<_>>()).await.unwrap();
    assert_eq!(world.live().await, 2, "instances of another pool are none of its own");
}

#[tokio::test]
async fn zone_without_room_for_a_whole_replica_gives_nothing_and_is_asked_anew() {
    let world = World::start(require!(Moto::start().await)).await;
    world.aws.set_machines(1);
    let refused = world.capacity.raise(&world.pool, 0, 2, 2).await.unwrap_err();
    assert!(refused.to_string().contains("InsufficientInstanceCapacity"), "{refused}");
    assert!(!refused.is_retriable());
    assert_eq!((world.live().await, world.failures().await), (0, vec![FailureKind::Capacity]));
    // Nothing has changed but that there is room: a token of old would be answered as of old.
    world.aws.set_machines(2);
    world.capacity.raise(&world.pool, 0, 2, 2).await.unwrap();
    assert_eq!(world.live().await, 2);
}

#[tokio::test]
async fn lost_answer_and_one_that_shows_nothing_launch_nothing_twice() {
    let world = World::start(require!(Moto::start().await)).await;
    world.aws.fail("CreateFleet", Fault::ReplyLost, 1);
    let lost = world.capacity.raise(&world.pool, 0, 2, 2).await.unwrap_err();
    assert!(lost.is_retriable(), "{lost}");
    assert_eq!(world.failures().await, [], "nobody said that there is none");
    assert_eq!(world.live().await, 2);
    // EC2 does not show them yet, to a controller that has just begun.
    world.aws.fail("DescribeInstances", Fault::ShowsNothing, 2);
    let other = world.successor(2).await;
    assert_eq!(world.size(&other).await.desired, 0);
    other.raise(&world.pool, 0, 2, 2).await.unwrap();
    assert_eq!((world.aws.calls("CreateFleet"), world.live().await), (2, 2), "the same fleet");
    // What one was told, the next one knows, until it is shown.
    let third = world.successor(3).await;
    world.aws.fail("DescribeInstances", Fault::ShowsNothing, 2);
    assert_eq!(world.size(&third).await.desired, 2);
    let moved = third.raise(&world.pool, 0, 2, 2).await.unwrap_err();
    assert!(matches!(moved, CapacityError::Moved { got: 2, .. }), "{moved}");
}

#[tokio::test]
async fn each_replica_is_bought_once_whoever_leads_and_whichever_answer_is_lost() {
    let world = World::start(require!(Moto::start().await)).await;
    world.capacity.raise(&world.pool, 0, 1, 1).await.unwrap();
    // Of two, the answer about one is lost, and EC2 shows neither to who leads next.
    world.aws.fail("CreateFleet", Fault::ReplyLost, 1);
    let partly = world.capacity.raise(&world.pool, 1, 3, 1).await.unwrap_err();
    assert!(partly.is_retriable() && partly.came() == 1, "{partly}");
    let other = world.successor(2).await;
    world.aws.fail("DescribeInstances", Fault::ShowsNothing, 2);
    assert_eq!(world.size(&other).await.desired, 2, "those that were answered");
    other.raise(&world.pool, 2, 3, 1).await.unwrap();
    assert_eq!((world.live().await, world.size(&other).await.desired), (3, 3));
    // One that leads no more buys nothing.
    let before = world.aws.calls("CreateFleet");
    let late = world.capacity.raise(&world.pool, 3, 4, 1).await.unwrap_err();
    assert!(late.to_string().contains("a newer leader has taken over"), "{late}");
    assert_eq!(world.aws.calls("CreateFleet"), before);
}

#[tokio::test]
async fn pool_that_was_emptied_is_bought_anew_by_a_controller_that_has_just_begun() {
    let world = World::start(require!(Moto::start().await)).await;
    world.capacity.raise(&world.pool, 0, 2, 2).await.unwrap();
    let all: Vec<InstanceId> =
        world.size(&world.capacity).await.instances.into_iter().map(|one| one.id).collect();
    world.capacity.terminate(&world.pool, &all).await.unwrap();
    let other = world.successor(2).await;
    assert_eq!((world.size(&other).await.desired, world.live().await), (0, 0));
    other.raise(&world.pool, 0, 2, 2).await.unwrap();
    assert_eq!(world.live().await, 2, "and not what the first purchase brought");
}

#[tokio::test]
async fn what_is_not_answered_holds_other_terms_back_until_it_would_show() {
    let world = World::start(require!(Moto::start().await)).await;
    world.aws.fail("CreateFleet", Fault::ReplyLost, 1);
    world.aws.fail("DescribeInstances", Fault::ShowsNothing, 4);
    world.capacity.raise(&world.pool, 0, 2, 2).await.unwrap_err();
    let single = world.capacity.raise(&world.pool, 0, 1, 1).await.unwrap_err();
    assert!(single.is_retriable() && single.to_string().contains("2 nodes of rollout"), "{single}");
    assert_eq!((world.aws.calls("CreateFleet"), world.live().await), (1, 2));
    pass(Duration::from_secs(180));
    world.capacity.raise(&world.pool, 0, 1, 1).await.unwrap();
    assert_eq!((world.aws.calls("CreateFleet"), world.live().await), (2, 3));
}

#[tokio::test]
async fn runs_of_one_name_neither_count_nor_end_nor_buy_each_others_nodes() {
    let world = World::start(require!(Moto::start().await)).await;
    let elsewhere = capacity(&world.aws, &new_store(), 1).await;
    elsewhere.raise(&world.pool, 0, 2, 2).await.unwrap();
    let theirs: Vec<InstanceId> =
        live_instances(&world.moto).await.into_iter().map(InstanceId).collect();
    // A store that has just been made may be one that was lost: its nodes get time to report.
    let view = look(&world.capacity, &world.pool).await;
    let why = view.size.why_unknown().unwrap_or_else(|| panic!("{view:?}"));
    assert!(why.contains("2 instances that may be its own"), "{why}");
    pass(Duration::from_secs(60));
    let size = world.size(&world.capacity).await;
    assert_eq!((size.desired, size.instances), (0, vec![]));
    assert!(size.remarks[0].starts_with("2 instances carry the tags"), "{:?}", size.remarks);
    world.capacity.terminate(&world.pool, &theirs).await.unwrap();
    assert_eq!(world.live().await, 2, "theirs live");
    world.capacity.raise(&world.pool, 0, 2, 2).await.unwrap();
    assert_eq!((world.live().await, world.desired().await), (4, 2));
    let size = world.size(&elsewhere).await;
    assert_eq!(super::world::ids(&size.instances), theirs.into_iter().collect());
}

#[tokio::test]
async fn nodes_of_a_store_that_was_lost_are_own_once_they_report_to_the_new_one() {
    let world = World::start(require!(Moto::start().await)).await;
    world.capacity.raise(&world.pool, 0, 2, 1).await.unwrap();
    let all: Vec<InstanceId> =
        live_instances(&world.moto).await.into_iter().map(InstanceId).collect();
    let store = new_store();
    let after = capacity(&world.aws, &store, 1).await;
    let holder = "n1/boot/agent-1".parse().unwrap();
    let record = NodeRecord::new(holder, NodeState::Ready);
    store.put_node(NodeRecord { instance_id: Some(all[0].0.clone()), ..record }).await.unwrap();
    assert!(look(&after, &world.pool).await.size.known().is_none(), "the other may report yet");
    pass(Duration::from_secs(60));
    let size = world.size(&after).await;
    assert_eq!(super::world::ids(&size.instances), BTreeSet::from([all[0].clone()]));
    assert!(size.remarks[0].contains(&all[1].0), "{:?}", size.remarks);
    after.terminate(&world.pool, &all).await.unwrap();
    assert_eq!(live_instances(&world.moto).await, [all[1].0.clone()]);
}

#[tokio::test]
async fn raise_that_worked_in_part_says_what_came_and_why_no_more() {
    let world = World::start(require!(Moto::start().await)).await;
    world.aws.set_machines(2);
    let partly = world.capacity.raise(&world.pool, 0, 3, 1).await.unwrap_err();
    assert_eq!((partly.came(), partly.refusal()), (2, Some(FailureKind::Capacity)), "{partly}");
    assert_eq!((world.live().await, world.desired().await), (2, 2));
}

#[tokio::test]
async fn throttling_is_waited_out_and_says_nothing_about_the_pool() {
    let world = World::start(require!(Moto::start().await)).await;
    world.aws.fail("CreateFleet", Fault::Refused("RequestLimitExceeded"), 2);
    world.capacity.raise(&world.pool, 0, 1, 1).await.unwrap();
    assert_eq!((world.live().await, world.failures().await), (1, vec![]));
    world.aws.fail("CreateFleet", Fault::Refused("RequestLimitExceeded"), 100);
    let throttled = world.capacity.raise(&world.pool, 1, 2, 1).await.unwrap_err();
    assert!(throttled.is_retriable(), "{throttled}");
    assert!(world.failures().await.iter().all(|kind| !kind.benches()));
}

#[tokio::test]
async fn part_of_a_replica_is_given_back() {
    let world = World::start(require!(Moto::start().await)).await;
    world.aws.fail("CreateFleet", Fault::OneShort, 1);
    let short = world.capacity.raise(&world.pool, 0, 2, 2).await.unwrap_err();
    assert!(short.to_string().contains("fewer instances than a replica has"), "{short}");
    assert_eq!((world.live().await, world.desired().await), (0, 0));
}

#[tokio::test]
async fn slow_answer_ends_with_its_time_and_is_no_failure_of_the_pool() {
    let world = World::start(require!(Moto::start().await)).await;
    world.aws.fail("CreateFleet", Fault::Slow(Duration::from_secs(30)), 1);
    let began_at = tokio::time::Instant::now();
    let slow = world.capacity.raise(&world.pool, 0, 1, 1).await.unwrap_err();
    assert!(slow.is_retriable() && began_at.elapsed() < Duration::from_secs(15), "{slow}");
    assert_eq!(world.failures().await, []);
}

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run}
spec:
  mode: act
  queue: {shards: 1}
  trainer: {groupsPerStep: 4, groupSize: 1}
  rollout: {minReplicas: 2, maxReplicas: 2, pools: [one], tick: 500ms}
  pools:
    - {name: one, market: spot, maxNodes: 2, provider: fleet, zone: us-east-1a,
       instanceType: p5en.48xlarge, fleet: {launchTemplate: rollout}}
";

/// The real program on a real Redis.
#[tokio::test]
async fn controller_keeps_its_books_in_the_store_of_the_run() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    template(&moto, "rollout", "p5en.48xlarge", false).await;
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let store = queue(&redis, "run", 1).await;
    let (mut controller, _) = ControllerProgram::new(&redis, &moto, &policy).start();
    let book = until("both nodes on record", EVENT_LIMIT, || async {
        let book = store.purchases().await.ok()?;
        let is_answered = book.purchases.iter().all(|record| !record.instances.is_empty());
        (book.purchases.len() == 2 && is_answered).then_some(book)
    });
    let book = book.await.unwrap();
    assert!(book.store.is_some());
    let ids = book.purchases.into_iter().flat_map(|record| record.instances.0);
    let ids: BTreeSet<String> = ids.map(|id| id.0).collect();
    assert_eq!(ids, live_instances(&moto).await.into_iter().collect());
    controller.kill();
    // The next one finds its pool as it is.
    let (_next, health) = ControllerProgram::new(&redis, &moto, &policy).start();
    until("the next to have looked", EVENT_LIMIT, || async {
        let status = reqwest::get(format!("{health}/status")).await.ok()?;
        let status: serde_json::Value = status.json().await.ok()?;
        (status["ticks"].as_u64()? > 3 && status["running"] == 2).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(live_instances(&moto).await.len(), 2);
}
