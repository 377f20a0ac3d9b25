//! Faults that users of other autoscalers met, each as a test of what is decided instead.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::observation::{
    DrainPurpose, DrainStage, InstanceState, ReplicaState, Signal, TrainerPhase,
};
use crate::scale::{Action, Reason};

const SECOND: Duration = Duration::from_secs(1);

/// Case T01 of autoscaling.
#[test]
fn weight_sync_is_not_lost_demand() {
    let mut world = World::new().with_work(512, 384, 0).with_replicas(SPOT, &[48; 8]);
    (world.terms.concurrency_per_replica, world.terms.max_lag) = (48, 49);
    (world.terms.max_replicas, world.terms.pools[SPOT].max_nodes) = (30, 30);
    assert!(!world.clone().plan().is_settled(), "at another time more would be wanted");
    let mut full = world.clone();
    full.seen.buffer_groups = Signal::fresh(40);
    assert!(!full.clone().plan_for(SECOND * 60).is_settled(), "or less");
    for world in [world, full] {
        let mut world = world.with_phase(TrainerPhase::Sync);
        let before = world.plan().memory.pace().counted();
        for _ in 0..3 {
            world.pass(SECOND * 15);
            let plan = world.plan();
            assert_eq!((plan.desired, actions(&plan)), (Some(8), vec![]), "{plan}");
        }
        let after = world.memory.pace().counted();
        assert_eq!(after, before, "paused samples must not enter the window");
    }
}

#[test]
fn nothing_is_launched_for_a_buffer_that_drains_while_weights_spread() {
    let mut world = World::new()
        .with_work(500, 32, 0)
        .with_replicas(SPOT, &[16, 16])
        .with_phase(TrainerPhase::Sync);
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(actions(&plan), Vec::<String>::new(), "{plan}");
    let plan = world.plan_for(world.terms.startup * 2);
    assert!(!plan.actions.is_empty(), "a sync that outlasts a start is a lack: {plan}");
}

/// The policy's number bounds what a replica takes; an engine with a smaller KV cache takes less.
#[test]
fn replicas_are_counted_with_what_they_are_known_to_bear() {
    let mut world = World::new().with_work(128, 0, 0).with_replicas(SPOT, &[0, 0]);
    world.terms.concurrency_per_replica = 64;
    assert_eq!(world.plan().wish, Some(2), "none of them tells");
    let ids: Vec<String> = world.replicas().iter().map(|replica| replica.id.to_string()).collect();
    for (id, capacity) in ids.iter().zip([10, 22]) {
        world.replica_mut(id).capacity = Some(capacity);
    }
    assert_eq!(world.plan().wish, Some(8), "128 samples at 16 on the average");
    world.replica_mut(&ids[0]).capacity = Some(4_000);
    assert_eq!(world.plan().wish, Some(2), "never more than the policy allows");
}

/// Case T03 of autoscaling.
#[test]
fn zero_that_may_hide_an_error_lowers_nothing() {
    let mut world = World::new().with_work(0, 96, 0).with_replicas(SPOT, &[12; 8]);
    let plan = world.plan_for(SECOND * 600);
    assert_eq!((plan.desired, actions(&plan)), (Some(8), vec![]), "{plan}");
    assert!(plan.reasons.contains(&Reason::ZeroIsNoProof), "{plan}");

    let mut ended = world.with_phase(TrainerPhase::Done);
    let plan = ended.plan_for(SECOND * 120);
    assert_eq!(plan.desired, Some(1), "the producer confirmed the end: {plan}");
    assert!(plan.actions.iter().all(|action| matches!(action, Action::RequestDrain { .. })));
    assert_eq!(plan.actions.len(), 4);
}

/// Case T05 of autoscaling.
#[test]
fn failed_signal_holds_what_runs_while_others_may_raise() {
    let mut world = World::new().with_work(0, 0, 0).with_bounds(6, 60).with_pace(100, 475);
    world.terms.concurrency_per_replica = 8;
    world.seen.ready = Signal::unknown("timeout");
    world.seen.in_flight = Signal::unknown("timeout");
    let mut small = world.clone().with_replicas(SPOT, &[8; 10]);
    let plan = small.plan();
    assert_eq!(plan.desired, Some(35), "the buffer asks for more: {plan}");
    assert_eq!(actions(&plan), ["raise pool spot from 10 to 14"]);

    let mut large = world.with_replicas(SPOT, &[8; 40]);
    let plan = large.plan_for(SECOND * 300);
    assert_eq!((plan.desired, actions(&plan)), (Some(40), vec![]), "{plan}");
}

