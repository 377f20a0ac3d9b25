//! EP groups that LeaderWorkerSet makes anew: once one pod of a group is gone it deletes all of
//! them and makes them again, under the same names, on whatever nodes have room.

use std::time::Duration;

use ebbtide_agent::kubernetes::{GroupLabels, SeenPod, Termination, Tier};
use ebbtide_queue::client::wall_clock_now;
use ebbtide_queue::control::{DrainReason, DrainRecord, DrainState, NodeRecord, NodeState};

use crate::world::{Node, World, group, until};

/// The engine pod of a member of `ep-<group_index>`, made now.
fn engine_pod(group_index: u32, worker_index: u32, uid: &str) -> SeenPod {
    let name = format!("ep-{group_index}-{worker_index}");
    let group = Some(GroupLabels { name: "ep".to_owned(), group_index, worker_index });
    let created = Some(wall_clock_now());
    SeenPod { tier: Tier::Engine, group, created, ..SeenPod::ordinary("rl", &name, uid) }
}

/// The same, made an hour ago.
fn old_engine_pod(group_index: u32, worker_index: u32, uid: &str) -> SeenPod {
    let created = Some(wall_clock_now().minus(Duration::from_hours(1)));
    SeenPod { created, ..engine_pod(group_index, worker_index, uid) }
}

fn start_node(world: &World, name: &str) -> Node {
    world.node(name).with_engine(|engine| engine.context_length = 200_000).start()
}

async fn record_of(world: &World, node: &Node) -> Option<NodeRecord> {
    let view = world.queue.view().await.unwrap();
    view.nodes.into_iter().find(|record| record.node == node.name)
}

async fn until_node(world: &World, node: &Node, holds: impl Fn(&NodeRecord) -> bool) {
    until(|| async { record_of(world, node).await.is_some_and(|record| holds(&record)) }).await;
}

/// Three nodes of `ep-0`, the first of which leads, with work.
async fn start_group(world: &World) -> [Node; 3] {
    world.enqueue([group("a", 8, 100_000)]).await;
    let nodes = ["n0", "n1", "n2"].map(|name| start_node(world, name));
    for (index, node) in (0..).zip(&nodes) {
        let pod = old_engine_pod(0, index, &format!("old-{index}"));
        world.pods.bind(&node.name, pod);
        until_node(world, node, |record| record.replica.as_str() == "ep-0").await;
    }
    for node in &nodes {
        node.wait_until(|agent| agent.is_gate_open()).await;
    }
    nodes
}

