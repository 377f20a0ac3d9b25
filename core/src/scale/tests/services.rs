//! Services: scorers and environments.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::observation::{
    DrainPurpose, DrainStage, FailureKind, InstanceState, ReplicaState, Signal, TrainerPhase,
    TrainerView,
};
use crate::scale::{Action, BudgetTerms, Role, ScalePlan};
use crate::time::UnixMillis;

const SECOND: Duration = Duration::from_secs(1);

/// A service whose items were found to take so many seconds each.
fn world_with_pace(seconds: u64) -> World {
    World::of_service().with_pace(20, seconds)
}

#[test]
fn what_is_worked_on_is_what_is_needed() {
    let mut world = World::of_service().with_work(0, 17, 0).with_replicas(SPOT, &[8]);
    assert_eq!(
        world.plan().to_string(),
        "replicas: 1 run, 3 desired\n\
         do: raise pool spot from 1 to 3\n\
         because: 0 wait and 17 are worked on: that asks for 3\n"
    );
}

#[test]
fn service_grows_with_the_rollouts_before_their_work_arrives() {
    let mut world = World::of_service().with_work(0, 16, 0).with_replicas(SPOT, &[8, 8]);
    world.service_mut().rollout_growth = 2.5;
    assert_eq!(
        world.plan().to_string(),
        "replicas: 2 run, 5 desired\n\
         do: raise pool spot from 2 to 5\n\
         because: 0 wait and 16 are worked on, the rollouts grow to 250 %: that asks for 5\n"
    );
}

#[test]
fn single_item_wakes_a_service() {
    let mut world = World::of_service().with_work(1, 0, 0);
    assert_eq!(actions(&world.plan()), ["raise pool spot from 0 to 1"]);
    // However short an item is.
    let mut world = world_with_pace(1).with_work(1, 0, 0);
    assert_eq!(actions(&world.plan()), ["raise pool spot from 0 to 1"]);
}

#[test]
fn backlog_that_passes_before_help_comes_orders_nothing() {
    // Two replicas, 8 at a time, 10 s each: 192 are done within the 120 s of a start.
    let mut world = world_with_pace(10).with_work(190, 16, 0).with_replicas(SPOT, &[8, 8]);
    assert_eq!(
        world.plan().to_string(),
        "replicas: 2 run, 2 desired\n\
         because: 190 wait and 16 are worked on: that asks for 2\n\
         because: what waits will be gone before another replica could help\n"
    );
    // 576 wait: 384 would still be there, the work of four replicas over one more start.
    let plan = world.clone().with_work(576, 16, 0).plan();
    assert_eq!(plan.wish, Some(6), "{plan}");
    // While it limits the run, every start that it is behind counts.
    world.service_mut().limits_run = true;
    let plan = world.plan();
    assert_eq!(plan.wish, Some(4), "{plan}");
}

#[test]
fn idle_service_shrinks_after_its_window_and_not_before() {
    let mut world = World::of_service().with_replicas(SPOT, &[0, 0, 0]);
    assert_eq!(actions(&world.plan_for(SECOND * 55)), Vec::<String>::new());
    world.pass(SECOND * 5);
    let plan = world.plan();
    assert_eq!(
        plan.to_string(),
        "replicas: 3 run, 0 desired\n\
         do: ask spot-1 to drain\n\
         do: ask spot-2 to drain\n\
         do: ask spot-3 to drain\n\
         because: 0 wait and 0 are worked on: that asks for 0\n"
    );
}

/// Work of a run that takes turns: 600 s of nothing, then a wave.
#[test]
fn service_lasts_from_one_wave_to_the_next() {
    let mut world = World::of_service().with_replicas(SPOT, &[0, 0, 0]);
    let mut gone = Vec::new();
    for tick in 0..1440_u64 {
        let is_wave = tick % 120 < 4;
        let work = if is_wave { 24 } else { 0 };
        world = world.with_work(0, work, 0);
        let (phase, step) = (TrainerPhase::Train, tick / 120);
        world.seen.trainer =
            Signal::fresh(TrainerView { phase, step, groups_per_step: 8, nodes: None });
        let plan = world.plan();
        if tick > 600 {
            gone.extend(actions(&plan));
        }
        world.apply(&plan);
        world.pass(SECOND * 5);
    }
    assert!(gone.is_empty(), "{gone:?}");
}

