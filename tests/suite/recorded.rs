//! What a real controller recorded, read by an operator afterwards.

use std::process::Command;

use ebbtide_core::ledger::Ledger;
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{EVENT_LIMIT, Moto, Program, Redis, require, until};
use ebbtide_queue::control::{TrainerPhase, TrainerRecord};
use serde_json::Value;

use crate::aws::Group;
use crate::programs::{EBBTIDE, group, policy_file, publish_version, queue};

const RUN: &str = "run-recorded";

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-recorded}
spec:
  mode: act
  queue: {shards: 1}
  staleness: {maxLag: 2}
  trainer: {groupsPerStep: 4, groupSize: 1}
  rollout:
    minReplicas: 0
    maxReplicas: 4
    concurrencyPerReplica: 4
    pools: [spot-a]
    bufferTargetSteps: 1
    startupEstimate: 1s
    tick: 200ms
  pools:
    - name: spot-a
      provider: asg
      autoScalingGroup: rollout-recorded
      market: spot
      instanceType: p5en.48xlarge
      maxNodes: 5
";

fn ebbtide(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(EBBTIDE).args(arguments).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code(), text)
}

/// A controller that is ready.
async fn start(redis: &Redis, moto: &Moto, policy: &str, more: &[&str]) -> Program {
    let listen = format!("127.0.0.1:{}", Program::free_port().expect("a free port"));
    let mut controller = Program::options("ebbtide-controller", EBBTIDE)
        .arguments(["controller", "--no-kubernetes", "--policy", policy])
        .arguments(["--redis", &redis.url(), "--listen", &listen])
        .arguments(more.iter().copied())
        .variables(moto.variables())
        .start()
        .expect("the controller starts");
    controller.ready(&format!("http://{listen}/readyz"), EVENT_LIMIT).await.expect("ready");
    controller
}

#[tokio::test]
async fn recorded_run_is_replayed_and_its_last_decision_told() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let pool = Group::create(&moto, "rollout-recorded", 0, 5).await;
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let journal = folder.path().join("journal.jsonl").display().to_string();
    let queue = queue(&redis, RUN, 1).await;
    publish_version(&queue, 1).await;
    let (code, told) = ebbtide(&["policy", "explain", &policy, "--redis", &redis.url()]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("none is on record"), "{told}");
    let nobody = format!("redis://127.0.0.1:{}", Program::free_port().expect("a free port"));
    let (code, told) = ebbtide(&["policy", "explain", &policy, "--redis", &nobody]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("pools spot-a") && told.contains("out of reach"), "{told}");

    let mut controller = start(&redis, &moto, &policy, &["--journal", &journal]).await;
    for number in 0..12 {
        queue.enqueue(group(number, 1, 10)).await.expect("enqueued");
    }
    let trainer = TrainerRecord {
        phase: TrainerPhase::Wait,
        step: 1,
        groups_per_step: 4,
        nodes: None,
        incarnation: None,
        heartbeat: UnixMillis(0),
    };
    queue.put_trainer(trainer).await.expect("reported");
    until("the group to be raised", EVENT_LIMIT, || async {
        (pool.desired().await >= 3).then_some(())
    })
    .await
    .expect("raised");
    let told = until("that to be told", EVENT_LIMIT, || async {
        let explain = ["policy", "explain", &policy, "--redis", &redis.url(), "--output", "json"];
        let (code, told) = ebbtide(&explain);
        assert_eq!(code, Some(0), "{told}");
        let told: Value = serde_json::from_str(&told).unwrap();
        (told["decision"]["desired"].as_u64() >= Some(3)).then_some(told)
    })
    .await
    .expect("told");
    let decision = &told["decision"];
    assert!(decision["ageSeconds"].as_f64().unwrap() < 30.0, "{decision}");
    assert!(!decision["reasons"].as_array().unwrap().is_empty(), "{decision}");
    let (_, words) = ebbtide(&["policy", "explain", &policy, "--redis", &redis.url()]);
    assert!(words.contains("last decision, ") && words.contains("  because: "), "{words}");

    until("some ticks to be on record", EVENT_LIMIT, || async {
        let lines = std::fs::read_to_string(&journal).map_or(0, |text| text.lines().count());
        (lines > 5).then_some(())
    })
    .await
    .expect("recorded");
    controller.terminate(EVENT_LIMIT).await.expect("it ends");
    let replay = |policy: &str, more: &[&str]| {
        let arguments = ["policy", "replay", "--policy", policy, "--output", "json"];
        let (code, told) = ebbtide(&[&arguments[..], more].concat());
        let told: Value = serde_json::from_str(&told).expect(&told);
        (code, told)
    };
    let (code, same) = replay(&policy, &[&journal]);
    assert_eq!(code, Some(0), "{same:#}");
    assert_eq!(same["differing"], 0);
    assert_eq!(same["compared"], same["ticks"], "it begins with the start: {same}");
    assert!(same["ticks"].as_u64().unwrap() > 3, "{same}");
    let (code, of_stream) = replay(&policy, &["--redis", &redis.url()]);
    assert_eq!(code, Some(0), "{of_stream:#}");
    assert!(of_stream["ticks"].as_u64().unwrap() > 3, "{of_stream}");

    let small = policy_file(folder.path(), &POLICY.replace("maxReplicas: 4", "maxReplicas: 2"));
    let (code, other) = replay(&small, &[&journal]);
    assert_eq!(code, Some(1), "{other:#}");
    let first = &other["differences"][0];
    assert!(first["recorded"]["desired"].as_u64() > first["now"]["desired"].as_u64(), "{first}");
}

