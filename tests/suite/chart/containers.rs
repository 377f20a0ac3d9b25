//! The real program, started as its containers would be: with the command and the variables that
//! the chart gives them, and with the token of their service account. So the command line is the
//! program's own, and the rights are enough.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use ebbtide_harness::{Aemm, ControlPlane, EVENT_LIMIT, Moto, Program, Redis, require, until};
use ebbtide_queue::control::NodeRole;
use serde_json::{Value, json};

use crate::aws::Queue;
use crate::events::{is_marked, report_once, spot};
use crate::programs::queue;

use super::kubelet::{end, start};
use super::release::{AGENT, CONTROLLER, LEASE, Release, TRAINER_AGENT};

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
async fn agent_of_the_chart_calls_the_webhook_with_what_lies_in_the_secret() {
    let redis = require!(Redis::start().await);
    // Otherwise the mock recommends a rebalance as well, and either call may come first.
    let notice = ["spot", "--action", "terminate", "--imdsv2", "--rebalance-delay-sec", "3600"];
    let metadata = require!(Aemm::start(&notice).await);
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-webhook").await);
    let node = release.add_nodes(1).await.remove(0);
    let chat = Chat::start().await;
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "namespace": release.name(), "name": "chat" },
        "stringData": { "url": chat.url, "headers": "X-Token: hunter2\nX-Team: rl\n" },
    });
    release.admin().create(&secret).await.unwrap();
    let endpoint =
        json!({ "name": "AWS_EC2_METADATA_SERVICE_ENDPOINT", "value": metadata.base_url() });
    let template = "{\"lost\": \"{{ node }}\",\n \"why\": \"{{ reason }}\"}\n";
    let webhook =
        json!({ "existingSecret": "chat", "headersKey": "headers", "template": template });
    let agent = json!({ "engines": [], "env": [endpoint], "webhook": webhook });
    install(&release, &redis, json!({ AGENT: agent })).await;

    let template = release.get("daemonset", AGENT).await;
    let text = template.to_string();
    assert!(!text.contains("hunter2") && !text.contains(&chat.url), "secrets stay there: {text}");
    let mut agent = start(&release, AGENT, &template, &[("NODE_NAME", &node)]).await;

    let (headers, body) = until("the call", EVENT_LIMIT, || async { chat.first() })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    assert_eq!(
        (&headers["x-token"], &headers["x-team"]),
        (&"hunter2".parse().unwrap(), &"rl".parse().unwrap())
    );
    assert_eq!(body, format!("{{\"lost\": \"{node}\",\n \"why\": \"spot_terminate\"}}"));
    assert!(!agent.log().contains("hunter2"), "{}", agent.log());
    end(&mut agent).await;
    release.close().await;
}

#[tokio::test]
async fn trainer_agent_of_the_chart_asks_for_a_checkpoint_with_the_rights_of_its_account() {
    let redis = require!(Redis::start().await);
    let metadata = require!(Aemm::start(&["spot", "--action", "terminate", "--imdsv2"]).await);
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-trainer").await);
    let node = release.add_nodes(1).await.remove(0);
    let endpoint =
        json!({ "name": "AWS_EC2_METADATA_SERVICE_ENDPOINT", "value": metadata.base_url() });
    let trainer = json!({ "nodeSelector": { "part": "trainer" } });
    install(&release, &redis, json!({ AGENT: { "env": [endpoint], "trainer": trainer } })).await;

    let template = release.get("daemonset", TRAINER_AGENT).await;
    let mut agent = start(&release, AGENT, &template, &[("NODE_NAME", &node)]).await;
    let queue = queue(&redis, "grpo-async", 4).await;
    until("a checkpoint to be asked for", EVENT_LIMIT, || async {
        let view = queue.view().await.ok()?;
        let record = view.nodes.first()?;
        (view.checkpoint.is_pending() && record.role == NodeRole::Trainer).then_some(())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    until("the marks on the node", EVENT_LIMIT, || async {
        is_marked(&release.admin().get(&["node", &node]).await.ok()?).then_some(())
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

/// What a chat system was told: headers and body of every call.
type Told = Arc<Mutex<Vec<(HeaderMap, String)>>>;

/// A chat system with an incoming webhook.
struct Chat {
    url: String,
    told: Told,
}

impl Chat {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let told = Told::default();
        let router = Router::new().route("/hook", post(take_call)).with_state(told.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, told }
    }

    fn first(&self) -> Option<(HeaderMap, String)> {
        self.told.lock().unwrap().first().cloned()
    }
}

async fn take_call(State(told): State<Told>, headers: HeaderMap, body: String) {
    told.lock().unwrap().push((headers, body));
}