#[test]
fn pause_for_weights_is_no_lack_of_work() {
    let mut world = World::of_service().with_work(0, 24, 0).with_replicas(SPOT, &[8, 8, 8]);
    world.plan_for(SECOND * 120);
    let mut world = world.with_work(0, 0, 0);
    world.service_mut().is_paused = true;
    let plan = world.plan_for(SECOND * 600);
    assert!(plan.actions.is_empty() && plan.desired == Some(3), "{plan}");
    assert!(plan.to_string().contains("weights are spread for 9m55s: no demand is lost"), "{plan}");
    world.service_mut().is_paused = false;
    let plan = world.plan();
    assert!(plan.actions.is_empty(), "that time is no part of the window: {plan}");
}

#[test]
fn unknown_signal_of_a_service_lowers_nothing_and_the_minimum_still_rises() {
    let mut world = World::of_service().with_replicas(SPOT, &[0, 0]);
    world.seen.ready = Signal::unknown("redis: connection refused");
    let plan = world.plan_for(SECOND * 300);
    assert!(plan.actions.is_empty(), "{plan}");
    assert!(plan.to_string().contains("ready is unknown (redis: connection refused)"), "{plan}");
    let mut world = World::of_service().with_bounds(2, 10);
    world.seen.ready = Signal::unknown("redis: connection refused");
    assert_eq!(actions(&world.plan()), ["raise pool spot from 0 to 2"]);
    // What is still known raises.
    let mut world = World::of_service().with_work(0, 24, 0).with_replicas(SPOT, &[8]);
    world.seen.ready = Signal::unknown("redis: connection refused");
    assert_eq!(world.plan().wish, Some(3));
}

#[test]
fn source_that_tells_only_what_waits_gives_up_one_replica_at_a_time() {
    let mut world = World::of_service().with_replicas(SPOT, &[0, 0, 0]);
    world.seen.in_flight = Signal::unknown("a list does not tell it");
    world.service_mut().tells_in_flight = false;
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(
        plan.to_string(),
        "replicas: 3 run, 2 desired\n\
         do: ask spot-1 to drain\n\
         because: 0 wait: that asks for 2\n"
    );
    world.apply(&plan);
    let plan = world.plan_for(SECOND * 50);
    assert!(!actions(&plan).iter().any(|action| action.contains("ask")), "{plan}");
    // Something waits: everybody is busy.
    world.seen.ready = Signal::fresh(1);
    let plan = world.plan();
    assert_eq!(plan.desired, Some(3), "{plan}");
}

/// What is ordered works on nothing, and what has just come is about to take what waits.
#[test]
fn demand_does_not_grow_with_what_is_ordered_for_it() {
    let mut world = World::of_service().with_replicas(SPOT, &[0, 0]).with_work(20, 0, 0);
    world.seen.in_flight = Signal::unknown("a list does not tell it");
    world.service_mut().tells_in_flight = false;
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 2 to 5"]);
    world.apply(&plan);
    let ids = ["spot-3", "spot-4", "spot-5"];
    for state in [ReplicaState::Starting, ReplicaState::Ready] {
        ids.iter().for_each(|id| world.replica_mut(id).state = state);
        let plan = world.plan_for(SECOND * 50);
        assert_eq!((plan.desired, plan.actions.len()), (Some(5), 0), "{plan}");
        world.pass(SECOND * 5);
    }
    // It still waits although they have had the time to take it: they must all be busy.
    let plan = world.plan_for(SECOND * 15);
    assert_eq!(plan.desired, Some(8), "{plan}");
}

/// A node whose agent is silent may be at work, as far as anybody knows.
#[test]
fn silent_replica_is_not_taken_to_be_idle() {
    let mut world = World::of_service().with_replicas(SPOT, &[0, 0, 0, 0]);
    world.seen.in_flight = Signal::unknown("a list does not tell it");
    world.service_mut().tells_in_flight = false;
    for id in ["spot-3", "spot-4"] {
        let replica = world.replica_mut(id);
        replica.state = ReplicaState::Unknown;
        replica.nodes[0].heartbeat_age = SECOND * 60;
    }
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(actions(&plan), ["ask spot-1 to drain"], "{plan}");
}

