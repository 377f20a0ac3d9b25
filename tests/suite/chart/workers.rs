//! What the chart makes of `workers.groups`, as text: sizes, flags, environment, refusals.

use std::fs;
use std::process::Command;

use ebbtide_harness::{Helm, require};
use serde_json::{Value, json};

use super::release::{chart, least_values, root, temporary_file};
use super::values::refusal;

/// A kind of groups, with these values beside the least that it needs.
pub(super) fn group(engine: &str, more: &Value) -> Value {
    let mut group = json!({
        "engine": engine,
        "image": "images/engine:1",
        "model": "/models/moe",
        "instanceType": "p5en.48xlarge",
        "nodes": 2,
    });
    for (key, value) in more.as_object().unwrap() {
        group[key] = value.clone();
    }
    group
}

/// The lines of the manifests for one kind of groups, without indentation, dashes and comments.
async fn render(helm: &Helm, group: &Value) -> Vec<String> {
    let values = json!({ "workers": { "groups": { "ep": group } } });
    render_with(helm, &values, "workers").await
}

async fn render_with(helm: &Helm, values: &Value, template: &str) -> Vec<String> {
    let mut all = least_values();
    for (key, value) in values.as_object().unwrap() {
        all[key] = value.clone();
    }
    let mut name = std::thread::current().name().unwrap_or("a").replace(':', "-");
    name.push_str(".json");
    let file = temporary_file("chart-workers", &name, &all.to_string());
    let show = format!("--show-only=templates/{template}.yaml");
    let arguments = ["template", "r", &chart(), "--values", &file, &show];
    let text = helm.run(&arguments).await.unwrap();
    let lines = text.lines().map(|line| line.trim().trim_start_matches("- "));
    lines.filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn count(lines: &[String], wanted: &str) -> usize {
    lines.iter().filter(|line| *line == wanted).count()
}

/// Whether leader and other pods have the line.
fn has(lines: &[String], wanted: &str) -> (bool, bool) {
    let begin = lines.iter().position(|line| line == "workerTemplate:").unwrap();
    let (leader, worker) = lines.split_at(begin);
    (count(leader, wanted) > 0, count(worker, wanted) > 0)
}

#[tokio::test]
async fn devices_follow_from_the_instance_type() {
    let helm = require!(Helm::find());
    // As section 4 of the fabric reference counts them.
    for (instance_type, gpus, efa) in [
        ("p4d.24xlarge", 8, 4),
        ("p4de.24xlarge", 8, 4),
        ("p5.4xlarge", 1, 1),
        ("p5.48xlarge", 8, 32),
        ("p5e.48xlarge", 8, 32),
        ("p5en.48xlarge", 8, 16),
        ("p6-b200.48xlarge", 8, 8),
        ("p6-b300.48xlarge", 8, 16),
        ("g6e.8xlarge", 1, 1),
        ("g6e.12xlarge", 4, 1),
        ("g6e.24xlarge", 4, 2),
        ("g6e.48xlarge", 8, 4),
    ] {
        let lines = render(&helm, &group("vllm", &json!({ "instanceType": instance_type }))).await;
        // Requests and limits of both kinds of pods.
        for (resource, amount) in [
            ("nvidia.com/gpu", format!("\"{gpus}\"")),
            ("vpc.amazonaws.com/efa", format!("\"{efa}\"")),
            ("hugepages-2Mi", "5120Mi".to_owned()),
        ] {
            let line = format!("{resource}: {amount}");
            assert_eq!(count(&lines, &line), 4, "{instance_type}: {line}");
        }
        let selector = format!("node.kubernetes.io/instance-type: {instance_type}");
        assert_eq!(has(&lines, &selector), (true, true));
    }
}

#[tokio::test]
async fn size_of_a_group_prevails_and_other_types_may_be_added() {
    let helm = require!(Helm::find());
    let half = json!({ "size": { "gpus": 4, "efa": 8, "hugepages": "0", "memory": "300Gi" } });
    let lines = render(&helm, &group("vllm", &half)).await;
    assert_eq!(count(&lines, "nvidia.com/gpu: \"4\""), 4);
    assert_eq!(count(&lines, "memory: \"300Gi\""), 2);
    assert!(!lines.iter().any(|line| line.contains("hugepages")), "{lines:#?}");
    assert_eq!(has(&lines, "--data-parallel-size-local=4"), (true, true));

    let size = json!({ "gpus": 2, "efa": 0, "cpu": 8, "memory": "64Gi", "sharedMemory": "16Gi" });
    let group = group("vllm", &json!({ "instanceType": "g7.large" }));
    let workers = json!({ "instanceTypes": { "g7.large": size }, "groups": { "ep": group } });
    let lines = render_with(&helm, &json!({ "workers": workers }), "workers").await;
    assert_eq!(count(&lines, "nvidia.com/gpu: \"2\""), 4);
    // Nothing that only EFA has.
    let (_, set) = lines.split_at(lines.iter().position(|line| line == "spec:").unwrap());
    for word in ["/efa", "hugepages", "NCCL_NET", "FI_PROVIDER"] {
        assert!(!set.iter().any(|line| line.contains(word)), "{word}: {set:#?}");
    }
    assert_eq!(has(&lines, "--all2all-backend=allgather_reducescatter"), (true, true));
}

#[tokio::test]
async fn vllm_spans_the_group_and_answers_as_the_agent_needs_it() {
    let helm = require!(Helm::find());
    let more = json!({
        "tensorParallel": 2, "args": ["--max-model-len=32768"], "leaderArgs": ["--seed=1"],
    });
    let lines = render(&helm, &group("vllm", &more)).await;
    for (flag, on_leader, on_others) in [
        ("--host=0.0.0.0", true, false),
        ("--port=8000", true, false),
        ("--enable-scale-out", true, false),
        ("--api-server-count=1", true, false),
        ("--headless", false, true),
        ("--tensor-parallel-size=2", true, true),
        ("--data-parallel-size=8", true, true),
        ("--data-parallel-size-local=4", true, true),
        ("--data-parallel-address=$(POD_IP)", true, false),
        ("--data-parallel-address=$(LWS_LEADER_ADDRESS)", false, true),
        ("--data-parallel-rpc-port=13345", true, true),
        ("--enable-expert-parallel", true, true),
        ("--all2all-backend=deepep_v2", true, true),
        ("--shutdown-timeout=10", true, true),
        ("--max-model-len=32768", true, true),
        ("--seed=1", true, false),
        ("name: VLLM_SERVER_DEV_MODE", true, true),
    ] {
        assert_eq!(has(&lines, flag), (on_leader, on_others), "{flag}");
    }
    // Only the leader knows whether the engine answers, and nothing restarts one that is paused.
    for (line, expected) in [
        ("startupProbe:", (true, false)),
        ("readinessProbe:", (true, false)),
        ("livenessProbe:", (false, false)),
        ("path: /health", (true, false)),
        ("hostPort: 8000", (true, false)),
    ] {
        assert_eq!(has(&lines, line), expected, "{line}");
    }
    let alone = render(&helm, &group("vllm", &json!({ "nodes": 1 }))).await;
    assert_eq!(has(&alone, "--data-parallel-size=8"), (true, true));
    assert!(!alone.iter().any(|line| line.starts_with("--data-parallel-address")));
}

/// As its container would start it, with an engine that only tells its arguments.
#[tokio::test]
async fn vllm_on_the_fourth_node_begins_at_the_rank_after_those_of_three() {
    let helm = require!(Helm::find());
    let lines = render(&helm, &group("vllm", &json!({ "nodes": 4 }))).await;
    let script = lines.iter().find(|line| line.starts_with("exec ")).expect("a shell multiplies");
    let started = ["-c", script, "sh", "echo", "serve", "/models/moe", "--headless"];
    let answer = Command::new("sh").args(started).env("LWS_WORKER_INDEX", "3").output().unwrap();
    let said = String::from_utf8(answer.stdout).unwrap();
    assert_eq!(said.trim(), "serve /models/moe --headless --data-parallel-start-rank=24");
}

#[tokio::test]
async fn sglang_spans_the_group_and_answers_as_the_agent_needs_it() {
    let helm = require!(Helm::find());
    let more = json!({ "tensorParallel": 8, "nodes": 4, "transportPath": "nvshmem_libfabric" });
    let lines = render(&helm, &group("sglang", &more)).await;
    for (flag, on_leader, on_others) in [
        ("--model-path=/models/moe", true, true),
        ("--port=8000", true, true),
        ("--enable-metrics", true, true),
        ("--incremental-streaming-output", true, true),
        ("--tp-size=32", true, true),
        ("--ep-size=32", true, true),
        ("--dp-size=4", true, true),
        ("--enable-dp-attention", true, true),
        ("--dist-init-addr=$(POD_IP):20000", true, false),
        ("--dist-init-addr=$(LWS_LEADER_ADDRESS):20000", false, true),
        ("--nnodes=$(LWS_GROUP_SIZE)", true, true),
        ("--node-rank=$(LWS_WORKER_INDEX)", true, true),
        ("--moe-a2a-backend=deepep", true, true),
        ("--deepep-mode=auto", true, true),
        ("path: /ready", true, false),
        ("ebbtide.dev/engine: sglang", true, true),
    ] {
        assert_eq!(has(&lines, flag), (on_leader, on_others), "{flag}");
    }
    assert!(!lines.iter().any(|line| line.contains("VLLM")), "{lines:#?}");
}

#[tokio::test]
async fn transport_path_decides_on_backend_and_environment() {
    let helm = require!(Helm::find());
    for (path, vllm, sglang, variables) in [
        ("gin_efa_gda", "deepep_v2", "deepep_v2", &["NCCL_GIN_TYPE=5"][..]),
        ("gin_efa_gda", "deepep_v2", "deepep_v2", &["NCCL_SYM_GIN_KERNELS_ENABLE=0"]),
        ("gin_proxy", "deepep_v2", "deepep_v2", &["NCCL_GIN_TYPE=2"]),
        (
            "nvshmem_libfabric",
            "deepep_low_latency",
            "deepep",
            &["NVSHMEM_REMOTE_TRANSPORT=libfabric", "NVSHMEM_LIBFABRIC_PROVIDER=efa"],
        ),
        ("uccl_proxy", "deepep_low_latency", "deepep", &[]),
        ("nccl_a2a", "allgather_reducescatter", "none", &[]),
    ] {
        for (engine, flag) in [
            ("vllm", format!("--all2all-backend={vllm}")),
            ("sglang", format!("--moe-a2a-backend={sglang}")),
        ] {
            let lines = render(&helm, &group(engine, &json!({ "transportPath": path }))).await;
            assert_eq!(has(&lines, &flag), (true, true), "{path}: {flag}");
            let always = ["NCCL_NET=Libfabric", "FI_PROVIDER=efa", "NVIDIA_GDRCOPY=enabled"];
            for variable in variables.iter().chain(&always) {
                let (name, value) = variable.split_once('=').unwrap();
                assert_eq!(value_of(&lines, name), [value, value], "{path}: {variable}");
            }
            let is_gin = path.starts_with("gin");
            assert_eq!(!value_of(&lines, "NCCL_GIN_TYPE").is_empty(), is_gin, "{path}");
        }
    }
}

#[tokio::test]
async fn variables_of_the_group_prevail_and_stand_once() {
    let helm = require!(Helm::find());
    let env = json!([
        { "name": "NCCL_DEBUG", "value": "WARN" },
        { "name": "HF_TOKEN", "valueFrom": { "secretKeyRef": { "name": "hf", "key": "t" } } },
    ]);
    let lines = render(&helm, &group("vllm", &json!({ "env": env }))).await;
    assert_eq!(value_of(&lines, "NCCL_DEBUG"), ["WARN", "WARN"]);
    assert_eq!(has(&lines, "name: HF_TOKEN"), (true, true));
}

/// The values of a variable, in the order of the pods.
fn value_of(lines: &[String], name: &str) -> Vec<String> {
    let names = lines.iter().zip(lines.iter().skip(1));
    let of_name = names.filter(|(line, _)| **line == format!("name: {name}"));
    let value = |line: &String| line.trim_start_matches("value: ").trim_matches('"').to_owned();
    of_name.map(|(_, next)| value(next)).collect()
}

#[tokio::test]
async fn agents_ask_the_engines_at_the_address_of_their_node() {
    let helm = require!(Helm::find());
    let groups = json!({ "ep": group("vllm", &json!({})) });
    let workers = json!({ "workers": { "port": 8111, "groups": groups } });
    let lines = render_with(&helm, &workers, "agent-daemonset").await;
    assert_eq!(count(&lines, "--engine=http://$(NODE_IP):8111"), 1);
    let lines = render_with(&helm, &json!({ "workers": {} }), "agent-daemonset").await;
    assert_eq!(count(&lines, "--engine=http://127.0.0.1:8000"), 1);
}

#[tokio::test]
async fn agents_that_find_their_engines_are_told_of_none_and_the_trainers_find_none() {
    let helm = require!(Helm::find());
    let agent = |finds: bool| {
        let trainer = json!({ "nodeSelector": { "part": "trainer" } });
        json!({ "agent": { "engines": [], "findEngines": finds, "trainer": trainer } })
    };
    for (finds, times) in [(true, 1), (false, 0)] {
        let lines = render_with(&helm, &agent(finds), "agent-daemonset").await;
        assert_eq!(count(&lines, "name: EBBTIDE_FIND_ENGINES"), times);
        assert_eq!(count(&lines, "--weights-grace=30s"), times);
        assert!(!lines.iter().any(|line| line.starts_with("--engine")), "{lines:?}");
    }
}

#[tokio::test]
async fn agents_of_scorers_and_environments_have_their_role_and_others_keep_off() {
    let helm = require!(Helm::find());
    let of = |part: &str| json!({ "nodeSelector": { "part": part } });
    let agent = json!({ "reward": of("scorer"), "environment": of("sandbox") });
    let lines = render_with(&helm, &json!({ "agent": agent }), "agent-daemonset").await;
    for role in ["rollout", "reward", "environment"] {
        assert_eq!(count(&lines, &format!("--role={role}")), 1, "{lines:?}");
    }
    assert_eq!(count(&lines, "--role=trainer"), 0);
    assert_eq!(count(&lines, "--engine=http://127.0.0.1:8000"), 1, "of the rollouts alone");
    assert_eq!(count(&lines, "--socket=/run/ebbtide/agent.sock"), 3, "scorers lease there");
    // Where the others may be: neither among scorers nor among environments.
    assert_eq!(count(&lines, "part: scorer") + count(&lines, "part: sandbox"), 2);
    assert_eq!(count(&lines, "scorer") + count(&lines, "sandbox"), 2, "{lines:?}");
}

#[tokio::test]
async fn group_that_cannot_work_is_refused_with_what_to_do() {
    let helm = require!(Helm::find());
    let mut values = least_values();
    values["workers"] = json!({ "groups": { "ep": group("vllm", &json!({})) } });
    let values = temporary_file("chart-workers", "refused.json", &values.to_string());
    for (settings, expected) in [
        ("instanceType=p9.48xlarge", &["size of p9.48xlarge", "workers.instanceTypes"][..]),
        ("tensorParallel=3", &["workers.groups.ep.tensorParallel", "GPUs of a node, 8"]),
        ("instanceType=p5.48xlarge,T=gin_efa_gda", &["no EFA-GDA", "gin_proxy"]),
        ("instanceType=g6e.48xlarge,T=gin_proxy", &["no GIN", "nccl_a2a or uccl_proxy"]),
        ("size.efa=0,size.gin=none,T=uccl_proxy", &["no EFA", "take nccl_a2a"]),
        ("nodes=9,T=uccl_proxy", &["72 ranks", "at most 64"]),
        ("nodes=9,T=nvshmem_libfabric", &["72 ranks", "at most 64"]),
    ] {
        let settings: Vec<String> = settings
            .split(',')
            .map(|setting| format!("workers.groups.ep.{}", setting.replace("T=", "transportPath=")))
            .collect();
        let refused = refusal(&helm, &values, &["--set", &settings.join(",")]).await;
        for words in expected {
            assert!(refused.contains(words), "{settings:?}: {refused}");
        }
    }
    let long = format!("fullnameOverride={}", "a".repeat(40));
    let group = "workers.groups.another-one.engine=vllm,workers.groups.another-one.image=a";
    let group = format!("{group},workers.groups.another-one.model=m,{long}");
    let group = format!("{group},workers.groups.another-one.instanceType=p5en.48xlarge");
    for (setting, expected) in
        [("fullnameOverride=1st", "begin with a letter"), (&group, "at most 45")]
    {
        let refused = refusal(&helm, &values, &["--set", setting]).await;
        assert!(refused.contains(expected), "{setting}: {refused}");
    }
}

#[tokio::test]
async fn examples_in_the_guide_pass_the_linter() {
    let helm = require!(Helm::find());
    let guide = fs::read_to_string(root().join("docs/hosting.md")).unwrap();
    let blocks = guide.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let examples: Vec<&str> = blocks.filter(|block| block.contains("workers:")).collect();
    assert!(examples.len() >= 2, "one for each engine");
    let policy = format!("policy={}", root().join("policies/grpo-async.yaml").display());
    for (number, example) in examples.iter().enumerate() {
        let values = temporary_file("chart-workers", &format!("{number}.yaml"), example);
        let lint = ["lint", "--strict", &chart(), "--set-file", &policy, "--values", &values];
        let found = helm.run(&lint).await.unwrap();
        assert!(!found.contains("[WARNING]"), "{found}");
    }
}
