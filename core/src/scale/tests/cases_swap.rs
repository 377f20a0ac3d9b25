//! The way back from on-demand to Spot.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::observation::{DrainPurpose, FailureKind, ReplicaState, Signal};
use crate::scale::{
    Action, ActionResult, CapacityReason, LeaveReason, Reason, ScalePlan, SwapStep,
};
use crate::time::UnixMillis;

const SECOND: Duration = Duration::from_secs(1);

/// With d = 2 min and k = 3, Spot must last for 6 min.
const LASTING: Duration = Duration::from_mins(6);

/// A buffer at its target, with so many Spot replicas and three on demand at three times the price.
fn resting_world(spot: &[u32]) -> World {
    World::new()
        .with_work(400, 48, 8)
        .with_prices(60.0, 20.0, 60.0)
        .with_replicas(SPOT, spot)
        .with_replicas(ON_DEMAND, &[16, 9, 16])
}

fn step(plan: &ScalePlan) -> Option<SwapStep> {
    plan.reasons.iter().find_map(|reason| match reason {
        Reason::Capacity(CapacityReason::Swap { step, .. }) => Some(*step),
        _ => None,
    })
}

/// Plans every five seconds until a plan does something; how long that took, and what it does.
fn next_move(world: &mut World) -> (Duration, ScalePlan) {
    let began_at = world.seen.now;
    for _ in 0..1000 {
        let plan = world.plan();
        if !plan.is_settled() {
            return (world.seen.now.since(began_at), plan);
        }
        world.pass(SECOND * 5);
    }
    panic!("nothing ever happens: {}", world.plan());
}

/// Cases T15 and T41 of autoscaling.
#[test]
fn spot_that_lasts_takes_the_place_of_on_demand_one_replica_at_a_time() {
    let mut world = resting_world(&[16]);
    let (waited, plan) = next_move(&mut world);
    assert_eq!(actions(&plan), ["raise pool spot from 1 to 2"], "{plan}");
    assert_eq!(waited, LASTING);
    assert_eq!(step(&plan), Some(SwapStep::Launch));
    world.apply(&plan);

    world.replica_mut("spot-5").state = ReplicaState::Loading;
    let plan = world.plan_for(SECOND * 200);
    assert!(plan.is_settled(), "nothing goes before its replacement is ready: {plan}");
    assert_eq!(step(&plan), Some(SwapStep::Ready));
    world.replica_mut("spot-5").state = ReplicaState::Ready;
    let plan = world.plan();
    let expected = ["ask on-demand-3 to drain, its replacement is ready"];
    assert_eq!(actions(&plan), expected, "the least loaded one: {plan}");
    world.apply(&plan);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["terminate on-demand-3 in pool on-demand: i-on-demand-3.0"]);
    world.apply(&plan);
    assert_eq!(actions(&world.plan()), ["forget on-demand-3"]);
    let plan = world.plan();
    world.apply(&plan);

    let (waited, plan) = next_move(&mut world);
    assert_eq!(actions(&plan), ["raise pool spot from 2 to 3"], "{plan}");
    assert_eq!(waited, SECOND * 300, "one swap in five minutes");
}

#[test]
fn empty_spot_pool_is_probed_and_the_probe_must_last() {
    let mut world = resting_world(&[]);
    let (waited, plan) = next_move(&mut world);
    assert_eq!((actions(&plan), waited), (vec!["raise pool spot from 0 to 1".into()], SECOND * 60));
    assert_eq!(step(&plan), Some(SwapStep::Probe));
    world.apply(&plan);
    let (waited, plan) = next_move(&mut world);
    assert_eq!(waited, LASTING, "{plan}");
    assert_eq!(actions(&plan), ["ask on-demand-2 to drain, its replacement is ready"]);
}

/// Case T40 of autoscaling.
#[test]
fn nothing_is_disrupted_while_the_cheaper_pool_is_out() {
    let mut world = resting_world(&[]);
    let mut launches = Vec::new();
    let mut last = String::new();
    for turn in 1..=1000_u64 {
        world.pass(SECOND * 5);
        let plan = world.plan();
        last = plan.to_string();
        for action in &plan.actions {
            let Action::Raise { to, .. } = action else { panic!("nothing else may go on: {plan}") };
            launches.push(*to);
            world.memory.note_outcome(action, ActionResult::Done);
            // The pool takes the order and cannot fill it.
            world.size_mut(SPOT).desired = 1;
            world.plan();
            world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(turn * 1000));
            world.plan();
            world.size_mut(SPOT).desired = 0;
        }
    }
    assert!((3..=17).contains(&launches.len()), "one in five minutes: {launches:?} {last}");
}

