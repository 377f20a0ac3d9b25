//! Provider `fleet` on moto, with AWS's own ways in front of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_controller::capacity::fleet::FleetCapacity;
use ebbtide_controller::capacity::{Capacity, CapacityError};
use ebbtide_controller::metrics::Metrics;
use ebbtide_core::observation::FailureKind;
use ebbtide_core::policy::Pool;
use ebbtide_harness::{Moto, require};
use ebbtide_queue::client::wall_clock_now;

use super::faulty_aws::{Fault, FaultyAws};
use super::world::{ids, look, pool};
use crate::aws::{live_instances, template};

struct World {
    moto: Moto,
    aws: FaultyAws,
    capacity: Arc<dyn Capacity>,
    pool: Pool,
}

impl World {
    async fn start(moto: Moto) -> Self {
        template(&moto, "rollout", "p5en.48xlarge", false).await;
        let aws = FaultyAws::start(&moto).await;
        let pool = pool(
            "provider: fleet, zone: us-east-1a, instanceType: p5en.48xlarge, \
             fleet: {launchTemplate: rollout}",
        );
        let capacity = capacity(&aws).await;
        Self { moto, aws, capacity, pool }
    }

    async fn live(&self) -> usize {
        live_instances(&self.moto).await.len()
    }

    async fn desired(&self) -> u32 {
        let view = look(&self.capacity, &self.pool).await;
        view.size.known().unwrap_or_else(|| panic!("{view:?}")).desired
    }

    async fn failures(&self) -> Vec<FailureKind> {
        let view = look(&self.capacity, &self.pool).await;
        let failures = &view.activities.known().unwrap().failures;
        failures.iter().map(|failure| failure.kind).collect()
    }
}

async fn capacity(aws: &FaultyAws) -> Arc<dyn Capacity> {
    let calls = Metrics::new().unwrap().api_calls;
    let run = "run".parse().unwrap();
    Arc::new(FleetCapacity::new(&aws.config().await, run, calls, wall_clock_now))
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
    let stranger = super::world::pool(
        "provider: fleet, zone: us-east-1a, instanceType: p5en.48xlarge, \
         fleet: {launchTemplate: rollout}",
    );
    let stranger = Pool { name: "other".parse().unwrap(), ..stranger };
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
    let other = capacity(&world.aws).await;
    assert_eq!(look(&other, &world.pool).await.size.known().unwrap().desired, 0);
    other.raise(&world.pool, 0, 2, 2).await.unwrap();
    assert_eq!((world.aws.calls("CreateFleet"), world.live().await), (2, 2), "the same fleet");
    // What it was told, it remembers until it is shown.
    world.aws.fail("DescribeInstances", Fault::ShowsNothing, 2);
    assert_eq!(look(&other, &world.pool).await.size.known().unwrap().desired, 2);
    let moved = other.raise(&world.pool, 0, 2, 2).await.unwrap_err();
    assert!(matches!(moved, CapacityError::Moved { got: 2, .. }), "{moved}");
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
