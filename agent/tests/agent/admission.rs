//! Admission control against whole engines: the queue, not the engine, holds the work that waits.

use std::ops::Range;
use std::time::Duration;

use ebbtide_agent::emulator::engine::EngineCounts;
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator, EngineHandle};
use ebbtide_core::ids::ReplicaId;
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::{EngineRecord, NodeRecord, StragglerRecord};
use tokio::task::JoinHandle;

use crate::outages::{body_of, free_port};
use crate::world::{World, engine_config, group, until, within};

/// Follows the engine from the moment at which it has finished so many until it has finished
/// others; the most that there were meanwhile.
fn most(
    engine: &EngineHandle,
    finished: Range<u64>,
    figure: fn(&EngineCounts) -> usize,
) -> JoinHandle<usize> {
    let engine = engine.clone();
    tokio::spawn(async move {
        let mut most = 0;
        let ended = |counts: &EngineCounts| {
            if counts.finished_length >= finished.start {
                most = most.max(figure(counts));
            }
            counts.finished_length >= finished.end
        };
        within(engine.wait_for(ended)).await;
        most
    })
}

fn engine_of(max_running: usize) -> EngineConfig {
    EngineConfig { max_running, ..engine_config() }
}

fn groups(count: usize, size: u16, tokens: u32) -> Vec<PromptGroup> {
    (0..count).map(|n| group(&format!("g{n:02}"), size, tokens)).collect()
}

