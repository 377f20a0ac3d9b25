//! The agent's Kubernetes lane on a real control plane: marks, condition, evictions, and what
//! other handlers do at the same time. `kwok` plays the kubelets: a pod that is deleted is gone at
//! once, whatever its grace, but for the engines of `operator` and `karpenter`.
//!
//! | file | what it holds |
//! |---|---|
//! | here | evictions against real budgets, successors, deletions |
//! | `groups` | EP groups that the real LeaderWorkerSet controller makes anew |
//! | `operator` | an administrator's `kubectl drain` |
//! | `karpenter` | the real Karpenter, which takes the node away |
//! | `marks` | marks beside those of others, and refusals of them |
//! | `trouble` | an API server that is slow, throttles, or is away |
//! | `world`, `faulty` | the fixtures |

pub(crate) mod faulty;
mod groups;
mod karpenter;
mod marks;
mod operator;
mod trouble;
pub(crate) mod world;

use std::time::Duration;

use ebbtide_agent::emulator::imds::SpotAction;
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator, ImdsEmulator, InstanceIdentity};
use ebbtide_agent::kubernetes::{Departure, KubePods, NodePods, PodId};
use ebbtide_core::policy::BlockedEviction;
use ebbtide_harness::{ControlPlane, NodeSpec, Redis, require, until};
use serde_json::{Value, json};

use self::world::{Space, client, condition, pod};
use crate::programs::{AgentProgram, EVENT_LIMIT, policy_file};

// Case 36.
#[tokio::test]
async fn pod_that_a_budget_keeps_is_deleted_at_deadline_minus_grace() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-budget").await;
    space.run_pod("kept", "kept").await;
    space.run_pod("free", "free").await;
    space.keep_pods("solid", "kept").await;
    let agent = space.start_agent(|config| config.drain.grace = Duration::from_secs(3)).await;
    agent.drain(9).await;
    space.pod_goes("free").await;
    until("the budget to refuse", EVENT_LIMIT, || async {
        (agent.metric("ebbtide_evictions_blocked_total").await >= 2.0).then_some(())
    })
    .await
    .unwrap();
    assert!(space.pod("kept").await.is_some(), "its budget holds until deadline - grace");
    space.pod_goes("kept").await;
    let message = space.event("EbbtideEvictionForced").await;
    let pod = format!("pod {}/kept", space.name);
    assert!(message.contains(&pod) && message.contains("budget solid"), "{message}");
    assert!(agent.metric(r#"ebbtide_evictions_total{outcome="deleted"}"#).await >= 1.0);
    assert!(agent.metric(r#"ebbtide_evictions_total{outcome="evicted"}"#).await >= 1.0);
    space.close().await;
}

/// For the agent as a program: nothing else is to be seen of its log.
const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: lane}
spec:
  queue: {shards: 1}
  trainer: {groupsPerStep: 2, groupSize: 4}
  rollout: {maxReplicas: 4, pools: [local], concurrencyPerReplica: 16}
  pools: [{name: local, provider: local, market: spot, maxNodes: 4}]
";

// Case 36, the log.
#[tokio::test]
async fn log_names_the_pod_that_a_budget_keeps_and_what_becomes_of_it() {
    let redis = require!(Redis::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-log").await;
    space.run_pod("kept", "kept").await;
    space.keep_pods("solid", "kept").await;
    let imds = ImdsEmulator::start(InstanceIdentity::spot("i-0abc", "us-east-2b")).unwrap();
    let weights_label = "0".to_owned();
    let engine = EngineConfig { weights_label, ..EngineConfig::default() };
    let engine = EngineEmulator::start(engine).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), imds.base_url());
    let program = AgentProgram {
        run: "lane",
        node: &space.node,
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: Some(cluster.kubeconfig()),
    };
    let (mut agent, health) = program.start();
    agent.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("ready");
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(12);
    imds.handle().announce_spot(SpotAction::Terminate, time);
    let pod = format!("{}/kept", space.name);
    for message in ["eviction blocked, trying again", "pod kept by its disruption budget"] {
        agent.logged(message, EVENT_LIMIT).await.unwrap_or_else(|error| panic!("{error}"));
        let log = agent.log();
        let line = log.lines().find(|line| line.contains(message)).expect("logged");
        assert!(line.contains(&pod) && line.contains("solid"), "{line}");
    }
    space.pod_goes("kept").await;
    space.close().await;
}

#[tokio::test]
async fn pod_that_a_budget_keeps_is_left_when_the_policy_says_so() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-left").await;
    space.run_pod("kept", "kept").await;
    space.keep_pods("solid", "kept").await;
    let agent = space.start_agent(|config| {
        config.drain.grace = Duration::from_secs(2);
        config.drain.on_blocked_eviction = BlockedEviction::Wait;
    });
    let agent = agent.await;
    agent.drain(4).await;
    let message = space.event("EbbtideEvictionBlocked").await;
    assert!(message.contains("budget solid"), "{message}");
    agent.wait_until("done with evictions", |agent| agent.pods_left() == Some(0)).await;
    assert!(space.pod("kept").await.is_some());
    space.close().await;
}

