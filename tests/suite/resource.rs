//! The fleet policy as a custom resource, on a real API server: what it accepts and refuses, and
//! what the controller answers in the status.

#[path = "../../core/src/policy/tests/contradictions.rs"]
#[allow(dead_code, reason = "what is said about a mistake is the business of other tests")]
mod contradictions;
mod served;

use std::path::Path;
use std::process::Command;

use ebbtide_harness::{ControlPlane, EVENT_LIMIT, require, until};

use self::contradictions::{CONTRADICTIONS, POOLS, SECOND_POOLS, SHORTEST, SIZES};
use crate::programs::EBBTIDE;

const SHIPPED: [&str; 2] = ["grpo-async", "rlhf-sync"];

/// What `ebbtide crd` prints.
fn definition() -> String {
    let printed = Command::new(EBBTIDE).arg("crd").output().unwrap();
    assert!(printed.status.success());
    String::from_utf8(printed.stdout).unwrap()
}

fn file_of(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Brings the definition into the cluster; whoever comes second finds it there.
async fn define(cluster: &ControlPlane, folder: &Path) {
    let path = folder.join("crd.yaml");
    std::fs::write(&path, definition()).unwrap();
    let path = path.display().to_string();
    cluster.kubectl().run(&["apply", "--server-side", "-f", &path]).await.expect("applied");
    let crd = "crd/fleetpolicies.ebbtide.dev";
    let wait = ["wait", "--for=condition=Established", "--timeout=60s", crd];
    cluster.kubectl().run(&wait).await.expect("established");
    until("the kind to be served", EVENT_LIMIT, || async {
        cluster.kubectl().run(&["get", "fleetpolicies", "-A"]).await.ok()
    })
    .await
    .expect("served");
}

/// What the API server says to a document, without keeping it.
async fn ask(cluster: &ControlPlane, folder: &Path, document: &str) -> Result<String, String> {
    let path = folder.join("policy.yaml");
    std::fs::write(&path, document).unwrap();
    let path = path.display().to_string();
    let create = ["create", "--dry-run=server", "-o", "json", "-f", &path];
    cluster.kubectl().run(&create).await.map_err(|error| error.to_string())
}

#[test]
fn chart_brings_the_definition_that_the_program_prints() {
    let path = file_of("charts/ebbtide/crds/fleetpolicies.yaml");
    let brought = std::fs::read_to_string(&path).unwrap_or_default();
    let message = "write it again: ebbtide crd > charts/ebbtide/crds/fleetpolicies.yaml";
    assert!(brought == definition(), "{message}");
}

#[tokio::test]
async fn shipped_policies_are_accepted_and_defaults_filled_in() {
    let cluster = require!(ControlPlane::shared().await);
    let folder = tempfile::tempdir().unwrap();
    define(&cluster, folder.path()).await;
    for name in SHIPPED {
        let text = std::fs::read_to_string(file_of(&format!("policies/{name}.yaml"))).unwrap();
        ask(&cluster, folder.path(), &text).await.expect(name);
    }
    let all = "  deadline: { updates: 500, by: 2026-12-24T18:00:00+01:00 }\n  \
               drain: { extraTaint: 'example.com/leaving=soon:NoExecute', reserve: 1m30s }\n";
    let kept = ask(&cluster, folder.path(), &format!("{SHORTEST}{all}")).await.expect("valid");
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    let spec = &kept["spec"];
    assert_eq!(spec["queue"]["lease"], "15s");
    assert_eq!(spec["mode"], "observe");
    assert_eq!(spec["rollout"]["tick"], "5s");
    assert_eq!(spec["buffer"]["memoryAlarmPercent"], 80);
    assert!(spec["queue"].get("renewEvery").is_none(), "it follows the lease");
    // With its defaults written into it, it is the same policy.
    let policy = |text: &str| {
        let policy = ebbtide_core::policy::FleetPolicy::parse(text, "p").expect("valid");
        format!("{policy:?}")
    };
    let document = serde_json::json!({
        "apiVersion": kept["apiVersion"], "kind": kept["kind"],
        "metadata": { "name": "demo" }, "spec": spec,
    });
    assert_eq!(policy(&document.to_string()), policy(&format!("{SHORTEST}{all}")));
}

#[tokio::test]
async fn what_the_program_refuses_the_cluster_refuses() {
    let cluster = require!(ControlPlane::shared().await);
    let folder = tempfile::tempdir().unwrap();
    define(&cluster, folder.path()).await;
    let mut documents: Vec<String> =
        CONTRADICTIONS.iter().map(|(more, _)| format!("{SHORTEST}{POOLS}{more}\n")).collect();
    documents.extend(SIZES.iter().map(|(from, to, _)| {
        assert!(SHORTEST.contains(from));
        format!("{SHORTEST}{POOLS}").replace(from, to)
    }));
    let pools = SECOND_POOLS.iter().map(|(pool, _)| format!("{SHORTEST}    - {{ {pool} }}\n"));
    documents.extend(pools);
    let twice = ["b", "c"].map(|name| {
        format!(
            "    - {{ name: {name}, provider: asg, autoScalingGroup: g, market: spot, \
             maxNodes: 6, instanceType: p5.48xlarge }}\n"
        )
    });
    documents.push(format!("{SHORTEST}{}", twice.concat()));
    let priced = SHORTEST.replace("maxNodes: 6", "maxNodes: 6\n      dollarsPerNodeHour: 20");
    documents.push(format!("{priced}  budget: {{ dollarsPerHour: 19 }}\n"));
    // The price of a pool that nobody uses is of no account, and the buffer's nodes are.
    documents.push(format!("{priced}{POOLS}  budget: {{ dollarsPerHour: 19 }}\n"));
    let buffer = "  buffer: { pool: fixed }\n  budget: { dollarsPerHour: 259 }";
    documents.push(format!("{priced}{POOLS}{buffer}\n"));
    documents.push(SHORTEST.replace("name: demo", "name: de.mo"));
    for wrong in [
        "queue: { lease: 0s }",
        "queue: { lease: 11m }",
        "queue: { lease: 1.5s }",
        "queue: { lease: 5s2m }",
        "queue: { shards: 257 }",
        "queue: { colour: red }",
        "drain: { extraTaint: leaving }",
        "drain: { extraTaint: 'a..b/c:NoExecute' }",
        "drain: { lifecycleHook: 'two words' }",
        "deadline: { updates: 5, by: tomorrow }",
        "deadline: { updates: 5, by: 2026-02-30T00:00:00Z }",
        "deadline: { updates: 5, by: '2026-12-24 18:00Z' }",
        "buffer: { memoryAlarmPercent: 85 }",
        "mode: maybe",
    ] {
        documents.push(format!("{SHORTEST}  {wrong}\n"));
    }
    assert!(documents.len() > 40, "{}", documents.len());
    for document in documents {
        let parsed = ebbtide_core::policy::FleetPolicy::parse(&document, "p");
        assert!(parsed.is_err(), "the program refuses\n{document}");
        let answer = ask(&cluster, folder.path(), &document).await;
        let refusal = answer.expect_err(&document);
        let is_refusal = refusal.contains("is invalid") || refusal.contains("strict decoding");
        assert!(is_refusal, "{refusal}\n{document}");
        assert!(!refusal.contains("no such key"), "a rule that cannot be asked: {refusal}");
    }
    let enough = format!("{priced}  budget: {{ dollarsPerHour: 20 }}\n");
    ask(&cluster, folder.path(), &enough).await.expect("what is enough is accepted");
}
