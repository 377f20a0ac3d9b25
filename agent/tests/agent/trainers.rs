//! Nodes of the trainer: a checkpoint is asked for and waited for.

use std::time::Duration;

use ebbtide_agent::kubernetes::SeenPod;
use ebbtide_queue::control::{DrainState, NodeRole, NodeState};

use crate::world::{Node, World, until, within};

fn start_trainer(world: &World, name: &str) -> Node {
    let plan = world.node(name).without_engine();
    plan.with(|config| config.role = NodeRole::Trainer).start()
}

#[tokio::test(flavor = "multi_thread")]
async fn noticed_trainer_node_asks_for_a_checkpoint_and_is_drained_when_it_is_written() {
    let world = World::new();
    let pod = SeenPod::ordinary("rl", "trainer", "trainer");
    world.pods.bind(&"t1".parse().unwrap(), pod);
    let node = start_trainer(&world, "t1");
    node.wait_until(|agent| agent.is_gate_open()).await;
    node.announce(100);
    until(|| async { world.queue.view().await.unwrap().checkpoint.is_pending() }).await;
    within(world.marks.wait_for(&node.name, |marked| marked.is_cordoned)).await;
    assert_eq!(node.agent.state(), NodeState::Draining, "the trainer still writes");
    node.wait_until(|agent| agent.pods_left() == Some(1)).await;
    assert!(world.pods.departed().is_empty(), "nothing is evicted before");
    let requested = world.queue.view().await.unwrap().checkpoint.requested.unwrap();
    world.queue.confirm_checkpoint(requested).await.unwrap();
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    until(|| async {
        let drains = world.queue.view().await.unwrap().drains;
        drains.first().is_some_and(|drain| drain.state == DrainState::Drained)
    })
    .await;
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.nodes[0].role, NodeRole::Trainer);
    assert_eq!(view.checkpoint.requested, Some(requested), "asked for once");
    node.wait_until(|agent| agent.pods_left() == Some(0)).await;
    assert_eq!(world.pods.departed().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn trainer_that_does_not_answer_is_waited_for_until_the_reserve() {
    let world = World::new();
    let node = world.node("t1").without_engine().with(|config| {
        config.role = NodeRole::Trainer;
        config.drain.reserve = Duration::from_secs(2);
    });
    let node = node.start();
    node.wait_until(|agent| agent.is_gate_open()).await;
    node.announce(4);
    until(|| async { world.queue.view().await.unwrap().checkpoint.is_pending() }).await;
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let report = node.agent.report().drains[0].clone();
    assert!(report.duration >= Duration::from_millis(900), "{report:?}");
    assert!(report.duration < report.lead, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_of_a_trainer_go_once_it_has_written_what_they_asked_for() {
    let world = World::new();
    let nodes = [start_trainer(&world, "t1"), start_trainer(&world, "t2")];
    for node in &nodes {
        node.wait_until(|agent| agent.is_gate_open()).await;
        node.announce(100);
    }
    until(|| async {
        let checkpoint = world.queue.view().await.unwrap().checkpoint;
        if let Some(requested) = checkpoint.requested.filter(|_| checkpoint.is_pending()) {
            world.queue.confirm_checkpoint(requested).await.unwrap();
        }
        nodes.iter().all(|node| node.agent.state() == NodeState::Drained)
    })
    .await;
}