/// The records of the first engine and of the only node.
async fn records(world: &World) -> Option<(EngineRecord, NodeRecord)> {
    let view = world.queue.view().await.ok()?;
    Some((view.engines.first()?.clone(), view.nodes.first()?.clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_the_look_ahead_waits_in_an_engine() {
    let world = World::new();
    world.enqueue(groups(30, 4, 40)).await;
    let node = world.node("n1").with(|config| config.concurrency_per_engine = 256);
    let place = node.with_engine(|engine| *engine = engine_of(8));
    let node = place.start();
    let most = most(&node.place.engine.handle(), 0..120, |counts| counts.waiting);
    world.take_samples(120).await;
    let most = within(most).await.expect("no panic");
    assert!(most <= 2, "{most} waited in the engine");
    assert_eq!(node.agent.counts().handed_back_total(), 0);
}

/// Sequences of 6 s in an engine of two: what waits there would be taken for a stall after 2 s.
#[tokio::test(flavor = "multi_thread")]
async fn unit_that_waits_in_a_full_engine_goes_back_without_an_attempt() {
    let world = World::new();
    world.enqueue(groups(1, 8, 1_200)).await;
    let node = world.node("n1").with(|config| {
        config.lease.progress.idle = Duration::from_millis(2_000);
    });
    let node = node.with_engine(|engine| *engine = engine_of(2)).start();
    node.wait_until(|agent| agent.counts().handed_back_total() == 6).await;
    let counts = node.agent.counts();
    assert_eq!(counts.units_handed_back.get(&HandBackCause::Engine), Some(&6));
    assert_eq!((node.agent.held(), counts.units_faulted), (2, 0));
    let other = world.node("n2").start();
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|sample| sample.attempts == 0), "{samples:?}");
    assert!(other.agent.counts().units_completed >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_without_a_limit_is_filled_to_the_ceiling() {
    let world = World::new();
    world.enqueue(groups(40, 4, 2_000)).await;
    let node = world.node("n1").with(|config| config.concurrency_per_engine = 100);
    let node = node.with_engine(|engine| *engine = engine_of(1_000)).start();
    let engine = node.place.engine.handle();
    within(engine.wait_for(|counts| counts.running == 100)).await;
    until(|| async {
        let records = records(&world).await;
        records.is_some_and(|(engine, node)| {
            (engine.places, engine.running) == (Some(100), Some(100))
                && (node.generating, node.running, node.waiting) == (Some(100), Some(100), Some(0))
        })
    })
    .await;
    assert_eq!(node.agent.held(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_are_loaded_by_what_they_can_do() {
    let world = World::new();
    world.enqueue(groups(60, 4, 30)).await;
    let node = world.node("n1").with(|config| config.concurrency_per_engine = 64);
    let node = node.with_engine(|engine| *engine = engine_of(4));
    let large = EngineEmulator::start(engine_of(16)).expect("a free port");
    let place = node.place();
    let node = node.start_beside(place, std::slice::from_ref(&large));
    world.take_samples(240).await;
    let finished = [node.place.engine.handle(), large.handle()].map(|engine| {
        let counts = engine.counts();
        counts.finished_length
    });
    assert_eq!(finished.iter().sum::<u64>(), 240);
    assert!(finished[1] > 2 * finished[0], "{finished:?}");
}

/// Engines of different seeds write differently, which tells who wrote what.
#[tokio::test(flavor = "multi_thread")]
async fn siblings_of_a_prompt_are_written_by_one_engine() {
    let world = World::new();
    let groups = groups(2, 8, 30);
    world.enqueue(groups.clone()).await;
    let configs = [3, 4].map(|seed| EngineConfig { seed, ..engine_config() });
    let node = world.node("n1").with_engine(|engine| *engine = configs[0].clone());
    let other = EngineEmulator::start(configs[1].clone()).expect("a free port");
    let place = node.place();
    // Both are probed before work is leased.
    let _node = node.start_beside(place, std::slice::from_ref(&other));
    let samples = world.take_samples(16).await;
    for group in &groups {
        let mine = samples.iter().filter(|sample| sample.unit.group == group.group_id);
        let writers: Vec<usize> = mine
            .map(|sample| {
                let wrote = |config: &EngineConfig| {
                    config.expected_response(group, sample.unit.slot) == sample.token_ids()
                };
                configs.iter().position(wrote).expect("one of the two")
            })
            .collect();
        assert_eq!(writers, vec![writers[0]; 8], "{}", group.group_id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_with_a_full_kv_cache_is_given_less() {
    let world = World::new();
    // Prompts fill most of it: sixteen sequences have 98 % of it from their first token to their
    // last, a second later, and fourteen 85 %.
    let with_long_prompt = |group| PromptGroup { prompt_token_ids: vec![7; 8_000], ..group };
    world.enqueue(groups(4, 16, 200).into_iter().map(with_long_prompt)).await;
    let node = world.node("n1").with(|config| config.concurrency_per_engine = 16);
    let node = node.with_engine(|engine| {
        *engine = EngineConfig { context_length: 8_200, ..engine_of(16) };
    });
    let node = node.start();
    let engine = node.place.engine.handle();
    within(engine.wait_for(|counts| counts.running == 16)).await;
    until(|| async {
        let records = records(&world).await;
        records.is_some_and(|(engine, _)| engine.places == Some(14))
    })
    .await;
    // Those that run meanwhile are left alone.
    let ended = engine.counts().finished_length;
    let most = most(&engine, ended + 16..64, |counts| counts.running);
    world.take_samples(64).await;
    // It may be tried with one more once some have ended, never with all of them.
    let most = within(most).await.expect("no panic");
    assert!(most <= 15, "{most} ran in it");
    assert_eq!(node.agent.counts().handed_back_total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn load_and_streams_are_told_in_metrics_and_records() {
    let world = World::new();
    world.enqueue(groups(2, 4, 1_500)).await;
    let address = ([127, 0, 0, 1], free_port()).into();
    let node = world.node("n1").with(|config| config.listen = Some(address)).start();
    node.wait_until_busy(8).await;
    until(|| async {
        let records = records(&world).await;
        records.is_some_and(|(engine, node)| {
            engine.running == Some(8)
                && engine.tokens_per_second.is_some_and(|speed| speed > 100.0)
                && engine.kv_cache_use.is_some_and(|share| share > 0.0)
                && node.kv_cache_use.is_some()
        })
    })
    .await;
    let page = body_of(address, "/metrics").await;
    let value = |series: &str| {
        let value = page.lines().find_map(|line| line.strip_prefix(series));
        let value = value.unwrap_or_else(|| panic!("{series} is not in {page}"));
        value.trim().parse::<f64>().expect("a number")
    };
    assert_eq!(value("ebbtide_engine_running_sequences{engine=\"0\"}"), 8.0);
    assert_eq!(value("ebbtide_engine_places{engine=\"0\"}"), 8.0);
    assert!(value("ebbtide_engine_tokens_per_second{engine=\"0\"}") > 0.0);
    assert!(value("ebbtide_engine_preemptions_total{engine=\"0\"}") == 0.0);
    assert_eq!(value("ebbtide_first_token_seconds_count"), 8.0);
    assert_eq!(value("ebbtide_partials_total{outcome=\"continued\"}"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn continued_partials_are_counted_where_they_are_continued() {
    let world = World::new();
    world.enqueue(groups(1, 4, 400)).await;
    let first = world.node("n1").start();
    first.wait_until_busy(4).await;
    first.stop().await;
    let address = ([127, 0, 0, 1], free_port()).into();
    let second = world.node("n2").with(|config| config.listen = Some(address)).start();
    world.take_samples(4).await;
    let page = body_of(address, "/metrics").await;
    assert!(page.contains("ebbtide_partials_total{outcome=\"continued\"} 4"), "{page}");
    drop(second);
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_found_slow_is_told_on_its_node_and_in_its_record() {
    let world = World::new();
    let node = world.node("n1").start();
    let replica: ReplicaId = "n1".parse().unwrap();
    let record = StragglerRecord { replica: replica.clone(), share: 0.61, named_at: UnixMillis(0) };
    world.queue.put_straggler(0, record).await.unwrap();
    let has_event = |reason: &'static str| {
        world.marks.wait_for(&node.name, move |marked| {
            marked.events.iter().any(|event| event.reason == reason)
        })
    };
    within(has_event("SlowReplica")).await;
    let marked = world.marks.node(&node.name);
    assert!(marked.events[0].message.contains("61 %") && !marked.is_cordoned, "{marked:?}");
    let slow_since = async || {
        let nodes = world.queue.view().await.unwrap().nodes;
        nodes.first().and_then(|node| node.slow_since)
    };
    until(|| async { slow_since().await.is_some() }).await;
    world.queue.remove_straggler(0, &replica).await.unwrap();
    within(has_event("ReplicaNoLongerSlow")).await;
    until(|| async { slow_since().await.is_none() }).await;
}
