//! The Helm chart, installed by the real Helm into a real control plane; `kwok` plays the
//! containers.
//!
//! | file | what it holds |
//! |---|---|
//! | here | what a release does in a cluster |
//! | `containers` | the real program, run as its containers would be |
//! | `kubelet` | how it is run so |
//! | `flags` | what of the program's command line the chart sets |
//! | `rights` | what its accounts may do |
//! | `values` | which values are taken and which refused; no cluster needed |
//! | `workers` | what EP groups are rendered to; no cluster needed |
//! | `groups` | EP groups that the real LeaderWorkerSet controller makes of it |
//! | `release` | the fixture |

mod containers;
mod flags;
mod groups;
mod kubelet;
mod release;
mod rights;
mod values;
mod workers;

use std::collections::BTreeSet;
use std::fs;

use ebbtide_harness::{ControlPlane, EVENT_LIMIT, require, until};
use serde_json::{Value, json};

use self::release::{AGENT, CONTROLLER, NODES_OF, Release, TRAINER_AGENT, chart, shipped_policy};

const WAIT: [&str; 2] = ["--wait", "--timeout=300s"];

// Case 43.
#[tokio::test]
async fn agent_runs_on_every_node_whatever_its_taints_and_two_controllers_get_ready() {
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-nodes").await);
    let nodes = release.add_nodes(5).await;
    for (node, taints) in [
        (&nodes[1], &["one=x:NoSchedule"][..]),
        (&nodes[2], &["two:NoExecute"]),
        (&nodes[3], &["three=y:PreferNoSchedule", "nvidia.com/gpu=present:NoSchedule"]),
    ] {
        release.kubectl(&[&["taint", "node", node][..], taints].concat()).await;
    }
    release.kubectl(&["cordon", &nodes[4]]).await;

    release.install(&WAIT).await;

    let agents = release.pods(AGENT).await;
    let hosts: BTreeSet<String> = agents.iter().map(host).collect();
    assert_eq!(hosts, nodes.iter().cloned().collect());
    assert_eq!(agents.len(), nodes.len(), "a node never has two agents");
    assert!(agents.iter().all(|pod| pod["spec"]["hostNetwork"] == true));
    for pod in agents.iter().chain(&release.pods(CONTROLLER).await) {
        let label = &pod["metadata"]["labels"]["ebbtide.dev/component"];
        assert!(label.is_string(), "agents know Ebbtide's own pods by it: {pod}");
    }
    let deployment = release.get("deployment", CONTROLLER).await;
    assert_eq!(deployment["status"]["readyReplicas"], 2);
    release.close().await;
}

