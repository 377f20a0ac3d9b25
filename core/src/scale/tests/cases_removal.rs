//! Pools whose provider takes instances in an order of its own: the highest ordinal first.

use std::time::Duration;

use super::world::{SPOT, World, actions};
use crate::observation::{DrainPurpose, DrainStage};
use crate::scale::Reason;

const LONG: Duration = Duration::from_secs(120);

/// Replicas `spot-1` to `spot-4` with these loads, of which the provider takes `spot-4` first;
/// nothing more is needed than the minimum.
fn world(loads: [u32; 4]) -> World {
    let mut world = World::new().with_replicas(SPOT, &loads).with_bounds(1, 10).with_work(0, 0, 90);
    let most = world.size_mut(SPOT).instances.len();
    for (ordinal, instance) in world.size_mut(SPOT).instances.iter_mut().enumerate() {
        instance.removal_rank = u32::try_from(most - ordinal).expect("few");
    }
    world
}

#[test]
fn busy_replica_with_the_highest_ordinal_drains_before_an_idle_one() {
    let mut world = world([0, 0, 0, 5]);
    world.terms.max_changes_per_tick = 2;
    let plan = world.plan_for(LONG);
    assert_eq!(actions(&plan), ["ask spot-4 to drain", "ask spot-3 to drain"], "{plan}");
}

#[test]
fn drained_replica_waits_for_those_that_would_go_before_it() {
    let mut world = world([0, 0, 0, 5]);
    world.set_drain("spot-3", DrainPurpose::Sizing, DrainStage::Drained);
    world.set_drain("spot-4", DrainPurpose::Sizing, DrainStage::Draining);
    let plan = world.plan();
    let waits = Reason::WaitsForTurn { replica: "spot-3".parse().expect("valid") };
    assert!(actions(&plan).is_empty() && plan.reasons.contains(&waits), "{plan}");
    world.set_drain("spot-4", DrainPurpose::Sizing, DrainStage::Drained);
    world.replica_mut("spot-4").leased = crate::observation::Signal::fresh(0);
    let retired = [
        "terminate spot-4 in pool spot: i-spot-4.0",
        "terminate spot-3 in pool spot: \
                    i-spot-3.0",
    ];
    assert_eq!(actions(&world.plan()), retired);
}

#[test]
fn nobody_drains_behind_one_that_cannot_go() {
    let mut world = world([0, 0, 0, 0]);
    world.replica_mut("spot-4").has_notice = true;
    let plan = world.plan_for(LONG);
    assert!(actions(&plan).is_empty(), "{plan}");
    assert!(plan.reasons.iter().any(|reason| matches!(reason, Reason::NoVictim { .. })), "{plan}");
}

#[test]
fn drain_of_the_one_that_would_go_last_is_taken_back_first() {
    let mut world = world([5, 5, 0, 0]);
    world.set_drain("spot-3", DrainPurpose::Sizing, DrainStage::Drained);
    world.set_drain("spot-4", DrainPurpose::Sizing, DrainStage::Requested);
    let mut world = world.with_bounds(3, 10);
    let plan = world.plan();
    assert_eq!(actions(&plan)[0], "cancel the drain of spot-3", "{plan}");
}
