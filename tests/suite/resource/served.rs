//! A controller that follows the resource: conditions come and go, a change is taken over.

use std::path::Path;

use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{ControlPlane, EVENT_LIMIT, Moto, Program, Redis, require, until};
use ebbtide_queue::control::{TrainerPhase, TrainerRecord};
use serde_json::{Value, json};

use super::define;
use crate::aws::Group;
use crate::programs::{EBBTIDE, publish_version, queue};

const RUN: &str = "run-resource";

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-resource}
spec:
  queue: {shards: 1}
  trainer: {groupsPerStep: 4, groupSize: 1}
  rollout: {minReplicas: 0, maxReplicas: 5, pools: [spot-a], tick: 200ms}
  pools:
    - name: spot-a
      provider: asg
      autoScalingGroup: rollout-resource
      market: spot
      instanceType: p5en.48xlarge
      maxNodes: 5
";

struct Served<'a> {
    cluster: &'a ControlPlane,
    namespace: String,
}

impl<'a> Served<'a> {
    fn by_default(cluster: &'a ControlPlane) -> Self {
        Self { cluster, namespace: "default".to_owned() }
    }

    async fn kubectl(&self, arguments: &[&str]) -> String {
        let place = ["--namespace", &self.namespace];
        self.cluster.kubectl().run(&[&place, arguments].concat()).await.expect("kubectl")
    }

    async fn get(&self) -> Value {
        let text = self.kubectl(&["get", "fleetpolicy", RUN, "-o", "json"]).await;
        serde_json::from_str(&text).unwrap()
    }

    async fn patch(&self, spec: Value) {
        let patch = json!({ "spec": spec }).to_string();
        self.kubectl(&["patch", "fleetpolicy", RUN, "--type=merge", "-p", &patch]).await;
    }

    /// Waits until a condition has this status, and gives it.
    async fn condition(&self, kind: &str, status: &str) -> Value {
        until(&format!("{kind} to be {status}"), EVENT_LIMIT, || async {
            let policy = self.get().await;
            let conditions = policy["status"]["conditions"].as_array()?;
            let found = conditions.iter().find(|condition| condition["type"] == kind)?;
            (found["status"] == status).then(|| found.clone())
        })
        .await
        .expect("it comes to that")
    }

    async fn events(&self, reason: &str) -> usize {
        let text = self.kubectl(&["get", "events", "-o", "json"]).await;
        let events: Value = serde_json::from_str(&text).unwrap();
        let events = events["items"].as_array().unwrap();
        events.iter().filter(|event| event["reason"] == reason).count()
    }
}

/// A controller that follows the policy in a namespace.
fn start(
    (redis, moto): (&Redis, &Moto),
    kubeconfig: &Path,
    namespace: &str,
    identity: &str,
) -> (Program, String) {
    let listen = format!("127.0.0.1:{}", Program::free_port().expect("a free port"));
    let controller = Program::options("ebbtide-controller", EBBTIDE)
        .arguments(["controller", "--policy-resource", &format!("{namespace}/{RUN}")])
        .arguments(["--redis", &redis.url(), "--namespace", namespace, "--identity", identity])
        .arguments(["--listen", &listen])
        .variable("KUBECONFIG", &kubeconfig.display().to_string())
        .variables(moto.variables())
        .start()
        .expect("the controller starts");
    (controller, format!("http://{listen}"))
}

/// Ticks of the controller so far.
async fn ticks(health: &str) -> u64 {
    let status: Value =
        reqwest::get(format!("{health}/status")).await.unwrap().json().await.unwrap();
    status["ticks"].as_u64().unwrap()
}

