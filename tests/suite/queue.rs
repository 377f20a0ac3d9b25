//! `ebbtide queue` as an operator uses it, against a real Redis.

mod damage;
mod damages;
mod world;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::OnDeadSlot;
use ebbtide_harness::{Redis, require};
use ebbtide_queue::command::{DrainBehind, HandBack, HandBackCause, Then};
use ebbtide_queue::control::{TrainerPhase, TrainerRecord, VersionRecord};
use serde_json::json;

use world::{Run, WHOLE, complete, group, tokens};

async fn report_trainer(run: &Run, groups_per_step: u32) {
    let record = TrainerRecord {
        phase: TrainerPhase::Wait,
        step: 7,
        groups_per_step,
        nodes: None,
        incarnation: None,
        heartbeat: ebbtide_core::time::UnixMillis(0),
    };
    run.queue.put_trainer(record).await.unwrap();
}

async fn set_version(run: &Run, version: u64) {
    let record = VersionRecord { version: PolicyVersion(version), ..VersionRecord::default() };
    run.queue.set_version(record).await.unwrap();
}

/// Fails a group by one fault of its unit 0; the others of it stay fresh.
async fn fail(run: &Run, name: &str, fault: &str) {
    let mut poisoned = group(name);
    poisoned.max_attempts = 1;
    run.queue.enqueue(poisoned).await.unwrap();
    let grants = run.lease("a", 1).await;
    run.write("a", &grants[0], vec![tokens(0, 3)], Then::Fault(fault.to_owned())).await;
}

#[tokio::test]
async fn status_tells_what_stands_and_what_is_unknown() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "status", 1).await;
    run.fill().await;
    let (code, status) = run.json(&["status"]);
    assert_eq!(code, 0, "{status:#}");
    assert_eq!(status["stages"]["generate"], json!({ "ready": 5, "inFlight": 2 }));
    assert_eq!(status["inFlightByNode"], json!({ "a": 1, "b": 1 }));
    let buffer = json!({ "groupsWaiting": 1, "groupsTaken": 1, "stepsOfSupply": null });
    assert_eq!(status["buffer"], buffer, "without a trainer's word the supply is unknown");
    assert_eq!(status["trainer"], json!(null));
    let units = json!({ "enqueued": 15, "completed": 8, "inSystem": 7, "dead": 0, "expired": 0,
        "cancelled": 0 });
    assert_eq!(status["units"], units);
    let tokens = &status["tokens"];
    assert_eq!(tokens["generated"], 110);
    assert_eq!((&tokens["accepted"], &tokens["inSystem"]), (&json!(72), &json!(38)));
    let (_, text) = run.command(&["status"]);
    assert!(text.contains("steps of supply unknown"), "{text}");

    report_trainer(&run, 4).await;
    set_version(&run, 2).await;
    let (_, status) = run.json(&["status"]);
    assert_eq!(status["buffer"]["stepsOfSupply"], 0.5);
    assert_eq!(status["trainer"]["step"], 7);
    let lag = json!({ "inQueue": { "2": 1 }, "inFlight": { "2": 1 },
        "completeNotSealed": { "2": 2 }, "sealed": { "2": 6 } });
    assert_eq!(status["lag"], lag, "fresh units have none");
    let (_, brief) = run.json(&["status", "--no-lag"]);
    assert!(brief["lag"].is_null(), "what was not read is unknown");
    let (_, text) = run.command(&["status"]);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[tokio::test]
async fn shard_that_does_not_answer_is_named_and_the_others_are_told() {
    let redis = require!(Redis::start().await);
    let mut run = Run::begin(&redis, "broken", 2).await;
    for number in 0..8 {
        run.enqueue(&format!("g{number}")).await;
    }
    let on_shard_1 = run.queue.shard_status(1).await.unwrap().ready;
    let set = redis::cmd("SET").arg(run.key("out")).arg("x").clone();
    set.query_async::<()>(&mut run.raw).await.unwrap();
    let (code, status) = run.json(&["status"]);
    assert_eq!((code, &status["ok"]), (1, &json!(false)));
    assert_eq!(status["shards"]["missing"][0]["shard"], 0);
    assert_eq!(status["stages"]["generate"]["ready"], on_shard_1);
    let (code, text) = run.command(&["status"]);
    assert_eq!(code, 1);
    assert!(text.contains("shard 0 does not answer: ") && text.contains("1 of 2 shards"), "{text}");
    let (code, _) = run.command(&["check"]);
    assert_eq!(code, 1);
}

#[tokio::test]
async fn run_that_is_not_there_is_no_empty_run() {
    let redis = require!(Redis::start().await);
    let mut run = Run::begin(&redis, "present", 1).await;
    run.name = "absent".to_owned();
    for arguments in [&["status"][..], &["check"], &["dead", "list"], &["trace", "g"]] {
        let (code, text) = run.command(arguments);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("run absent"), "{text}");
    }
    run.url = "redis://127.0.0.1:1".to_owned();
    assert_eq!(run.command(&["status"]).0, 2);
}

