//! `ebbtide bench queue` in its smallest sizes: every figure is there, and nothing stays in Redis.

use std::process::Command;

use ebbtide_harness::{Program, Redis, RedisCluster, require, until};
use serde_json::Value;

use crate::programs::{EBBTIDE, EVENT_LIMIT};

/// Of `benches/queue/run`, in a run that is not quick or tiny: the depths differ.
const KEYS: [&str; 14] = [
    "batchedCyclesPerSecond",
    "unbatchedCyclesPerSecond",
    "batchedFloorCyclesPerSecond",
    "unbatchedFloorCyclesPerSecond",
    "batchedFloorWithSpecCyclesPerSecond",
    "unbatchedFloorWithSpecCyclesPerSecond",
    "partialCyclesPerSecond",
    "handBack512Ms",
    "handBack512AllInTailMs",
    "handBack125x64Ms",
    "leaseTtlMs",
    "recoveryAfterKillMs",
    "bytesPerWaitingUnit",
    "bytesPerPartialToken",
];

/// Of the operator.
const FURTHER_KEYS: [&str; 10] = [
    "depthSlowdown2000Over1e3",
    "batchedCyclesPerSecondGroupsOf1",
    "unbatchedCyclesPerSecondGroupsOf8",
    "latencyCallsPerSecond",
    "leaseP50Ms",
    "appendP99Ms",
    "completeP999Ms",
    "handBackP99Ms",
    "serversNeeded",
    "shardsNeeded",
];

/// Exit code, stdout, stderr.
fn bench(url: &str, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(EBBTIDE)
        .args(["bench", "queue", "--tiny", "--redis", url])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

async fn key_count(redis: &Redis) -> String {
    redis.talk(&["DBSIZE"]).await.unwrap().remove(0)
}

#[tokio::test]
async fn every_figure_is_measured_and_nothing_stays() {
    let redis = require!(Redis::start().await);
    let (code, figures, progress) = bench(&redis.url(), &["--output", "json"]);
    assert_eq!(code, 0, "{progress}");
    assert!(progress.contains("in runs named bench-"), "{progress}");
    assert!(!progress.contains("warning"), "{progress}");
    let line = figures.lines().last().unwrap();
    let figures: Value = serde_json::from_str(line).unwrap();
    for key in KEYS.into_iter().chain(FURTHER_KEYS) {
        assert!(figures[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} in {line}");
    }
    assert_eq!(figures["batchedCyclesPerSecond"], figures["batchedCyclesPerSecondGroupsOf8"]);
    let (ttl, took) = (&figures["leaseTtlMs"], &figures["recoveryAfterKillMs"]);
    assert!(took.as_f64() > ttl.as_f64().map(|ttl| ttl * 0.9), "a lease is waited for: {line}");
    assert_eq!(key_count(&redis).await, "0");
}

#[tokio::test]
async fn part_alone_has_only_its_own_figures_and_others_are_told_of() {
    let redis = require!(Redis::start().await);
    redis.talk(&["SET", "somebody", "else"]).await.unwrap();
    let arguments = ["--only", "throughput", "--shards", "3", "--output", "json"];
    let (code, figures, progress) = bench(&redis.url(), &arguments);
    assert_eq!(code, 0, "{progress}");
    assert!(progress.contains("warning: it holds 1 key of others"), "{progress}");
    let figures: Value = serde_json::from_str(figures.trim()).unwrap();
    assert!(figures["partialCyclesPerSecond"].as_f64().is_some_and(|figure| figure > 0.0));
    for key in ["handBack512Ms", "leaseP50Ms", "bytesPerWaitingUnit", "shardsNeeded"] {
        assert!(figures.get(key).is_none(), "{key}");
    }
    assert_eq!(key_count(&redis).await, "1", "what others have stays");
}

#[tokio::test]
async fn table_is_readable() {
    let redis = require!(Redis::start().await);
    let arguments = ["--only", "recovery,shards", "--units-in-flight", "64000"];
    let (code, text, progress) = bench(&redis.url(), &arguments);
    assert_eq!(code, 0, "{progress}");
    for part in ["units of a killed node leased again, ms", "128,000 appends", "Cluster"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[tokio::test]
async fn stopped_benchmark_leaves_nothing() {
    let redis = require!(Redis::start().await);
    let mut program = Program::options("ebbtide-bench", EBBTIDE)
        .arguments(["bench", "queue", "--quick", "--redis", &redis.url()])
        .start()
        .unwrap();
    program.logged("round 1 of", EVENT_LIMIT).await.unwrap();
    // Until units of a run stand there, so that there is something to leave.
    until("keys of the benchmark", EVENT_LIMIT, || async {
        (key_count(&redis).await != "0").then_some(())
    })
    .await
    .unwrap();
    let status = program.terminate(EVENT_LIMIT).await.unwrap();
    assert_eq!(status.code(), Some(1), "{}", program.log());
    assert!(program.log().contains("everything of the benchmark is removed"), "{}", program.log());
    assert_eq!(key_count(&redis).await, "0");
}

#[tokio::test]
async fn cluster_is_measured_as_far_as_it_can_be_asked() {
    let cluster = require!(RedisCluster::start(0, Redis::options()).await);
    let arguments = ["--only", "throughput,hand-back,memory", "--shards", "4", "--output", "json"];
    let (code, figures, progress) = bench(&cluster.url(), &arguments);
    assert_eq!(code, 0, "{progress}");
    assert!(progress.contains("cannot be asked"), "{progress}");
    let figures: Value = serde_json::from_str(figures.trim()).unwrap();
    for key in ["batchedCyclesPerSecond", "handBack512Ms", "handBack125x64Ms"] {
        assert!(figures[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} in {figures}");
    }
    for key in ["batchedFloorCyclesPerSecond", "bytesPerWaitingUnit"] {
        assert!(figures[key].is_null() && figures.get(key).is_some(), "{key} is unknown");
    }
}

#[tokio::test]
async fn redis_out_of_reach_is_told_before_anything_is_done() {
    let (code, figures, problem) = bench("redis://127.0.0.1:1", &[]);
    assert_eq!((code, figures.as_str()), (2, ""));
    assert!(problem.contains("redis 127.0.0.1:1 is not reachable"), "{problem}");
    assert_eq!(bench("redis://127.0.0.1:1", &["--shards", "0"]).0, 2);
}
