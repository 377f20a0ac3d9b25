//! Engines of every kind that die, hang, refuse or disobey: units keep their tokens and go
//! elsewhere.

use std::time::Duration;

use ebbtide_agent::emulator::engine::PauseMode;
use ebbtide_agent::emulator::imds::path;
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator};
use ebbtide_core::sample::FinishReason;
use ebbtide_queue::command::{HandBackCause, Then, UnitWrite};
use ebbtide_queue::control::NodeState;

use crate::world::{Node, World, engine_config, every_engine, group, until, within};

/// Case 8.
#[tokio::test(flavor = "multi_thread")]
async fn dying_engine_costs_an_attempt_and_no_token() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 8, 600)]).await;
        let first = world.node("n1").with_engine(engine).start();
        first.wait_until_busy(8).await;
        first.place.engine.handle().fail_core();
        first.wait_until(|agent| agent.counts().units_faulted == 8).await;
        first.wait_until(|agent| agent.state() == NodeState::NotReady).await;
        let counts = first.agent.counts();
        assert_eq!((counts.tokens_dropped, counts.tokens_waiting), (0, 0));
        let _second = world.node("n2").start();
        let samples = world.take_samples(8).await;
        assert!(samples.iter().all(|s| (s.attempts, s.hand_backs, s.infra_attempts) == (1, 0, 0)));
        assert_eq!(world.status().await.tokens.preserved, counts.tokens_stored);
    }
}

/// Cases 18 and 40; another engine comes up where the first one was.
#[tokio::test(flavor = "multi_thread")]
async fn engine_that_comes_back_as_another_gets_no_work_before_its_weights_are_right() {
    let [first, others @ ..] = every_engine();
    for (first, next) in [(first, others[1]), (others[2], first), (others[1], others[2])] {
        let world = World::new();
        world.enqueue([group("a", 8, 300)]).await;
        let node = world.node("n1").with_engine(first).start();
        node.wait_until_busy(8).await;
        let listen = node.place.engine.base_url().trim_start_matches("http://").parse().unwrap();
        let Node { place, agent, task: _running, .. } = node;
        drop(place.engine);
        within(agent.wait_until(|agent| agent.counts().units_faulted == 8)).await;
        within(agent.wait_until(|agent| agent.state() == NodeState::NotReady)).await;
        let engine = async || world.queue.view().await.unwrap().engines.remove(0);
        until(async || engine().await.state.contains("not reachable")).await;

        let mut config = EngineConfig { listen, ..engine_config() };
        config.weights_label = "default".to_owned();
        next(&mut config);
        let kind = config.kind.as_str();
        let successor = EngineEmulator::start(config).unwrap();
        until(async || agent.state() == NodeState::Loading).await;
        until(async || engine().await.kind == kind).await;
        assert!(engine().await.engine.starts_with(kind), "{:?}", engine().await);
        assert_eq!(successor.handle().counts().requests, 0);
        successor.handle().set_weights_label("0");
        let samples = world.take_samples(8).await;
        assert!(samples.iter().all(|it| (it.attempts, it.hand_backs) == (1, 0)), "{samples:?}");
        assert_eq!(successor.handle().counts().requests, 8);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_engine_is_found_out_by_the_progress_limit() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 4, 300)]).await;
        let node = world.node("n1").with(|config| {
            config.lease.progress.idle = Duration::from_millis(700);
        });
        let node = node.with_engine(engine).start();
        node.wait_until_busy(4).await;
        node.place.engine.handle().set_hung(true);
        node.wait_until(|agent| agent.held() == 0).await;
        node.place.engine.handle().set_hung(false);
        let samples = world.take_samples(4).await;
        let attempts: Vec<u16> = samples.iter().map(|sample| sample.attempts).collect();
        assert!(!attempts.contains(&0), "{attempts:?}");
        assert_eq!(u64::from(attempts.iter().sum::<u16>()), node.agent.counts().units_faulted);
    }
}

