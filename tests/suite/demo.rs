//! `ebbtide demo` as a newcomer runs it: a fleet loses nodes and no work.

use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ebbtide_harness::{Error, Program, Redis, require, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{TrainerPhase, TrainerRecord};
use ebbtide_queue::redis::{Durability, RedisOptions, RedisPort};
use serde_json::Value;

use crate::programs::{EBBTIDE, EVENT_LIMIT, group, policy_file, publish_version};

/// Half a minute on a machine with nothing else to do.
const RESIZE_LIMIT: Duration = Duration::from_mins(4);

/// Demos at a time: each keeps a good part of a core busy in a debug build.
const DEMOS_AT_ONCE: usize = 4;

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(EBBTIDE);
    command.args(["demo", "--output", "json"]).args(arguments).stdin(Stdio::null());
    command
}

fn report(output: Output) -> Value {
    let text = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(report["ok"], output.status.success(), "{report:#}");
    report
}

fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("{key} in {report:#}"))
}

fn assert_good(report: &Value) {
    assert_eq!(report["ok"], true, "{report:#}");
    assert!(number(report, "notices") >= 1 && number(report, "kills") >= 1, "{report:#}");
    assert!(number(report, "unitsHandedBack") >= 1, "{report:#}");
    assert!(number(report, "tokensPreserved") >= 1, "{report:#}");
    assert_eq!((number(report, "unitsLost"), number(report, "duplicatesSealed")), (0, 0));
    let ended = ["samplesCompleted", "unitsDead", "unitsExpired", "unitsCancelled"];
    let found: u64 = ended.iter().map(|key| number(report, key)).sum();
    assert_eq!(number(report, "unitsEnqueued"), found + number(report, "unitsInSystem"));
    let parts = ["tokensAccepted", "tokensWasted", "tokensInSystem"];
    let tokens: u64 = parts.iter().map(|key| number(report, key)).sum();
    assert_eq!(number(report, "tokensGenerated"), tokens, "{report:#}");
    assert!(number(report, "verifiedUpdates") >= 1, "{report:#}");
    assert!(number(report, "scaleDecisions") >= 1, "{report:#}");
}