#[test]
fn spot_that_is_lost_again_is_waited_for_or_given_up() {
    let mut world = resting_world(&[16]);
    let (_, plan) = next_move(&mut world);
    world.apply(&plan);
    world.set_drain("spot-5", DrainPurpose::Reclaim, crate::observation::DrainStage::Draining);
    world.replica_mut("spot-5").nodes[0].is_reclaimed = true;
    let plan = world.plan_for(SECOND * 170);
    assert!(plan.is_settled(), "{plan}");
    assert_eq!(step(&plan), Some(SwapStep::Ready), "its pool replaces it: {plan}");
    let replica = world.replica_mut("spot-5");
    (replica.drain, replica.state) = (None, ReplicaState::NotReady);
    replica.nodes[0].is_reclaimed = false;
    let (_, plan) = next_move(&mut world);
    assert_eq!(actions(&plan), ["ask spot-5 to drain, its replacement is ready"]);
    assert_eq!(step(&plan), Some(SwapStep::GiveUp), "it never gets ready: {plan}");
    world.apply(&plan);
    assert_eq!(actions(&world.plan()), ["terminate spot-5 in pool spot: i-spot-5.0"]);
}

#[test]
fn losses_begin_the_waiting_anew() {
    let mut world = resting_world(&[16, 16]);
    assert!(world.plan_for(LASTING - SECOND * 10).is_settled());
    world.size_mut(SPOT).instances.remove(0);
    assert!(world.plan_for(SECOND * 60).is_settled());
    world.size_mut(SPOT).desired = 1;
    let (waited, plan) = next_move(&mut world);
    assert_eq!(actions(&plan), ["raise pool spot from 1 to 2"], "{plan}");
    assert_eq!(waited, LASTING - SECOND * 60);
}

#[test]
fn swap_at_the_maximum_runs_one_more_for_its_length() {
    let mut world = resting_world(&[16]).with_bounds(1, 4);
    let (_, plan) = next_move(&mut world);
    assert_eq!((plan.running, plan.desired), (Some(4), Some(4)));
    world.apply(&plan);
    let plan = world.plan();
    assert_eq!((plan.running, plan.desired), (Some(5), Some(4)));
    assert_eq!(actions(&plan), ["ask on-demand-3 to drain, its replacement is ready"], "{plan}");
    world.apply(&plan);
    assert_eq!(world.plan().running, Some(4));
}

#[test]
fn spot_that_is_no_cheaper_is_no_reason_to_move() {
    let mut world = resting_world(&[16]).with_prices(60.0, 20.0, 20.0);
    assert!(world.plan_for(LASTING * 4).is_settled());
}

/// What was just asked to go could stay instead.
#[test]
fn swap_waits_until_nobody_is_on_the_way_out() {
    let mut world = resting_world(&[16, 0]);
    world.set_drain("spot-2", DrainPurpose::Sizing, crate::observation::DrainStage::Draining);
    let plan = world.plan_for(LASTING * 2);
    assert!(plan.is_settled() && step(&plan).is_none(), "{plan}");
    let replica = world.replica_mut("spot-2");
    (replica.drain, replica.state) = (None, ReplicaState::Ready);
    let (_, plan) = next_move(&mut world);
    assert_eq!(step(&plan), Some(SwapStep::Launch), "{plan}");
}

#[test]
fn unknown_signal_begins_no_swap() {
    let mut world = resting_world(&[16]);
    world.seen.trainer = Signal::unknown("away");
    assert!(world.plan_for(LASTING * 4).is_settled());
}

#[test]
fn recommendation_that_nobody_carries_out_stays_the_same() {
    let mut world = resting_world(&[16]);
    let (_, first) = next_move(&mut world);
    world.pass(SECOND * 60);
    let again = world.plan();
    assert_eq!(actions(&again), actions(&first));
    assert_eq!(step(&again), Some(SwapStep::Launch));
}

#[test]
fn demand_that_takes_the_replacement_keeps_the_on_demand_replica() {
    let mut world = resting_world(&[16]);
    let (_, plan) = next_move(&mut world);
    world.apply(&plan);
    world.seen.buffer_groups = Signal::fresh(4);
    let plan = world.plan_for(SECOND * 60);
    let drains = |action: &Action| matches!(action, Action::RequestDrain { .. });
    assert!(!plan.actions.iter().any(drains), "{plan}");
    assert!(plan.desired > Some(4), "{plan}");
}

#[test]
fn words_of_a_swap() {
    let mut world = resting_world(&[16]);
    let (_, plan) = next_move(&mut world);
    let said = plan.to_string();
    let expected = "because: pool spot is expected to last: one replica there replaces one on \
                    demand\n";
    assert!(said.contains(expected), "{said}");
    world.apply(&plan);
    let said = world.plan().to_string();
    let expected = "because: a replica of pool spot is ready in the place of one on demand\n";
    assert!(said.contains(expected), "{said}");
    let replica = "on-demand-3".parse().expect("valid");
    let drain = Action::RequestDrain { replica, why: LeaveReason::Swap };
    assert!(world.plan().actions.contains(&drain));
}
