//! `ebbtide demo` as a newcomer runs it: a fleet loses nodes and no work.

use std::process::{Command, Output, Stdio};

use ebbtide_harness::{Redis, require};
use serde_json::Value;

use crate::programs::EBBTIDE;

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
