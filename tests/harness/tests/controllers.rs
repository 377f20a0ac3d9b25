//! The two controllers that can be added to a control plane do what they do in a real cluster.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};

use ebbtide_harness::{
    ControlPlane, EVENT_LIMIT, Error, InstanceType, Karpenter, Kubectl, LwsController, NodeSpec,
    require, until,
};
use serde_json::{Value, json};

const DISRUPTED_TAINT: &str = "karpenter.sh/disrupted";

#[tokio::test]
async fn pods_of_a_leader_worker_set_carry_their_group_and_go_together() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let space = cluster.unique_name("groups");
    let nodes = NodeSpec::gpu_nodes(&space, 4, &[("ebbtide.dev/role", &space)]);
    cluster.add_nodes(&nodes).await.unwrap();
    cluster.create_namespace(&space).await.unwrap();
    let kubectl = cluster.kubectl();

    kubectl.create(&leader_worker_set(&space)).await.unwrap();
    let groups: BTreeMap<String, [String; 3]> = [
        ("engine-0", ["engine", "0", "0"]),
        ("engine-0-1", ["engine", "0", "1"]),
        ("engine-1", ["engine", "1", "0"]),
        ("engine-1-1", ["engine", "1", "1"]),
    ]
    .map(|(pod, labels)| (pod.to_owned(), labels.map(str::to_owned)))
    .into();
    let first = until("four running pods in their groups", EVENT_LIMIT, || async {
        let pods = running_pods(kubectl, &space).await;
        (pods.len() == 4).then_some(pods)
    })
    .await
    .unwrap();
    assert_eq!(group_labels(&first), groups);
    let hosts: BTreeSet<&str> = first.iter().map(|pod| text(&pod["spec"]["nodeName"])).collect();
    assert_eq!(hosts.len(), 4, "pods with 8 GPUs each do not share a node");

    kubectl.run(&["delete", "pod", "engine-0-1", "-n", &space]).await.unwrap();
    let before = uids(&first);
    let after = until("another group 0", EVENT_LIMIT, || async {
        let now = uids(&running_pods(kubectl, &space).await);
        let is_new = |pod: &str| now.get(pod).is_some_and(|uid| *uid != before[pod]);
        (is_new("engine-0") && is_new("engine-0-1")).then_some(now)
    })
    .await
    .unwrap();
    for pod in ["engine-1", "engine-1-1"] {
        assert_eq!(after[pod], before[pod], "the loss of a pod ends its own group only");
    }

    kubectl.run(&["delete", "namespace", &space, "--wait=false"]).await.unwrap();
    let names: Vec<&str> = nodes.iter().map(NodeSpec::name).collect();
    cluster.remove_nodes(&names).await.unwrap();
}

#[tokio::test]
async fn control_plane_has_one_leader_worker_set_controller() {
    let cluster = require!(ControlPlane::shared().await);
    let first = require!(LwsController::start(&cluster).await);
    let second = LwsController::start(&cluster).await.unwrap();
    assert_eq!(first.log(), second.log());
}

