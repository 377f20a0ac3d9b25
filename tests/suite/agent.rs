//! The real `ebbtide agent` process against AWS's IMDS mock, Redis, an emulated engine and a real
//! API server.

use std::time::Duration;

use ebbtide_agent::emulator::engine::{EngineConfig, EngineEmulator, ResponseLengths};
use ebbtide_harness::{Aemm, ControlPlane, NodeSpec, Redis, require, until};
use ebbtide_queue::control::NodeState;
use ebbtide_queue::state::SlotState;

use crate::programs::*;

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-agent}
spec:
  queue: {shards: 2, lease: 5s, renewEvery: 1s}
  staleness: {maxLag: 4}
  trainer: {groupsPerStep: 2, groupSize: 4}
  rollout: {maxReplicas: 4, pools: [local], concurrencyPerReplica: 16}
  pools: [{name: local, provider: local, market: spot, maxNodes: 4}]
";

const RUN: &str = "run-agent";

/// Long responses at a slow speed: none finishes within these tests' notice of two minutes.
fn slow_engine() -> EngineConfig {
    EngineConfig {
        tokens_per_second: 4.0,
        lengths: ResponseLengths { mean: 400.0, spread: 0.3 },
        weights_label: "1".to_owned(),
        max_running: 32,
        ..EngineConfig::default()
    }
}

/// The same responses, at whatever speed.
fn engine_at(tokens_per_second: f64) -> EngineConfig {
    EngineConfig { tokens_per_second, ..slow_engine() }
}

#[tokio::test]
async fn noticed_node_hands_its_units_back_and_another_finishes_them() {
    let redis = require!(Redis::start().await);
    let cluster = require!(ControlPlane::shared().await);
    // An IMDS that refuses at first: the agent has to live with that, and see the notice later.
    let deadline = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(110);
    let time = deadline.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut imds = require!(Aemm::start(&["spot", "--imdsv2", "--time", &time]).await);
    imds.kill();
    let (doomed, heir) = (cluster.unique_name("doomed"), cluster.unique_name("heir"));
    cluster.add_nodes(&[NodeSpec::gpu(&doomed), NodeSpec::gpu(&heir)]).await.expect("nodes");
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let engine = EngineEmulator::start(slow_engine()).expect("an engine");
    let queue = queue(&redis, RUN, 2).await;
    publish_version(&queue, 1).await;
    for number in 0..2 {
        queue.enqueue(group(number, 4, 1000)).await.expect("enqueued");
    }
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), imds.base_url());
    let (mut agent, health) = AgentProgram {
        run: RUN,
        node: &doomed,
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: Some(cluster.kubeconfig()),
    }
    .start();
    agent.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("ready without IMDS");
    units_become(&queue, "tokens of all eight units", |units| {
        units.len() == 8 && units.iter().all(|unit| unit.tokens > 8)
    })
    .await
    .expect("all stream");

    imds.restart().await.expect("the notice appears");
    let handed_back = units_become(&queue, "all eight units to be handed back", |units| {
        units.iter().all(|unit| unit.state == SlotState::Enqueued)
    })
    .await
    .expect("handed back");
    assert!(handed_back.iter().all(|unit| unit.tokens > 8 && unit.hand_backs == 1));
    assert!(handed_back.iter().all(|unit| unit.attempts == 0 && unit.infra_attempts == 0));
    assert_history_tells_the_notice(&redis_url, deadline);
    view_becomes(&queue, "the node to be drained", |view| {
        view.nodes.iter().any(|node| node.state == NodeState::Drained)
    })
    .await
    .expect("drained");
    until("cordon and taint", EVENT_LIMIT, || async {
        let node = cluster.kubectl().get(&["node", &doomed]).await.ok()?;
        let taints = node["spec"]["taints"].as_array()?;
        let is_tainted = taints.iter().any(|taint| {
            taint["key"] == "ebbtide.dev/interruption" && taint["effect"] == "NoSchedule"
        });
        (node["spec"]["unschedulable"] == true && is_tainted).then_some(())
    })
    .await
    .expect("cordoned and tainted");

    let tokens_before: u32 = handed_back.iter().map(|unit| unit.tokens).sum();
    let second_engine = EngineEmulator::start(engine_at(2000.0)).expect("an engine");
    let quiet = require!(
        Aemm::start(&[
            "spot",
            "--imdsv2",
            "--mock-delay-sec",
            "3600",
            "--rebalance-delay-sec",
            "3600"
        ])
        .await
    );
    let (second_url, quiet_url) = (second_engine.base_url(), quiet.base_url());
    let heir_agent = AgentProgram {
        run: RUN,
        node: &heir,
        redis: &redis_url,
        imds: &quiet_url,
        engine: &second_url,
        policy: &policy,
        kubeconfig: Some(cluster.kubeconfig()),
    }
    .start();
    let taken = until("both groups to be sealed", EVENT_LIMIT, || async {
        queue.take("trainer", 10).await.ok().filter(|groups| groups.len() == 2)
    })
    .await
    .expect("sealed");
    for group in &taken {
        for sample in &group.samples {
            let expected = slow_engine().expected_response(&group.group, sample.unit.slot);
            assert_eq!(sample.token_ids(), expected, "{}", sample.unit);
            assert_eq!((sample.hand_backs, sample.attempts), (1, 0));
        }
    }
    let status = status(&queue).await;
    assert_eq!(status.tokens.preserved, u64::from(tokens_before));
    assert_eq!(status.tokens.wasted_total(), 0);
    assert_eq!(status.hand_backs["notice"], 8);
    let heir_node = cluster.kubectl().get(&["node", &heir]).await.expect("node");
    assert_ne!(heir_node["spec"]["unschedulable"], true, "only the noticed node is cordoned");
    assert!(agent.is_running(), "an agent of a drained node goes on watching");
    drop(heir_agent);
}

