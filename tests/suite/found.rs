//! Engines that the real agent finds among the pods of its node, on a real API server. The pods are
//! played; what answers at their ports are emulated engines.

use ebbtide_agent::emulator::engine::{EngineConfig, EngineEmulator, ResponseLengths};
use ebbtide_harness::{ControlPlane, Kubectl, NodeSpec, Redis, require, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::EngineRecord;
use ebbtide_queue::state::{SlotState, UnitSnapshot};
use serde_json::{Value, json};

use crate::programs::*;

const RUN: &str = "run-found";

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-found}
spec:
  queue: {shards: 2, lease: 5s, renewEvery: 1s}
  staleness: {maxLag: 4}
  trainer: {groupsPerStep: 2, groupSize: 4}
  rollout: {maxReplicas: 4, pools: [local], concurrencyPerReplica: 8}
  pools: [{name: local, provider: local, market: spot, maxNodes: 4}]
";

/// A response takes longer than any test.
fn engine() -> EngineEmulator {
    let config = EngineConfig {
        tokens_per_second: 30.0,
        lengths: ResponseLengths { mean: 60_000.0, spread: 0.1 },
        weights_label: "1".to_owned(),
        ..EngineConfig::default()
    };
    EngineEmulator::start(config).expect("an engine")
}

fn port_of(engine: &EngineEmulator) -> u16 {
    engine.base_url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

/// A pod with an engine that answers at this port of its node.
fn pod(name: &str, node: &str, port: u16, run: &str) -> Value {
    let labels = json!({ "ebbtide.dev/engine": "vllm", "ebbtide.dev/run": run });
    let ports = json!([{ "name": "engine", "containerPort": 8000, "hostPort": port }]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": "default", "name": name, "labels": labels },
        "spec": {
            "nodeName": node,
            "containers": [{ "name": "engine", "image": "vllm", "ports": ports }],
        },
    })
}

/// Takes the pod away as the loss of a node does: nobody is told before.
async fn lose(kubectl: &Kubectl, name: &str) {
    let delete = ["delete", "pod", name, "--namespace=default", "--grace-period=0", "--force"];
    kubectl.run(&delete).await.expect("deleted");
}

/// Waits until the agent's record of its engines, in their order, is this.
async fn engines_become(queue: &WorkQueue, what: &str, wanted: &[(&EngineEmulator, &str)]) {
    view_becomes(queue, what, |view| {
        let mut engines = view.engines.clone();
        engines.sort_by_key(|engine| engine.index);
        let is_so = |(record, (engine, state)): (&EngineRecord, &(&EngineEmulator, &str))| {
            record.address == engine.base_url() && record.state == *state
        };
        engines.len() == wanted.len() && engines.iter().zip(wanted).all(is_so)
    })
    .await
    .expect("its engines are told");
}

#[tokio::test]
async fn engines_of_pods_are_hosted_as_they_come_and_go() {
    let redis = require!(Redis::start().await);
    let mut cluster = require!(ControlPlane::start().await);
    let node = cluster.unique_name("host");
    cluster.add_nodes(&[NodeSpec::gpu(&node).address("127.0.0.1")]).await.expect("a node");
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let queue = queue(&redis, RUN, 2).await;
    publish_version(&queue, 1).await;
    let (told, found, of_others) = (engine(), engine(), engine());
    let kubectl = cluster.kubectl().clone();
    let create = async |name: &str, engine: &EngineEmulator, run: &str| {
        let pod = pod(name, &node, port_of(engine), run);
        kubectl.create(&pod).await.expect("created");
    };
    let (redis_url, told_url) = (redis.url(), told.base_url());
    let kubeconfig = cluster.kubeconfig().to_owned();
    let agent = AgentProgram {
        run: RUN,
        node: &node,
        redis: &redis_url,
        imds: "http://127.0.0.1:1",
        engine: &told_url,
        policy: &policy,
        kubeconfig: Some(&kubeconfig),
    };
    let (mut agent, _) = agent.start_with(&[("EBBTIDE_FIND_ENGINES", "true")]);
    create("told", &told, RUN).await;
    create("of-others", &of_others, "run-other").await;
    create("found", &found, RUN).await;
    engines_become(&queue, "two engines", &[(&told, "ready"), (&found, "ready")]).await;

    for number in 0..2 {
        queue.enqueue(group(number, 4, 100_000)).await.expect("enqueued");
    }
    units_become(&queue, "tokens of all eight units", |units| {
        units.len() == 8 && units.iter().all(|unit| unit.tokens > 8)
    })
    .await
    .expect("all stream");
    let running = |engine: &EngineEmulator| engine.handle().counts().running;
    assert_eq!((running(&told), running(&found), running(&of_others)), (4, 4, 0));

    cluster.stop_apiserver().await.expect("it stops");
    agent.logged("not followed, the last sight stands", EVENT_LIMIT).await.expect("it notices");
    assert_eq!((running(&told), running(&found)), (4, 4), "known engines stay");
    cluster.start_apiserver().await.expect("it starts");
    agent.logged("followed again", EVENT_LIMIT).await.expect("it is back");

    // Whoever deletes an engine's pod empties its node; what stays on it then takes the units back.
    lose(&kubectl, "found").await;
    let gone = [(&told, "ready"), (&found, "its pod is gone")];
    engines_become(&queue, "the engine without a pod to be let go", &gone).await;
    let units = units_become(&queue, "the other engine to go on with its units", |units| {
        let goes_on = |unit: &UnitSnapshot| unit.state == SlotState::Streaming;
        units.iter().all(|unit| goes_on(unit) && unit.hand_backs > 0) && running(&told) == 8
    });
    let units = units.await.expect("handed back, and taken with the places of the lost one");
    assert!(units.iter().all(|unit| unit.attempts == 0 && unit.tokens > 8), "{units:?}");
    assert_eq!(running(&found), 0);

    // The engine that was told is known without a pod.
    lose(&kubectl, "told").await;

    let heir = engine();
    create("heir", &heir, RUN).await;
    engines_become(&queue, "an heir", &[(&told, "ready"), (&heir, "ready")]).await;
    queue.enqueue(group(2, 4, 100_000)).await.expect("enqueued");
    until("the heir to work", EVENT_LIMIT, || async { (running(&heir) == 4).then_some(()) })
        .await
        .expect("it has places of its own");
    assert_eq!(running(&of_others), 0);
}
