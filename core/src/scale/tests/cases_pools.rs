//! Pools: what fails to launch, what is lost, who else writes, what does not fit.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions, pool_name};
use crate::observation::{DrainPurpose, DrainStage, FailureKind, InstanceId, Signal};
use crate::scale::{Action, ActionResult, Reason};
use crate::time::UnixMillis;

const SECOND: Duration = Duration::from_secs(1);

/// A reload has renamed a pool whose nodes work.
#[test]
fn replicas_of_no_pool_are_told() {
    let mut world = World::new().with_work(400, 32, 0).with_replicas(SPOT, &[16, 16]);
    assert!(!world.plan().to_string().contains("of no pool"));
    world.size_mut(SPOT).instances.clear();
    let plan = world.plan();
    assert!(
        plan.to_string().contains("because: 2 that work are of no pool of this policy"),
        "{plan}"
    );
}

#[test]
fn spot_without_capacity_is_benched_and_on_demand_takes_over() {
    let mut world = World::new().with_work(60, 0, 0).with_replicas(SPOT, &[8, 8]);
    world.size_mut(SPOT).desired = 4;
    let plan = world.plan();
    assert!(plan.is_settled(), "the group fills up by itself: {plan}");
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(77_000));
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 2"], "{plan}");
    world.apply(&plan);
    assert!(world.plan_for(SECOND * 170).is_settled());
    let benched = |world: &World| world.memory.benched(world.seen.now).count();
    assert_eq!(benched(&world), 1);
    world.pass(SECOND * 11);
    world.plan();
    assert_eq!(benched(&world), 0, "it is tried again after three minutes");
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(99_000));
    world.plan_for(SECOND * 350);
    assert_eq!(benched(&world), 1, "the second time takes six minutes");
}

/// Case T30 of autoscaling: in the activities of a group.
#[test]
fn throttling_benches_no_pool() {
    let mut world = World::new().with_work(60, 0, 0).with_replicas(SPOT, &[8, 8]);
    world.size_mut(SPOT).desired = 4;
    world.plan();
    world.fail_launch(SPOT, FailureKind::Throttled, UnixMillis(77_000));
    let plan = world.plan();
    assert!(plan.is_settled(), "{plan}");
    assert_eq!(world.memory.benched(world.seen.now).count(), 0);
}

/// What is left of a group goes with the size of the whole, where its provider makes groups.
#[test]
fn end_of_a_part_of_a_group_is_nobody_elses_doing() {
    let mut world = World::new().with_work(60, 0, 0);
    world.terms.nodes_per_replica = 2;
    world = world.with_replicas(SPOT, &[8, 8]);
    world.plan();
    let raise = Action::Raise { pool: pool_name("spot"), from: 2, to: 4 };
    world.memory.note_outcome(&raise, ActionResult::Done);
    let retire = Action::Retire {
        replica: "spot-2".parse().expect("valid"),
        request_id: "r".to_owned(),
        pool: pool_name("spot"),
        instances: vec![InstanceId("i-spot-2.0".to_owned())],
    };
    world.memory.note_outcome(&retire, ActionResult::Done);
    let size = world.size_mut(SPOT);
    (size.desired, size.instances) = (2, size.instances[..2].to_vec());
    let plan = world.plan_for(SECOND * 30);
    let is_told = |reason: &Reason| matches!(reason, Reason::ConflictingWriter { .. });
    assert!(!plan.reasons.iter().any(is_told), "{plan}");
}

/// Case T08 of autoscaling.
#[test]
fn loss_of_a_pool_whose_size_nobody_keeps_is_made_good_and_nobody_elses_doing() {
    let mut world = World::new().with_work(60, 0, 0);
    world.size_mut(SPOT).is_unmanaged = true;
    let raise = world.plan();
    assert_eq!(actions(&raise), ["raise pool spot from 0 to 4"]);
    world.apply(&raise);
    assert!(world.plan().is_settled());
    world.size_mut(SPOT).desired = 3;
    world.size_mut(SPOT).instances.truncate(3);
    for _ in 0..6 {
        world.pass(SECOND * 5);
        let plan = world.plan();
        assert_eq!(actions(&plan), ["raise pool spot from 3 to 4"], "{plan}");
    }
}

#[test]
fn somebody_else_who_sets_the_size_is_reported_and_not_fought() {
    let mut world = World::new().with_work(60, 0, 0);
    let raise = world.plan();
    assert_eq!(actions(&raise), ["raise pool spot from 0 to 4"]);
    world.apply(&raise);
    let mut writes = 0;
    for _ in 0..60 {
        world.size_mut(SPOT).desired = 1;
        world.size_mut(SPOT).instances.truncate(1);
        world.pass(SECOND * 5);
        let plan = world.plan();
        let of_spot = |text: &&String| text.starts_with("raise pool spot");
        writes += actions(&plan).iter().filter(of_spot).count();
        for action in &plan.actions {
            world.memory.note_outcome(action, ActionResult::Done);
        }
    }
    let plan = world.plan();
    let is_told = |reason: &Reason| matches!(reason, Reason::ConflictingWriter { .. });
    assert!(plan.reasons.iter().any(is_told), "{plan}");
    assert_eq!(writes, 1, "it is written back once in five minutes");
}

