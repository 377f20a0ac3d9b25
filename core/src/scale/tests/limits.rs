//! What keeps a wanted raise back, and how long a start is learned to take.

use std::time::Duration;

use super::world::{SPOT, World, actions};
use crate::bottleneck::IterationStage;
use crate::ids::PolicyVersion;
use crate::observation::{ReplicaState, Signal, TrainerPhase, TrainerView};
use crate::scale::{Reason, ScalePlan};

const SECOND: Duration = Duration::from_secs(1);

/// Plans every five seconds while the trainer makes so many updates of these phases.
fn updates(world: &mut World, count: u64, parts: &[(TrainerPhase, u32)]) -> ScalePlan {
    let mut plan = world.plan();
    for _ in 0..count {
        for (phase, seconds) in parts {
            let step = world.seen.trainer.known().map_or(0, |trainer| trainer.step);
            let phase = *phase;
            world.seen.trainer =
                Signal::fresh(TrainerView { phase, step, groups_per_step: 8, nodes: None });
            plan = world.plan_for(SECOND * *seconds);
        }
        if let Signal::Known { value, .. } = &mut world.seen.trainer {
            value.step += 1;
        }
    }
    plan
}

fn limited(plan: &ScalePlan) -> Option<IterationStage> {
    plan.reasons.iter().find_map(|reason| match reason {
        Reason::LimitedElsewhere { stage, .. } => Some(*stage),
        _ => None,
    })
}

#[test]
fn rollouts_do_not_grow_while_scoring_limits_the_iteration() {
    let mut world = World::new().with_work(400, 32, 0).with_replicas(SPOT, &[16, 16]);
    world.seen.reward_ready = Signal::fresh(90);
    world.seen.reward_in_flight = Signal::fresh(16);
    let phases = [(TrainerPhase::Train, 20), (TrainerPhase::Wait, 40)];
    let plan = updates(&mut world, 5, &phases);
    assert_eq!(limited(&plan), Some(IterationStage::Reward), "{plan}");
    assert_eq!(actions(&plan), Vec::<String>::new());
    assert!(plan.to_string().contains("more reward replicas would help"), "{plan}");

    let lost = world.replicas()[0].clone();
    let ids = lost.instances();
    world.size_mut(SPOT).instances.retain(|instance| !ids.contains(&instance.id));
    world.size_mut(SPOT).desired -= 1;
    assert_eq!(actions(&world.plan()), ["raise pool spot from 1 to 2"], "what was lost may return");

    world.seen.reward_ready = Signal::fresh(0);
    let plan = updates(&mut world, 8, &phases);
    assert_eq!(plan.bottleneck.stage, Some(IterationStage::Rollout));
    assert!(actions(&plan)[0].starts_with("raise pool spot from 1 to 5"), "{plan}");
}

#[test]
fn trainer_at_its_limit_keeps_rollouts_from_growing() {
    let mut world = World::new().with_work(400, 32, 9).with_replicas(SPOT, &[16, 16]);
    let plan = updates(&mut world, 5, &[(TrainerPhase::Train, 60)]);
    assert_eq!(plan.bottleneck.stage, Some(IterationStage::Trainer), "{plan}");
    assert_eq!(actions(&plan), Vec::<String>::new(), "{plan}");
}

#[test]
fn unknown_limit_keeps_nobody_from_the_minimum_or_from_zero() {
    let mut world = World::new().with_work(400, 0, 0).with_bounds(2, 10);
    let plan = world.plan();
    assert_eq!(plan.bottleneck.stage, None);
    assert_eq!(actions(&plan), ["raise pool spot from 0 to 4"]);
    let mut world = World::new().with_work(1, 0, 0).with_bounds(0, 10);
    assert_eq!(actions(&world.plan()), ["raise pool spot from 0 to 1"]);
}

/// Case T43 of autoscaling: new engines join only at the end of a step.
#[test]
fn start_that_would_miss_the_join_point_is_not_made_on_its_account() {
    let stepwise = |elapsed: u32| {
        let mut world = World::new().with_work(60, 32, 0).with_replicas(SPOT, &[16, 16]);
        world.terms.joins_at_step_end = true;
        world.terms.max_replicas = 2;
        world.terms.startup = SECOND * 240;
        updates(&mut world, 6, &[(TrainerPhase::Train, 300), (TrainerPhase::Wait, 300)]);
        world.plan_for(SECOND * elapsed);
        world.terms.max_replicas = 3;
        world.plan()
    };
    let plan = stepwise(60);
    assert_eq!(actions(&plan), ["raise pool spot from 2 to 3"], "nine minutes are left: {plan}");
    let plan = stepwise(480);
    assert_eq!(actions(&plan), Vec::<String>::new(), "two minutes are left: {plan}");
    assert!(plan.to_string().contains("would miss"), "{plan}");
}

#[test]
fn starts_are_planned_with_as_they_are_measured() {
    let mut world = World::new().with_work(64, 0, 0);
    assert_eq!(world.plan().memory.startup().percentile(0.9), None);
    for seconds in [100, 140, 200] {
        let before = world.replicas().len();
        let loads = [0];
        world = world.with_replicas(SPOT, &loads);
        let id = world.replicas()[before].id.to_string();
        world.replica_mut(&id).state = ReplicaState::Loading;
        world.plan_for(SECOND * seconds);
        world.replica_mut(&id).state = ReplicaState::Ready;
        world.plan();
    }
    let learned = world.memory.startup();
    assert_eq!(learned.count(), 3);
    assert_eq!(learned.percentile(0.5), Some(SECOND * 140));
    assert_eq!(learned.percentile(0.9), Some(SECOND * 200));
}

#[test]
fn replicas_of_before_the_first_look_teach_nothing() {
    let mut world = World::new().with_work(64, 0, 0).with_replicas(SPOT, &[0; 4]);
    world.plan_for(SECOND * 60);
    assert_eq!(world.memory.startup().count(), 0);
}

/// The trainer goes on with the next update while its engines load the weights of the last one.
#[test]
fn engines_that_stand_still_for_new_weights_are_no_lack_until_that_outlasts_a_start() {
    let mut world = World::new().with_work(500, 32, 0).with_replicas(SPOT, &[16, 16]);
    world.terms.max_replicas = 2;
    world.plan();
    world.terms.max_replicas = 10;
    let ids: Vec<String> = world.replicas().iter().map(|replica| replica.id.to_string()).collect();
    for id in &ids {
        world.replica_mut(id).state = ReplicaState::NotReady;
    }
    let plan = world.plan_for(world.terms.startup / 2);
    assert_eq!(actions(&plan), Vec::<String>::new(), "{plan}");
    assert!(plan.to_string().contains("weights are spread"), "{plan}");
    let plan = world.plan_for(world.terms.startup);
    assert!(!plan.actions.is_empty(), "{plan}");

    world.seen.policy_version =
        Signal::Known { value: PolicyVersion(1), age: Duration::from_hours(1) };
    let plan = world.plan();
    assert!(!plan.to_string().contains("weights are spread"), "nothing new to load: {plan}");
}