/// Case T05 of autoscaling, where more must be needed for a while: the failed signal stops no
/// clock.
#[test]
fn failed_signal_lets_others_raise_after_their_window() {
    let mut world = World::new().with_bounds(6, 60).with_pace(100, 475);
    world.terms.concurrency_per_replica = 8;
    world.terms.stabilization_up = SECOND * 30;
    let mut world = world.with_replicas(SPOT, &[8; 10]);
    world.seen.ready = Signal::unknown("timeout");
    let plan = world.plan_for(SECOND * 25);
    assert!(plan.is_settled(), "{plan}");
    let plan = world.plan_for(SECOND * 5);
    assert_eq!(plan.desired, Some(35), "{plan}");
    assert_eq!(actions(&plan), ["raise pool spot from 10 to 14"], "{plan}");

    let mut syncing = world.clone().with_phase(TrainerPhase::Sync);
    syncing.seen.ready = Signal::fresh(0);
    let before = syncing.plan().memory.raise_clock.counted();
    syncing.plan_for(SECOND * 30);
    assert_eq!(syncing.memory.raise_clock.counted(), before, "a pause is no evidence");
}

/// Case T06 of autoscaling.
#[test]
fn minimum_is_raised_without_any_signal() {
    let mut world = World::new().with_bounds(2, 10);
    for signal in [&mut world.seen.ready, &mut world.seen.in_flight, &mut world.seen.buffer_groups]
    {
        *signal = Signal::unknown("redis is away");
    }
    world.seen.trainer = Signal::unknown("redis is away");
    world.seen.replicas = Signal::unknown("redis is away");
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 0 to 2"], "{plan}");
}

/// Case T10 of autoscaling.
#[test]
fn one_item_wakes_the_fleet() {
    let mut world = World::new().with_work(1, 0, 0).with_bounds(0, 10);
    assert_eq!(actions(&world.plan()), ["raise pool spot from 0 to 1"]);
}

#[test]
fn nothing_to_do_keeps_an_empty_fleet_empty() {
    let mut world = World::new().with_bounds(0, 10);
    let plan = world.plan_for(SECOND * 300);
    assert!(plan.is_settled(), "{plan}");
    assert_eq!(plan.desired, Some(0));
}

/// Case T11 of autoscaling: whom.
#[test]
fn victims_are_asked_to_drain_idle_first_then_least_loaded() {
    let loads = [9, 7, 8, 0, 3, 9, 2, 9];
    let mut world =
        World::new().with_work(0, 47, 16).with_bounds(5, 10).with_replicas(SPOT, &loads);
    let plan = world.plan_for(SECOND * 60);
    let expected = ["ask spot-4 to drain", "ask spot-7 to drain", "ask spot-5 to drain"];
    assert_eq!(actions(&plan), expected, "{plan}");
}

/// Case T11 of autoscaling: when.
#[test]
fn victim_is_terminated_only_after_it_drained_and_its_leases_are_gone() {
    let mut world = World::new().with_work(0, 5, 16).with_replicas(SPOT, &[0, 5]);
    let stages = [DrainStage::Requested, DrainStage::Draining];
    for stage in stages {
        world.set_drain("spot-2", DrainPurpose::Sizing, stage);
        assert!(world.plan().is_settled(), "{stage:?}");
    }
    world.set_drain("spot-2", DrainPurpose::Sizing, DrainStage::Drained);
    let plan = world.plan();
    assert!(plan.is_settled(), "its leases are not gone: {plan}");
    world.replica_mut("spot-2").leased = Signal::unknown("redis is away");
    assert!(world.plan().is_settled(), "its leases are unknown");
    world.replica_mut("spot-2").leased = Signal::fresh(0);
    let expected = ["terminate spot-2 in pool spot: i-spot-2.0"];
    assert_eq!(actions(&world.plan()), expected);
    world.set_drain("spot-2", DrainPurpose::Sizing, DrainStage::Terminating);
    assert_eq!(actions(&world.plan()), expected, "a controller that died is carried on");
}

#[test]
fn silent_victim_is_terminated_once_its_leases_were_reaped() {
    let mut world = World::new().with_work(0, 5, 16).with_replicas(SPOT, &[0, 5]);
    world.set_drain("spot-2", DrainPurpose::Sizing, DrainStage::Draining);
    world.replica_mut("spot-2").nodes[0].heartbeat_age = SECOND * 11;
    assert!(world.plan().is_settled(), "leases are not reaped");
    world.replica_mut("spot-2").leased = Signal::fresh(0);
    assert_eq!(actions(&world.plan()), ["terminate spot-2 in pool spot: i-spot-2.0"]);
}

#[test]
fn node_with_a_notice_is_neither_victim_nor_terminated() {
    let mut world = World::new().with_work(0, 0, 16).with_replicas(SPOT, &[0, 9, 9]);
    world.replica_mut("spot-1").has_notice = true;
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(actions(&plan), ["ask spot-2 to drain", "ask spot-3 to drain"], "{plan}");

    world.set_drain("spot-1", DrainPurpose::Sizing, DrainStage::Drained);
    let plan = world.plan();
    let id = "spot-1".parse().expect("valid");
    assert!(plan.reasons.contains(&Reason::LeftToAws { replica: id }), "{plan}");
    assert!(plan.actions.iter().all(|action| !matches!(action, Action::Retire { .. })), "{plan}");
}

