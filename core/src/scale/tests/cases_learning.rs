//! What is learned of pools: benches, probes, quotas, and how launches are spread.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::observation::FailureKind;
use crate::policy::Market;
use crate::scale::{Action, ActionResult, CapacityReason, Reason, ScalePlan};
use crate::time::UnixMillis;

const SECOND: Duration = Duration::from_secs(1);

const ZONES: [(&str, Market); 4] = [
    ("z1", Market::Spot),
    ("z2", Market::Spot),
    ("z3", Market::Spot),
    ("on-demand", Market::OnDemand),
];

/// Work for more replicas than there are, in three Spot zones and on demand.
fn zones() -> World {
    let mut world = World::of_pools(&ZONES).with_work(400, 0, 0);
    world.terms.max_lag = 9;
    world
}

fn of_type(world: &mut World, pool: usize, instance_type: &str) {
    world.terms.pools[pool].instance_type = Some(instance_type.parse().expect("valid"));
}

/// How long the pool is out after the failure that the next plan sees.
fn time_on_bench(world: &mut World) -> Duration {
    let mut length = Duration::ZERO;
    world.plan();
    while world.memory.benched(world.seen.now).next().is_some() {
        world.pass(SECOND);
        length += SECOND;
    }
    length
}

/// Case T13 of autoscaling: three minutes, doubled on each repetition.
#[test]
fn bench_is_doubled_until_something_has_come() {
    let mut world = World::new().with_work(60, 0, 0).with_replicas(SPOT, &[8, 8]);
    world.plan();
    world.size_mut(SPOT).desired = 4;
    world.plan();
    let mut lengths = Vec::new();
    for failure in 1..=5 {
        world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(failure * 77_000));
        lengths.push(time_on_bench(&mut world).as_secs());
    }
    assert_eq!(lengths, [180, 360, 720, 1440, 1800]);
    let lost = world.size_mut(SPOT).instances.pop().expect("one of two");
    world.plan();
    world.size_mut(SPOT).instances.push(lost);
    world.plan();
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(999_000));
    assert_eq!(time_on_bench(&mut world).as_secs(), 180, "something has come since");
}

#[test]
fn bench_is_no_shorter_than_the_longest_launch_that_failed() {
    let mut world = World::new().with_work(60, 0, 0).with_replicas(SPOT, &[8, 8]);
    world.size_mut(SPOT).desired = 4;
    world.plan_for(SECOND * 400);
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(77_000));
    assert_eq!(time_on_bench(&mut world).as_secs(), 400);
}

#[test]
fn failures_of_another_day_are_no_repetition() {
    let mut world = World::new().with_work(60, 0, 0).with_replicas(SPOT, &[8, 8]);
    world.size_mut(SPOT).desired = 4;
    world.plan();
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(77_000));
    assert_eq!(time_on_bench(&mut world).as_secs(), 180);
    world.size_mut(SPOT).desired = 2;
    world.pass(Duration::from_hours(4));
    world.plan();
    world.size_mut(SPOT).desired = 4;
    world.plan();
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(999_000));
    assert_eq!(time_on_bench(&mut world).as_secs(), 180);
}

/// Case T13 of autoscaling: after the bench a single launch comes before more.
#[test]
fn pool_that_was_benched_is_probed_with_a_single_replica() {
    let mut world = World::new().with_work(400, 0, 0);
    world.terms.pools[ON_DEMAND].max_nodes = 0;
    let raise = world.plan();
    assert_eq!(actions(&raise), ["raise pool spot from 0 to 4"]);
    world.memory.note_outcome(&raise.actions[0], ActionResult::Refused(FailureKind::Capacity));
    assert!(world.plan_for(SECOND * 175).is_settled(), "it is on the bench");
    world.pass(SECOND * 5);
    let probe = world.plan();
    assert_eq!(actions(&probe), ["raise pool spot from 0 to 1"]);
    world.memory.note_outcome(&probe.actions[0], ActionResult::Done);
    world.size_mut(SPOT).desired = 1;
    assert!(world.plan_for(SECOND * 60).is_settled(), "the probe is on its way");
    world.apply(&probe);
    assert_eq!(actions(&world.plan()), ["raise pool spot from 1 to 5"], "and it has come");
}

