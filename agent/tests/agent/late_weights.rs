//! Replicas that come after the version has risen, while nobody pushes: each serves the new version
//! or says why it cannot.

use std::time::Duration;

use ebbtide_agent::AgentConfig;
use ebbtide_agent::emulator::EngineConfig;
use ebbtide_agent::kubernetes::{PodStart, SeenPod, Tier};
use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::client::wall_clock_now;
use ebbtide_queue::control::{EngineRecord, NodeState};

use crate::world::{World, every_engine, group, until};

/// A group that takes tokens of the run's version alone.
fn on_policy(name: &str, size: u16, tokens: u32) -> PromptGroup {
    PromptGroup { max_lag: 0, ..group(name, size, tokens) }
}

fn soon(config: &mut AgentConfig) {
    config.weights.grace = Duration::from_millis(300);
    config.weights.cache = Some("/weights/{version}".to_owned());
}

async fn engine(world: &World) -> EngineRecord {
    world.queue.view().await.unwrap().engines.remove(0)
}

async fn until_told(world: &World, what: &str) {
    until(async || {
        let engines = world.queue.view().await.unwrap().engines;
        engines.iter().any(|engine| engine.state.contains(what))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_that_joins_late_loads_the_version_of_the_run_and_serves_it() {
    for kind in every_engine() {
        for (label, unreadable, loads) in [("0", None, 1), ("default", Some("/weights"), 2)] {
            let world = World::new();
            world.publish(5, "file:///store/5").await;
            world.enqueue([on_policy("a", 4, 40)]).await;
            let base = |engine: &mut EngineConfig| {
                engine.weights_label = label.to_owned();
                engine.load_takes = Duration::from_millis(200);
            };
            let plan = world.node("n1").with_engine(kind).with_engine(base).with(soon);
            let place = plan.place();
            place.engine.handle().set_unreadable_weights(unreadable);
            let node = plan.start_at(place);
            let samples = world.take_samples(4).await;
            let mut chunks = samples.iter().flat_map(|sample| &sample.chunks);
            assert!(chunks.all(|chunk| chunk.weight_version == PolicyVersion(5)), "{samples:?}");
            assert_eq!(node.place.engine.handle().counts().weight_loads, loads, "{label}");
            until(async || engine(&world).await.weights_version == Some(PolicyVersion(5))).await;
            assert_eq!(engine(&world).await.state, "ready");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_that_cannot_load_the_version_says_why_and_gets_no_work() {
    for kind in every_engine() {
        let world = World::new();
        world.publish(5, "s3://bucket/5").await;
        world.enqueue([on_policy("a", 4, 40)]).await;
        let plan = world.node("n1").with_engine(kind).with(soon);
        let place = plan.place();
        place.engine.handle().set_unreadable_weights(Some(""));
        let node = plan.start_at(place);
        until_told(&world, "could not load version 5: /weights/5: ").await;
        until_told(&world, "s3://bucket/5: ").await;
        node.wait_until(|agent| agent.state() == NodeState::NotReady).await;
        let engine = node.place.engine.handle();
        assert_eq!(engine.weights_label(), "0", "a label alone would be a lie");
        assert_eq!((engine.counts().requests, node.agent.counts().units_leased), (0, 0));
        // Somebody pushes it after all.
        engine.set_weights_label("5");
        assert_eq!(world.take_samples(4).await.len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_without_a_call_or_a_place_to_load_from_says_what_to_do() {
    let world = World::new();
    world.set_version(5).await;
    let plan = world.node("n1").with(soon).with(|config| config.weights.cache = None);
    let node = plan.start();
    until_told(&world, "--weights-cache").await;
    assert_eq!(node.agent.state(), NodeState::NotReady);
    assert_eq!(node.place.engine.handle().counts().weight_loads, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn load_that_changes_no_label_is_no_success() {
    for kind in every_engine() {
        let world = World::new();
        world.publish(5, "").await;
        let plan = world.node("n1").with_engine(kind).with(soon);
        let place = plan.place();
        place.engine.handle().set_ignores_labels(true);
        let _node = plan.start_at(place);
        until_told(&world, "its weights are still called \"0\"").await;
    }
}

/// Cases 6 and 21: what runs goes on to its end, and only new work waits for the load.
#[tokio::test(flavor = "multi_thread")]
async fn streams_end_by_themselves_before_an_engine_loads() {
    for kind in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 4, 600)]).await;
        let node = world.node("n1").with_engine(kind).with(soon).start();
        node.wait_until_busy(4).await;
        world.publish(5, "").await;
        world.enqueue([on_policy("b", 4, 40)]).await;
        until_told(&world, "it is brought to it").await;
        assert_eq!(node.place.engine.handle().counts().running, 4);
        let samples = world.take_samples(8).await;
        assert!(samples.iter().all(|it| (it.attempts, it.hand_backs) == (0, 0)), "{samples:?}");
        let counts = node.place.engine.handle().counts();
        assert_eq!((counts.weight_loads, counts.finished_abort), (1, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_too_long_to_wait_for_makes_way_with_its_tokens() {
    let world = World::new();
    world.enqueue([group("a", 1, 2_000)]).await;
    let node = world.node("n1").with(soon).with(|config| {
        config.lease.progress.engine_pause = Duration::from_secs(2);
    });
    let node = node.start();
    node.wait_until_busy(1).await;
    world.publish(5, "").await;
    until(async || node.place.engine.handle().weights_label() == "5").await;
    node.wait_until(|agent| agent.counts().handed_back_total() == 1).await;
    node.wait_until_busy(1).await;
    until(async || world.status().await.tokens.preserved > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_is_published_in_its_parts() {
    for kind in every_engine() {
        let world = World::new();
        world.publish(5, "").await;
        world.enqueue([on_policy("a", 4, 40)]).await;
        let late = |engine: &mut EngineConfig| engine.start_after = Duration::from_millis(500);
        let plan = world.node("n1").with_engine(kind).with_engine(late).with(soon);
        let started = wall_clock_now();
        let ago = |seconds| started.minus(Duration::from_secs(seconds));
        let pod = SeenPod::ordinary("rl", "engine", "u1");
        let start =
            PodStart { scheduled: Some(ago(20)), started: Some(ago(5)), is_restarted: false };
        let pod = SeenPod { tier: Tier::Engine, created: Some(ago(80)), start, ..pod };
        world.pods.bind(plan.config.node(), pod);
        let _node = plan.start();
        assert_eq!(world.take_samples(4).await.len(), 4);
        until(async || engine(&world).await.startup_first_token_seconds.is_some()).await;
        let record = engine(&world).await;
        assert_eq!(record.startup_node_seconds, Some(60.0));
        assert_eq!(record.startup_image_seconds, Some(15.0));
        let is_above = |part: Option<f64>, least: f64| part.is_some_and(|part| part >= least);
        assert!(is_above(record.startup_engine_seconds, 5.5), "{record:?}");
        assert!(is_above(record.startup_weights_seconds, 0.3), "{record:?}");
    }
}