#[tokio::test]
async fn controller_follows_the_resource_and_answers_in_its_status() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let namespace = cluster.unique_name("resource");
    cluster.create_namespace(&namespace).await.expect("namespace");
    let folder = tempfile::tempdir().unwrap();
    define(&cluster, folder.path()).await;
    let _pool = Group::create(&moto, "rollout-resource", 0, 5).await;
    let queue = queue(&redis, RUN, 1).await;
    publish_version(&queue, 1).await;
    let served = Served { cluster: &cluster, namespace: namespace.clone() };
    let path = folder.path().join("served.yaml");
    // What this version cannot do, to begin with: it waits, and says why.
    let grouped = POLICY.replace("minReplicas: 0,", "minReplicas: 0, nodesPerReplica: 2,");
    std::fs::write(&path, grouped.replace("maxReplicas: 5", "maxReplicas: 2")).unwrap();
    served.kubectl(&["create", "-f", &path.display().to_string()]).await;
    let kubeconfig = cluster.kubeconfig();
    let (mut controller, health) = start((&redis, &moto), kubeconfig, &namespace, "first");
    let invalid = served.condition("PolicyInvalid", "True").await;
    assert!(invalid["message"].as_str().unwrap().contains("nodesPerReplica"), "{invalid}");
    let answer = async |path| reqwest::get(format!("{health}/{path}")).await.expect("it listens");
    assert_eq!(answer("healthz").await.status(), 200, "to wait is no hang");
    let unready = answer("readyz").await;
    assert_eq!(unready.status(), 503);
    assert!(unready.text().await.unwrap().contains("nodesPerReplica"));
    served.patch(json!({ "rollout": { "nodesPerReplica": 1, "maxReplicas": 5 } })).await;

    // No trainer has reported: a signal is unknown.
    controller.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("ready");
    served.condition("PolicyInvalid", "False").await;
    served.condition("SignalStale", "True").await;
    let trainer = TrainerRecord {
        phase: TrainerPhase::Wait,
        step: 1,
        groups_per_step: 4,
        nodes: None,
        incarnation: None,
        heartbeat: UnixMillis(0),
    };
    queue.put_trainer(trainer.clone()).await.expect("reported");
    served.condition("SignalStale", "False").await;
    let ready = served.condition("Ready", "True").await;
    assert_eq!(ready["observedGeneration"], served.get().await["metadata"]["generation"]);

    // A policy that is refused leaves the last valid one in force, and is told once.
    served.patch(json!({ "rollout": { "nodesPerReplica": 2, "maxReplicas": 2 } })).await;
    let invalid = served.condition("PolicyInvalid", "True").await;
    assert_eq!(invalid["observedGeneration"], served.get().await["metadata"]["generation"]);
    let told = served.events("PolicyInvalid").await;
    let in_force = || async { in_metrics(&health, "ebbtide_replicas_max").await };
    assert_eq!(in_force().await, Some(5.0));
    served.patch(json!({ "rollout": { "nodesPerReplica": 1, "maxReplicas": 4 } })).await;
    served.condition("PolicyInvalid", "False").await;
    until("the change to be in force", EVENT_LIMIT, || async {
        (in_force().await == Some(4.0)).then_some(())
    })
    .await
    .expect("taken over");
    assert_eq!(told, 2, "once before the first valid one and once now");
    assert!(served.events("NotPolicyInvalid").await >= 1);

    let shown = served.kubectl(&["get", "fleetpolicies"]).await;
    let head = shown.lines().next().unwrap();
    let titles: Vec<&str> = head.split_whitespace().collect();
    assert_eq!(titles, ["NAME", "MODE", "READY", "RUNNING", "DESIRED", "LIMIT", "AGE"]);
    let row = shown.lines().nth(1).unwrap();
    assert!(row.contains("observe") && row.contains("True"), "{shown}");

    // Nothing changes any more: nothing is written, and never by one that does not lead.
    let (mut second, passive) = start((&redis, &moto), kubeconfig, &namespace, "second");
    second.ready(&format!("{passive}/readyz"), EVENT_LIMIT).await.expect("ready");
    let before = until("the status to stand still", EVENT_LIMIT, || async {
        queue.put_trainer(trainer.clone()).await.expect("reported");
        let version = |policy: &Value| policy["metadata"]["resourceVersion"].clone();
        let first = version(&served.get().await);
        for health in [&health, &passive] {
            let from = ticks(health).await;
            until("ticks", EVENT_LIMIT, || async {
                (ticks(health).await > from + 8).then_some(())
            })
            .await
            .expect("it ticks");
        }
        let policy = served.get().await;
        (version(&policy) == first).then_some(policy)
    })
    .await
    .expect("it stands still");
    let conditions = before["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 6);
}

#[tokio::test]
async fn api_server_that_was_away_makes_no_policy_invalid() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let mut cluster = require!(ControlPlane::start().await);
    let folder = tempfile::tempdir().unwrap();
    define(&cluster, folder.path()).await;
    let _pool = Group::create(&moto, "rollout-resource", 0, 5).await;
    let queue = queue(&redis, RUN, 1).await;
    publish_version(&queue, 1).await;
    let path = folder.path().join("served.yaml");
    std::fs::write(&path, POLICY).unwrap();
    let create = ["create", "-f", &path.display().to_string()];
    cluster.kubectl().run(&create).await.expect("created");
    let kubeconfig = cluster.kubeconfig().to_owned();
    let (mut controller, health) = start((&redis, &moto), &kubeconfig, "default", "only");
    let valid = Served::by_default(&cluster).condition("PolicyInvalid", "False").await;

    cluster.stop_apiserver().await.expect("stops");
    controller.logged("policy cannot be read", EVENT_LIMIT).await.expect("it says so");
    assert_eq!(in_metrics(&health, "ebbtide_replicas_max").await, Some(5.0), "it stays");
    cluster.start_apiserver().await.expect("starts");
    let served = Served::by_default(&cluster);
    served.patch(json!({ "rollout": { "maxReplicas": 3 } })).await;
    until("the new one to be in force, and answered", EVENT_LIMIT, || async {
        let policy = served.get().await;
        let is_answered =
            policy["status"]["observedGeneration"] == policy["metadata"]["generation"];
        let in_force = in_metrics(&health, "ebbtide_replicas_max").await;
        (is_answered && in_force == Some(3.0)).then_some(())
    })
    .await
    .expect("it goes on");
    let now = served.condition("PolicyInvalid", "False").await;
    assert_eq!(now["lastTransitionTime"], valid["lastTransitionTime"]);
    assert_eq!(served.events("PolicyInvalid").await, 0);
}

/// A gauge of the controller.
async fn in_metrics(health: &str, name: &str) -> Option<f64> {
    let metrics = reqwest::get(format!("{health}/metrics")).await.ok()?.text().await.ok()?;
    let line = metrics.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}