#[tokio::test]
async fn one_of_two_controllers_always_stays() {
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-stays").await);
    release.add_nodes(2).await;
    release.install(&WAIT).await;

    let hosts: BTreeSet<String> = release.pods(CONTROLLER).await.iter().map(host).collect();
    assert_eq!(hosts.len(), 2, "the loss of one node takes one controller");
    until("the budget to allow one disruption", EVENT_LIMIT, || async {
        let budget = release.get("poddisruptionbudget", CONTROLLER).await;
        let status = &budget["status"];
        (status["expectedPods"] == 2 && status["disruptionsAllowed"] == 1).then_some(())
    })
    .await
    .unwrap();
    let deployment = release.get("deployment", CONTROLLER).await;
    assert_eq!(deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
    release.close().await;
}

#[tokio::test]
async fn pods_pass_the_restricted_level_once_they_leave_network_and_folder_of_the_node() {
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-restricted").await);
    release.add_nodes(1).await;
    let level = "pod-security.kubernetes.io/enforce=restricted";
    release.kubectl(&["label", "namespace", release.name(), level]).await;

    let apart = "agent.hostNetwork=false,agent.socket.enabled=false";
    release.install(&["--set", apart, WAIT[0], WAIT[1]]).await;

    assert_eq!(release.pods(AGENT).await.len(), 1);
    assert_eq!(release.pods(CONTROLLER).await.len(), 2);
    // The level is really enforced.
    let pod = ["run", "probe", "--image=played", "--privileged", "--dry-run=server"];
    let refused = release.admin().run(&[&pod[..], &release.in_space()].concat()).await.unwrap_err();
    assert!(refused.to_string().contains("PodSecurity"), "{refused}");
    release.close().await;
}

#[tokio::test]
async fn socket_for_custom_workers_lies_in_a_folder_of_the_node() {
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-workers").await);
    release.add_nodes(1).await;
    release.install(&WAIT).await;

    let agent = &release.pods(AGENT).await[0]["spec"];
    let container = &agent["containers"][0];
    let has = |list: &Value, wanted: Value| list.as_array().unwrap().contains(&wanted);
    assert!(has(&container["command"], json!("--socket=/run/ebbtide/agent.sock")), "{container}");
    let mount = json!({ "name": "socket", "mountPath": "/run/ebbtide" });
    assert!(has(&container["volumeMounts"], mount), "{container}");
    let folder = json!({ "path": "/run/ebbtide", "type": "DirectoryOrCreate" });
    assert!(has(&agent["volumes"], json!({ "name": "socket", "hostPath": folder })), "{agent}");
    // The owner of that folder, but with none of root's powers; workers share the group.
    assert_eq!(agent["securityContext"]["runAsUser"], 0);
    assert_eq!(agent["securityContext"]["runAsGroup"], 65532);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    let controller = &release.pods(CONTROLLER).await[0]["spec"];
    assert_eq!(controller["securityContext"]["runAsNonRoot"], true);

    release.upgrade(&["--set", "agent.socket.enabled=false"]).await;
    let template = &release.get("daemonset", AGENT).await["spec"]["template"]["spec"];
    assert_eq!(template["securityContext"]["runAsNonRoot"], true);
    let text = template.to_string();
    assert!(!text.contains("--socket") && !text.contains("/run/ebbtide"), "{text}");
    release.close().await;
}

#[tokio::test]
async fn nodes_of_the_trainer_have_agents_of_their_own_and_no_node_has_two() {
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-trainers").await);
    let nodes = release.add_nodes(4).await;
    // All labels count: that of a trainer in another place is none of ours.
    release.kubectl(&["label", "node", &nodes[2], "part=trainer", "run=other"]).await;
    release.kubectl(&["label", "node", &nodes[3], "part=trainer", "run=ours"]).await;
    release.kubectl(&["taint", "node", &nodes[3], "trainer=only:NoExecute"]).await;
    let selector = json!({ NODES_OF: release.name(), "part": "trainer", "run": "ours" });
    let values = json!({ AGENT: { "trainer": { "nodeSelector": selector } } });
    let values = release.file("trainers.json", &values.to_string());

    release.install(&[&["--values", &values], &WAIT[..]].concat()).await;

    let hosts = |pods: &[Value]| pods.iter().map(host).collect::<Vec<_>>();
    let mut workers = hosts(&release.pods(AGENT).await);
    workers.sort();
    assert_eq!(workers, nodes[..3]);
    let trainers = release.pods(TRAINER_AGENT).await;
    assert_eq!(hosts(&trainers), nodes[3..]);
    let pod = &trainers[0]["spec"];
    let command = pod["containers"][0]["command"].to_string();
    assert!(command.contains("--role=trainer"), "{command}");
    assert!(!command.contains("--engine") && !command.contains("--socket"), "{command}");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "no socket, no user 0");
    assert!(trainers[0]["metadata"]["labels"]["ebbtide.dev/component"].is_string());
    release.close().await;
}

#[tokio::test]
async fn policy_reaches_the_pods_word_for_word_and_only_its_change_replaces_them() {
    let cluster = require!(ControlPlane::shared().await);
    let release = require!(Release::new(cluster, "chart-policy").await);
    release.install(&[]).await;
    let text = fs::read_to_string(shipped_policy()).unwrap();
    let config_map = release.get("configmap", "policy").await;
    assert_eq!(config_map["data"]["policy.yaml"], text);
    let before = generations(&release).await;

    release.upgrade(&[]).await;
    assert_eq!(generations(&release).await, before, "a settled release needs no change");

    let file = release.file("commented.yaml", &format!("# A new comment.\n{text}"));
    release.upgrade(&["--set-file", &format!("policy={file}")]).await;
    assert_eq!(generations(&release).await, before, "a comment alone replaces no pod");

    let package = ["package", &chart(), "--version", "9.9.9", "--destination", release.folder()];
    release.helm(&package).await;
    release.upgrade_to(&format!("{}/ebbtide-9.9.9.tgz", release.folder()), &[]).await;
    assert_eq!(generations(&release).await, before, "a new chart alone replaces no pod");

    let changed = text.replace("maxReplicas: 12", "maxReplicas: 13");
    assert_ne!(changed, text);
    let file = release.file("changed.yaml", &changed);
    release.upgrade(&["--set-file", &format!("policy={file}")]).await;
    let after = generations(&release).await;
    for (part, (before, after)) in ["agents", "controllers"].iter().zip(before.iter().zip(&after)) {
        assert_eq!(after.0, before.0 + 1, "one change of the {part}");
        assert_ne!(after.1, before.1, "the {part} have the checksum of the new policy");
    }
    release.close().await;
}

