//! Plans as an operator reads them.

use std::time::Duration;

use super::cases_reserved::{BLOCK, block_world};
use super::world::{SPOT, World};
use crate::observation::{FailureKind, Signal};
use crate::policy::UpdateDeadline;
use crate::scale::BudgetTerms;
use crate::time::UnixMillis;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn empty_buffer_raises() {
    let mut world = World::new().with_work(200, 16, 2).with_replicas(SPOT, &[16]);
    assert_eq!(
        world.plan().to_string(),
        "replicas: 1 run, 8 desired\n\
         do: raise pool spot from 1 to 5\n\
         because: 216 units of work, 120 of use in time, occupy 8\n\
         because: buffer holds 2 groups, below its target of 8\n\
         because: pace is not measured yet\n\
         because: 7 changes are wanted, one plan makes 4\n"
    );
}

#[test]
fn full_buffer_waits_and_then_names_victims() {
    let mut world = World::new().with_work(0, 11, 20).with_replicas(SPOT, &[8, 0, 3]);
    assert_eq!(
        world.plan().to_string(),
        "replicas: 3 run, 1 desired\n\
         because: 11 units of work, 48 of use in time, occupy 1\n\
         because: buffer holds 20 groups, 16 are enough\n\
         because: pace is not measured yet\n\
         because: the minimum is 1\n\
         because: down to 1 waits for 1m more\n"
    );
    assert_eq!(
        world.plan_for(SECOND * 60).to_string(),
        "replicas: 3 run, 1 desired\n\
         do: ask spot-2 to drain\n\
         do: ask spot-3 to drain\n\
         because: 11 units of work, 48 of use in time, occupy 1\n\
         because: buffer holds 20 groups, 16 are enough\n\
         because: pace is not measured yet\n\
         because: the minimum is 1\n"
    );
}

#[test]
fn unknown_signal_says_why_nothing_is_lowered() {
    let mut world = World::new().with_work(0, 0, 20).with_replicas(SPOT, &[8, 0]);
    world.seen.trainer = Signal::unknown("its heartbeat is 42s old, at most 30s count");
    assert_eq!(
        world.plan().to_string(),
        "replicas: 2 run, 2 desired\n\
         because: trainer is unknown (its heartbeat is 42s old, at most 30s count): nothing is \
         lowered\n\
         because: 0 units of work, 48 of use in time, occupy 0\n\
         because: buffer holds 20 groups, 16 are enough\n\
         because: pace is not measured yet\n"
    );
}

#[test]
fn unknown_size_says_that_nothing_is_written() {
    let mut world = World::new().with_work(100, 0, 0);
    world.seen.pools[SPOT].size = Signal::unknown("Throttling: Rate exceeded");
    assert_eq!(
        world.plan().to_string(),
        "replicas: unknown run, unknown desired\n\
         because: size of pool spot is unknown (Throttling: Rate exceeded): nothing is written\n"
    );
}

#[test]
fn measured_pace_sizes_the_fleet() {
    // 32 samples in 20 s, each 75 s in flight: 120 in flight, 16 on a replica.
    let mut world = World::new().with_work(400, 0, 8).with_pace(20, 75);
    let plan = world.plan();
    assert_eq!(plan.desired, Some(6), "useful work is the limit: {plan}");
    world.terms.max_lag = 9;
    let text = world.plan().to_string();
    assert!(text.contains("0 run, 8 desired"), "{text}");
    assert!(
        text.contains("because: pace of 19s933ms per update and 1m14s750ms per sample asks for 8"),
        "{text}"
    );
}

#[test]
fn reservation_that_ends_says_what_becomes_of_its_replicas() {
    let mut world = block_world(SECOND * 44 * 60).with_replicas(BLOCK, &[16; 4]);
    assert_eq!(
        world.plan().to_string(),
        "replicas: 4 run, 4 desired\n\
         do: raise pool on-demand from 0 to 4\n\
         because: 64 units of work, 128 of use in time, occupy 4\n\
         because: buffer holds 0 groups, below its target of 8\n\
         because: pace is not measured yet\n\
         because: cr-0a ends: nothing more is ordered in pool block, its replicas drain in 2m\n"
    );
}

#[test]
fn late_run_says_what_it_buys_and_what_it_cannot_pay() {
    let mut world = World::new().with_work(400, 0, 0).with_prices(100.0, 20.0, 60.0);
    let by = world.seen.now.plus(SECOND * 6000);
    world.terms.deadline = Some(UpdateDeadline { updates: 100, by });
    world.terms.budget =
        Some(BudgetTerms { dollars_per_hour: 290.0, others_dollars_per_hour: Some(100.0) });
    world.terms.pools[SPOT].max_nodes = 4;
    let mut world = world.with_replicas(SPOT, &[16; 4]);
    world.plan();
    world.pass(SECOND * 660);
    assert_eq!(
        world.plan().to_string(),
        "replicas: 4 run, 8 desired\n\
         do: raise pool on-demand from 0 to 1\n\
         because: 400 units of work, 128 of use in time, occupy 8\n\
         because: buffer holds 0 groups, below its target of 8\n\
         because: pace is not measured yet\n\
         because: 0 updates are done and 11 should be, to be ready by 1970-01-12T15:26:40Z: \
         on-demand is bought whatever it costs\n\
         because: the budget leaves 50.00 dollars per hour: no more is paid\n"
    );
}

#[test]
fn benched_pool_is_named() {
    let mut world = World::new().with_work(20, 0, 0);
    world.plan();
    world.size_mut(SPOT).desired = 1;
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(5));
    let text = world.plan().to_string();
    assert!(text.contains("do: raise pool on-demand from 0 to 2\n"), "{text}");
    assert!(text.contains("because: pool spot is benched for 3m more (capacity)\n"), "{text}");
}