/// As an operator asks for it: a preemption, not a crash.
fn assert_history_tells_the_notice(redis: &str, deadline: jiff::Timestamp) {
    let asked = ["queue", "trace", "g0", "--run", RUN, "--redis", redis, "--output", "json"];
    let output = std::process::Command::new(EBBTIDE).args(asked).output().unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let units = trace["units"].as_array().unwrap();
    assert_eq!(units.len(), 4, "{trace}");
    for unit in units {
        let last = unit["life"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["what"], &last["detail"]), (&"handed_back".into(), &"notice".into()));
        assert_eq!(last["drainReason"], "spot_terminate");
        let told = last["drainDeadlineMs"].as_i64().unwrap();
        // AWS's time has whole seconds, and two clocks were read.
        assert!((told - deadline.as_millisecond()).abs() < 3_000, "{told}, not {deadline}");
    }
}

#[tokio::test]
async fn absent_api_server_delays_the_marks_and_nothing_else() {
    let redis = require!(Redis::start().await);
    let mut cluster = require!(ControlPlane::start().await);
    let mut imds = require!(Aemm::start(&["spot", "--imdsv2"]).await);
    imds.kill();
    let node = cluster.unique_name("unmarked");
    cluster.add_nodes(&[NodeSpec::gpu(&node)]).await.expect("node");
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let engine = EngineEmulator::start(slow_engine()).expect("an engine");
    let queue = queue(&redis, RUN, 2).await;
    publish_version(&queue, 1).await;
    queue.enqueue(group(0, 4, 1000)).await.expect("enqueued");
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), imds.base_url());
    let kubeconfig = cluster.kubeconfig().to_owned();
    cluster.stop_apiserver().await.expect("stops");
    let (mut agent, _) = AgentProgram {
        run: RUN,
        node: &node,
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: Some(&kubeconfig),
    }
    .start();
    units_become(&queue, "tokens of all four units", |units| {
        units.len() == 4 && units.iter().all(|unit| unit.tokens > 4)
    })
    .await
    .expect("all stream");
    imds.restart().await.expect("the notice appears");
    units_become(&queue, "all four units to be handed back", |units| {
        units.iter().all(|unit| unit.state == SlotState::Enqueued && unit.hand_backs == 1)
    })
    .await
    .expect("handed back without an API server");
    cluster.start_apiserver().await.expect("starts");
    until("the cordon, now that somebody takes it", EVENT_LIMIT, || async {
        let node = cluster.kubectl().get(&["node", &node]).await.ok()?;
        (node["spec"]["unschedulable"] == true).then_some(())
    })
    .await
    .expect("cordoned");
    assert!(agent.is_running());
}