async fn until_drained(world: &World) {
    until(|| async {
        let drains = world.queue.view().await.unwrap().drains;
        let is_drained = |drain: &DrainRecord| {
            drain.replica.as_str() == "ep-0" && drain.state == DrainState::Drained
        };
        drains.iter().any(is_drained)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn group_made_anew_works_at_once_and_the_lost_node_leaves_it() {
    let world = World::new();
    let [leader, lost, survivor] = start_group(&world).await;
    let spare = start_node(&world, "n3");
    lost.announce(60);
    until_drained(&world).await;
    // What LeaderWorkerSet does: all pods go, and come again elsewhere.
    for uid in ["old-0", "old-1", "old-2"] {
        world.pods.remove(uid);
    }
    world.pods.bind(&spare.name, engine_pod(0, 0, "new-0"));
    world.pods.bind(&leader.name, engine_pod(0, 1, "new-1"));
    world.pods.bind(&survivor.name, engine_pod(0, 2, "new-2"));
    for node in [&spare, &leader, &survivor] {
        until_node(&world, node, |record| {
            record.replica.as_str() == "ep-0" && record.state == NodeState::Ready
        })
        .await;
        node.wait_until(|agent| agent.is_gate_open()).await;
    }
    // The lost node drains for itself, and is nobody's survivor.
    until_node(&world, &lost, |record| {
        record.replica.as_str() == "n1" && record.state == NodeState::Drained
    })
    .await;
    assert!(!lost.agent.is_gate_open());
    until(|| async {
        let view = world.queue.view().await.unwrap();
        let state = |replica: &str| {
            let drain = view.drains.iter().find(|drain| drain.replica.as_str() == replica);
            drain.map(|drain| (drain.reason, drain.state))
        };
        let is_over = state("ep-0") == Some((DrainReason::Notice, DrainState::Cancelled));
        is_over && state("n1") == Some((DrainReason::Notice, DrainState::Drained))
    })
    .await;
    assert!(world.marks.node(&lost.name).is_cordoned, "it still goes");
    assert!(!world.marks.node(&leader.name).is_cordoned);
}

/// Its kubelet, or its watch, is slower than the making of the new group.
#[tokio::test(flavor = "multi_thread")]
async fn lost_node_whose_old_pod_is_still_on_its_way_out_leaves_the_new_group_alone() {
    let world = World::new();
    let [leader, lost, survivor] = start_group(&world).await;
    let spare = start_node(&world, "n3");
    world.pods.keep("old-1");
    lost.announce(60);
    until_drained(&world).await;
    let grace = Duration::from_secs(30);
    world.pods.terminate("old-1", Termination { by: wall_clock_now().plus(grace), grace });
    for uid in ["old-0", "old-2"] {
        world.pods.remove(uid);
    }
    world.pods.bind(&spare.name, engine_pod(0, 0, "new-0"));
    world.pods.bind(&leader.name, engine_pod(0, 1, "new-1"));
    world.pods.bind(&survivor.name, engine_pod(0, 2, "new-2"));
    until_node(&world, &lost, |record| {
        record.replica.as_str() == "n1" && record.state == NodeState::Drained
    })
    .await;
    for node in [&spare, &leader, &survivor] {
        until_node(&world, node, |record| {
            record.replica.as_str() == "ep-0" && record.state == NodeState::Ready
        })
        .await;
    }
    world.pods.remove("old-1");
    let before = record_of(&world, &lost).await.unwrap().heartbeat;
    until_node(&world, &lost, |record| record.heartbeat.since(before).as_millis() > 400).await;
    assert_eq!(record_of(&world, &lost).await.unwrap().replica.as_str(), "n1");
    let drains = world.queue.view().await.unwrap().drains;
    let of_group = drains.iter().find(|drain| drain.replica.as_str() == "ep-0").unwrap();
    assert_eq!(of_group.state, DrainState::Cancelled);
    assert!(world.marks.node(&lost.name).is_cordoned, "it still goes");
}

/// The same of nodes that stay: the end of a pod is a reason to hand back, not one for others.
#[tokio::test(flavor = "multi_thread")]
async fn survivors_whose_old_pods_are_still_on_their_way_out_leave_the_new_group_alone() {
    let world = World::new();
    let [leader, lost, survivor] = start_group(&world).await;
    let spares = ["n3", "n4", "n5"].map(|name| start_node(&world, name));
    lost.announce(60);
    until_drained(&world).await;
    for node in [&leader, &survivor] {
        node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    }
    let grace = Duration::from_secs(30);
    for uid in ["old-0", "old-2"] {
        world.pods.terminate(uid, Termination { by: wall_clock_now().plus(grace), grace });
    }
    world.pods.remove("old-1");
    for (index, node) in (0..).zip(&spares) {
        world.pods.bind(&node.name, engine_pod(0, index, &format!("new-{index}")));
    }
    for (node, own) in [(&leader, "n0"), (&survivor, "n2")] {
        until_node(&world, node, |record| record.replica.as_str() == own).await;
    }
    for uid in ["old-0", "old-2"] {
        world.pods.remove(uid);
    }
    for (node, replica) in [(&leader, "n0"), (&survivor, "n2")] {
        let is_back = |record: &NodeRecord| record.state == NodeState::Ready;
        until_node(&world, node, |record| is_back(record) && record.replica.as_str() == replica)
            .await;
    }
    for node in &spares {
        until_node(&world, node, |record| {
            record.replica.as_str() == "ep-0" && record.state == NodeState::Ready
        })
        .await;
    }
    let drains = world.queue.view().await.unwrap().drains;
    let of_group = drains.iter().find(|drain| drain.replica.as_str() == "ep-0").unwrap();
    assert_eq!((of_group.reason, of_group.state), (DrainReason::Notice, DrainState::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn survivor_that_gets_an_engine_of_another_group_works_for_that_one() {
    let world = World::new();
    let [_leader, lost, survivor] = start_group(&world).await;
    lost.announce(60);
    until_drained(&world).await;
    world.pods.remove("old-2");
    world.pods.bind(&survivor.name, engine_pod(7, 0, "other"));
    until_node(&world, &survivor, |record| {
        record.replica.as_str() == "ep-7" && record.state == NodeState::Ready
    })
    .await;
    survivor.wait_until(|agent| agent.is_gate_open()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_the_survivors_engine_pods_does_not_cut_the_time_of_the_lost_node() {
    let world = World::new();
    let [leader, lost, survivor] = start_group(&world).await;
    lost.announce(60);
    until_drained(&world).await;
    let deadline = world.queue.view().await.unwrap().drains[0].deadline;
    for node in [&leader, &survivor] {
        node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    }
    let grace = Duration::from_secs(2);
    for uid in ["old-0", "old-2"] {
        let by = wall_clock_now().plus(grace);
        world.pods.terminate(uid, Termination { by, grace });
    }
    // What follows from the end of the pods has happened once they were seen: the nodes report it.
    for node in [&leader, &survivor] {
        let before = record_of(&world, node).await.unwrap().heartbeat;
        until_node(&world, node, |record| record.heartbeat.since(before).as_millis() > 400).await;
    }
    assert_eq!(world.queue.view().await.unwrap().drains[0].deadline, deadline);
}