/// Cases T13 and T18 of autoscaling: fleets are bought one by one, and what is there is all that is
/// asked for.
#[test]
fn pool_that_gave_a_part_is_benched_although_that_part_comes() {
    let mut world = World::new().with_work(400, 0, 0);
    world.terms.pools[ON_DEMAND].max_nodes = 0;
    world.size_mut(SPOT).is_unmanaged = true;
    let kind = FailureKind::Capacity;
    let raise = world.plan();
    assert_eq!(actions(&raise), ["raise pool spot from 0 to 4"]);
    let before = world.memory.breaker;
    world.memory.note_outcome(&raise.actions[0], ActionResult::Partly { kind, came: 3 });
    assert_ne!(world.memory.breaker, before, "what came was launched");
    world.size_mut(SPOT).desired = 3;
    world.heal(SPOT);
    assert_eq!(time_on_bench(&mut world).as_secs(), 180);
    let probe = world.plan();
    assert_eq!(actions(&probe), ["raise pool spot from 3 to 4"]);
    world.memory.note_outcome(&probe.actions[0], ActionResult::Refused(kind));
    assert_eq!(time_on_bench(&mut world).as_secs(), 360, "nothing has come since");
    world.size_mut(SPOT).desired = 4;
    world.heal(SPOT);
    world.plan();
    let more = world.plan();
    assert_eq!(actions(&more), ["raise pool spot from 4 to 8"], "now something has");
}

/// A group keeps trying for all that it was asked for; one of them is counted on.
#[test]
fn group_that_keeps_trying_counts_as_one_probe() {
    let mut world = World::new().with_work(60, 0, 0);
    world.plan();
    world.size_mut(SPOT).desired = 4;
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(77_000));
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"]);
    world.apply(&plan);
    world.seen.ready = crate::observation::Signal::fresh(120);
    world.pass(SECOND * 200);
    let plan = world.plan();
    assert_eq!((plan.running, plan.desired), (Some(5), Some(8)), "{plan}");
    assert_eq!(actions(&plan), ["raise pool on-demand from 4 to 7"]);
}

/// Case T16 of autoscaling.
#[test]
fn used_up_quota_benches_every_pool_under_it() {
    let mut world = zones();
    for (pool, instance_type) in
        [(0, "p5en.48xlarge"), (1, "p5en.48xlarge"), (2, "p4d.24xlarge"), (3, "p5en.48xlarge")]
    {
        of_type(&mut world, pool, instance_type);
    }
    world.terms.max_changes_per_tick = 1;
    let raise = world.plan();
    assert_eq!(actions(&raise), ["raise pool z1 from 0 to 1"]);
    world.memory.note_outcome(&raise.actions[0], ActionResult::Refused(FailureKind::Quota));
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool z3 from 0 to 1"], "another quota: {plan}");
    let benched: Vec<_> = world.memory.benched(world.seen.now).collect();
    assert_eq!(benched.len(), 2, "{benched:?}");
    let said = plan.to_string();
    let expected = "QuotaExceeded: the quota for P5 Spot is used up, no pool of it is asked for 3m";
    assert!(said.contains(expected), "{said}");

    world.terms.pools[2].max_nodes = 0;
    assert_eq!(actions(&world.plan()), ["raise pool on-demand from 0 to 1"], "the fallback");
    world.pass(SECOND * 180);
    let probe = world.plan();
    assert_eq!(actions(&probe), ["raise pool z1 from 0 to 1"], "one probe for the quota");
    world.memory.note_outcome(&probe.actions[0], ActionResult::Refused(FailureKind::Quota));
    assert!(!actions(&world.plan()).iter().any(|action| action.contains("pool z")));
    world.pass(SECOND * 360);
    let probe = world.plan();
    world.apply(&probe);
    world.plan();
    assert_eq!(actions(&world.plan()), ["raise pool z2 from 0 to 1"], "it has room again");
}

/// Case T36 of autoscaling.
#[test]
fn refused_number_is_halved_before_the_pool_is_benched() {
    let mut world = World::new().with_work(400, 0, 0);
    (world.terms.max_changes_per_tick, world.terms.max_lag) = (8, 9);
    let mut asked = Vec::new();
    let plan = loop {
        let plan = world.plan();
        let Some(Action::Raise { pool, from, to }) = plan.actions.first() else { panic!("{plan}") };
        assert_eq!(plan.actions.len(), 1, "nothing dearer is bought meanwhile: {plan}");
        if pool.as_str() != "spot" {
            break plan;
        }
        asked.push(to - from);
        let refusal = ActionResult::Refused(FailureKind::Quota);
        world.memory.note_outcome(&plan.actions[0], refusal);
        world.pass(SECOND * 5);
    };
    assert_eq!(asked, [8, 4, 2, 1]);
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 8"], "{plan}");
}