// Case 38.
#[tokio::test]
async fn pod_under_two_budgets_counts_as_blocked_and_the_rest_goes_on() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-two").await;
    space.run_pod("kept", "kept").await;
    space.run_pod("free", "free").await;
    space.keep_pods("one", "kept").await;
    space.keep_pods("two", "kept").await;
    let agent = space.start_agent(|config| config.drain.grace = Duration::from_secs(2)).await;
    agent.drain(6).await;
    space.pod_goes("free").await;
    assert!(space.pod("kept").await.is_some());
    space.pod_goes("kept").await;
    assert!(agent.metric("ebbtide_evictions_blocked_total").await >= 1.0);
    let message = space.event("EbbtideEvictionForced").await;
    assert!(message.contains("/kept"), "{message}");
    assert!(agent.metric(r#"ebbtide_evictions_total{outcome="failed"}"#).await < 1.0);
    space.close().await;
}

#[tokio::test]
async fn successor_of_the_same_name_is_not_touched() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-successor").await;
    let label = ("lane-set", space.name.as_str());
    let assign = format!("{}={}", label.0, label.1);
    space.kubectl().run(&["label", "node", &space.node, &assign]).await.unwrap();
    space.kubectl().create(&stateful_set(&space.name, label)).await.unwrap();
    space.pod_becomes("db-0", "to run", |pod| pod["status"]["phase"] == "Running").await;
    let before = space.pod("db-0").await.unwrap();
    assert_eq!(before["spec"]["nodeName"], space.node.as_str());
    let other = format!("{}-other", space.node);
    let spec = NodeSpec::gpu(&other).label(label.0, label.1);
    cluster.add_nodes(&[spec]).await.unwrap();

    let agent = space.start_agent(|config| config.drain.grace = Duration::from_secs(2)).await;
    agent.drain(6).await;
    let is_successor = |pod: &Value| {
        pod["metadata"]["uid"] != before["metadata"]["uid"]
            && pod["spec"]["nodeName"] == other.as_str()
    };
    space.pod_becomes("db-0", "to run elsewhere", is_successor).await;
    let successor = space.pod("db-0").await.unwrap();
    // Whoever still means the one before hits nothing.
    let pods = KubePods::new(client(&cluster).await);
    let old = PodId {
        namespace: space.name.clone(),
        name: "db-0".to_owned(),
        uid: before["metadata"]["uid"].as_str().unwrap().to_owned(),
    };
    let grace = Duration::from_secs(1);
    assert_eq!(pods.evict(&old, grace).await, Ok(Departure::AlreadyGone));
    assert_eq!(pods.delete(&old, grace).await, Ok(Departure::AlreadyGone));
    until("the deadline to pass", EVENT_LIMIT, || async {
        let view = agent.queue.view().await.ok()?;
        (view.drains[0].deadline <= view.now).then_some(())
    })
    .await
    .unwrap();
    let after = space.pod("db-0").await.unwrap();
    assert_eq!(after["metadata"]["uid"], successor["metadata"]["uid"]);
    assert_eq!(after["metadata"].get("deletionTimestamp"), None);
    cluster.remove_nodes(&[&other]).await.unwrap();
    space.close().await;
}

#[tokio::test]
async fn evicted_pod_gets_the_grace_that_it_is_given() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-grace").await;
    // Nobody plays this node, so the pod stays in its grace.
    let ghost = format!("{}-ghost", space.node);
    space.kubectl().create(&pod(&space.name, "p", "p", &ghost)).await.unwrap();
    let uid = space.pod("p").await.unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let id = PodId { namespace: space.name.clone(), name: "p".to_owned(), uid };
    let pods = KubePods::new(client(&cluster).await);
    let evicted = pods.evict(&id, Duration::from_secs(7)).await;
    assert_eq!(evicted, Ok(Departure::Begun));
    let going = space.pod("p").await.unwrap();
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 7);
    assert_eq!(pods.delete(&id, Duration::from_secs(3)).await, Ok(Departure::Begun));
    let going = space.pod("p").await.unwrap();
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 3);
    space.close().await;
}

// Case 40, and case 65 for custom workers and engines.
#[tokio::test]
async fn own_pods_and_those_of_daemon_sets_stay_and_everything_else_leaves() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-tiers").await;
    space.run_pod("web", "web").await;
    for (name, label) in [
        ("engine", "ebbtide.dev/engine"),
        ("worker", "ebbtide.dev/worker"),
        ("controller", "ebbtide.dev/component"),
    ] {
        let mut manifest = pod(&space.name, name, name, &space.node);
        manifest["metadata"]["labels"][label] = json!("yes");
        space.kubectl().create(&manifest).await.unwrap();
    }
    space.kubectl().create(&daemon_set(&space.name, &space.node)).await.unwrap();
    let daemon = space.running_pod("daemon").await;
    let agent = space.start_agent(|_| {}).await;
    agent.give_work().await;
    agent.drain(60).await;
    for name in ["web", "worker", "engine"] {
        space.pod_goes(name).await;
    }
    assert_eq!(agent.agent.held(), 0, "work goes first");
    agent.wait_until("done with evictions", |agent| agent.pods_left() == Some(0)).await;
    for name in ["controller", &daemon] {
        let pod = space.pod(name).await.expect("it stays");
        assert_eq!(pod["metadata"].get("deletionTimestamp"), None, "{name}");
    }
    let node = space.node_object(&space.node).await;
    assert_eq!(condition(&node), Some(("True", "Operator")));
    space.close().await;
}

fn stateful_set(space: &str, label: (&str, &str)) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "namespace": space, "name": "db" },
        "spec": {
            "replicas": 1,
            "serviceName": "db",
            "selector": { "matchLabels": { "app": "db" } },
            "template": {
                "metadata": { "labels": { "app": "db" } },
                "spec": {
                    "nodeSelector": { label.0: label.1 },
                    "containers": [{ "name": "c", "image": "played" }],
                },
            },
        },
    })
}

fn daemon_set(space: &str, node: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "namespace": space, "name": "daemon" },
        "spec": {
            "selector": { "matchLabels": { "app": "daemon" } },
            "template": {
                "metadata": { "labels": { "app": "daemon" } },
                "spec": {
                    "nodeSelector": { "kubernetes.io/hostname": node },
                    "containers": [{ "name": "c", "image": "played" }],
                },
            },
        },
    })
}