#[tokio::test]
async fn peek_lists_the_next_units_in_their_order() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "peek", 1).await;
    run.fill().await;
    let mut urgent = group("urgent");
    urgent.priority = -5;
    run.queue.enqueue(urgent).await.unwrap();
    let (code, peeked) = run.json(&["peek", "--limit", "5"]);
    assert_eq!(code, 0);
    let units = peeked["units"].as_array().unwrap();
    let names: Vec<&str> = units.iter().map(|unit| unit["unit"].as_str().unwrap()).collect();
    assert_eq!(names, ["mixed.0001", "urgent.0000", "urgent.0001", "urgent.0002", "mixed.0002"]);
    assert_eq!((&units[0]["tokens"], &units[0]["handBacks"]), (&json!(7), &json!(1)));
    assert_eq!(units[0]["lastHolder"], "b/boot-1/agent-b");
    assert_eq!((&units[1]["priority"], &units[4]["priority"]), (&json!(-5), &json!(0)));
    let (_, text) = run.command(&["peek", "--stage", "reward"]);
    assert_eq!(text, "nothing is ready\n");
}

#[tokio::test]
async fn requeued_unit_is_taken_from_its_holder_with_its_tokens() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "requeue", 1).await;
    run.fill().await;
    let (code, text) = run.command(&["requeue", "mixed.0000", "fresh.0000", "nobody.0000"]);
    assert_eq!(code, 1, "one of them is unknown");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("taken from its holder"), "{text}");
    assert!(lines[1].contains("nobody holds it"), "{text}");
    assert!(lines[2].contains("no such unit"), "{text}");
    let again = run.lease("z", 1).await;
    assert_eq!(again[0].unit.to_string(), "mixed.0000");
    assert_eq!(again[0].partial.last().unwrap().end(), 7);
    let (_, text) = run.command(&["trace", "mixed.0000"]);
    assert!(text.contains("handed back by b (operator), 7 tokens kept"), "{text}");
    assert_eq!(run.command(&["requeue", "not-a-unit"]).0, 2);
}

#[tokio::test]
async fn dead_groups_are_listed_retried_and_dropped() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "dead", 2).await;
    assert_eq!(run.command(&["dead", "list"]), (0, "no failure record stands\n".to_owned()));
    for name in ["g1", "g2", "g3"] {
        fail(&run, name, "engine died: out of memory").await;
    }
    run.queue.fail_group(&"g4".parse().unwrap(), "unknown").await.unwrap();
    run.enqueue("g5").await;
    run.queue.fail_group(&"g5".parse().unwrap(), "no longer wanted").await.unwrap();

    let (code, list) = run.json(&["dead", "list"]);
    let failures = list["failures"].as_array().unwrap();
    assert_eq!((code, failures.len()), (0, 4));
    let first = failures.iter().find(|failure| failure["group"] == "g1").unwrap();
    assert_eq!((&first["reason"], &first["culprit"]), (&json!("dead"), &json!("g1.0000")));
    assert_eq!((&first["dead"], &first["cancelled"]), (&json!(1), &json!(2)));
    let (_, text) = run.command(&["dead", "list", "--verbose"]);
    for part in ["g1 failed", "g1.0000: engine died: out of memory (a)", "fault while a had it"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }

    assert_eq!(run.command(&["dead", "retry"]).0, 2, "what is to be retried?");
    let (code, text) = run.command(&["dead", "retry", "g1", "absent"]);
    assert_eq!(code, 1);
    assert!(text.contains("g1      enqueued again"), "{text}");
    assert!(text.contains("absent  has no such failure record"), "{text}");
    let (code, text) = run.command(&["dead", "retry", "--all", "--reason", "no longer wanted"]);
    assert_eq!((code, text.as_str()), (0, "g5  enqueued again\n1 of 1 record enqueued again\n"));
    assert_eq!(run.status().await.ready, 6, "g1 and g5 wait again");

    let (code, text) = run.command(&["dead", "drop", "--all"]);
    assert_eq!(code, 2);
    assert!(text.contains("nothing was done") && text.contains("2 records"), "{text}");
    assert_eq!(run.command(&["dead", "drop", "g2"]).0, 0);
    let (code, text) = run.command(&["dead", "drop", "--all", "--yes"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(run.status().await.failure_records, 0);
    assert_eq!(run.command(&["check"]).0, 0);
}

#[tokio::test]
async fn unit_that_died_in_a_group_that_goes_on_is_listed_and_not_retried() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "shrink", 1).await;
    let mut shrinking = group("g");
    shrinking.on_dead_slot = OnDeadSlot::Shrink { min_samples: 1 };
    shrinking.max_attempts = 1;
    run.queue.enqueue(shrinking).await.unwrap();
    let grants = run.lease("a", 1).await;
    run.write("a", &grants[0], vec![], Then::Fault("poison".to_owned())).await;
    let (_, text) = run.command(&["dead", "list"]);
    assert!(text.contains("g goes on without a unit that died"), "{text}");
    assert_eq!(run.command(&["dead", "retry", "--all"]).1, "no such failure record\n");
    assert_eq!(run.command(&["dead", "drop", "g"]).0, 0);
}

