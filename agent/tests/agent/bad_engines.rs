//! Engines that die in mid-stream, stand still and answer no probe, fail every call, or have only
//! just been called. Units keep their tokens, and what they are blamed for is bounded.

use std::time::Duration;

use ebbtide_agent::emulator::EngineConfig;
use ebbtide_agent::emulator::engine::{EngineCounts, PauseMode};
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::NodeState;
use tokio::time::Instant;

use crate::world::{Node, World, every_engine, group, until, within};

/// Somebody has it load weights, which keeps it from answering anything but `/health`.
fn keep_busy(node: &Node) {
    let url = format!("{}/collective_rpc", node.place.engine.base_url());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let load = http.post(url).json(&serde_json::json!({ "method": "reload_weights" }));
    tokio::spawn(load.send());
}

/// Case 15 of rollouts: nobody knows that it is paused, as its probes hang as well.
#[tokio::test(flavor = "multi_thread")]
async fn engine_that_stands_still_and_answers_no_probe_gives_its_units_up_without_an_attempt() {
    let world = World::new();
    world.enqueue([group("a", 4, 2_000)]).await;
    let slow = |engine: &mut EngineConfig| engine.load_takes = Duration::from_secs(600);
    let node = world.node("n1").with_engine(slow).with(|config| {
        config.lease.progress.idle = Duration::from_millis(1_500);
    });
    let node = node.start();
    node.wait_until_busy(4).await;
    keep_busy(&node);
    node.wait_until(|agent| agent.state() == NodeState::NotReady).await;
    assert_eq!(node.agent.held(), 4, "its streams go on");
    node.place.engine.handle().pause(PauseMode::Keep);
    node.wait_until(|agent| agent.held() == 0).await;
    let counts = node.agent.counts();
    assert_eq!(counts.units_handed_back.get(&HandBackCause::Engine), Some(&4));
    assert_eq!((counts.units_faulted, counts.units_lost, counts.tokens_dropped), (0, 0, 0));
    assert_eq!(node.agent.state(), NodeState::NotReady);
    assert!(!world.marks.node(&node.name).is_cordoned, "an engine is no node");
    let _other = world.node("n2").start();
    let samples = world.take_samples(4).await;
    assert!(samples.iter().all(|it| (it.attempts, it.infra_attempts) == (0, 0)), "{samples:?}");
    assert_eq!(world.status().await.tokens.preserved, counts.tokens_stored);
}

/// Case 8 of rollouts: an engine whose core dies in mid-stream.
#[tokio::test(flavor = "multi_thread")]
async fn units_of_a_dying_engine_are_back_with_their_tokens_within_two_seconds() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 8, 4_000)]).await;
        let node = world.node("n1").with_engine(engine).start();
        node.wait_until_busy(8).await;
        let died_at = Instant::now();
        node.place.engine.handle().fail_core();
        until(async || world.status().await.ready == 8).await;
        assert!(died_at.elapsed() < Duration::from_secs(2), "took {:?}", died_at.elapsed());
        node.wait_until(|agent| agent.state() == NodeState::NotReady).await;
        let counts = node.agent.counts();
        let units = world.queue.scan().await.unwrap();
        assert!(units.iter().all(|it| (it.attempts, it.hand_backs) == (1, 0) && it.tokens > 0));
        let stored: u64 = units.iter().map(|unit| u64::from(unit.tokens)).sum();
        assert_eq!((stored, counts.tokens_dropped), (counts.tokens_received, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_fails_every_call_is_tried_with_one_unit_at_a_time() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue((0..40).map(|n| group(&format!("g{n:02}"), 1, 40))).await;
        let plan = world.node("n1").with_engine(engine);
        let place = plan.place();
        place.engine.handle().fail_next(1_000, 500);
        let node = plan.start_at(place);
        node.wait_until(|agent| agent.counts().units_faulted >= 9).await;
        let (report, _place) = node.stop().await;
        assert!(report.counts.units_leased <= 10, "eight at once, then one: {report:?}");
        let _other = world.node("n2").start();
        let samples = world.take_samples(40).await;
        let attempts: u64 = samples.iter().map(|sample| u64::from(sample.attempts)).sum();
        assert_eq!(attempts, report.counts.units_faulted);
    }
}

/// Case 11 of rollouts: the calls have hardly reached the engine.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_submitted_a_moment_ago_is_aborted_as_well() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 64, 4_000)]).await;
        let plan = world.node("n1").with(|config| config.concurrency_per_engine = 64);
        let node = plan.with_engine(engine).start();
        node.wait_until(|agent| agent.held() > 0).await;
        let (report, place) = node.stop().await;
        within(place.engine.handle().wait_for(EngineCounts::is_idle)).await;
        let status = world.status().await;
        assert_eq!((status.ready, status.leased), (64, 0), "{report:?}");
        assert_eq!(status.tokens.generated, report.counts.tokens_stored);
    }
}
