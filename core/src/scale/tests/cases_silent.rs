//! Replicas that are silent for long although their instances run.

use std::time::Duration;

use super::world::{SPOT, World, actions};
use crate::observation::{DrainPurpose, DrainStage, ReplicaState, Signal};

const MINUTE: Duration = Duration::from_mins(1);
const ASKED: &str = "ask spot-3 to drain, its nodes hang";

/// Three replicas that are all needed; the last has been silent for so long.
fn world(silence: Duration) -> World {
    let mut world = World::new().with_work(400, 32, 0).with_replicas(SPOT, &[16, 16, 0]);
    world.terms.max_replicas = 3;
    fall_silent(&mut world, "spot-3", silence);
    world
}

fn fall_silent(world: &mut World, id: &str, silence: Duration) {
    let replica = world.replica_mut(id);
    replica.state = ReplicaState::Unknown;
    for node in &mut replica.nodes {
        node.heartbeat_age = silence;
    }
}

#[test]
fn replica_whose_node_hangs_is_replaced() {
    let mut world = world(MINUTE * 14);
    assert!(world.plan().is_settled(), "it may come back");
    fall_silent(&mut world, "spot-3", MINUTE * 15);
    let plan = world.plan();
    assert_eq!(actions(&plan), [ASKED], "{plan}");
    assert!(plan.to_string().contains("spot-3 has been silent for a quarter of an hour"));

    // It does not answer: a silent one without leases counts as drained.
    world.set_drain("spot-3", DrainPurpose::Sizing, DrainStage::Requested);
    fall_silent(&mut world, "spot-3", MINUTE * 16);
    let plan = world.plan();
    let expected = "terminate spot-3 in pool spot: i-spot-3.0".to_owned();
    assert!(actions(&plan).contains(&expected), "{plan}");
    world.apply(&plan);
    let plan = world.plan_for(MINUTE);
    assert_eq!(plan.running, Some(3), "another one has taken its place: {plan}");
}

#[test]
fn silent_replica_that_may_be_at_work_is_left_alone() {
    type Spare = fn(&mut World);
    let spared: [(&str, Spare); 5] = [
        ("it holds work", |world| world.replica_mut("spot-3").leased = Signal::fresh(1)),
        ("nobody knows", |world| {
            world.replica_mut("spot-3").leased = Signal::unknown("queue gave no status");
        }),
        ("AWS takes it", |world| world.replica_mut("spot-3").has_notice = true),
        ("nobody is heard", |world| {
            fall_silent(world, "spot-1", MINUTE * 15);
            fall_silent(world, "spot-2", MINUTE * 15);
        }),
        ("its pool may not go lower", |world| world.size_mut(SPOT).floor = 3),
    ];
    for (why, spare) in spared {
        let mut world = world(MINUTE * 20);
        spare(&mut world);
        let plan = world.plan();
        assert!(!actions(&plan).contains(&ASKED.to_owned()), "{why}: {plan}");
    }
}

#[test]
fn only_so_many_go_at_a_time() {
    let mut world = world(MINUTE * 20);
    fall_silent(&mut world, "spot-2", MINUTE * 20);
    world.replica_mut("spot-2").leased = Signal::fresh(0);
    world.terms.max_changes_per_tick = 1;
    let plan = world.plan();
    assert_eq!(actions(&plan), ["ask spot-2 to drain, its nodes hang"], "{plan}");
}