#[tokio::test]
async fn upgraded_agent_hands_back_and_cordons_nothing() {
    let redis = require!(Redis::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let quiet = require!(
        Aemm::start(&[
            "spot",
            "--imdsv2",
            "--mock-delay-sec",
            "3600",
            "--rebalance-delay-sec",
            "3600"
        ])
        .await
    );
    let node = cluster.unique_name("upgraded");
    cluster.add_nodes(&[NodeSpec::gpu(&node)]).await.expect("node");
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let engine = EngineEmulator::start(slow_engine()).expect("an engine");
    let queue = queue(&redis, RUN, 2).await;
    publish_version(&queue, 1).await;
    queue.enqueue(group(0, 4, 1000)).await.expect("enqueued");
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), quiet.base_url());
    let program = AgentProgram {
        run: RUN,
        node: &node,
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: Some(cluster.kubeconfig()),
    };
    let (mut agent, _) = program.start();
    units_become(&queue, "tokens of all four units", |units| {
        units.len() == 4 && units.iter().all(|unit| unit.tokens > 4)
    })
    .await
    .expect("all stream");
    let status_code = agent.terminate(Duration::from_secs(10)).await.expect("ends within 10 s");
    assert!(status_code.success(), "{}", agent.log());
    let units = queue.scan().await.expect("scan");
    assert!(units.iter().all(|unit| unit.state == SlotState::Enqueued && unit.tokens > 4));
    assert_eq!(status(&queue).await.hand_backs["agent_restart"], 4);
    let record = cluster.kubectl().get(&["node", &node]).await.expect("node");
    assert_ne!(record["spec"]["unschedulable"], true);

    // Killed instead of upgraded: the next process of the node takes back what it held, at once.
    let (mut agent, _) = program.start();
    units_become(&queue, "all four units to be leased again", |units| {
        units.iter().all(|unit| unit.state.is_leased())
    })
    .await
    .expect("leased");
    agent.kill();
    let (_successor, _) = program.start();
    units_become(&queue, "the successor to have them", |units| {
        units.iter().all(|unit| unit.state.is_leased() && unit.hand_backs == 2)
    })
    .await
    .expect("taken back");
    assert_eq!(status(&queue).await.lease_expiries, 0, "nobody had to wait for the lease");
}

#[tokio::test]
async fn agent_outlives_redis_and_engine() {
    let mut redis = require!(Redis::options().appendonly().start().await);
    let quiet = require!(
        Aemm::start(&[
            "spot",
            "--imdsv2",
            "--mock-delay-sec",
            "3600",
            "--rebalance-delay-sec",
            "3600"
        ])
        .await
    );
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let engine = EngineEmulator::start(engine_at(100.0)).expect("an engine");
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), quiet.base_url());
    redis.stop().await.expect("stops");
    let (mut agent, health) = AgentProgram {
        run: RUN,
        node: "node-1",
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: None,
    }
    .start();
    until("the agent to say which store is away", EVENT_LIMIT, || async {
        let answer = reqwest::get(format!("{health}/readyz")).await.ok()?;
        let is_not_ready = answer.status() == 503;
        let names_it = answer.text().await.ok()?.contains("redis 127.0.0.1");
        (is_not_ready && names_it).then_some(())
    })
    .await
    .expect("says so");
    redis.restart().await.expect("starts");
    agent.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("recovers by itself");

    let queue = queue(&redis, RUN, 2).await;
    publish_version(&queue, 1).await;
    queue.enqueue(group(0, 4, 1000)).await.expect("enqueued");
    units_become(&queue, "tokens", |units| units.iter().any(|unit| unit.tokens > 10))
        .await
        .expect("streams");
    redis.kill();
    until("the agent to say that the queue is away again", EVENT_LIMIT, || async {
        (agent.log().matches("queue does not answer").count() >= 2).then_some(())
    })
    .await
    .expect("says so");
    redis.restart().await.expect("starts");
    let taken = until("the group to be sealed", EVENT_LIMIT, || async {
        queue.take("trainer", 1).await.ok().filter(|groups| groups.len() == 1)
    })
    .await
    .expect("sealed");
    for sample in &taken[0].samples {
        let expected = slow_engine().expected_response(&taken[0].group, sample.unit.slot);
        assert_eq!(sample.token_ids(), expected, "{}", sample.unit);
    }
    assert!(agent.is_running());
}
