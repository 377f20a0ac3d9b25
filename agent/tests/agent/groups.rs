//! EP groups: one node goes, the whole group stops, the survivors are told as idle.

use std::time::Duration;

use ebbtide_agent::kubernetes::{GroupLabels, SeenPod, Termination, Tier};
use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_queue::client::wall_clock_now;
use ebbtide_queue::control::{DrainOutcome, DrainReason, DrainState, NodeState};

use crate::outages::{body_of, free_port, status_of};
use crate::world::{Node, World, group, until, within};

/// A group of one leader and so many others. They read the keys only when they are told to: what
/// reaches them in these tests came by a hint.
fn start_group(world: &World, others: usize) -> Vec<Node> {
    let slow = Duration::from_secs(600);
    let start = |number: usize| {
        let plan = world.node(&format!("n{number}")).of_replica("ep-0", number == 0);
        let plan = plan.with_engine(|engine| engine.context_length = 200_000);
        plan.with(|config| config.pace.meet_every = slow).start()
    };
    (0..=others).map(start).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn notice_of_one_node_stops_the_whole_group_by_a_hint_and_drains_its_engine_once() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let nodes = start_group(&world, 3);
    nodes[0].wait_until_busy(8).await;
    for node in &nodes[1..] {
        node.wait_until(|agent| agent.is_gate_open()).await;
    }
    nodes[2].announce(60);
    for node in &nodes {
        node.wait_until(|agent| !agent.is_gate_open()).await;
        node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    }
    let status = world.status().await;
    assert_eq!((status.ready, status.leased), (8, 0));
    assert_eq!(nodes[0].agent.counts().handed_back_total(), 8);
    until(|| async {
        let view = world.queue.view().await.unwrap();
        view.drains.first().is_some_and(|drain| drain.state == DrainState::Drained)
    })
    .await;
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.drains.len(), 1);
    let drain = &view.drains[0];
    assert_eq!((drain.reason, drain.lost.to_string().as_str()), (DrainReason::Notice, "n2"));
    assert!(drain.request_id.starts_with("notice-n2-"), "{drain:?}");
}

/// Who looks at the drain later asks it which nodes go: the controller, operators.
#[tokio::test(flavor = "multi_thread")]
async fn second_node_with_a_notice_is_named_in_the_drain_too() {
    let world = World::new();
    let nodes = start_group(&world, 2);
    for node in &nodes {
        node.wait_until(|agent| agent.is_gate_open()).await;
    }
    for (node, lost) in [(&nodes[1], "n1"), (&nodes[2], "n1,n2")] {
        node.announce(60);
        until(|| async {
            let drains = world.queue.view().await.unwrap().drains;
            drains.first().is_some_and(|drain| drain.lost.to_string() == lost)
        })
        .await;
    }
    within(world.marks.wait_for(&nodes[2].name, |marked| marked.is_cordoned)).await;
    assert!(!world.marks.node(&nodes[0].name).is_cordoned);
}