/// As a vLLM server without any route for generation.
fn takes_no_work(engine: &mut EngineConfig) {
    (engine.scale_out, engine.completions) = (false, false);
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_takes_nothing_is_nobodys_fault_and_not_stormed() {
    let world = World::new();
    world.enqueue([group("a", 8, 40)]).await;
    let node = world.node("n1").with_engine(takes_no_work).start();
    node.wait_until(|agent| agent.counts().units_handed_back.len() == 1).await;
    let samples_elsewhere = world.node("n2").start();
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|s| s.attempts == 0 && s.hand_backs < 8), "{samples:?}");
    assert_eq!(samples_elsewhere.agent.counts().units_completed, 8);
    let causes = node.agent.counts().units_handed_back;
    assert!(causes.keys().all(|cause| *cause == HandBackCause::Engine), "{causes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_refuses_is_reported_not_ready_and_tried_with_one_unit() {
    let world = World::new();
    world.enqueue([group("a", 8, 40)]).await;
    let node = world.node("n1").with_engine(takes_no_work).start();
    node.wait_until(|agent| agent.state() == NodeState::NotReady).await;
    until(|| async {
        let engines = world.queue.view().await.unwrap().engines;
        engines.iter().any(|engine| engine.state.contains("--enable-scale-out"))
    })
    .await;
    node.wait_until(|agent| agent.counts().handed_back_total() == 10).await;
    assert_eq!(node.agent.state(), NodeState::NotReady);
    assert_eq!(node.agent.counts().units_leased, 10, "eight at once, then one at a time");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_of_another_model_makes_no_unit_dead() {
    let world = World::new();
    let mut wanted = group("a", 8, 40);
    wanted.model_id = "tiny".to_owned();
    world.enqueue([wanted]).await;
    let wrong = world.node("n1").with_engine(|engine| engine.model_name = "huge".to_owned());
    let wrong = wrong.start();
    wrong.wait_until(|agent| agent.counts().handed_back_total() == 8).await;
    until(|| async {
        let engines = world.queue.view().await.unwrap().engines;
        engines.iter().any(|e| e.state.contains("tiny") && e.state.contains("huge"))
    })
    .await;
    assert_eq!(wrong.agent.state(), NodeState::NotReady);
    let right = world.node("n2").start();
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|s| (s.attempts, s.hand_backs) == (0, 1)), "{samples:?}");
    assert_eq!(right.agent.counts().units_completed, 8);
    let counts = wrong.agent.counts();
    assert_eq!((counts.units_leased, counts.units_faulted), (8, 0));
}

/// Cases 10 and 11.
#[tokio::test(flavor = "multi_thread")]
async fn aborts_are_repeated_and_disobedient_streams_are_cut() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 8, 4_000)]).await;
        let node = world.node("n1").with_engine(engine).start();
        node.wait_until_busy(8).await;
        node.place.engine.handle().set_ignores_aborts(true);
        node.announce(5);
        node.wait_until(|agent| agent.counts().handed_back_total() == 8).await;
        node.wait_until(|agent| agent.state() == NodeState::Drained).await;
        let counts = within(node.place.engine.handle().wait_for(|counts| counts.is_idle())).await;
        assert!(counts.abort_ids > 8, "aborts are repeated, got {} ids", counts.abort_ids);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_comes_late_gets_work_when_it_comes() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 4, 40)]).await;
        let node = world.node("n1").with_engine(engine).with_engine(|engine| {
            engine.start_after = Duration::from_millis(500);
        });
        let node = node.start();
        until(|| async { !world.queue.view().await.unwrap().nodes.is_empty() }).await;
        assert_eq!(world.queue.view().await.unwrap().nodes[0].state, NodeState::Starting);
        world.take_samples(4).await;
        assert_eq!(node.agent.counts().units_handed_back.len(), 0);
    }
}