#[tokio::test]
async fn savings_ledger_goes_on_after_a_restart() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let _pool = Group::create(&moto, "rollout-recorded", 2, 5).await;
    let folder = tempfile::tempdir().unwrap();
    let priced = POLICY
        .replace("mode: act", "mode: observe")
        .replace("market: spot", "market: spot\n      dollarsPerNodeHour: 3600");
    let policy = policy_file(folder.path(), &priced);
    let queue = queue(&redis, RUN, 1).await;
    publish_version(&queue, 1).await;
    let ledger_with = async |what: &str, is_wanted: &dyn Fn(&Ledger) -> bool| {
        until(what, EVENT_LIMIT, || async {
            queue.view().await.ok()?.ledger.filter(|ledger| is_wanted(ledger))
        })
        .await
        .expect(what)
    };
    let trainer = |step| TrainerRecord {
        phase: TrainerPhase::Train,
        step,
        groups_per_step: 4,
        nodes: None,
        incarnation: None,
        heartbeat: UnixMillis(0),
    };
    queue.put_trainer(trainer(1)).await.expect("reported");
    let mut controller = start(&redis, &moto, &policy, &[]).await;
    let first = ledger_with("a ledger", &|_| true).await;
    controller.kill();
    let _again = start(&redis, &moto, &policy, &[]).await;
    // Two nodes at a dollar a second; the time between the two processes is counted as well.
    let next = ledger_with("it to go on", &|ledger| ledger.counted_to > first.counted_to).await;
    assert_eq!(next.began_at, first.began_at);
    let seconds = next.counted_to.since(next.began_at).as_secs_f64();
    assert!((next.spot_dollars - 2.0 * seconds).abs() < 1e-3, "{next:?}");
    assert!(next.spot_dollars > first.spot_dollars, "{first:?} {next:?}");
    let (code, told) = ebbtide(&["policy", "explain", &policy, "--redis", &redis.url()]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("estimated $") && told.contains("the trainer left out"), "{told}");
    let run = ["--run", RUN, "--redis", &redis.url()];
    let (_, shown) = ebbtide(&[&["queue", "status"], &run[..]].concat());
    assert!(shown.contains("  cost      estimated $"), "{shown}");
}
