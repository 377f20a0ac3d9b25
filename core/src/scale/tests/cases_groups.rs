//! EP groups: whole or nothing.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::observation::{DrainPurpose, DrainStage, FailureKind, InstanceState, Signal};
use crate::scale::{Action, CapacityReason, Reason};
use crate::time::UnixMillis;

const SECOND: Duration = Duration::from_secs(1);

/// Two groups of three nodes at work; the first has lost a node, and its agents report on.
fn lossy_world() -> World {
    let mut world = World::new().with_work(64, 16, 0).with_bounds(1, 2);
    world.terms.nodes_per_replica = 3;
    let mut world = world.with_replicas(SPOT, &[0, 8]);
    let lost = world.size_mut(SPOT).instances.remove(0).id;
    let replica = world.replica_mut("spot-1");
    replica.nodes.retain(|node| node.instance.as_ref() != Some(&lost));
    replica.state = crate::observation::ReplicaState::Pending;
    world
}

/// Case T20 of autoscaling, where nobody but us replaces nodes.
#[test]
fn one_lost_node_is_replaced_by_one_node() {
    let mut world = lossy_world();
    world.size_mut(SPOT).desired = 5;
    let plan = world.plan();
    assert_eq!(plan.running, Some(1), "a part of a group is none: {plan}");
    assert_eq!(actions(&plan), ["raise pool spot from 5 to 6"]);
}

#[test]
fn group_that_is_not_completed_in_time_is_released() {
    let mut world = lossy_world();
    assert!(world.plan().is_settled(), "its pool completes it");
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(77_000));
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 3"], "a whole one: {plan}");
    world.apply(&plan);
    assert!(world.plan_for(SECOND * 590).is_settled(), "spot is benched or probed");
    world.pass(SECOND * 10);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["ask spot-1 to drain, it lacks a node"], "{plan}");
    world.apply(&plan);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["terminate spot-1 in pool spot: i-spot-1.1, i-spot-1.2"]);
    world.apply(&plan);
    assert_eq!(world.size_mut(SPOT).desired, 4);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["forget spot-1"], "{plan}");
    world.apply(&plan);
    assert!(world.plan().is_settled());
}

#[test]
fn group_whose_node_is_on_its_way_is_waited_for() {
    let mut world = lossy_world();
    world.plan_for(SECOND * 590);
    world.size_mut(SPOT).desired = 5;
    world.add_silent(SPOT, "i-new", InstanceState::Pending);
    let plan = world.plan_for(SECOND * 300);
    assert!(plan.is_settled(), "{plan}");
    let said = plan.to_string();
    let expected = "spot-1 has 2 of 3 nodes and serves nothing: none has come in time";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn group_that_awaits_its_node_says_so() {
    let mut world = lossy_world();
    world.terms.pools[ON_DEMAND].max_nodes = 0;
    let said = world.plan().to_string();
    let expected = "spot-1 has 2 of 3 nodes and serves nothing: it is completed for 10m more";
    assert!(said.contains(expected), "{said}");
    let known = std::mem::replace(&mut world.seen.replicas, Signal::unknown("away"));
    assert!(world.plan_for(SECOND * 900).is_settled());
    world.seen.replicas = known;
    assert!(world.plan().is_settled(), "it is waited for anew");
}

/// Case T21 of autoscaling: the others are managed in the same plan.
#[test]
fn pool_that_cannot_hold_a_group_is_infeasible_and_others_are_filled() {
    let mut world = World::new().with_work(500, 0, 0);
    world.terms.nodes_per_replica = 8;
    world.size_mut(SPOT).limit = Some(6);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 16"], "{plan}");
    let too_small = CapacityReason::PoolTooSmall {
        pool: super::world::pool_name("spot"),
        nodes_per_replica: 8,
    };
    assert!(plan.reasons.contains(&Reason::Capacity(too_small)), "{plan}");
    world.size_mut(ON_DEMAND).limit = Some(6);
    let plan = world.plan();
    assert!(plan.reasons.contains(&Reason::Infeasible { nodes_per_replica: 8 }), "{plan}");
}

/// Case T20 of autoscaling: the group replaces its node by itself.
#[test]
fn lost_node_of_a_replica_is_not_a_lost_replica() {
    let mut world = World::new().with_work(16, 16, 0);
    world.terms.nodes_per_replica = 3;
    let mut world = world.with_replicas(SPOT, &[8, 8]);
    world.size_mut(SPOT).instances.remove(0);
    let plan = world.plan();
    assert!(plan.is_settled(), "the group launches one node: {plan}");
}

/// Case T21 of autoscaling.
#[test]
fn replica_that_fits_nowhere_is_infeasible() {
    let mut world = World::new().with_work(500, 0, 0);
    world.terms.nodes_per_replica = 8;
    for pool in &mut world.terms.pools {
        pool.max_nodes = 6;
    }
    let plan = world.plan();
    assert!(plan.is_settled(), "{plan}");
    assert!(plan.reasons.contains(&Reason::Infeasible { nodes_per_replica: 8 }), "{plan}");
}

#[test]
fn drain_of_an_ep_group_ends_when_the_node_that_it_lost_is_gone() {
    let mut world = World::new().with_work(16, 16, 0).with_replicas(SPOT, &[4, 8]);
    world.set_drain("spot-1", DrainPurpose::Reclaim, DrainStage::Drained);
    let gone = world.size_mut(SPOT).instances.remove(0).id;
    world.seen.gone.insert(gone);
    let replica = world.replica_mut("spot-1");
    replica.leased = Signal::fresh(0);
    let mut survivor = replica.nodes[0].clone();
    survivor.name = "survivor".parse().expect("valid");
    survivor.instance = None;
    let lost = &mut replica.nodes[0];
    lost.heartbeat_age = SECOND * 60;
    if let Some(drain) = &mut replica.drain {
        drain.lost = vec![lost.name.clone()];
    }
    let lost = lost.name.clone();
    replica.nodes.push(survivor);
    let plan = world.plan();
    let forget = Action::Forget {
        replica: "spot-1".parse().expect("valid"),
        nodes: vec![lost],
        ends_drain: true,
    };
    assert!(plan.actions.contains(&forget), "{plan}");
}

/// A part of a group that is let go serves nothing: demand takes no such drain back, and the whole
/// ones beside it are counted in full.
#[test]
fn release_of_a_part_of_a_group_is_not_taken_back_for_demand() {
    let mut world = lossy_world().with_bounds(1, 6);
    world.size_mut(SPOT).desired = 5;
    for pool in [SPOT, ON_DEMAND] {
        world.terms.pools[pool].max_nodes = 5;
    }
    world.set_drain("spot-1", DrainPurpose::Sizing, DrainStage::Requested);
    let plan = world.plan();
    assert_eq!(plan.running, Some(1), "the whole one: {plan}");
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 3"], "{plan}");
}