#[test]
fn nothing_is_lost_for_twenty_seeds() {
    let seeds: Vec<u32> = (1..=20).collect();
    for batch in seeds.chunks(DEMOS_AT_ONCE) {
        let running: Vec<_> = batch
            .iter()
            .map(|seed| {
                let seed = seed.to_string();
                let arguments = ["--for", "12s", "--nodes", "4", "--notices", "2", "--kills", "1"];
                demo(&arguments)
                    .args(["--notice-lead", "2s", "--seed", &seed])
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for child in running {
            assert_good(&report(child.wait_with_output().unwrap()));
        }
    }
}

#[tokio::test]
async fn nothing_is_lost_on_a_real_redis_and_nothing_is_left_there() {
    let redis = require!(Redis::start().await);
    let url = redis.url();
    let arguments = ["--for", "12s", "--nodes", "4", "--notices", "2", "--kills", "1"];
    let output = demo(&arguments).args(["--notice-lead", "2s", "--redis", &url]).output().unwrap();
    assert_good(&report(output));
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    assert_eq!(keys, Vec::<String>::new(), "the demo cleans up");
}

#[test]
fn wrong_flags_are_explained() {
    for arguments in [["--nodes", "0"], ["--for", "soon"], ["--policy", "/nowhere.yaml"]] {
        let output = demo(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// A trainer that holds the run back, which needs little of the rollouts, and one that waits for a
/// fleet of two nodes, on a real Redis.
#[tokio::test]
async fn trainer_is_resized_in_both_directions() {
    let redis = require!(Redis::start().await);
    let url = redis.url();
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../../src/demo/policy.yaml");
    let edits = [("groupSize: 4", "groupSize: 1"), ("TargetSteps: 2.0", "TargetSteps: 1.0")];
    let single = edits.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let single = policy_file(folder.path(), &single);
    let begin = |arguments: &[&str]| {
        let demo = Program::options("demo-trainer", EBBTIDE).arguments([
            "demo",
            "--output",
            "json",
            "--for",
            "5m",
            "--notices",
            "0",
            "--kills",
            "0",
        ]);
        demo.arguments(arguments).start().unwrap()
    };
    let grows = begin(&["--trainer-nodes", "1", "--policy", &single]);
    let shrinks = begin(&["--trainer-nodes", "2", "--nodes", "2", "--redis", &url]);
    for (mut demo, told, size) in
        [(grows, "the trainer runs on 2 nodes", 2), (shrinks, "the trainer runs on 1 node", 1)]
    {
        demo.logged(told, RESIZE_LIMIT).await.unwrap();
        demo.terminate(EVENT_LIMIT).await.unwrap();
        let log = demo.log();
        let (_, report) = log.split_once("\n{").unwrap_or_else(|| panic!("no report in {log}"));
        let report: Value = serde_json::from_str(&format!("{{{report}")).unwrap();
        assert_eq!(report["trainerSizes"][0], size, "{report:#}");
        assert_eq!((number(&report, "unitsLost"), number(&report, "duplicatesSealed")), (0, 0));
    }
}

/// The demo's policy with a reward stage.
fn scored_policy() -> String {
    let text = include_str!("../../src/demo/policy.yaml");
    let reward = "  reward: {maxReplicas: 2, pools: [scorers], itemsPerReplica: 64}\n  pools:\n    \
                  - {name: scorers, provider: local, market: onDemand, maxNodes: 2}\n";
    let text = text.replace("    shards: 2\n", "    shards: 2\n    stages: [generate, reward]\n");
    text.replace("  pools:\n    - name: spot-a", &format!("{reward}    - name: spot-a"))
}

#[test]
fn every_sample_is_scored_when_the_policy_has_a_reward_stage() {
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), &scored_policy());
    let arguments = ["--for", "14s", "--nodes", "4", "--notices", "2", "--kills", "1"];
    let output = demo(&arguments).args(["--notice-lead", "2s", "--policy", &policy]).output();
    let report = report(output.unwrap());
    assert_good(&report);
    assert!(number(&report, "samplesScored") >= 48, "{report:#}");
    assert_eq!(number(&report, "samplesGarbled"), 0, "{report:#}");
}

/// A trainer of another kind: it enqueues, keeps the engines' weights in step, takes and counts.
async fn train_outside(url: &str, run: &str, steps: u64) -> Result<u64, Error> {
    let options = RedisOptions {
        url: url.to_owned(),
        run: run.parse().unwrap(),
        layout: None,
        durability: Durability::Fast,
    };
    let port = until("the demo to begin the run", EVENT_LIMIT, || async {
        RedisPort::connect(options.clone()).await.ok()
    });
    let queue = WorkQueue::new(Arc::new(port.await?));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let (mut step, mut enqueued) = (0_u64, 0);
    let report = |phase, step| {
        let heartbeat = ebbtide_core::time::UnixMillis(0);
        queue.put_trainer(TrainerRecord {
            phase,
            step,
            groups_per_step: 4,
            nodes: None,
            incarnation: None,
            heartbeat,
        })
    };
    while step < steps {
        while enqueued < (step + 2) * 4 {
            enqueued += 1;
            let number = i32::try_from(enqueued).unwrap();
            queue.enqueue(group(number, 4, 200)).await.unwrap();
        }
        let taken = until("a batch of sealed groups", EVENT_LIMIT, || async {
            for engine in queue.view().await.ok()?.engines {
                let url = format!("{}/update_weight_version", engine.address);
                let label = serde_json::json!({ "new_version": step.to_string() });
                let _ = http.post(url).json(&label).send().await;
            }
            report(TrainerPhase::Wait, step).await.ok()?;
            let taken = queue.take("outside", 4).await.ok()?;
            (taken.len() == 4).then_some(taken)
        });
        let ids: Vec<_> = taken.await?.iter().map(|taken| taken.group.group_id.clone()).collect();
        queue.acknowledge("outside", &ids).await.unwrap();
        step += 1;
        publish_version(&queue, step).await;
    }
    report(TrainerPhase::Done, step).await.unwrap();
    Ok(enqueued * 4)
}

#[tokio::test(flavor = "multi_thread")]
async fn trainer_outside_drives_the_demo_and_the_run_stays() {
    let redis = require!(Redis::start().await);
    let url = redis.url();
    let arguments = ["--trainer", "external", "--run", "mine", "--redis", &url, "--for", "60s"];
    let child = demo(&arguments)
        .args(["--nodes", "4", "--notices", "3", "--kills", "2", "--notice-lead", "2s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let enqueued = train_outside(&url, "mine", 5).await.expect("five steps are made");
    let output = tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap();
    let report = report(output.unwrap());
    assert_eq!(report["ok"], true, "{report:#}");
    assert_eq!(number(&report, "unitsEnqueued"), enqueued);
    assert_eq!((number(&report, "trainerSteps"), number(&report, "policyVersion")), (5, 5));
    assert!(number(&report, "samplesCompleted") >= 80, "{report:#}");
    for unknown in ["unitsLost", "duplicatesSealed", "verifiedUpdates", "tokensReceivedNotStored"] {
        assert!(report[unknown].is_null(), "{unknown} cannot be known: {report:#}");
    }
    let status = Command::new(EBBTIDE)
        .args(["queue", "status", "--redis", &url, "--run", "mine", "--output", "json"])
        .output()
        .unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        (&status["units"]["enqueued"], &status["policyVersion"]),
        (&enqueued.into(), &5.into())
    );

    // What stands in Redis may be somebody's: the demo's own trainer does not touch it.
    let output = demo(&["--redis", &url, "--run", "mine"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("run mine exists on this redis"));
}

#[test]
fn trainer_outside_needs_a_redis() {
    let output = demo(&["--trainer", "external"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--trainer external needs --redis URL"), "{said}");
}