/// Case T26 of autoscaling.
#[test]
fn draining_replicas_do_not_count_as_running() {
    let mut world = World::new().with_work(40, 56, 0).with_replicas(SPOT, &[8; 7]);
    for (id, stage) in [
        ("spot-1", DrainStage::Requested),
        ("spot-2", DrainStage::Draining),
        ("spot-3", DrainStage::Terminating),
    ] {
        world.set_drain(id, DrainPurpose::Sizing, stage);
    }
    let plan = world.plan();
    assert_eq!(plan.running, Some(4), "{plan}");
    let expected = ["cancel the drain of spot-1", "cancel the drain of spot-2"];
    assert_eq!(actions(&plan), expected, "{plan}");
}

#[test]
fn drains_of_others_are_not_taken_back() {
    let mut world = World::new().with_work(40, 56, 0).with_replicas(SPOT, &[8; 7]);
    for id in ["spot-1", "spot-2", "spot-3"] {
        world.set_drain(id, DrainPurpose::Others, DrainStage::Draining);
    }
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 7 to 9"], "{plan}");
}

/// Case T28 of autoscaling; the gate is the agent's.
#[test]
fn advised_node_is_preferred_among_busy_victims() {
    let mut world = World::new().with_work(0, 14, 16).with_replicas(SPOT, &[5, 9, 0]);
    world.terms.max_changes_per_tick = 2;
    world.replica_mut("spot-2").is_advised = true;
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(actions(&plan), ["ask spot-3 to drain", "ask spot-2 to drain"], "{plan}");
}

/// Case T28 of autoscaling, where the policy lets such a node drain: its work is handed back
/// already, and it would return to work by itself.
#[test]
fn advised_node_that_drains_is_taken_before_one_that_works() {
    let mut world = World::new().with_work(0, 14, 16).with_replicas(SPOT, &[5, 0, 9]);
    world.terms.max_changes_per_tick = 1;
    world.set_drain("spot-2", DrainPurpose::Passing, DrainStage::Drained);
    world.replica_mut("spot-2").is_advised = true;
    let plan = world.plan_for(SECOND * 60);
    let expected = ["cancel the drain of spot-2", "ask spot-2 to drain"];
    assert_eq!(actions(&plan), expected, "a drain that stands keeps its reason: {plan}");
    world.apply(&plan);
    let plan = world.plan();
    assert_eq!(actions(&plan)[1..], ["terminate spot-2 in pool spot: i-spot-2.0"], "{plan}");

    let mut drill = World::new().with_work(0, 14, 16).with_replicas(SPOT, &[5, 0, 9]);
    drill.set_drain("spot-2", DrainPurpose::Passing, DrainStage::Drained);
    let plan = drill.plan_for(SECOND * 60);
    assert!(!actions(&plan).concat().contains("spot-2"), "a rehearsal is waited for: {plan}");
}

#[test]
fn on_demand_goes_before_spot_among_equals() {
    let mut world =
        World::new().with_work(0, 0, 16).with_replicas(SPOT, &[0]).with_replicas(ON_DEMAND, &[0]);
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(actions(&plan), ["ask on-demand-2 to drain"], "{plan}");
}

#[test]
fn pool_is_not_asked_to_go_below_its_own_least_size() {
    let mut world = World::new().with_work(0, 0, 16).with_replicas(SPOT, &[0, 0, 0]);
    world.size_mut(SPOT).floor = 2;
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(actions(&plan), ["ask spot-1 to drain"], "{plan}");
    assert!(plan.reasons.contains(&Reason::NoVictim { missing: 1 }), "{plan}");
}

#[test]
fn records_of_the_gone_are_removed_once_their_leases_are() {
    let mut world = World::new().with_work(16, 16, 0).with_replicas(SPOT, &[4, 8]);
    let lost = world.size_mut(SPOT).instances.remove(0).id;
    world.seen.gone.insert(lost);
    assert!(world.plan().is_settled(), "its heartbeat is fresh");
    world.replica_mut("spot-1").nodes[0].heartbeat_age = SECOND * 11;
    world.replica_mut("spot-1").state = ReplicaState::Unknown;
    assert!(world.plan().is_settled(), "its leases are not reaped");
    world.replica_mut("spot-1").leased = Signal::fresh(0);
    assert_eq!(actions(&world.plan()), ["forget spot-1"]);
}

#[test]
fn silent_replica_is_unknown_and_no_victim() {
    let mut world = World::new().with_work(0, 0, 16).with_replicas(SPOT, &[0, 9]);
    world.replica_mut("spot-1").state = ReplicaState::Unknown;
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(actions(&plan), ["ask spot-2 to drain"], "{plan}");
}

#[test]
fn instance_on_its_way_out_is_not_counted_twice() {
    let mut world = World::new().with_work(0, 32, 0).with_replicas(SPOT, &[8; 4]);
    world.set_drain("spot-1", DrainPurpose::Sizing, DrainStage::Terminating);
    world.size_mut(SPOT).desired = 3;
    world.size_mut(SPOT).instances[0].state = InstanceState::Terminating;
    let plan = world.plan();
    assert_eq!((plan.running, actions(&plan)), (Some(3), vec![]), "{plan}");
}
