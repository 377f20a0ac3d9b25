//! The real program, started as its containers would be: with the command and the variables that
//! the chart gives them, and with the token of their service account. So the command line is the
//! program's own, and the rights are enough.

use std::time::Duration;

use ebbtide_harness::{Aemm, ControlPlane, Moto, Program, Redis, require, until};
use serde_json::{Value, json};

use crate::aws::Queue;
use crate::events::{is_marked, report_once, spot};
use crate::programs::queue;

use super::release::{AGENT, CONTROLLER, LEASE, Release, shipped_policy};

const EVENT_LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn agent_of_the_chart_marks_and_empties_its_node_with_the_rights_of_its_account() {
    let redis = require!(Redis::start().await);
    let metadata = require!(Aemm::start(&["spot", "--action", "terminate", "--imdsv2"]).await);
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-agent").await);
    let node = release.add_nodes(1).await.remove(0);
    release.admin().create(&pod(release.name(), "web", &node)).await.unwrap();
    let endpoint =
        json!({ "name": "AWS_EC2_METADATA_SERVICE_ENDPOINT", "value": metadata.base_url() });
    install(
        &release,
        &redis,
        json!({ AGENT: { "engines": ["http://127.0.0.1:1"], "env": [endpoint] } }),
    )
    .await;

    let own_pods = async || {
        let pods = [release.pods(AGENT).await, release.pods(CONTROLLER).await];
        let here = pods.map(|pods| pods.into_iter().filter(|pod| pod["spec"]["nodeName"] == *node));
        here.map(|pods| pods.map(|pod| pod["metadata"]["uid"].to_string()).collect::<Vec<_>>())
    };
    let before = until("own pods on the node", EVENT_LIMIT, || async {
        Some(own_pods().await).filter(|pods| pods.iter().all(|of_part| !of_part.is_empty()))
    })
    .await
    .unwrap();
    let template = release.get("daemonset", AGENT).await;
    let mut agent = start(&release, AGENT, &template, &[("NODE_NAME", &node)]).await;

    until("the marks on the node", EVENT_LIMIT, || async {
        let node = release.admin().get(&["node", &node]).await.ok()?;
        let taints = node["spec"]["taints"].as_array()?.iter();
        let is_tainted = taints.clone().any(|taint| taint["key"] == "ebbtide.dev/interruption");
        let mut conditions = node["status"]["conditions"].as_array()?.iter();
        let is_shown = conditions.any(|condition| {
            condition["type"] == "EbbtideInterruption" && condition["status"] == "True"
        });
        (is_tainted && is_shown && node["spec"]["unschedulable"] == true).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    until("the pod on the node to be evicted", EVENT_LIMIT, || async {
        let get = [&["get", "pod", "web", "--ignore-not-found"], &release.in_space()[..]].concat();
        release.admin().run(&get).await.ok().filter(|answer| answer.trim().is_empty())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    // Case 40: the very pods of before, neither gone nor replaced.
    assert_eq!(own_pods().await, before, "an own pod is never evicted\n{}", agent.log());
    let selector = format!("--field-selector=involvedObject.name={node},source=ebbtide-agent");
    until("an event of the agent", EVENT_LIMIT, || async {
        let events =
            release.admin().get(&["events", "--namespace=default", &selector]).await.ok()?;
        (!events["items"].as_array()?.is_empty()).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    end(&mut agent).await;
    release.close().await;
}

#[tokio::test]
async fn controller_of_the_chart_leads_with_the_rights_of_its_account() {
    let redis = require!(Redis::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let release = require!(Release::new(cluster, "chart-leader").await);
    // Nobody answers there: who leads does not depend on AWS.
    let nowhere = format!("http://127.0.0.1:{}", Program::free_port().unwrap());
    let variables: Vec<Value> = [
        ("AWS_ENDPOINT_URL", nowhere.as_str()),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ]
    .map(|(name, value)| json!({ "name": name, "value": value }))
    .into();
    let values = json!({ "aws": { "region": "us-east-1" }, CONTROLLER: { "env": variables } });
    install(&release, &redis, values).await;

    let template = release.get("deployment", CONTROLLER).await;
    let pod = [("POD_NAME", "controller-0"), ("POD_NAMESPACE", release.name())];
    let mut controller = start(&release, CONTROLLER, &template, &pod).await;

    let lease = [&["lease", LEASE], &release.in_space()[..]].concat();
    until("the controller to lead", EVENT_LIMIT, || async {
        let lease = release.admin().get(&lease).await.ok()?;
        (lease["spec"]["holderIdentity"] == "controller-0").then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
    end(&mut controller).await;
    // Renewing and giving back are updates, the first claim was a creation.
    let lease = release.admin().get(&lease).await.unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], Value::Null);
    release.close().await;
}

#[tokio::test]
async fn controller_of_the_chart_stands_in_for_a_silent_agent_with_the_rights_of_its_account() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-events").await);
    let node = release.add_nodes(1).await.remove(0);
    let instance = "i-0123456789abcdef3";
    let identity = json!({ "spec": { "providerID": format!("aws:///us-east-1a/{instance}") } });
    let patch = ["patch", "node", &node, "--patch", &identity.to_string()];
    release.admin().run(&patch).await.unwrap();
    let variables: Vec<Value> = [
        ("AWS_ENDPOINT_URL", moto.url().as_str()),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ]
    .map(|(name, value)| json!({ "name": name, "value": value }))
    .into();
    let events = Queue::create(&moto, "events").await;
    let controller = json!({ "env": variables, "eventsQueue": events.url() });
    let values = json!({ "aws": { "region": "us-east-1" }, CONTROLLER: controller });
    install(&release, &redis, values).await;
    report_once(&queue(&redis, "grpo-async", 4).await, &node).await;

    let template = release.get("deployment", CONTROLLER).await;
    let pod = [("POD_NAME", "controller-0"), ("POD_NAMESPACE", release.name())];
    let mut controller = start(&release, CONTROLLER, &template, &pod).await;
    events.send(&spot(instance)).await;
    until("the marks on the node", EVENT_LIMIT, || async {
        is_marked(&release.admin().get(&["node", &node]).await.ok()?).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", controller.log()));
    end(&mut controller).await;
    release.close().await;
}

fn pod(space: &str, name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": space, "name": name },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "played" }] },
    })
}

async fn install(release: &Release, redis: &Redis, values: Value) {
    let values = release.file("containers.json", &values.to_string());
    let redis = format!("redis.url={}", redis.url());
    release.install(&["--values", &values, "--set", &redis]).await;
}

/// Starts what the first container of a pod template says. `fields` are the values that a kubelet
/// would take from the pod.
async fn start(
    release: &Release,
    part: &'static str,
    template: &Value,
    fields: &[(&str, &str)],
) -> Program {
    let policy = shipped_policy().display().to_string();
    let here = [
        ("EBBTIDE_POLICY", policy.as_str()),
        ("EBBTIDE_LISTEN", "127.0.0.1:0"),
        ("NODE_IP", "127.0.0.1"),
    ];
    let container = &template["spec"]["template"]["spec"]["containers"][0];
    // Here is no folder of a node.
    let socket = format!("{}/agent.sock", release.folder());
    let in_folder = |word: &str| word.replace("/run/ebbtide/agent.sock", &socket);
    let command = container["command"].as_array().unwrap().iter();
    let command: Vec<String> = command.map(|word| in_folder(word.as_str().unwrap())).collect();
    assert_eq!(command[0], "ebbtide");
    let arguments = command.iter().skip(1).map(String::as_str);
    let mut options = Program::options(part, env!("CARGO_BIN_EXE_ebbtide")).arguments(arguments);
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        let given = here.iter().chain(fields).find(|(known, _)| *known == name);
        let value = given.map(|(_, value)| *value).or_else(|| variable["value"].as_str());
        options = options.variable(name, value.unwrap_or_else(|| panic!("{name} has no value")));
    }
    let account = release.account(part).await.display().to_string();
    options.variable("KUBECONFIG", &account).start().unwrap()
}

/// Ends it as a kubelet does. Nothing was forbidden to it.
async fn end(program: &mut Program) {
    let status = program.terminate(Duration::from_secs(12)).await.unwrap();
    assert!(status.success(), "{status}: {}", program.log());
    assert!(!program.log().to_lowercase().contains("forbidden"), "{}", program.log());
}
