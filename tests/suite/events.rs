//! The real `ebbtide controller` process and its queue of events, against moto, Redis and a real
//! API server.

use std::time::{Duration, Instant};

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::policy::Market;
use ebbtide_harness::{ControlPlane, Moto, NodeSpec, Program, Redis, require, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{ControlView, DrainReason, NodeRecord, NodeState};
use ebbtide_queue::state::SlotState;
use serde_json::{Value, json};

use crate::aws::{Group, Queue, queue_url};
use crate::programs::*;

const RUN: &str = "run-events";

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-events}
spec:
  mode: act
  queue: {shards: 1}
  trainer: {groupsPerStep: 4, groupSize: 1}
  rollout:
    minReplicas: 1
    maxReplicas: 5
    concurrencyPerReplica: 4
    pools: [spot-a]
    tick: 500ms
  pools:
    - name: spot-a
      provider: asg
      autoScalingGroup: rollout-events
      market: spot
      instanceType: p5en.48xlarge
      maxNodes: 5
";

/// A Spot interruption warning of this moment.
pub fn spot(instance: &str) -> String {
    let now = ebbtide_queue::client::wall_clock_now();
    format!(
        r#"{{"version":"0","id":"{instance}-1","source":"aws.ec2","account":"123456789012",
            "detail-type":"EC2 Spot Instance Interruption Warning","time":"{now}",
            "region":"us-east-1","resources":["arn:aws:ec2:us-east-1b:instance/{instance}"],
            "detail":{{"instance-id":"{instance}","instance-action":"terminate"}}}}"#
    )
}

/// A node whose agent reports once and is silent from then on; it does not know its instance.
pub async fn report_once(queue: &WorkQueue, node: &str) {
    let record = NodeRecord {
        market: Some(Market::Spot),
        ..NodeRecord::new(format!("{node}/boot/agent-1").parse().unwrap(), NodeState::Ready)
    };
    queue.put_node(record).await.expect("reported");
}

async fn node_of(cluster: &ControlPlane, name: &str) -> Value {
    cluster.kubectl().get(&["node", name]).await.expect("it exists")
}

/// Whether a node is cordoned and has our taint.
pub fn is_marked(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let is_tainted = taints.iter().any(|taint| taint["key"] == "ebbtide.dev/interruption");
    is_tainted && node["spec"]["unschedulable"] == true
}

async fn text_of(url: &str) -> String {
    reqwest::get(url).await.expect("answers").text().await.expect("text")
}

