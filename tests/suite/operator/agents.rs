//! What the commands bring about where a real agent runs.

use ebbtide_agent::emulator::engine::{EngineConfig, EngineEmulator, ResponseLengths};
use ebbtide_harness::{Aemm, Program, Redis, require};
use ebbtide_queue::control::{DrainState, NodeState};
use serde_json::{Value, json};

use super::world::Run;
use crate::programs::*;

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: operated}
spec:
  queue: {shards: 2, lease: 5s, renewEvery: 1s}
  staleness: {maxLag: 4}
  trainer: {groupsPerStep: 2, groupSize: 4}
  rollout: {maxReplicas: 4, pools: [local], concurrencyPerReplica: 16}
  pools:
    - {name: local, provider: local, market: onDemand, maxNodes: 4, dollarsPerNodeHour: 36}
";

/// No notice, for as long as a test lasts.
const QUIET: [&str; 6] =
    ["spot", "--imdsv2", "--mock-delay-sec", "3600", "--rebalance-delay-sec", "3600"];

/// A node with its agent, an engine that finishes nothing within a test, and four units at work.
struct World {
    run: Run,
    engine: EngineEmulator,
    _imds: Aemm,
    _folder: tempfile::TempDir,
    agent: Program,
}

impl World {
    async fn start(redis: &Redis, imds: Aemm) -> Self {
        let run = Run::begin(redis, "operated").await;
        let engine = EngineEmulator::start(EngineConfig {
            tokens_per_second: 4.0,
            lengths: ResponseLengths { mean: 800.0, spread: 0.1 },
            weights_label: "1".to_owned(),
            ..EngineConfig::default()
        })
        .expect("an engine");
        let folder = tempfile::tempdir().unwrap();
        let policy = policy_file(folder.path(), POLICY);
        publish_version(&run.queue, 1).await;
        run.queue.enqueue(group(0, 4, 1000)).await.expect("enqueued");
        let (engine_url, imds_url) = (engine.base_url(), imds.base_url());
        let (mut agent, health) = AgentProgram {
            run: "operated",
            node: "n1",
            redis: &run.url,
            imds: &imds_url,
            engine: &engine_url,
            policy: &policy,
            kubeconfig: None,
        }
        .start();
        agent.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("ready");
        let world = Self { run, engine, _imds: imds, _folder: folder, agent };
        world.works().await;
        world
    }

    /// Waits until all units stream and the node says that it is in service.
    async fn works(&self) {
        units_become(&self.run.queue, "tokens of all four units", |units| {
            units.len() == 4 && units.iter().all(|unit| unit.state.is_leased() && unit.tokens > 4)
        })
        .await
        .expect("all stream");
        view_becomes(&self.run.queue, "the node to be in service", |view| {
            view.nodes.iter().any(|node| node.state == NodeState::Ready && node.in_flight == 4)
        })
        .await
        .expect("in service");
    }
}

/// The units, tokens and nodes of a report.
fn figures(report: &Value) -> [u64; 5] {
    ["unitsHeld", "unitsHandedBack", "unitsLeft", "tokensWasted", "nodes"]
        .map(|key| report[key].as_u64().unwrap())
}

#[tokio::test]
async fn drained_node_reports_what_it_came_to_and_works_again_when_it_is_taken_back() {
    let redis = require!(Redis::start().await);
    let world = World::start(&redis, require!(Aemm::start(&QUIET).await)).await;
    let run = &world.run;
    let said = run.command(&["drain", "n1", "--deadline", "60s", "--wait"]).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.err.contains("drain of n1 asked for, 4 units held, deadline in"), "{}", said.err);
    assert!(said.out.starts_with("n1 is drained until ebbtide drain n1 --cancel"), "{}", said.out);
    assert!(said.out.contains("4 held: 0 finished, 4 handed back"), "{}", said.out);
    let units = run.queue.scan().await.unwrap();
    assert!(units.iter().all(|unit| !unit.state.is_leased() && unit.hand_backs == 1));

    let (code, kept) = run.json(&["drain", "--report", "n1"]).await;
    let reports = kept["reports"].as_array().unwrap();
    assert_eq!((code, reports.len()), (0, 1));
    let report = &reports[0];
    assert_eq!(figures(report), [4, 4, 0, 0, 1]);
    assert_eq!((&report["reason"], &report["outcome"]), (&json!("operator"), &json!("drained")));
    let tokens: u32 = units.iter().map(|unit| unit.tokens).sum();
    assert_eq!(report["tokensPreserved"], tokens);
    assert!(report["lastHandBackMs"].as_u64().unwrap() <= report["durationMs"].as_u64().unwrap());
    assert!(report["leadMs"].as_u64().unwrap() <= 60_000);
    let said = run.command(&["drain", "--report"]).await;
    assert!(said.out.contains("n1    operator  drained"), "{}", said.out);
    assert!(said.out.contains("1 drain: 0 units finished, 4 handed back"), "{}", said.out);

    assert_eq!(run.command(&["drain", "n1", "--cancel"]).await.code, 0);
    world.works().await;
    let log = world.agent.log();
    assert!(log.contains("drain begins") && !log.contains("cordoned"), "no Kubernetes: {log}");
}

#[tokio::test]
async fn rehearsed_node_is_judged_and_returns_to_work_by_itself() {
    let redis = require!(Redis::start().await);
    let world = World::start(&redis, require!(Aemm::start(&QUIET).await)).await;
    let run = &world.run;
    let aborted = world.engine.handle().counts().finished_abort;
    let (code, drill) = run.json(&["drill", "n1", "--notice", "60s"]).await;
    assert_eq!((code, &drill["ok"]), (0, &json!(true)), "{drill:#}");
    assert_eq!((&drill["noticeMs"], &drill["reserveMs"]), (&json!(60_000), &json!(10_000)));
    let report = &drill["report"];
    assert_eq!(figures(report), [4, 4, 0, 0, 1]);
    assert_eq!((&report["reason"], &report["kind"]), (&json!("drill"), &json!(null)));
    let last = report["lastHandBackMs"].as_u64().unwrap();
    assert_eq!(drill["spareMs"].as_u64().unwrap(), 50_000 - last);
    assert!(
        world.engine.handle().counts().finished_abort >= aborted + 4,
        "the engine really let go"
    );
    world.works().await;
    let view = run.queue.view().await.unwrap();
    assert_eq!(view.drains[0].state, DrainState::Cancelled);

    // A second one, in words; and none beside a drain.
    let said = run.command(&["drill", "n1"]).await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.out.starts_with("n1 makes it within a notice of 2 min, with"), "{}", said.out);
    assert_eq!(run.queue.reports(10).await.unwrap().len(), 2);
    world.works().await;
    assert_eq!(run.command(&["drain", "n1"]).await.code, 0);
    let said = run.command(&["drill", "n1"]).await;
    assert_eq!(said.code, 1);
    assert!(said.out.contains("nothing was done: n1 drains already (operator"), "{}", said.out);
}
