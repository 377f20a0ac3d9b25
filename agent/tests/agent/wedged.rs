//! Engines that hang or fail for so long that the policy has their pods deleted.

use std::time::Duration;

use ebbtide_agent::AgentConfig;
use ebbtide_agent::emulator::engine::PauseMode;
use ebbtide_agent::emulator::imds::path;
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator, EngineHandle};
use ebbtide_agent::kubernetes::{EnginePort, PodStart, SeenPod, Tier};
use ebbtide_core::ids::NodeName;
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_queue::control::NodeState;

use crate::world::{World, engine_config, group, until, within};

/// What befalls an engine, and what is said of it.
type Wedge = (fn(&EngineHandle), &'static str);

fn bind(world: &World, name: &str, engine: &EngineEmulator, started: u64) {
    let node: NodeName = "n1".parse().unwrap();
    let port = EnginePort { url: Some(engine.base_url()), also: Vec::new(), run: None };
    let start = PodStart { started: Some(UnixMillis(started)), ..PodStart::default() };
    let pod = SeenPod::ordinary("rl", name, name);
    world.pods.bind(&node, SeenPod { tier: Tier::Engine, engines: vec![port], start, ..pod });
}

fn finds_and_deletes(config: &mut AgentConfig) {
    config.finds_engines = true;
    config.lease.progress.idle = Duration::from_millis(700);
    config.lease.progress.engine_pause = Duration::from_millis(900);
    config.delete_wedged_engine_after = Some(Duration::from_secs(1));
}

/// A group that nothing makes dead.
fn patient(name: &str) -> PromptGroup {
    PromptGroup { max_attempts: u16::MAX, ..group(name, 4, 300) }
}

/// Somebody has it load weights: it answers nothing meanwhile.
async fn be_deaf(engine: &EngineEmulator) {
    let url = format!("{}/collective_rpc", engine.base_url());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let load = http.post(url).json(&serde_json::json!({ "method": "reload_weights" })).send();
    tokio::spawn(load);
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_of_a_wedged_engine_is_deleted_with_nothing_held_and_its_successor_works() {
    let hangs = |engine: &EngineHandle| engine.set_hung(true);
    let fails = |engine: &EngineHandle| {
        engine.fail_streams();
        engine.fail_next(10_000, 500);
    };
    let is_left_paused = |engine: &EngineHandle| engine.pause(PauseMode::Keep);
    let wedges: [Wedge; 3] = [
        (hangs, "fails every call"),
        (fails, "fails every call"),
        (is_left_paused, "was left paused"),
    ];
    for (wedge, why) in wedges {
        let world = World::new();
        world.enqueue([patient("a")]).await;
        let (first, second) = (engine(), engine());
        bind(&world, "p1", &first, 1);
        let node = world.node("n1").without_engine().with(finds_and_deletes).start();
        node.wait_until_busy(4).await;
        wedge(&first.handle());
        within(world.pods.wait_for(|pods| !pods.departed().is_empty())).await;
        let departed = world.pods.departed().remove(0);
        assert!(departed.is_deleted && departed.pod.uid == "p1", "{departed:?}");
        assert!(departed.grace >= Duration::from_secs(1), "never by force: {departed:?}");
        within(world.marks.wait_for(&node.name, |marks| !marks.events.is_empty())).await;
        let event = world.marks.node(&node.name).events.remove(0);
        assert_eq!((event.reason, event.is_warning), ("WedgedEngine", true));
        assert!(event.message.contains("rl/p1") && event.message.contains(why), "{event:?}");

        bind(&world, "p2", &second, 2);
        assert_eq!(world.take_samples(4).await.len(), 4);
        assert_eq!(world.pods.departed().len(), 1);
        assert!(node.agent.report().drains.is_empty(), "it is no drain of the node");
        assert!(!world.marks.node(&node.name).is_cordoned);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wedged_engine_is_left_to_people_unless_the_policy_says_otherwise() {
    let world = World::new();
    world.enqueue([patient("a")]).await;
    let engine = engine();
    bind(&world, "p1", &engine, 1);
    let plan = world.node("n1").without_engine().with(finds_and_deletes);
    let node = plan.with(|config| config.delete_wedged_engine_after = None).start();
    node.wait_until_busy(4).await;
    engine.handle().set_hung(true);
    // Four at once, then one at a time: about five seconds.
    node.wait_until(|agent| agent.counts().units_leased >= 8).await;
    assert_eq!(world.pods.departed(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_starts_again_is_given_the_time_that_it_takes() {
    // Two probes of two seconds each go by before an engine counts as away.
    for (is_restarted, seconds) in [(false, 12), (true, 12)] {
        let world = World::new();
        let load_takes = Duration::from_secs(seconds);
        let engine = EngineEmulator::start(EngineConfig { load_takes, ..engine_config() }).unwrap();
        bind(&world, "p1", &engine, 1);
        let node = world.node("n1").without_engine().with(finds_and_deletes).start();
        node.wait_until(|agent| agent.state() == NodeState::Ready).await;
        let looks = node.imds().requests(path::SPOT_ACTION);
        within(node.imds().await_requests(path::SPOT_ACTION, looks + 5)).await;
        be_deaf(&engine).await;
        if is_restarted {
            world.pods.restart("p1", UnixMillis(2));
            node.wait_until(|agent| agent.state() == NodeState::NotReady).await;
            node.wait_until(|agent| agent.state() == NodeState::Ready).await;
            assert_eq!(world.pods.departed(), []);
        } else {
            until(async || world.pods.departed().len() == 1).await;
        }
    }
}

fn engine() -> EngineEmulator {
    EngineEmulator::start(engine_config()).expect("a free port")
}
