//! `ebbtide policy` as an operator runs it.

use std::process::Command;

use crate::programs::{EBBTIDE, policy_file};

const FIVE_MISTAKES: &str = "\
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata:
  name: five-mistakes
spec:
  mode: acts
  queue:
    lease: 0s
  staleness:
    maxLagg: 2
  trainer:
    groupsPerStep: 8
    groupSize: 4
    market: spot
  rollout:
    minReplicas: 9
    maxReplicas: 4
    pools: [spot-a]
  pools:
    - {name: spot-a, provider: local, market: spot, maxNodes: 4}
";

fn check(path: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output =
        Command::new(EBBTIDE).args(["policy", "check", path]).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn five_mistakes_are_five_messages_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = policy_file(folder.path(), FIVE_MISTAKES);
    let (code, text) = check(&path, &[]);
    assert_eq!(code, Some(2), "{text}");
    for place in ["6:9", "8:12", "10:5", "14:13", "16:18"] {
        assert!(text.contains(&format!("policy.yaml:{place}")), "{place} in\n{text}");
    }
    assert_eq!(text.matches("policy.yaml:").count(), 5, "{text}");
    let (code, json) = check(&path, &["--output", "json"]);
    assert_eq!(code, Some(2));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["errors"].as_array().unwrap().len(), 5);
}

#[test]
fn shipped_policies_are_valid() {
    for name in ["grpo-async", "rlhf-sync"] {
        let path = format!("{}/policies/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let (code, text) = check(&path, &[]);
        assert_eq!(code, Some(0), "{text}");
    }
}

#[test]
fn what_this_version_does_not_do_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = format!("{}/policies/grpo-async.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(shipped).unwrap();
    let edits = [
        ("nodesPerReplica: 1", "nodesPerReplica: 2"),
        ("autoScalingGroup: grpo-trainer", "workers: {template: trainer}"),
    ];
    let pairs = edits.iter().fold(text.clone(), |text, (from, to)| text.replacen(from, to, 1));
    let asg = "- name: trainer\n      provider: asg\n";
    let pairs = pairs.replace(asg, &asg.replace("asg", "workers"));
    assert_ne!(pairs, text);
    let path = policy_file(folder.path(), &pairs);
    let (code, text) = check(&path, &[]);
    assert_eq!(code, Some(0), "{text}");
    for note in
        ["nodesPerReplica is 2", "pool trainer of spec.trainer must have provider asg or scale"]
    {
        assert!(text.contains(note), "{note} in\n{text}");
    }
}

#[test]
fn absent_file_is_named() {
    let (code, text) = check("/nowhere/policy.yaml", &[]);
    assert_eq!(code, Some(2));
    assert!(text.contains("/nowhere/policy.yaml"), "{text}");
}
