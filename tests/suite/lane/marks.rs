//! Our marks on a node beside those of others, and what happens when they are refused.

use std::time::Duration;

use ebbtide_agent::marks::{KubeMarks, NodeMarks};
use ebbtide_harness::{ControlPlane, NodeSpec, require, until};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::world::{OURS, Space, client, condition, has_taint, is_marked};
use crate::programs::EVENT_LIMIT;

// Case 26.
#[tokio::test]
async fn cordon_of_an_administrator_stays_after_a_withdrawn_notice() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-cordon").await;
    space.kubectl().run(&["cordon", &space.node]).await.unwrap();
    let agent = space.start_agent(|_| {}).await;
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(90);
    let action = ebbtide_agent::emulator::imds::SpotAction::Terminate;
    agent.imds.handle().announce_spot(action, time);
    let node = space.node_becomes("to be marked", |node| {
        is_marked(node) && condition(node).is_some_and(|(status, _)| status == "True")
    });
    assert_eq!(condition(&node.await), Some(("True", "SpotTerminate")));
    agent.imds.handle().withdraw_spot();
    let node = space.node_becomes("to be free of our marks", |node| {
        !has_taint(node, OURS) && condition(node).is_some_and(|(status, _)| status == "False")
    });
    assert_eq!(node.await["spec"]["unschedulable"], true, "the administrator's");
    space.close().await;
}

// Cases 30 and 31.
#[tokio::test]
async fn only_the_named_node_is_marked_whatever_hostnames_say() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-names").await;
    let twin = format!("{}-twin", space.node);
    let hostname = "ip-10-0-0-1.us-east-2.compute.internal";
    cluster
        .add_nodes(&[NodeSpec::gpu(&twin).label("kubernetes.io/hostname", &space.node)])
        .await
        .unwrap();
    let label = format!("kubernetes.io/hostname={hostname}");
    space.kubectl().run(&["label", "node", &space.node, "--overwrite", &label]).await.unwrap();
    let agent = space.start_agent(|_| {}).await;
    agent.drain(60).await;
    space.node_becomes("to be cordoned and tainted", is_marked).await;
    let twin_object = space.node_object(&twin).await;
    assert!(!has_taint(&twin_object, OURS), "{twin_object}");
    assert_ne!(twin_object["spec"]["unschedulable"], true);
    cluster.remove_nodes(&[&twin]).await.unwrap();
    space.close().await;
}

#[tokio::test]
async fn taints_of_a_writer_that_never_rests_are_kept() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-conflict").await;
    let nodes: Api<Node> = Api::all(client(&cluster).await);
    let (name, stop) = (space.node.clone(), CancellationToken::new());
    let stopped = stop.clone();
    let writer = tokio::spawn(async move {
        let mut written = 0_u32;
        while !stopped.is_cancelled() {
            written += u32::from(write_taint(&nodes, &name, written + 1).await);
        }
        written
    });
    let agent = space.start_agent(|_| {}).await;
    agent.drain(60).await;
    space.node_becomes("to be marked", is_marked).await;
    stop.cancel();
    let written = writer.await.unwrap();
    let node = space.node_object(&space.node).await;
    let taints = node["spec"]["taints"].as_array().unwrap();
    let theirs = taints.iter().find(|taint| taint["key"] == "writer").expect("kept");
    assert_eq!(theirs["value"], written.to_string(), "none of its writes was undone");
    assert!(written > 1 && is_marked(&node));
    space.close().await;
}