/// Case 30, and the way of a message from one end to the other.
#[tokio::test]
async fn node_of_an_instance_is_found_by_its_provider_id_drained_and_cordoned() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let namespace = cluster.unique_name("events-found");
    cluster.create_namespace(&namespace).await.expect("namespace");
    let (name, other) = (cluster.unique_name("i-0abc"), cluster.unique_name("ip-10-0-0-7"));
    let (instance, foreign) = ("i-0123456789abcdef0", "i-0123456789abcdef1");
    let host = "kubernetes.io/hostname";
    let gone = NodeSpec::gpu(&name).label(host, "one-host");
    let stays = NodeSpec::gpu(&other).label(host, "one-host");
    let nodes = [
        gone.provider_id(&format!("aws:///us-east-1a/{instance}")),
        stays.provider_id(&format!("aws:///us-east-1a/{foreign}")),
    ];
    cluster.add_nodes(&nodes).await.expect("nodes");
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let work = queue(&redis, RUN, 1).await;
    report_once(&work, &name).await;
    let events = Queue::create(&moto, "events").await;
    let controller = ControllerProgram {
        kubeconfig: Some((cluster.kubeconfig(), &namespace)),
        ..ControllerProgram::new(&redis, &moto, &policy)
    };
    let (controller, _health) = controller.start();
    events.send(&spot(instance)).await;
    events.send(&spot("i-00000000000000000")).await;

    let view = drain_is_asked_for(&work, &controller).await;
    assert_eq!(view.drains[0].replica.as_str(), name);
    assert_eq!(view.drains[0].reason, DrainReason::Notice);
    until("the marks", EVENT_LIMIT, || async {
        is_marked(&node_of(&cluster, &name).await).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
    let marked = node_of(&cluster, &name).await;
    assert_eq!(marked["metadata"]["annotations"]["ebbtide.dev/cordoned"], "true");
    no_message_is_left(&events, &controller).await;
    assert!(!is_marked(&node_of(&cluster, &other).await), "only the node of the instance");
    cluster.remove_nodes(&[&name, &other]).await.expect("removed");
}

/// Case 33, with a real admission policy.
#[tokio::test]
async fn admission_that_refuses_the_cordon_is_surfaced_and_keeps_the_message() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let namespace = cluster.unique_name("events-refused");
    cluster.create_namespace(&namespace).await.expect("namespace");
    let name = cluster.unique_name("refused");
    let instance = "i-0fedcba9876543210";
    let node = NodeSpec::gpu(&name).provider_id(&format!("aws:///us-east-1a/{instance}"));
    cluster.add_nodes(&[node]).await.expect("node");
    refuse_changes_of(&cluster, &name).await;
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let work = queue(&redis, RUN, 1).await;
    report_once(&work, &name).await;
    work.enqueue(group(0, 4, 100)).await.expect("enqueued");
    let holder = format!("{name}/boot/agent-1").parse().unwrap();
    let ttl = Duration::from_secs(15);
    let leased = work.lease(&holder, 4, ttl, PolicyVersion(0)).await.expect("leased");
    assert_eq!(leased.grants.len(), 4);
    let events = Queue::create(&moto, "events").await;
    let controller = ControllerProgram {
        kubeconfig: Some((cluster.kubeconfig(), &namespace)),
        ..ControllerProgram::new(&redis, &moto, &policy)
    };
    let (mut controller, health) = controller.start();
    events.send(&spot(instance)).await;

    drain_is_asked_for(&work, &controller).await;
    units_become(&work, "the work to be back", |units| {
        units.len() == 4 && units.iter().all(|unit| unit.state == SlotState::Enqueued)
    })
    .await
    .expect("a silent agent's leases end");
    controller.logged("its message is kept", EVENT_LIMIT).await.expect("an error in the log");
    let status: Value = serde_json::from_str(&text_of(&format!("{health}/status")).await).unwrap();
    let problem = status["eventProblems"][0].as_str().expect("a problem").to_owned();
    assert!(problem.contains(&name) && problem.contains("nobody may touch it"), "{problem}");
    let metrics = text_of(&format!("{health}/metrics")).await;
    let refused = r#"ebbtide_event_errors_total{kind="refused",role="rollout"}"#;
    assert!(metrics.contains(refused), "{metrics}");
    assert_eq!(events.left().await, 1, "the message is kept");

    cluster.kubectl().run(&["delete", "validatingadmissionpolicy", &name]).await.expect("deleted");
    until("the marks", EVENT_LIMIT, || async {
        is_marked(&node_of(&cluster, &name).await).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
    no_message_is_left(&events, &controller).await;
    let binding = ["delete", "validatingadmissionpolicybinding", &name];
    cluster.kubectl().run(&binding).await.expect("deleted");
    cluster.remove_nodes(&[&name]).await.expect("removed");
}

/// Case 46: a node that the run knows and the cluster does not have any more.
#[tokio::test]
async fn notice_for_a_node_that_is_gone_is_acknowledged_and_ends_nothing() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let namespace = cluster.unique_name("events-gone");
    cluster.create_namespace(&namespace).await.expect("namespace");
    let (name, instance) = (cluster.unique_name("gone"), "i-0123456789abcdef9");
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let work = queue(&redis, RUN, 1).await;
    let record = NodeRecord {
        instance_id: Some(instance.to_owned()),
        ..NodeRecord::new(format!("{name}/boot/agent-1").parse().unwrap(), NodeState::Ready)
    };
    work.put_node(record).await.expect("reported");
    let events = Queue::create(&moto, "events").await;
    let controller = ControllerProgram {
        kubeconfig: Some((cluster.kubeconfig(), &namespace)),
        ..ControllerProgram::new(&redis, &moto, &policy)
    };
    let (mut controller, health) = controller.start();
    events.send(&spot(instance)).await;
    drain_is_asked_for(&work, &controller).await;
    no_message_is_left(&events, &controller).await;
    let status: Value = serde_json::from_str(&text_of(&format!("{health}/status")).await).unwrap();
    assert_eq!(status["eventProblems"], json!([]), "{status}");
    assert!(controller.is_running());
}

/// Waits until the controller has asked for a drain.
async fn drain_is_asked_for(work: &WorkQueue, controller: &Program) -> ControlView {
    let view = view_becomes(work, "the drain", |view| !view.drains.is_empty()).await;
    view.unwrap_or_else(|error| panic!("{error}\n{}", controller.log()))
}

/// Waits until every message was acknowledged.
async fn no_message_is_left(events: &Queue<'_>, controller: &Program) {
    until("no message to be left", EVENT_LIMIT, || async {
        (events.left().await == 0).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
}

/// Refuses every change of a node's own fields, and waits until that is so.
async fn refuse_changes_of(cluster: &ControlPlane, name: &str) {
    let version = "admissionregistration.k8s.io/v1";
    let policy = json!({
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["UPDATE"], "resources": ["nodes"],
            }]},
            "matchConditions": [{
                "name": "this-node", "expression": format!("object.metadata.name == '{name}'"),
            }],
            "validations": [{ "expression": "false", "message": "nobody may touch it" }],
        },
    });
    let binding = json!({
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    cluster.kubectl().create(&policy).await.expect("created");
    cluster.kubectl().create(&binding).await.expect("created");
    let touch = ["annotate", "node", name, "touched=yes", "--dry-run=server", "--overwrite"];
    until("changes to be refused", EVENT_LIMIT, || async {
        cluster.kubectl().run(&touch).await.is_err().then_some(())
    })
    .await
    .expect("refused");
}

/// Case 6.
#[tokio::test]
async fn controller_is_ready_at_once_and_never_asks_the_metadata_service() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let metadata = SilentService::start();
    let _pool = Group::create(&moto, "rollout-events", 1, 5).await;
    let _events = Queue::create(&moto, "events").await;
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let program = ControllerProgram::new(&redis, &moto, &policy);
    let controller = ControllerProgram { imds: &metadata.url, ..program };
    // The quickest of three: other tests use the same cores.
    let mut quickest = Duration::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        let (mut program, health) = controller.start();
        program.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("ready");
        quickest = quickest.min(begun.elapsed());
    }
    assert!(quickest < Duration::from_secs(2), "ready after {quickest:?}");
    // Without keys the chain of sources is walked to its end.
    let (mut keyless, _health) = ControllerProgram { has_keys: false, ..controller }.start();
    let away = "queue of events cannot be read";
    keyless.logged(away, EVENT_LIMIT).await.expect("it says that it has no keys");
    assert_eq!(metadata.connections(), 0);
}

