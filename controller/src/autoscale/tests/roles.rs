//! Worker groups do not see one another's holds, sizes and ends.

use ebbtide_core::ids::ReplicaId;
use ebbtide_queue::control::{
    DrainProgress, DrainReason, DrainRequest, DrainState, HoldRecord, NodeNames, NodeRole,
    NodeState, TrainerPhase,
};

use super::super::*;
use super::scene::{ENVIRONMENT, REWARD, Scene, policy};

#[tokio::test(start_paused = true)]
async fn replica_of_a_service_is_one_node_whatever_one_of_the_rollouts_is() {
    let mut scene = Scene::new(policy(REWARD));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.turn().await;
    let mut asked = scene.provider.asked();
    asked.sort();
    assert_eq!(asked, ["raise scorers from 0 to 1 by 1", "raise spot from 0 to 2 by 2"]);
}

/// A drain that is over: its pod is gone, and its node lives on.
async fn scene_with_a_drain_that_is_over() -> Scene {
    let scene = Scene::new(policy(ENVIRONMENT));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.provider.fill("spot", 2);
    scene.report_node("cpus-1", NodeRole::Environment, NodeState::Drained).await;
    let (replica, request_id) = (ReplicaId::from(&"n-cpus-1".parse().expect("valid")), "r");
    let request = DrainRequest {
        replica: replica.clone(),
        request_id: request_id.to_owned(),
        generation: 1,
        reason: DrainReason::ScaleIn,
        remaining: Duration::from_secs(60),
        lost: NodeNames::default(),
    };
    scene.queue.request_drain(request).await.expect("memory");
    for state in [DrainState::Drained, DrainState::Terminating] {
        let (replica, request_id) = (replica.clone(), request_id.to_owned());
        let progress = DrainProgress { replica, request_id, generation: 1, state };
        scene.queue.report_drain(progress).await.expect("memory");
    }
    scene
}

async fn hold(scene: &Scene, role: &str) {
    let now = scene.queue.view().await.expect("memory").now;
    let (reason, who) = ("test".to_owned(), "operator".to_owned());
    let until = now.plus(Duration::from_secs(600));
    let hold = HoldRecord { role: role.to_owned(), until, reason, who };
    scene.queue.put_hold(hold).await.expect("memory");
}

async fn is_taken_back(scene: &Scene) -> bool {
    let view = scene.queue.view().await.expect("memory");
    view.drains.iter().all(|drain| drain.state == DrainState::Cancelled)
}

#[tokio::test(start_paused = true)]
async fn hold_keeps_only_its_own_group_from_taking_drains_back() {
    for (held, expected) in [("rollout", true), ("environment", false), ("all", false)] {
        let mut scene = scene_with_a_drain_that_is_over().await;
        hold(&scene, held).await;
        scene.turn().await;
        assert_eq!(is_taken_back(&scene).await, expected, "{held} is on hold");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_size_keeps_only_its_own_group_from_taking_drains_back() {
    for (hidden, expected) in [("spot", true), ("cpus", false)] {
        let mut scene = scene_with_a_drain_that_is_over().await;
        scene.provider.hide(hidden);
        scene.turn().await;
        assert_eq!(is_taken_back(&scene).await, expected, "{hidden} is unknown");
    }
}

#[tokio::test(start_paused = true)]
async fn service_that_the_policy_has_no_more_is_answered_and_forgotten() {
    let mut scene = Scene::new(policy(REWARD));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.provider.fill("spot", 2);
    scene.provider.hang("scorers");
    scene.turn().await;
    assert!(scene.past.acting.contains_key(&Role::Reward));
    scene.set_policy(policy(""));
    scene.turn().await;
    let of_reward = |scene: &Scene| {
        let lines = scene.metrics("ebbtide_").into_iter();
        lines.filter(|line| line.contains("role=\"reward\"")).count()
    };
    assert_eq!(of_reward(&scene), 0);
    assert!(scene.autoscaler.status.snapshot().services.is_empty());
    assert!(!scene.past.protection.contains_key(&Role::Reward));
    // What was asked for is not cut short.
    scene.provider.answer("scorers");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(scene.provider.desired("scorers"), 1);
    scene.turn().await;
    assert!(!scene.past.acting.contains_key(&Role::Reward));
    assert_eq!(of_reward(&scene), 0);
    // It comes back as one that was never there.
    scene.set_policy(policy(REWARD));
    scene.turn().await;
    assert!(of_reward(&scene) > 0);
    assert_eq!(scene.autoscaler.status.snapshot().services.len(), 1);
}