/// Sets the writer's taint to a number; false when somebody else was faster.
async fn write_taint(nodes: &Api<Node>, name: &str, number: u32) -> bool {
    let mut node = nodes.get(name).await.unwrap();
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    taints.retain(|taint| taint.key != "writer");
    taints.push(Taint {
        key: "writer".to_owned(),
        value: Some(number.to_string()),
        effect: "PreferNoSchedule".to_owned(),
        ..Taint::default()
    });
    match nodes.replace(name, &PostParams::default(), &node).await {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if status.code == 409 => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn extra_taint_comes_with_the_marks_and_goes_with_them() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-extra").await;
    let node = space.node.parse().unwrap();
    let extra = "team.io/going=soon:NoExecute".parse().unwrap();
    let marks = KubeMarks::new(client(&cluster).await).with_extra_taint(Some(extra));
    marks.mark(&node, "swap").await.unwrap();
    let standing = space.node_object(&space.node).await;
    assert!(has_taint(&standing, "team.io/going") && is_marked(&standing));
    // A successor that was told of no extra taint removes it as well.
    KubeMarks::new(client(&cluster).await).clear(&node).await.unwrap();
    let standing = space.node_object(&space.node).await;
    assert!(!has_taint(&standing, "team.io/going") && !has_taint(&standing, OURS));
    let annotations = standing["metadata"]["annotations"].to_string();
    assert!(!annotations.contains("ebbtide.dev"), "{annotations}");
    space.close().await;
}

// Case 33, the agent's part.
#[tokio::test]
async fn refused_taint_does_not_delay_hand_back() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-refused").await;
    refuse_taint(&space).await;
    let agent = space.start_agent(|_| {}).await;
    agent.give_work().await;
    agent.drain(60).await;
    assert!(agent.drained().await < Duration::from_secs(2));
    until("the refusal to be counted", EVENT_LIMIT, || async {
        (agent.metric("ebbtide_node_mark_failures_total").await >= 1.0).then_some(())
    })
    .await
    .unwrap();
    assert!(!is_marked(&space.node_object(&space.node).await));
    let delete = ["delete", "validatingadmissionpolicybinding", &space.name];
    space.kubectl().run(&delete).await.unwrap();
    space.node_becomes("to be marked after all", is_marked).await;
    let delete = ["delete", "validatingadmissionpolicy", &space.name];
    space.kubectl().run(&delete).await.unwrap();
    space.close().await;
}

/// Admission refuses our taint on the node of this test from now on.
async fn refuse_taint(space: &Space<'_>) {
    let expression =
        format!("!has(object.spec.taints) || !object.spec.taints.exists(t, t.key == '{OURS}')");
    let name = format!("object.metadata.name == '{}'", space.node);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": space.name },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["UPDATE"], "resources": ["nodes"],
            }] },
            "matchConditions": [{ "name": "this-node", "expression": name }],
            "validations": [{ "expression": expression, "message": "no such taint here" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": space.name },
        "spec": { "policyName": space.name, "validationActions": ["Deny"] },
    });
    space.kubectl().create(&policy).await.unwrap();
    space.kubectl().create(&binding).await.unwrap();
    until("the policy to be in force", EVENT_LIMIT, || async {
        let taint = format!("{OURS}=probe:NoSchedule");
        let probe = ["taint", "node", &space.node, &taint, "--dry-run=server"];
        space.kubectl().run(&probe).await.is_err().then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn taint_of_cluster_autoscaler_empties_the_node_until_it_is_removed() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-foreign").await;
    space.run_pod("web", "web").await;
    // None of the work can finish in this time.
    let minute = Duration::from_secs(60);
    let agent = space.start_agent(|config| config.drain.request_deadline = minute).await;
    agent.give_work().await;
    let key = "ToBeDeletedByClusterAutoscaler";
    let seconds = jiff::Timestamp::now().as_second();
    let taint = format!("{key}={seconds}:NoSchedule");
    space.kubectl().run(&["taint", "node", &space.node, &taint]).await.unwrap();
    agent.drained().await;
    space.node_becomes("to be marked", is_marked).await;
    assert!(space.pod("web").await.is_some(), "the autoscaler evicts, by its own rules");
    let remove = format!("{key}-");
    space.kubectl().run(&["taint", "node", &space.node, &remove]).await.unwrap();
    agent.wait_until("in service again", |agent| agent.held() == 4).await;
    space.node_becomes("to be free of our marks", |node| !is_marked(node)).await;
    space.close().await;
}