#[tokio::test(flavor = "multi_thread")]
async fn survivors_are_told_as_idle_and_only_the_lost_node_is_marked() {
    let world = World::new();
    let mut nodes = start_group(&world, 2);
    for node in &nodes {
        node.wait_until(|agent| agent.is_gate_open()).await;
    }
    nodes[1].announce(60);
    within(world.marks.wait_for(&nodes[1].name, |marked| marked.taint.is_some())).await;
    until(|| async {
        let view = world.queue.view().await.unwrap();
        let idle = view.nodes.iter().filter(|node| node.idle_since.is_some());
        let idle: Vec<&NodeName> = idle.map(|node| &node.node).collect();
        idle == [&nodes[0].name, &nodes[2].name]
    })
    .await;
    for survivor in [&nodes[0], &nodes[2]] {
        assert!(!world.marks.node(&survivor.name).is_cordoned, "{}", survivor.name);
    }
    // The controller forgets the drain once the lost node is gone: the survivors work again.
    let replica: ReplicaId = "ep-0".parse().unwrap();
    let lost = nodes.remove(1);
    let name = lost.name.clone();
    lost.kill().await;
    world.queue.remove_node(0, &name).await.unwrap();
    world.queue.remove_drain(0, &replica).await.unwrap();
    until(|| async {
        let view = world.queue.view().await.unwrap();
        // Not when they are ready: an engine that is slow for a moment would be told in 600 s.
        let is_out = |state| matches!(state, NodeState::Draining | NodeState::Drained);
        view.nodes.iter().all(|node| node.idle_since.is_none() && !is_out(node.state))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_that_is_dead_when_the_notice_comes_loses_nothing() {
    let world = World::new();
    world.enqueue([group("a", 8, 300)]).await;
    let mut nodes = start_group(&world, 1);
    nodes[0].wait_until_busy(8).await;
    nodes.remove(0).kill().await;
    nodes[0].announce(60);
    nodes[0].wait_until(|agent| !agent.is_gate_open()).await;
    until(|| async {
        world.queue.reap(64).await.unwrap();
        world.status().await.ready == 8
    })
    .await;
    let _heir = world.node("heir").start();
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|sample| sample.attempts == 0 && sample.infra_attempts == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_report_says_what_the_drain_of_a_group_came_to() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let nodes = start_group(&world, 1);
    nodes[0].wait_until_busy(8).await;
    nodes[1].announce(60);
    nodes[0].wait_until(|agent| agent.state() == NodeState::Drained).await;
    until(|| async { !world.queue.reports(8).await.unwrap().is_empty() }).await;
    let reports = world.queue.reports(8).await.unwrap();
    assert_eq!(reports.len(), 1, "the leader reports, once");
    let report = &reports[0];
    assert_eq!((report.reason, report.outcome), (DrainReason::Notice, DrainOutcome::Drained));
    assert_eq!((report.units_held, report.units_handed_back, report.units_left), (8, 8, 0));
    assert_eq!(report.node, nodes[0].name);
    let status = world.status().await;
    let stored = status.tokens.generated - status.tokens.accepted - status.tokens.wasted_total();
    assert_eq!(report.tokens_preserved, stored);
    assert!(report.last_hand_back_ms.is_some_and(|ms| ms <= report.duration_ms), "{report:?}");
    assert!((50_000..=60_000).contains(&report.lead_ms), "{report:?}");
}

/// A pod of the group `ep-0`.
fn engine_pod(worker_index: u32) -> SeenPod {
    let uid = format!("ep-0-{worker_index}");
    let group = GroupLabels { name: "ep".to_owned(), group_index: 0, worker_index };
    let pod = SeenPod::ordinary("rl", &uid, &uid);
    SeenPod { tier: Tier::Engine, group: Some(group), ..pod }
}

/// All agents of a DaemonSet are told the same address, and no engine answers beside the leader.
#[tokio::test(flavor = "multi_thread")]
async fn node_whose_engine_answers_on_another_one_is_ready_without_it() {
    let world = World::new();
    let (leader, worker) = ("n1".parse().unwrap(), "n2".parse().unwrap());
    world.pods.bind(&leader, engine_pod(0));
    world.pods.bind(&worker, engine_pod(1));
    let address = ([127, 0, 0, 1], free_port()).into();
    let leader = world.node("n1").start();
    let silent = world.node("n2").with_engine(|engine| engine.start_after = Duration::MAX);
    let worker = silent.with(|config| config.listen = Some(address)).start();
    for node in [&leader, &worker] {
        node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    }
    until(|| async { status_of(address, "/readyz").await == Some(200) }).await;
    until(|| async {
        let engines = world.queue.view().await.unwrap().engines;
        let of_group: Vec<&str> = engines
            .iter()
            .filter(|engine| engine.replica.as_str() == "ep-0")
            .map(|engine| engine.address.as_str())
            .collect();
        of_group == [leader.place.engine.base_url()]
    })
    .await;
}

/// Its engine runs on both nodes: without the worker the leader's streams would end.
#[tokio::test(flavor = "multi_thread")]
async fn engine_pod_of_a_group_may_go_only_once_the_leader_has_handed_back() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let way = world.own_way();
    let plan = world.node("n1").with_engine(|engine| engine.context_length = 200_000);
    let leader = plan.with_patience().by(way.clone()).start();
    let address = ([127, 0, 0, 1], free_port()).into();
    let plan = world.node("n2").without_engine();
    let worker = plan.with(|config| config.listen = Some(address)).start();
    world.pods.bind(&leader.name, engine_pod(0));
    world.pods.bind(&worker.name, engine_pod(1));
    for node in [&leader, &worker] {
        node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    }
    until(|| async {
        let nodes = world.queue.view().await.unwrap().nodes;
        nodes.iter().all(|node| node.replica.as_str() == "ep-0")
    })
    .await;
    leader.wait_until_busy(8).await;
    // As LeaderWorkerSet does when one of the pods goes.
    way.set_down(true);
    let grace = Duration::from_secs(60);
    for pod in ["ep-0-0", "ep-0-1"] {
        world.pods.terminate(pod, Termination { by: wall_clock_now().plus(grace), grace });
    }
    worker.wait_until(|agent| agent.state() == NodeState::Drained).await;
    assert_eq!(status_of(address, "/drained").await, Some(503));
    let body = body_of(address, "/drained").await;
    assert!(body.contains(r#""awaits_leader":true"#), "{body}");
    way.set_down(false);
    until(|| async { status_of(address, "/drained").await == Some(200) }).await;
    let status = world.status().await;
    assert_eq!((status.leased, status.hand_backs["drain"]), (0, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_pod_of_a_noticed_worker_stays_while_a_stream_of_the_leader_may_still_finish() {
    let world = World::new();
    world.enqueue([group("a", 4, 600)]).await;
    let leader = world.node("n1").start();
    let worker = world.node("n2").without_engine().start();
    world.pods.bind(&leader.name, engine_pod(0));
    world.pods.bind(&worker.name, engine_pod(1));
    world.pods.bind(&worker.name, SeenPod::ordinary("rl", "web", "web"));
    until(|| async {
        let nodes = world.queue.view().await.unwrap().nodes;
        nodes.iter().all(|node| node.replica.as_str() == "ep-0")
    })
    .await;
    worker.wait_until(|agent| agent.is_gate_open()).await;
    leader.wait_until(|agent| agent.counts().tokens_stored > 4 * 100).await;
    worker.announce(60);
    within(world.pods.wait_for(|pods| pods.departed().len() == 2)).await;
    let departed = world.pods.departed();
    let departed: Vec<&str> = departed.iter().map(|departed| &*departed.pod.name).collect();
    assert_eq!(departed, ["web", "ep-0-1"]);
    assert_eq!(leader.agent.counts().units_completed, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_follows_the_labels_of_the_engine_pods() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let leader = world.node("n1").with_engine(|engine| engine.context_length = 200_000).start();
    let worker = world.node("n2").without_engine().start();
    leader.wait_until_busy(8).await;
    world.pods.bind(&leader.name, engine_pod(0));
    world.pods.bind(&worker.name, engine_pod(1));
    until(|| async {
        let view = world.queue.view().await.unwrap();
        view.nodes.iter().all(|node| node.replica.as_str() == "ep-0")
    })
    .await;
    worker.wait_until(|agent| agent.is_gate_open()).await;
    worker.announce(60);
    leader.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let status = world.status().await;
    assert_eq!((status.ready, status.leased), (8, 0));
    until(|| async {
        let drains = world.queue.view().await.unwrap().drains;
        drains.first().is_some_and(|drain| drain.state == DrainState::Drained)
    })
    .await;
    // The pods of the node that goes are evicted; it stays part of what it is drained with.
    within(world.pods.wait_for(|pods| !pods.departed().is_empty())).await;
    until(|| async {
        let view = world.queue.view().await.unwrap();
        view.nodes.iter().any(|node| node.node == worker.name && node.pods_left == Some(0))
    })
    .await;
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.drains.len(), 1);
    assert_eq!(view.drains[0].replica.as_str(), "ep-0");
    assert!(view.nodes.iter().all(|node| node.replica.as_str() == "ep-0"), "{view:?}");
}
