//! Which values the chart takes, and how it refuses the others.

use std::fs;

use ebbtide_core::policy::FleetPolicy;
use ebbtide_harness::{Error, Helm, require};
use serde_json::Value;

use super::release::{chart, least_values, root, shipped_policy, temporary_file};

#[tokio::test]
async fn wrong_values_are_refused_with_their_key() {
    let helm = require!(Helm::find());
    let values = temporary_file("chart-schema", "values.json", &least_values().to_string());
    for (setting, key, problem) in [
        ("agent.hostNetwrok=true", "/agent", "hostNetwrok"),
        ("agents.port=1", "", "agents"),
        ("agent.hostNetwork=yes", "/agent/hostNetwork", "want boolean"),
        ("agent.port=80", "/agent/port", "1,024"),
        ("agent.socket.enabled=yes", "/agent/socket/enabled", "want boolean"),
        ("agent.socket.path=/tmp/s", "/agent/socket", "path"),
        ("agent.socket.folder=/etc", "/agent/socket/folder", "pattern"),
        ("agent.socket.folder=/run/../etc", "/agent/socket/folder", "pattern"),
        ("agent.webhook.url=chat", "/agent/webhook/url", "pattern"),
        ("agent.webhook.headersKey=a b", "/agent/webhook/headersKey", "headersKey"),
        ("agent.webhook.header=x", "/agent/webhook", "header"),
        ("agent.trainer.role=trainer", "/agent/trainer", "role"),
        ("agent.env[0].name=EBBTIDE_REPLICA", "/agent/env/0/name", "not"),
        ("controller.port=70000", "/controller/port", "65,535"),
        ("controller.replicas=0", "/controller/replicas", "want 1"),
        ("controller.policyResource=yes", "/controller/policyResource", "want boolean"),
        ("controller.eventsQueue=sqs:events", "/controller/eventsQueue", "pattern"),
        ("controller.env[0].name=EBBTIDE_EVENTS_QUEUE", "/controller/env/0/name", "not"),
        ("agent.terminationGracePeriodSeconds=5", "/agent/terminationGracePeriod", "want 12"),
        ("agent.updateStrategy.maxUnavailable=0", "/agent/updateStrategy/maxUnav", "want 1"),
        ("agent.updateStrategy.maxUnavailable=half", "/agent/updateStrategy/maxUnav", "half"),
        ("agent.updateStrategy.maxSurge=1", "/agent/updateStrategy", "maxSurge"),
        ("agent.engines={127.0.0.1:8000}", "/agent/engines/0", "pattern"),
        ("agent.engines={http://a:1,http://a:1}", "/agent/engines", "equal"),
        ("agent.engines={http://a:1/v1}", "/agent/engines/0", "pattern"),
        ("agent.tolerations[0].effect=NoRun", "/agent/tolerations/0/effect", "NoExecute"),
        ("agent.env[0].name=EBBTIDE_REDIS", "/agent/env/0/name", "not"),
        ("agent.resources.limits.memory=lots", "/agent/resources/limits/memory", "lots"),
        ("agent.nodeSelector.gpu=true", "/agent/nodeSelector/gpu", "want string"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy", "IfNotPresent"),
        ("image.tag=a b", "/image/tag", "pattern"),
        ("image.repository=", "/image/repository", "pattern"),
        ("redis.url=redis:6379", "/redis/url", "pattern"),
        ("redis.existingSecret=My_Secret", "/redis/existingSecret", "pattern"),
        ("aws.region=mars", "/aws/region", "pattern"),
        ("log.format=xml", "/log/format", "json"),
        ("listenAddress=localhost", "/listenAddress", "pattern"),
        ("policy=7", "/policy", "got number"),
        ("workers.group.ep.nodes=2", "/workers", "group"),
        ("workers.port=80", "/workers/port", "1,024"),
        ("workers.startupMinutes=1", "/workers/startupMinutes", "want 5"),
        ("workers.restartPolicy=None", "/workers/restartPolicy", "RecreateGroupOnPodRestart"),
        ("workers.instanceTypes.x.gpus=8", "/workers/instanceTypes/x", "sharedMemory"),
        ("workers.groups.ep.nodes=2", "/workers/groups/ep", "instanceType"),
        ("workers.groups.ep.nodes=0", "/workers/groups/ep/nodes", "want 1"),
        ("workers.groups.ep.node=2", "/workers/groups/ep", "node"),
        ("workers.groups.ep.engine=trt", "/workers/groups/ep/engine", "sglang"),
        ("workers.groups.ep.model=--help", "/workers/groups/ep/model", "pattern"),
        ("workers.groups.ep.instanceType=p5en", "/workers/groups/ep/instanceType", "pattern"),
        ("workers.groups.ep.transportPath=ibgda", "/workers/groups/ep/transportPath", "gin_proxy"),
        ("workers.groups.ep.size.gpu=8", "/workers/groups/ep/size", "gpu"),
        ("workers.groups.ep.env[0].name=EP_DISABLE_GIN", "/workers/groups/ep/env/0/name", "not"),
        ("workers.groups.EP.nodes=2", "", "EP"),
    ] {
        let refused = refusal(&helm, &values, &["--set", setting]).await;
        assert!(refused.contains(&format!("at '{key}")), "{setting}: {refused}");
        assert!(refused.contains(problem), "{setting}: {refused}");
    }
}

#[tokio::test]
async fn what_a_schema_cannot_say_is_refused_with_what_to_do() {
    let helm = require!(Helm::find());
    let values = temporary_file("chart-checks", "values.json", &least_values().to_string());
    for (settings, expected) in [
        (["--set", "policy="], "--set-file policy="),
        (["--set", "policy=a: [b"], "a FleetPolicy document"),
        (["--set-json", r#"policy={"kind":"Pod"}"#], "a FleetPolicy document"),
        (["--set-json", r#"policy={"kind":"FleetPolicy"}"#], "with a name"),
        (["--set", "redis.url="], "redis.existingSecret"),
        (["--set", "redis.existingSecret=queue"], "redis.url and redis.existingSecret"),
        (["--set", "redis.url=redis://user:hunter2@host"], "redis.existingSecret"),
        (["--set", "agent.webhook.headersKey=headers"], "agent.webhook.existingSecret"),
        (["--set", "agent.webhook.template=text"], "nobody is called"),
        (["--set", "agent.webhook.url=http://u:hunter2@host"], "agent.webhook.existingSecret"),
        (
            ["--set", "agent.webhook.url=http://host,agent.webhook.existingSecret=chat"],
            "agent.webhook.headersKey",
        ),
    ] {
        let refused = refusal(&helm, &values, &settings).await;
        assert!(refused.contains(expected), "{settings:?}: {refused}");
        assert!(!refused.contains("hunter2"), "a password is never repeated: {refused}");
    }
}

#[tokio::test]
async fn policy_given_as_a_map_says_the_same_as_its_text() {
    let helm = require!(Helm::find());
    for entry in fs::read_dir(root().join("policies")).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let below: String = text.lines().map(|line| format!("  {line}\n")).collect();
        let values = format!("redis:\n  url: redis://redis\npolicy:\n{below}");
        let values = temporary_file("chart-map", &name, &values);
        let show = ["template", "r", &chart(), "--show-only=templates/configmap.yaml"];
        let rendered = helm.run(&[&show[..], &["--values", &values]].concat()).await.unwrap();
        let (_, block) = rendered.split_once("policy.yaml: |2\n").unwrap();
        let document: String =
            block.lines().map(|line| format!("{}\n", line.get(4..).unwrap_or(""))).collect();
        let read = |text| FleetPolicy::parse(text, &name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read(&document), read(&text));
    }
}

#[tokio::test]
async fn chart_passes_the_linter_without_a_warning() {
    let helm = require!(Helm::find());
    let policy = format!("policy={}", shipped_policy().display());
    let redis = "redis.url=redis://redis:6379";
    let lint = ["lint", "--strict", &chart(), "--set-file", &policy, "--set", redis];
    let found = helm.run(&lint).await.unwrap();
    assert!(!found.contains("[WARNING]"), "{found}");
}

#[test]
fn readme_explains_every_value() {
    let schema = fs::read_to_string(format!("{}/values.schema.json", chart())).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let readme = fs::read_to_string(format!("{}/README.md", chart())).unwrap();
    let mut keys = keys_of(&schema, "");
    let group = &schema["definitions"]["workerGroup"];
    keys.extend(group["properties"].as_object().unwrap().keys().cloned());
    assert!(keys.len() > 60, "{keys:?}");
    for key in keys.iter().filter(|key| *key != "global") {
        let is_named = ["`", "."].iter().any(|end| readme.contains(&format!("`{key}{end}")));
        assert!(is_named, "the README does not name {key}");
    }
}

/// The dotted names of all values whose own parts the schema does not name at this place.
fn keys_of(schema: &Value, above: &str) -> Vec<String> {
    let Some(properties) = schema["properties"].as_object() else {
        return vec![above.to_owned()];
    };
    let dotted = |key: &str| if above.is_empty() { key.into() } else { format!("{above}.{key}") };
    properties.iter().flat_map(|(key, below)| keys_of(below, &dotted(key))).collect()
}

/// What Helm says of values that are right but for these settings.
pub(super) async fn refusal(helm: &Helm, values: &str, settings: &[&str]) -> String {
    let template = ["template", "r", &chart(), "--values", values];
    match helm.run(&[&template[..], settings].concat()).await {
        Err(Error::Command { stderr, .. }) => stderr,
        other => panic!("{settings:?} must be refused, got {other:?}"),
    }
}