/// Cases 3 and 38, at the engine.
#[tokio::test(flavor = "multi_thread")]
async fn partial_at_its_limit_is_complete_without_a_call() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 1, 300)]).await;
        let first = world.node("n1").with_engine(engine).start();
        first.wait_until_busy(1).await;
        first.wait_until(|agent| agent.counts().units_completed == 1).await;
        let whole = world.take_samples(1).await;
        drop(first.kill().await);

        // Somebody stores the whole response and goes before saying so.
        world.enqueue([group("b", 1, 300)]).await;
        let holder: ebbtide_core::ids::Holder = "n9/b/agent-gone".parse().unwrap();
        let ttl = Duration::from_secs(60);
        let leased = world.queue.lease(&holder, 1, ttl, ebbtide_core::ids::PolicyVersion(0)).await;
        let grant = leased.unwrap().grants.remove(0);
        let mut tail = whole[0].chunks.clone();
        for chunk in &mut tail {
            chunk.origin.holder = holder.clone();
        }
        let then = Then::HandBack(HandBackCause::Drain.into());
        let (unit, fencing_token) = (grant.unit, grant.fencing_token);
        let write = UnitWrite { unit, fencing_token, tail, then };
        world.queue.write(&holder, vec![write]).await.remove(0).unwrap();

        let second = world.node("n2").with_engine(engine).start();
        let samples = world.take_samples(1).await;
        assert_eq!(samples[0].finish.reason, FinishReason::Length);
        assert_eq!(samples[0].token_ids(), whole[0].token_ids());
        assert_eq!(second.place.engine.handle().counts().requests, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn freed_slots_are_filled_at_once() {
    let world = World::new();
    world.enqueue((0..50).map(|n| group(&format!("g{n}"), 8, 10))).await;
    let node = world.node("n1").start();
    let begun = tokio::time::Instant::now();
    world.take_samples(400).await;
    // 400 samples of 50 ms in 8 places are 2.5 s; a poll delay at each would double that.
    assert!(begun.elapsed() < Duration::from_secs(10), "took {:?}", begun.elapsed());
    assert_eq!(node.agent.counts().units_completed, 400);
}

/// Cases 15 and 16: nobody but the engine is in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn engine_left_paused_gives_its_units_up_without_an_attempt() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 4, 600)]).await;
        let node = world.node("n1").with(|config| {
            config.lease.progress.idle = Duration::from_millis(700);
            config.lease.progress.engine_pause = Duration::from_secs(2);
        });
        let node = node.with_engine(engine).start();
        node.wait_until_busy(4).await;
        node.place.engine.handle().pause(PauseMode::Keep);
        node.wait_until(|agent| agent.counts().handed_back_total() == 4).await;
        let causes = node.agent.counts().units_handed_back;
        assert_eq!(causes.get(&HandBackCause::Engine), Some(&4));
        until(|| async {
            let engines = world.queue.view().await.unwrap().engines;
            engines.iter().any(|engine| engine.state.contains("paused for longer than its limit"))
        })
        .await;
        assert_eq!(node.agent.state(), NodeState::NotReady);
        assert_eq!(world.marks.node(&node.name), Default::default());
        let _other = world.node("n2").start();
        let samples = world.take_samples(4).await;
        assert!(samples.iter().all(|sample| sample.attempts == 0), "{samples:?}");
        assert!(!world.marks.node(&node.name).is_cordoned, "an engine is no node");
        assert!(node.place.engine.handle().counts().is_paused, "who paused it resumes it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_pause_for_weights_costs_nothing() {
    for engine in every_engine() {
        let world = World::new();
        world.enqueue([group("a", 4, 300)]).await;
        let node = world.node("n1").with(|config| {
            config.lease.progress.idle = Duration::from_millis(600);
        });
        let node = node.with_engine(engine).start();
        node.wait_until_busy(4).await;
        let handle = node.place.engine.handle();
        handle.pause(PauseMode::Keep);
        // Fifteen looks, ten a second, take longer than twice the progress limit.
        let looks = node.imds().requests(path::SPOT_ACTION);
        within(node.imds().await_requests(path::SPOT_ACTION, looks + 15)).await;
        handle.resume();
        let samples = world.take_samples(4).await;
        assert!(samples.iter().all(|s| (s.attempts, s.hand_backs) == (0, 0)), "{samples:?}");
    }
}
