//! Nodes of scorers and environments: no engine, and pods that may still serve others.

use std::time::Duration;

use ebbtide_agent::kubernetes::SeenPod;
use ebbtide_core::ids::ReplicaId;
use ebbtide_queue::control::{
    DrainReason, DrainRequest, DrainState, NodeNames, NodeRole, NodeState,
};
use serde_json::json;

use crate::api::SocketFolder;
use crate::world::{Node, World, group, until, within};

async fn scale_in(world: &World, node: &Node, seconds: u64) {
    let request = DrainRequest {
        replica: ReplicaId::from(&node.name),
        request_id: "scale-in".to_owned(),
        generation: 1,
        reason: DrainReason::ScaleIn,
        remaining: Duration::from_secs(seconds),
        lost: NodeNames::default(),
    };
    world.queue.request_drain(request).await.expect("reachable");
}

async fn drain_state(world: &World) -> Option<DrainState> {
    let view = world.queue.view().await.expect("reachable");
    view.drains.first().map(|drain| drain.state)
}

#[tokio::test(flavor = "multi_thread")]
async fn node_of_an_environment_is_drained_once_its_pods_have_left() {
    let world = World::new();
    let pod = SeenPod::ordinary("rl", "sandbox", "sandbox");
    world.pods.bind(&"e1".parse().expect("valid"), pod);
    world.pods.keep("sandbox");
    let plan = world.node("e1").without_engine();
    let node = plan.with(|config| config.role = NodeRole::Environment).start();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    let view = world.queue.view().await.expect("reachable");
    assert_eq!(view.nodes[0].role, NodeRole::Environment);
    scale_in(&world, &node, 100).await;
    // It is asked to leave at once, and takes its time for the rollouts that it serves.
    within(world.pods.wait_for(|pods| pods.refusals() > 0)).await;
    assert_eq!(node.agent.state(), NodeState::Draining);
    assert_ne!(drain_state(&world).await, Some(DrainState::Drained));
    world.pods.remove("sandbox");
    until(|| async { drain_state(&world).await == Some(DrainState::Drained) }).await;
    assert_eq!(node.agent.pods_left(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_of_a_pod_that_does_not_leave_is_drained_at_the_reserve() {
    let world = World::new();
    let pod = SeenPod::ordinary("rl", "sandbox", "sandbox");
    world.pods.bind(&"e1".parse().expect("valid"), pod);
    world.pods.keep("sandbox");
    let plan = world.node("e1").without_engine();
    let node = plan.with(|config| {
        config.role = NodeRole::Environment;
        config.drain.grace = config.drain.reserve;
    });
    let node = node.start();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    scale_in(&world, &node, 2).await;
    until(|| async { drain_state(&world).await == Some(DrainState::Drained) }).await;
    let report = node.agent.report().drains[0].clone();
    assert!(report.duration >= Duration::from_millis(1200), "{report:?}");
    assert!(report.duration < report.lead, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scorer_gives_back_what_it_leased_through_the_agent_of_its_node() {
    let (world, folder) = (World::scored(), SocketFolder::new());
    world.enqueue([group("a", 1, 8)]).await;
    let rollout = world.node("n1").start();
    until(|| async { world.status().await.reward_ready == 1 }).await;
    drop(rollout);
    let plan = world.node("s1").for_workers(&folder.socket());
    let node = plan.with(|config| config.role = NodeRole::Reward).start();
    let api = folder.api().await;
    let body = json!({"worker": "scorer", "stage": "reward", "limit": 1, "wait_ms": 5000});
    let answer = api.post("/v1/lease", body).await;
    assert_eq!(answer.1["grants"].as_array().map(Vec::len), Some(1), "{answer:?}");
    assert_eq!(world.status().await.reward_leased, 1);
    scale_in(&world, &node, 100).await;
    until(|| async { drain_state(&world).await == Some(DrainState::Drained) }).await;
    let status = world.status().await;
    assert_eq!((status.reward_ready, status.reward_leased), (1, 0));
}
