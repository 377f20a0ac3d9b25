//! What the groups may spend together while one of them is not answered, or not known.

use ebbtide_queue::control::{NodeRecord, NodeRole, NodeState, TrainerPhase};

use super::super::*;
use super::scene::{ENVIRONMENT, Scene, node, policy};

fn with_budget(dollars: u32) -> FleetPolicy {
    policy(&format!("{ENVIRONMENT}  budget: {{dollarsPerHour: {dollars}}}\n"))
}

#[tokio::test(start_paused = true)]
async fn nothing_is_launched_while_nobody_knows_what_another_group_costs() {
    let mut scene = Scene::new(with_budget(12));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.provider.hide("cpus");
    scene.turn().await;
    scene.turn().await;
    assert_eq!(scene.provider.asked(), Vec::<String>::new());
    let reasons = scene.autoscaler.status.snapshot().reasons.concat();
    assert!(reasons.contains("cost of the other worker groups is unknown"), "{reasons}");
}

#[tokio::test(start_paused = true)]
async fn what_was_known_once_is_reckoned_with_while_it_is_unknown() {
    let mut scene = Scene::new(with_budget(12));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.provider.hide("spot");
    scene.turn().await;
    assert_eq!(scene.provider.asked(), Vec::<String>::new(), "nobody knows of the rollouts");
    scene.provider.show("spot");
    scene.provider.hide("cpus");
    scene.turn().await;
    assert_eq!(scene.provider.asked(), ["raise spot from 0 to 2 by 2"]);
}

/// Environments were asked for, and nobody has said whether they come: their money is spent.
#[tokio::test(start_paused = true)]
async fn what_a_pool_is_being_asked_for_is_paid_until_it_answers() {
    let mut scene = Scene::new(with_budget(6));
    scene.report_trainer(TrainerPhase::Train).await;
    scene.provider.fill("spot", 2);
    for (instance, waiting) in [("spot-1", Some(8)), ("spot-2", None)] {
        scene
            .report(NodeRecord {
                replica: "ep-0".parse().expect("valid"),
                environment_waiting: waiting,
                ..node(instance, NodeRole::Rollout, NodeState::Ready)
            })
            .await;
    }
    scene.provider.hang("cpus");
    scene.turn().await;
    assert_eq!(scene.provider.asked(), ["raise cpus from 0 to 4 by 1"]);
    // Rollouts are wanted as well, which without the environments could be paid.
    scene.enqueue_groups(40).await;
    scene.turn().await;
    assert_eq!(scene.provider.asked().len(), 1, "{:?}", scene.provider.asked());
    assert!(scene.autoscaler.status.snapshot().reasons.concat().contains("budget"));
    scene.provider.answer("cpus");
    scene.turn().await;
    assert_eq!(scene.provider.desired("cpus"), 4);
}