#[test]
fn end_of_the_run_ends_a_service() {
    let mut world = World::of_service().with_replicas(SPOT, &[8]).with_phase(TrainerPhase::Done);
    let plan = world.plan_for(SECOND * 60);
    assert_eq!(actions(&plan), ["ask spot-1 to drain"], "{plan}");
}

#[test]
fn service_takes_the_next_pool_without_weighing_what_an_update_costs() {
    let mut world = World::of_service().with_work(0, 16, 0).with_prices(100.0, 1.0, 3.0);
    world.plan();
    world.size_mut(SPOT).desired = 1;
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(5));
    let plan = world.plan();
    assert!(actions(&plan).contains(&"raise pool on-demand from 0 to 2".to_owned()), "{plan}");
    assert!(!plan.to_string().contains("worth"), "{plan}");
}

#[test]
fn budget_counts_what_the_others_run_by_now() {
    let mut world = World::of_service().with_work(0, 32, 0).with_prices(100.0, 1.0, 3.0);
    world.terms.budget =
        Some(BudgetTerms { dollars_per_hour: 12.0, others_dollars_per_hour: Some(5.0) });
    assert_eq!(world.clone().plan().actions.len(), 1);
    world.seen.others_dollars_per_hour = Some(10.0);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 0 to 2"], "{plan}");
    // The least that they may cost counts when they cost less.
    world.seen.others_dollars_per_hour = Some(0.0);
    assert_eq!(actions(&world.plan()), ["raise pool spot from 0 to 4"]);
}

/// Measurements vary by a few per cent; at the edge between two sizes as well.
#[test]
fn noise_moves_nothing_once_the_size_is_found() {
    let mut world = world_with_pace(10).with_replicas(SPOT, &[8, 8, 8]);
    let mut changes = 0;
    for tick in 0..2_000_u64 {
        let noise = tick * 7919 % 5;
        world = world.with_work(noise, 30 + noise, 0);
        let plan = world.plan();
        let decisions = plan.actions.iter().filter(|action| action.is_decision());
        changes += decisions.count();
        world.apply(&plan);
        world.pass(SECOND * 5);
    }
    assert!(changes <= 2, "{changes}");
    assert!((4..=5).contains(&world.size_mut(SPOT).desired));
    assert_eq!(world.size_mut(ON_DEMAND).desired, 0);
}

#[test]
fn drained_environment_goes_by_its_name() {
    let mut world = World::of_service().with_replicas(SPOT, &[0, 0]).with_work(0, 4, 0);
    let plan = world.plan_for(SECOND * 60);
    world.apply(&plan);
    world.pass(SECOND * 5);
    let plan = world.plan();
    assert!(matches!(&plan.actions[..], [Action::Retire { .. }]), "{plan}");
}

/// What it works on need not be leased, and only its agent knows of it.
#[test]
fn service_that_drains_is_terminated_at_its_agents_word_or_after_the_time_of_a_drain() {
    let mut world = World::of_service().with_replicas(SPOT, &[0, 0]).with_work(0, 4, 0);
    world.set_drain("spot-1", DrainPurpose::Sizing, DrainStage::Draining);
    let silence = |world: &mut World, seconds| {
        world.replica_mut("spot-1").nodes[0].heartbeat_age = SECOND * seconds;
        world.plan()
    };
    for seconds in [0, 10, 11, 60, 600] {
        let plan = silence(&mut world, seconds);
        assert_eq!(actions(&plan), Vec::<String>::new(), "after {seconds} s: {plan}");
    }
    let plan = silence(&mut world, 590).to_string();
    assert!(plan.contains("spot-1 is silent and has not said that it is drained"), "{plan}");
    let gone = ["terminate spot-1 in pool spot: i-spot-1.0"];
    assert_eq!(actions(&silence(&mut world, 601)), gone);
    world.set_drain("spot-1", DrainPurpose::Sizing, DrainStage::Drained);
    assert_eq!(actions(&silence(&mut world, 0)), gone);
}