#[tokio::test]
async fn uninstall_leaves_nothing_behind_and_other_releases_alone() {
    let cluster = require!(ControlPlane::shared().await);
    let mut release = require!(Release::new(cluster, "chart-leaves").await);
    release.add_nodes(2).await;
    // Of the same name, in another namespace.
    let neighbour = require!(release.neighbour().await);
    neighbour.install(&[]).await;
    let before = release.inventory().await.unwrap();

    release.install(&WAIT).await;
    let installed = release.inventory().await.unwrap();
    let objects: BTreeSet<&String> = installed.difference(&before).collect();
    assert!(objects.len() > 20, "{objects:#?}");
    assert!(objects.iter().any(|object| object.starts_with("ClusterRole ")), "{objects:#?}");
    release.helm(&["uninstall", release.release_name(), "--namespace", release.name()]).await;

    let gone = until("everything of the release to go", EVENT_LIMIT, || async {
        release.inventory().await.filter(|found| *found == before)
    })
    .await;
    if let Err(error) = gone {
        let found = release.inventory().await.unwrap();
        panic!("{error}: {:#?}", found.symmetric_difference(&before));
    }
    neighbour.close().await;
    release.close().await;
}

#[tokio::test]
async fn server_accepts_every_object_strictly() {
    let cluster = require!(ControlPlane::shared().await);
    let release = require!(Release::new(cluster, "chart-strict").await);
    let all = release.file("all-values.json", &all_values().to_string());
    for options in [&[][..], &["--values", &all]] {
        let rendered = release.render(options).await;
        let file = release.file("rendered.yaml", &rendered);
        let apply = ["apply", "--dry-run=server", "--validate=strict", "--filename", &file];
        let answer = release.admin().run(&apply).await.unwrap();
        assert!(answer.contains("daemonset.apps/"), "{answer}");
    }
    release.close().await;
}

/// Every branch of the templates that the defaults do not take.
fn all_values() -> Value {
    json!({
        "nameOverride": "tide",
        "redis": { "url": "", "existingSecret": "queue", "key": "redis-url" },
        "image": { "repository": "images/ebbtide", "tag": "v1", "pullSecrets": ["pull"] },
        "aws": { "region": "us-east-2" },
        "metrics": { "scrapeAnnotations": false },
        "listenAddress": "[::]",
        "agent": {
            "engines": ["http://$(NODE_IP):8000", "http://$(NODE_IP):8001"],
            "weights": { "cache": "/weights/{sha256}", "grace": "1m" },
            "hostNetwork": false,
            "socket": { "enabled": true, "folder": "/run/rl/grpo" },
            "webhook": {
                "url": "https://chat.example.com/hook",
                "existingSecret": "chat",
                "headersKey": "headers",
                "template": "{\"node\": \"{{ node }}\"}",
            },
            "trainer": {
                "nodeSelector": { "part": "trainer" },
                "tolerations": [{ "key": "trainer", "operator": "Exists" }],
                "resources": { "limits": { "memory": "128Mi" } },
            },
            "podLabels": { "team": "rl" },
            "podAnnotations": { "note": "1" },
            "updateStrategy": { "maxUnavailable": 3 },
            "env": [{ "name": "HTTPS_PROXY", "value": "http://proxy:3128" }],
        },
        "controller": {
            "replicas": 1,
            "eventsQueue": "https://sqs.us-east-2.amazonaws.com/123456789012/grpo-events",
            "policyResource": true,
            "nodeSelector": { "market": "on-demand" },
            "tolerations": [{ "key": "system", "operator": "Exists" }],
            "affinity": { "podAntiAffinity": {} },
            "serviceAccount": { "annotations": { "eks.amazonaws.com/role-arn": "arn" } },
            "env": [{
                "name": "TOKEN",
                "valueFrom": { "secretKeyRef": { "name": "token", "key": "token" } },
            }],
        },
    })
}

fn host(pod: &Value) -> String {
    pod["spec"]["nodeName"].as_str().unwrap().to_owned()
}

/// For agents and controllers: how often what runs was changed, and the checksum of its policy.
async fn generations(release: &Release) -> [(i64, String); 2] {
    let agents = release.get("daemonset", AGENT).await;
    let controllers = release.get("deployment", CONTROLLER).await;
    [agents, controllers].map(|object| {
        let annotations = &object["spec"]["template"]["metadata"]["annotations"];
        let checksum = annotations["ebbtide.dev/policy-checksum"].as_str().unwrap();
        (object["metadata"]["generation"].as_i64().unwrap(), checksum.to_owned())
    })
}