#[tokio::test]
async fn karpenter_makes_a_node_for_a_pod_and_taints_it_before_it_goes() {
    let mut cluster = require!(ControlPlane::start().await);
    let types = [InstanceType::gpu("p5en.48xlarge").spot("us-east-1a", 21.5)];
    let _karpenter = require!(Karpenter::start(&mut cluster, &types).await);
    let kubectl = cluster.kubectl();
    kubectl.create(&Karpenter::node_pool("rollout")).await.unwrap();
    kubectl.create(&engine_with_budget()).await.unwrap();

    let node = until("a node for the pending pod", EVENT_LIMIT, || async {
        let pods = running_pods(kubectl, "default").await;
        pods.first().map(|pod| text(&pod["spec"]["nodeName"]).to_owned())
    })
    .await
    .unwrap();
    let made = kubectl.get(&["node", &node]).await.unwrap();
    assert_eq!(made["metadata"]["labels"]["karpenter.sh/capacity-type"], "spot");
    assert_eq!(made["metadata"]["labels"]["node.kubernetes.io/instance-type"], "p5en.48xlarge");
    assert!(!is_disrupted(&made));
    // Until then Karpenter itself does not count it as a node.
    let claim = text(&kubectl.get(&["nodeclaims"]).await.unwrap()["items"][0]["metadata"]["name"])
        .to_owned();
    let initialized = ["wait", "--for=condition=Initialized", "--timeout=60s", "nodeclaim", &claim];
    kubectl.run(&initialized).await.unwrap();

    kubectl.run(&["delete", "nodeclaim", &claim, "--wait=false"]).await.unwrap();
    until("the taint on the node", EVENT_LIMIT, || async {
        is_disrupted(&kubectl.get(&["node", &node]).await.unwrap()).then_some(())
    })
    .await
    .unwrap();
    let held: Vec<Value> = running_pods(kubectl, "default").await;
    assert_eq!(text(&held[0]["spec"]["nodeName"]), node, "the budget keeps the pod where it is");

    kubectl.run(&["delete", "poddisruptionbudget", "engine"]).await.unwrap();
    until("the node to go", EVENT_LIMIT, || async { is_gone(kubectl, &node).await.then_some(()) })
        .await
        .unwrap();
    until("the pod on another node", EVENT_LIMIT, || async {
        let pods = running_pods(kubectl, "default").await;
        pods.iter().any(|pod| text(&pod["spec"]["nodeName"]) != node).then_some(())
    })
    .await
    .unwrap();
}

fn leader_worker_set(space: &str) -> Value {
    json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": { "name": "engine", "namespace": space },
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {
                "size": 2,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": { "spec": engine_pod(&json!({ "ebbtide.dev/role": space })) },
            },
        },
    })
}

/// A Deployment of one pod that fills a node, and a budget that lets nobody evict it.
fn engine_with_budget() -> Value {
    let selector = json!({ "matchLabels": { "app": "engine" } });
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "engine", "namespace": "default" },
        "spec": {
            "replicas": 1,
            "selector": selector,
            "template": {
                "metadata": { "labels": { "app": "engine" } },
                "spec": engine_pod(&json!({ "karpenter.sh/nodepool": "rollout" })),
            },
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "engine", "namespace": "default" },
        "spec": { "maxUnavailable": 0, "selector": selector },
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [budget, deployment] })
}

fn engine_pod(node_selector: &Value) -> Value {
    let devices = json!({ "nvidia.com/gpu": "8" });
    json!({
        "nodeSelector": node_selector,
        "containers": [{ "name": "engine", "image": "played", "resources": { "limits": devices } }],
    })
}

async fn running_pods(kubectl: &Kubectl, space: &str) -> Vec<Value> {
    let running = ["pods", "-n", space, "--field-selector=status.phase=Running"];
    let pods = kubectl.get(&running).await.unwrap();
    let is_staying = |pod: &&Value| pod["metadata"].get("deletionTimestamp").is_none();
    pods["items"].as_array().unwrap().iter().filter(is_staying).cloned().collect()
}

fn group_labels(pods: &[Value]) -> BTreeMap<String, [String; 3]> {
    let label = |pod: &Value, name: &str| {
        text(&pod["metadata"]["labels"][format!("leaderworkerset.sigs.k8s.io/{name}")]).to_owned()
    };
    pods.iter()
        .map(|pod| {
            let labels = ["name", "group-index", "worker-index"].map(|name| label(pod, name));
            (text(&pod["metadata"]["name"]).to_owned(), labels)
        })
        .collect()
}

fn uids(pods: &[Value]) -> BTreeMap<String, String> {
    let name_and_uid = |pod: &Value| {
        (text(&pod["metadata"]["name"]).to_owned(), text(&pod["metadata"]["uid"]).to_owned())
    };
    pods.iter().map(name_and_uid).collect()
}

fn is_disrupted(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array();
    taints.into_iter().flatten().any(|taint| taint["key"] == DISRUPTED_TAINT)
}

async fn is_gone(kubectl: &Kubectl, node: &str) -> bool {
    match kubectl.get(&["node", node]).await {
        Err(Error::Command { stderr, .. }) => stderr.contains("NotFound"),
        _ => false,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