/// Case T08 of autoscaling: the other writer comes by now and then only, as one that synchronises
/// every quarter of a minute does.
#[test]
fn somebody_else_who_sets_the_size_now_and_then_is_not_fought_either() {
    let mut world = World::new().with_work(60, 0, 0);
    let raise = world.plan();
    world.apply(&raise);
    let (mut writes, mut told) = (0, 0);
    for look in 0..60 {
        if look % 3 == 0 {
            world.size_mut(SPOT).desired = 1;
            world.size_mut(SPOT).instances.truncate(1);
        }
        world.pass(SECOND * 5);
        let plan = world.plan();
        let of_spot = |text: &&String| text.starts_with("raise pool spot");
        writes += actions(&plan).iter().filter(of_spot).count();
        let is_told = |reason: &Reason| matches!(reason, Reason::ConflictingWriter { .. });
        told += usize::from(plan.reasons.iter().any(is_told));
        world.apply(&plan);
    }
    assert_eq!(writes, 1, "it is written back once in five minutes");
    assert!(told > 50, "and that is reported: {told}");
}

/// Case T33 of autoscaling.
#[test]
fn failure_from_before_the_first_look_is_ignored() {
    let mut world = World::new().with_work(60, 0, 0).with_replicas(SPOT, &[8, 8]);
    world.size_mut(SPOT).desired = 4;
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(77_000));
    assert!(world.plan().is_settled());
    assert!(world.plan().is_settled(), "the same failure is no news at the second look");
}

/// Case T23 of autoscaling: the group that never fills.
#[test]
fn launch_that_never_ends_is_given_up_after_ten_minutes() {
    let mut world = World::new().with_work(60, 0, 0).with_replicas(SPOT, &[8, 8]);
    world.size_mut(SPOT).desired = 4;
    assert!(world.plan_for(SECOND * 590).is_settled());
    let plan = world.plan_for(SECOND * 15);
    let kinds: Vec<FailureKind> = world.memory.benched(world.seen.now).map(|(_, k)| k).collect();
    assert_eq!(kinds, [FailureKind::TimedOut], "{plan}");
}

#[test]
fn next_pool_takes_what_the_benched_one_cannot() {
    let mut world = World::new().with_work(60, 0, 0);
    world.plan();
    world.size_mut(SPOT).desired = 1;
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(5));
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "{plan}");
}

/// Case 56 of the interruption cases.
#[test]
fn pool_that_just_lost_an_instance_comes_last_and_is_tried_again_later() {
    let raises = |world: &mut World| actions(&world.plan());
    let mut world = World::new().with_work(200, 16, 2).with_replicas(SPOT, &[16]);
    world.terms.max_changes_per_tick = 1;
    assert_eq!(raises(&mut world), ["raise pool spot from 1 to 2"]);

    world.replica_mut("spot-1").nodes[0].is_reclaimed = true;
    assert_eq!(raises(&mut world), ["raise pool on-demand from 0 to 1"]);
    world.pass(SECOND * 179);
    assert_eq!(raises(&mut world), ["raise pool on-demand from 0 to 1"]);
    world.pass(SECOND);
    assert_eq!(raises(&mut world), ["raise pool spot from 1 to 2"], "one loss counts once");
}

#[test]
fn pool_that_just_lost_an_instance_is_better_than_none() {
    let mut world = World::new().with_work(200, 16, 2).with_replicas(SPOT, &[16]);
    (world.terms.max_changes_per_tick, world.terms.pools[ON_DEMAND].max_nodes) = (1, 0);
    world.replica_mut("spot-1").nodes[0].is_reclaimed = true;
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 1 to 2"]);
    let said = plan.to_string();
    let expected = "AWS has just taken an instance of pool spot: others come first for 3m more";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn loss_is_not_forgotten_while_records_cannot_be_read() {
    let mut world = World::new().with_work(200, 16, 2).with_replicas(SPOT, &[16]);
    world.replica_mut("spot-1").nodes[0].is_reclaimed = true;
    world.plan();
    let known = std::mem::replace(&mut world.seen.replicas, Signal::unknown("away"));
    world.pass(SECOND * 120);
    world.plan();
    world.seen.replicas = known;
    world.pass(SECOND * 60);
    let plan = world.plan();
    assert!(!plan.to_string().contains("AWS has just taken"), "it counts from the first sight");
}

/// Case T25 of autoscaling.
#[test]
fn group_that_replaces_its_losses_is_not_raised() {
    let mut world = World::new().with_work(128, 0, 0).with_replicas(SPOT, &[16; 6]);
    world.size_mut(SPOT).desired = 8;
    let plan = world.plan();
    assert_eq!((plan.desired, actions(&plan)), (Some(8), vec![]), "{plan}");
}

/// Case T31 of autoscaling.
#[test]
fn unknown_size_writes_nothing() {
    let mut world = World::new().with_work(500, 0, 0).with_replicas(ON_DEMAND, &[0, 0, 0]);
    world.set_drain("on-demand-1", DrainPurpose::Sizing, DrainStage::Drained);
    world.seen.pools[SPOT].size = Signal::unknown("RequestLimitExceeded");
    let plan = world.plan_for(SECOND * 300);
    assert_eq!((plan.desired, actions(&plan)), (None, vec![]), "{plan}");
}

/// Case T45 of autoscaling: the zone alone.
#[test]
fn whole_zone_that_vanishes_causes_one_replan_and_no_stampede() {
    let mut world = World::new().with_work(500, 0, 0).with_replicas(SPOT, &[16; 8]);
    world.terms.max_lag = 9;
    world.plan();
    world.size_mut(SPOT).instances.clear();
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 8 to 10"], "{plan}");
    world.size_mut(SPOT).desired = 10;
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(77_000));
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "{plan}");
}
