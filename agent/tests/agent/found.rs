//! Engines that the agent finds among the pods of its node, and that leave it again.

use ebbtide_agent::emulator::EngineEmulator;
use ebbtide_agent::kubernetes::{EnginePort, SeenPod, Tier};
use ebbtide_core::ids::NodeName;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::{EngineRecord, NodeState};

use crate::world::{NodePlan, World, engine_config, group, until};

/// A pod with an engine that answers there, or does not run yet.
fn pod(name: &str, url: Option<String>) -> SeenPod {
    let port = EnginePort { url, also: Vec::new(), run: None };
    SeenPod { tier: Tier::Engine, engines: vec![port], ..SeenPod::ordinary("rl", name, name) }
}

fn engine() -> EngineEmulator {
    EngineEmulator::start(engine_config()).expect("a free port")
}

fn bind(world: &World, name: &str, engine: &EngineEmulator) {
    let node: NodeName = "n1".parse().unwrap();
    world.pods.bind(&node, pod(name, Some(engine.base_url())));
}

/// A node without an engine of its own.
fn bare(world: &World) -> NodePlan<'_> {
    let plan = world.node("n1").without_engine();
    plan.with(|config| config.finds_engines = true).with_patience()
}

async fn engines(world: &World) -> Vec<EngineRecord> {
    let mut engines = world.queue.view().await.unwrap().engines;
    engines.sort_by_key(|engine| engine.index);
    engines
}

async fn until_engines(world: &World, wanted: &[(&EngineEmulator, &str)]) {
    until(async || {
        let known = engines(world).await;
        known.len() == wanted.len()
            && known.iter().zip(wanted).all(|(record, (engine, state))| {
                record.address == engine.base_url() && record.state == *state
            })
    })
    .await;
}

fn running(engine: &EngineEmulator) -> usize {
    engine.handle().counts().running
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_is_hosted_when_its_pod_appears_and_a_second_one_shares_the_work() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000), group("b", 8, 4_000)]).await;
    let (first, second) = (engine(), engine());
    let node = bare(&world).with(|config| config.concurrency_per_node = Some(8)).start();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    bind(&world, "p1", &first);
    node.wait_until(|agent| agent.held() == 8).await;
    bind(&world, "p2", &second);
    until_engines(&world, &[(&first, "ready"), (&second, "ready")]).await;
    until(async || running(&second) == 4).await;
    assert_eq!(running(&first), 8, "what runs goes on, although its share is smaller now");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_whose_pod_goes_is_let_go_and_its_number_is_given_again() {
    let world = World::new();
    world.enqueue([group("a", 8, 1_500), group("b", 8, 1_500)]).await;
    let (first, second, third) = (engine(), engine(), engine());
    let node = bare(&world).start();
    bind(&world, "p1", &first);
    until_engines(&world, &[(&first, "ready")]).await;
    bind(&world, "p2", &second);
    until(async || running(&first) == 8 && running(&second) == 8).await;

    // Its pod is gone; whatever its containers do, nothing of that counts.
    world.pods.remove("p1");
    until(async || running(&first) == 0).await;
    until_engines(&world, &[(&first, "its pod is gone"), (&second, "ready")]).await;
    assert_eq!(node.agent.counts().units_handed_back.get(&HandBackCause::Engine), Some(&8));
    assert_eq!(node.agent.state(), NodeState::Ready, "the other one works");

    bind(&world, "p3", &third);
    until_engines(&world, &[(&third, "ready"), (&second, "ready")]).await;
    let samples = world.take_samples(16).await;
    assert!(samples.iter().all(|sample| sample.attempts == 0), "{samples:?}");
    assert!(third.handle().counts().requests >= 8);
    world.pods.remove("p2");
    world.pods.remove("p3");
    node.wait_until(|agent| agent.state() == NodeState::NotReady).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_was_told_and_is_found_is_one_engine_and_stays_without_its_pod() {
    let world = World::new();
    let plan = world.node("n1").with(|config| config.finds_engines = true);
    let place = plan.place();
    bind(&world, "p1", &place.engine);
    let node = plan.start_at(place);
    let told = &node.place.engine;
    until_engines(&world, &[(told, "ready")]).await;
    let other = engine();
    bind(&world, "p2", &other);
    until_engines(&world, &[(told, "ready"), (&other, "ready")]).await;
    world.pods.remove("p1");
    world.pods.remove("p2");
    until_engines(&world, &[(told, "ready"), (&other, "its pod is gone")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_waits_for_the_engine_of_a_pod_that_does_not_run_yet() {
    let world = World::new();
    let name: NodeName = "n1".parse().unwrap();
    world.pods.bind(&name, pod("p1", None));
    let node = bare(&world).start();
    node.wait_until(|agent| agent.is_gate_open()).await;
    assert_eq!(node.agent.state(), NodeState::Starting);
    let engine = engine();
    world.pods.remove("p1");
    bind(&world, "p1", &engine);
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
}