#[test]
fn number_that_is_granted_ends_the_halving() {
    let mut world = World::new().with_work(400, 0, 0);
    (world.terms.max_changes_per_tick, world.terms.max_lag) = (8, 9);
    let plan = world.plan();
    world.memory.note_outcome(&plan.actions[0], ActionResult::Refused(FailureKind::Quota));
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 0 to 4"]);
    let halved = |plan: &ScalePlan| {
        let is_halved =
            |reason: &Reason| matches!(reason, Reason::Capacity(CapacityReason::Halved { .. }));
        plan.reasons.iter().any(is_halved)
    };
    assert!(halved(&plan), "{plan}");
    world.apply(&plan);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 4 to 10"]);
    assert!(!halved(&plan), "{plan}");
}

/// Case T30 of autoscaling: by the answer to a launch.
#[test]
fn refusal_by_throttling_changes_nothing() {
    let mut world = World::new().with_work(400, 0, 0);
    let plan = world.plan();
    for _ in 0..240 {
        let refused = ActionResult::Refused(FailureKind::Throttled);
        world.memory.note_outcome(&plan.actions[0], refused);
        world.pass(SECOND * 15);
        assert_eq!(actions(&world.plan()), actions(&plan));
    }
    assert_eq!(world.memory.benched(world.seen.now).count(), 0);
    assert_eq!(world.memory.breaker(), None);
}

/// Case T18 of autoscaling.
#[test]
fn zone_whose_last_launch_failed_comes_after_those_with_room() {
    let mut world = zones().with_replicas(0, &[8]).with_replicas(1, &[8]).with_replicas(2, &[8]);
    for (pool, price) in [(0, 10.0), (1, 30.0), (2, 20.0), (3, 90.0)] {
        world.terms.pools[pool].dollars_per_node_hour = Some(price);
    }
    world.terms.max_changes_per_tick = 1;
    assert_eq!(actions(&world.plan()), ["raise pool z1 from 1 to 2"], "price breaks the tie");
    world.size_mut(0).desired = 2;
    world.fail_launch(0, FailureKind::Capacity, UnixMillis(77_000));
    world.plan();
    world.size_mut(0).desired = 1;
    world.pass(SECOND * 180);
    let plan = world.plan();
    assert_eq!(world.memory.benched(world.seen.now).count(), 0, "it may be tried again");
    assert_eq!(actions(&plan), ["raise pool z3 from 1 to 2"], "{plan}");
    world.apply(&plan);
    assert_eq!(actions(&world.plan()), ["raise pool z2 from 1 to 2"], "the emptier one");
}

#[test]
fn launches_are_spread_over_zones_that_are_alike() {
    let mut world = zones().with_replicas(1, &[8, 8]);
    let plan = world.plan();
    let expected = ["raise pool z1 from 0 to 2", "raise pool z3 from 0 to 2"];
    assert_eq!(actions(&plan), expected, "{plan}");
    of_type(&mut world, 0, "p5en.48xlarge");
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool z1 from 0 to 4"], "what is not alike is preferred");
}

#[test]
fn zone_that_loses_nodes_gets_fewer() {
    let mut world = zones().with_replicas(0, &[8, 8, 8]);
    world.plan();
    let size = world.size_mut(0);
    (size.instances, size.desired) = (Vec::new(), 3);
    world.plan();
    world.size_mut(0).desired = 0;
    let plan = world.plan();
    let expected = ["raise pool z2 from 0 to 2", "raise pool z3 from 0 to 2"];
    assert_eq!(actions(&plan), expected, "three lost ones count as if they were there: {plan}");
    world.pass(Duration::from_hours(8));
    let plan = world.plan();
    assert_eq!(actions(&plan)[0], "raise pool z1 from 0 to 2", "it is long ago: {plan}");
}

/// A call that hangs says nothing; whether it was heard shows at the next look.
#[test]
fn pool_that_does_not_answer_is_benched_unless_it_has_heard() {
    let table: [(u32, &[&str]); 3] = [
        (2, &["raise pool on-demand from 0 to 2"]),
        // It is slow, and some of it has come about.
        (3, &["raise pool spot from 3 to 4"]),
        (4, &[]),
    ];
    for (found, expected) in table {
        let mut world = World::new().with_work(60, 0, 0).with_replicas(SPOT, &[16, 16]);
        let plan = world.plan();
        assert_eq!(actions(&plan), ["raise pool spot from 2 to 4"]);
        let hung = ActionResult::Refused(FailureKind::TimedOut);
        world.memory.note_outcome(&plan.actions[0], hung);
        world.size_mut(SPOT).desired = found;
        world.pass(SECOND * 5);
        let plan = world.plan();
        assert_eq!(actions(&plan), expected, "{plan}");
        assert_eq!(world.memory.benched(world.seen.now).count(), usize::from(found == 2));
        // It is tried again after three minutes.
        world.pass(SECOND * 180);
        let plan = world.plan();
        assert!(!plan.to_string().contains("benched"), "{plan}");
    }
}