/// Case 50.
#[tokio::test]
async fn queue_of_events_that_is_down_at_the_start_hinders_no_scaling_and_is_met_later() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let mut sqs = require!(Moto::start().await);
    sqs.kill();
    let pool = Group::create(&moto, "rollout-events", 0, 5).await;
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let work = queue(&redis, RUN, 1).await;
    report_once(&work, "node-a").await;
    let controller = ControllerProgram {
        sqs: sqs.url(),
        events_queue: queue_url(&sqs, "events"),
        ..ControllerProgram::new(&redis, &moto, &policy)
    };
    let (mut controller, health) = controller.start();
    controller.logged("queue of events cannot be read", EVENT_LIMIT).await.expect("says so");
    until("the minimum", EVENT_LIMIT, || async { (pool.desired().await == 1).then_some(()) })
        .await
        .expect("scaling works");
    controller.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("it is ready");

    sqs.restart().await.expect("starts");
    let events = Queue::create(&sqs, "events").await;
    let instance = "i-0123456789abcdef2";
    events.send(&spot(instance)).await;
    until("the message to be handled", EVENT_LIMIT, || async {
        (events.left().await == 0).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
    let metrics = text_of(&format!("{health}/metrics")).await;
    let counted = r#"ebbtide_events_unknown_instance_total{role="rollout"} 1"#;
    assert!(metrics.contains(counted), "{metrics}");
    assert!(controller.is_running());
}