#[test]
fn only_a_drain_without_pods_left_shows_that_a_service_is_idle() {
    let mut world = World::of_service().with_replicas(SPOT, &[0]);
    let is_idle = |world: &World, role| world.replicas()[0].is_known_idle(role);
    assert!(is_idle(&world, Role::Rollout) && !is_idle(&world, Role::Environment));
    world.set_drain("spot-1", DrainPurpose::Sizing, DrainStage::Draining);
    assert!(!is_idle(&world, Role::Environment));
    world.set_drain("spot-1", DrainPurpose::Sizing, DrainStage::Drained);
    assert!(is_idle(&world, Role::Environment));
    world.replica_mut("spot-1").nodes[0].pods_left = Some(1);
    assert!(!is_idle(&world, Role::Environment));
    world.replica_mut("spot-1").nodes[0].pods_left = Some(0);
    assert!(is_idle(&world, Role::Environment));
    world.replica_mut("spot-1").leased = Signal::unknown("test");
    assert!(Role::ALL.iter().all(|role| !is_idle(&world, *role)));
}

/// The rollouts grow, and the environment is ordered at the same moment: it starts while they do.
#[test]
fn environment_is_ordered_with_the_rollouts_that_need_it() {
    let mut rollouts = World::new().with_work(400, 64, 0).with_replicas(SPOT, &[16; 4]);
    let ordered = rollouts.plan();
    assert_eq!(actions(&ordered), ["raise pool spot from 4 to 8"]);
    let look = |plan: &ScalePlan, rollouts: &World| {
        plan.outlook(&rollouts.seen, &rollouts.terms, true, Role::Environment)
    };
    let outlook = look(&ordered, &rollouts);
    assert_eq!((outlook.rollout_growth, outlook.is_paused), (2.0, false));
    let held = ordered.outlook(&rollouts.seen, &rollouts.terms, false, Role::Environment);
    assert_eq!(held.rollout_growth, 1.0, "a hold on the rollouts: nothing comes");
    let mut environment = World::of_service().with_work(0, 40, 0).with_replicas(SPOT, &[8; 5]);
    environment.seen.service = Some(outlook);
    assert_eq!(actions(&environment.plan()), ["raise pool spot from 5 to 9"], "four at a time");
    // While they start it stays so, and once they work their work speaks for itself.
    rollouts.apply(&ordered);
    for replica in 5..9 {
        rollouts.replica_mut(&format!("spot-{replica}")).state = ReplicaState::Starting;
    }
    let waiting = rollouts.plan();
    assert_eq!(look(&waiting, &rollouts).rollout_growth, 2.0);
    for replica in 5..9 {
        rollouts.replica_mut(&format!("spot-{replica}")).state = ReplicaState::Ready;
    }
    let settled = rollouts.plan();
    assert_eq!(look(&settled, &rollouts).rollout_growth, 1.0);
    // Engines that load new weights are no growth that is about to come.
    for replica in 1..8 {
        rollouts.replica_mut(&format!("spot-{replica}")).state = ReplicaState::Loading;
    }
    let spreading = rollouts.plan();
    let outlook = look(&spreading, &rollouts);
    assert_eq!((outlook.rollout_growth, outlook.is_paused), (1.0, true));
    // Nobody knows who is at work: nothing is about to grow.
    rollouts.seen.replicas = Signal::unknown("test");
    let blind = rollouts.plan();
    assert_eq!(look(&blind, &rollouts).rollout_growth, 1.0);
}

/// Nodes of scorers that run no agent, or one of another role, do their work all the same.
#[test]
fn nodes_from_which_nobody_ever_reported_are_left_alone() {
    let mut world = World::of_service().with_work(0, 8, 0);
    for name in ["i-1", "i-2"] {
        world.add_silent(SPOT, name, InstanceState::InService);
    }
    let plan = world.plan_for(SECOND * 1200);
    assert!(!plan.actions.iter().any(|it| matches!(it, Action::Discard { .. })), "{plan}");
    let said =
        "no node of this group reports, so none is given up: run ebbtide agent --role reward";
    assert!(plan.to_string().contains(said), "{plan}");
    // Where agents do report, one that never does has failed.
    let mut world = World::of_service().with_work(0, 8, 0).with_replicas(SPOT, &[8]);
    world.add_silent(SPOT, "i-1", InstanceState::InService);
    let mut gone = false;
    for _ in 0..240 {
        let plan = world.plan();
        gone |= plan.actions.iter().any(|it| matches!(it, Action::Discard { .. }));
        world.pass(SECOND * 5);
    }
    assert!(gone, "it is terminated by its name");
}
