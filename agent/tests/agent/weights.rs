//! Policy versions: what may be leased, what is recorded, what restarts.

use std::time::Duration;

use ebbtide_agent::emulator::EngineConfig;
use ebbtide_agent::emulator::imds::path;
use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::sample::Chunk;
use ebbtide_core::work::ResumePolicy;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::NodeState;

use crate::world::{World, every_engine, group, until, within};

#[tokio::test(flavor = "multi_thread")]
async fn engine_with_unknown_weights_gets_no_work() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 4, 40)]).await;
        let unknown = |engine: &mut EngineConfig| engine.weights_label = "default".to_owned();
        let node = world.node("n1").with_engine(engine).with_engine(unknown).start();
        node.wait_until(|_| true).await;
        until(|| async {
            let view = world.queue.view().await.unwrap();
            view.nodes.first().is_some_and(|node| node.state == NodeState::Loading)
        })
        .await;
        assert_eq!(world.lease_calls(), 0);
        node.place.engine.handle().set_weights_label("0");
        world.take_samples(4).await;
    }
}

/// Case 6.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_carry_the_version_that_made_them() {
    let policies = [ResumePolicy::ContinueMixed, ResumePolicy::MaskOld];
    for (engine, policy) in every_engine().into_iter().zip(policies.into_iter().cycle()) {
        let world = World::new();
        let mut going_on = group("a", 4, 400);
        going_on.resume_policy = policy;
        world.enqueue([going_on]).await;
        let node = world.node("n1").with_engine(engine).start();
        node.wait_until_busy(4).await;
        world.set_version(1).await;
        node.place.engine.handle().set_weights_label("1");
        let samples = world.take_samples(4).await;
        for sample in &samples {
            let versions: Vec<u64> = sample.chunks.iter().map(|c| c.weight_version.0).collect();
            assert!(versions.is_sorted(), "{versions:?}");
            assert_eq!((versions.first(), versions.last()), (Some(&0), Some(&1)));
            let ends: Vec<u32> = sample.chunks.iter().map(Chunk::end).collect();
            assert_eq!(ends.last(), Some(&400));
            assert_eq!((sample.hand_backs, sample.attempts), (0, 0), "no stream was aborted");
        }
    }
}

/// Case 1, at the engine.
#[tokio::test(flavor = "multi_thread")]
async fn units_that_restart_under_newer_weights_are_given_back_at_the_change() {
    for engine in every_engine() {
        let world = World::new();
        let mut restarting = group("a", 4, 500);
        restarting.resume_policy = ResumePolicy::RestartIfNewer;
        world.enqueue([restarting]).await;
        let node = world.node("n1").with_engine(engine).start();
        node.wait_until_busy(4).await;
        world.set_version(1).await;
        node.wait_until(|agent| {
            agent.counts().units_handed_back.get(&HandBackCause::Weights) == Some(&4)
        })
        .await;
        node.place.engine.handle().set_weights_label("1");
        let samples = world.take_samples(4).await;
        let made_by = |chunk: &Chunk| chunk.weight_version;
        assert!(samples.iter().flat_map(|s| &s.chunks).all(|c| made_by(c) == PolicyVersion(1)));
        let status = world.status().await;
        assert!(status.tokens.wasted["restarted"] > 0);
        assert_eq!(status.tokens.accepted, 4 * 500);
    }
}

/// Case 21: an engine that is deaf while somebody has it load.
#[tokio::test(flavor = "multi_thread")]
async fn engine_that_answers_no_probe_for_a_moment_keeps_its_streams() {
    let world = World::new();
    world.enqueue([group("a", 4, 2_000)]).await;
    let slow = |engine: &mut EngineConfig| engine.load_takes = Duration::from_secs(6);
    let node = world.node("n1").with_engine(slow).start();
    node.wait_until_busy(4).await;
    let url = format!("{}/collective_rpc", node.place.engine.base_url());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let load = http.post(url).json(&serde_json::json!({ "method": "reload_weights" })).send();
    let load = tokio::spawn(load);
    node.wait_until(|agent| agent.state() == NodeState::NotReady).await;
    let leases = world.lease_calls();
    world.enqueue([group("b", 4, 40)]).await;
    let looks = node.imds().requests(path::SPOT_ACTION);
    within(node.imds().await_requests(path::SPOT_ACTION, looks + 5)).await;
    assert_eq!((node.agent.held(), world.lease_calls()), (4, leases), "only new work waits");
    assert!(within(load).await.unwrap().unwrap().status().is_success());
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|it| (it.attempts, it.hand_backs) == (0, 0)), "{samples:?}");
}

/// Contract, sections 1 and 5. The label changes in mid-stream, as by a push that went wrong.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_unknown_or_lower_weights_never_come_to_the_trainer() {
    for (engine, label) in every_engine().into_iter().zip(["x", "4", "x", "4"]) {
        let world = World::new();
        world.set_version(5).await;
        world.enqueue([group("a", 4, 400)]).await;
        let base = |engine: &mut EngineConfig| engine.weights_label = "5".to_owned();
        let node = world.node("n1").with_engine(engine).with_engine(base).start();
        node.wait_until_busy(4).await;
        let handle = node.place.engine.handle();
        handle.set_weights_label(label);
        node.wait_until(|agent| agent.held() == 0).await;
        let stored = node.agent.counts().tokens_stored;
        assert!(stored < 4 * 400, "{stored}");
        let leased = node.agent.counts().units_leased;
        handle.set_weights_label("5");
        let samples = world.take_samples(4).await;
        assert!(samples.iter().all(|it| (it.attempts, it.hand_backs) == (0, 1)), "{samples:?}");
        assert_eq!(leased, 4, "nothing is leased meanwhile");
    }
}