#[tokio::test]
async fn trace_tells_a_life_in_its_order() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "trace", 1).await;
    run.enqueue("g").await;
    let grant = run.lease("a", 1).await.remove(0);
    run.write("a", &grant, vec![tokens(0, 4)], Then::Continue).await;
    let deadline = UnixMillis(1_795_975_320_000);
    let drain = Some(DrainBehind { reason: "spot_terminate", deadline });
    let back = Then::HandBack(HandBack { cause: HandBackCause::Notice, drain });
    run.write("a", &grant, vec![tokens(4, 6)], back).await;
    let grant = run.lease("b", 1).await.remove(0);
    run.write("b", &grant, vec![tokens(6, 7)], Then::Fault("engine died".to_owned())).await;
    let grant = run.lease("c", 1).await.remove(0);
    run.write("c", &grant, vec![tokens(7, WHOLE)], complete()).await;

    let (code, trace) = run.json(&["trace", "g.0000"]);
    assert_eq!(code, 0);
    let life = trace["units"][0]["life"].as_array().unwrap();
    let whats: Vec<&str> = life.iter().map(|step| step["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["segment", "handed_back", "segment", "fault", "segment"]);
    let ends: Vec<u64> = life.iter().filter_map(|step| step["endToken"].as_u64()).collect();
    assert_eq!(ends, [6, 7, u64::from(WHOLE)], "chunks of one lease are one segment");
    assert_eq!(
        (&life[1]["detail"], &life[1]["drainReason"]),
        (&"notice".into(), &"spot_terminate".into())
    );
    assert_eq!(life[1]["drainDeadlineMs"], 1_795_975_320_000_u64);
    assert_eq!(life[3]["drainReason"], serde_json::Value::Null, "a fault is no preemption");
    let (_, text) = run.command(&["trace", "g.0000"]);
    let order = [
        "enqueued",
        "tokens 0-5 by a",
        "handed back by a (notice: spot terminate, 0.0 s left), 6 tokens kept",
        "tokens 6-6 by b",
        "fault while b had it: engine died; 7 tokens kept",
        "tokens 7-11 by c",
        "complete, its group is not sealed yet",
    ];
    let places: Vec<usize> = order
        .iter()
        .map(|part| text.find(part).unwrap_or_else(|| panic!("{part} in\n{text}")))
        .collect();
    assert!(places.is_sorted(), "{text}");

    let (_, whole) = run.json(&["trace", "g"]);
    assert_eq!(whole["units"].as_array().unwrap().len(), 3);
    let (code, text) = run.command(&["trace", "g.0009"]);
    assert_eq!(code, 1);
    assert!(text.contains("g has no such unit"), "{text}");
}

#[tokio::test]
async fn ended_groups_are_traced_to_their_end() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "ended", 1).await;
    run.enqueue("good").await;
    for grant in run.lease("a", 3).await {
        run.write("a", &grant, vec![tokens(0, 1)], complete()).await;
    }
    run.queue.take("t", 1).await.unwrap();
    run.queue.acknowledge("t", &["good".parse().unwrap()]).await.unwrap();
    fail(&run, "bad", "poison").await;
    let (code, text) = run.command(&["trace", "good"]);
    assert_eq!(code, 0);
    assert!(text.contains("good has ended (no failure record); it is remembered until"), "{text}");
    let (code, text) = run.command(&["trace", "bad.0000"]);
    assert_eq!(code, 0);
    assert!(text.contains("it has failed") && text.contains("bad.0000: poison (a)"), "{text}");
    let (code, text) = run.command(&["trace", "never"]);
    assert_eq!(code, 1);
    assert!(text.contains("never is not known here"), "{text}");
}

#[tokio::test]
async fn cancelled_run_keeps_what_is_sealed_and_its_prompts() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "cancel", 1).await;
    run.fill().await;
    let (code, text) = run.command(&["cancel", "--reason", "wrong data"]);
    assert_eq!(code, 2);
    assert!(text.contains("nothing was done") && text.contains("7 units"), "{text}");
    assert_eq!(run.status().await.in_system(), 7);
    let (code, answer) = run.json(&["cancel", "--reason", "wrong data", "--yes"]);
    assert_eq!((code, &answer["groupsFailed"]), (0, &json!(3)));
    assert_eq!(run.status().await.in_system(), 0);
    let (_, list) = run.json(&["dead", "list"]);
    assert!(list["failures"].as_array().unwrap().iter().all(|f| f["reason"] == "wrong data"));
    assert_eq!(run.finish().await.len(), 2, "the sealed ones are still the trainer's");
    assert_eq!(run.command(&["dead", "retry", "--all"]).0, 0);
    assert_eq!(run.finish().await.len(), 3, "and the others can be enqueued again");
    assert_eq!(run.command(&["check"]).0, 0);
}
