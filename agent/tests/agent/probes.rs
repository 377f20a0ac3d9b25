//! What others are told over HTTP: whether the agent lives, and whether an engine may go.

use std::time::Duration;

use ebbtide_agent::emulator::imds::path;
use ebbtide_agent::kubernetes::{SeenPod, Termination, Tier};
use ebbtide_queue::client::wall_clock_now;

use crate::outages::{body_of, free_port, status_of};
use crate::world::{World, group, until};

/// Case 60: between two looks that lie too far apart, the loop stands still.
#[tokio::test(flavor = "multi_thread")]
async fn poll_loop_that_does_not_turn_fails_the_liveness_check_until_it_turns_again() {
    let world = World::new();
    let address = ([127, 0, 0, 1], free_port()).into();
    let plan = world.node("n1").with(|config| {
        config.listen = Some(address);
        config.pace.spot_poll = Duration::from_secs(9);
        config.pace.silence_limit = Duration::from_secs(3);
    });
    let node = plan.start();
    until(|| async { status_of(address, "/healthz").await == Some(200) }).await;
    until(|| async { status_of(address, "/healthz").await == Some(503) }).await;
    assert_eq!(body_of(address, "/healthz").await, r#"{"stalled":["spot_poll"]}"#);
    let looks = node.imds().requests(path::SPOT_ACTION);
    until(|| async { status_of(address, "/healthz").await == Some(200) }).await;
    assert_eq!(node.imds().requests(path::SPOT_ACTION), looks + 1, "it has just looked");
}

/// Case 65, where others evict: an engine's `preStop` asks this before it lets the SIGTERM come.
#[tokio::test(flavor = "multi_thread")]
async fn engine_may_go_only_once_its_half_made_tokens_are_stored() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    let address = ([127, 0, 0, 1], free_port()).into();
    let engine = SeenPod { tier: Tier::Engine, ..SeenPod::ordinary("rl", "engine", "engine") };
    world.pods.bind(&"n1".parse().unwrap(), engine);
    let plan = world.node("n1").with(|config| config.listen = Some(address));
    let node = plan.with_patience().start();
    node.wait_until_busy(8).await;
    assert_eq!(status_of(address, "/drained").await, Some(503));
    assert!(body_of(address, "/drained").await.contains("8"), "how many it still waits for");
    // Nobody but the one who deletes the pod knows that it goes; the queue is away at that moment.
    world.set_queue_down(true);
    let grace = Duration::from_secs(30);
    world.pods.terminate("engine", Termination { by: wall_clock_now().plus(grace), grace });
    node.wait_until(|agent| !agent.is_gate_open()).await;
    node.wait_until(|agent| agent.counts().tokens_waiting > 0).await;
    assert_eq!(status_of(address, "/drained").await, Some(503), "aborted is not yet stored");
    world.set_queue_down(false);
    until(|| async { status_of(address, "/drained").await == Some(200) }).await;
    let (status, counts) = (world.status().await, node.agent.counts());
    assert_eq!((status.leased, status.hand_backs["drain"]), (0, 8));
    assert_eq!(status.tokens.generated, counts.tokens_received, "every token that was made");
}
