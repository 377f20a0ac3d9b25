//! What the commands write, refuse and tell.

use std::time::{Duration, Instant};

use ebbtide_harness::{Program, Redis, require};
use ebbtide_queue::control::{DrainReason, DrainState};
use serde_json::json;

use super::world::Run;
use crate::programs::{EBBTIDE, EVENT_LIMIT, view_becomes};

#[tokio::test]
async fn unknown_node_is_answered_with_those_that_are_known() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "unknown").await;
    for command in [&["drain", "n9"][..], &["drain", "n9", "--cancel"], &["drill", "n9"]] {
        let said = run.command(command).await;
        assert_eq!(said.code, 2, "{command:?}");
        assert!(
            said.err.contains("no node n9 has reported to this run, and no other"),
            "{}",
            said.err
        );
    }
    run.put_node("node-1.internal", "node-1.internal").await;
    run.put_node("node-2.internal", "node-2.internal").await;
    let said = run.command(&["drain", "node-2"]).await;
    assert_eq!(said.code, 2);
    assert!(said.err.contains("did you mean node-2.internal? 2 nodes are known"), "{}", said.err);
    let said = run.command(&["drain", "--report", "elsewhere"]).await;
    assert_eq!(said.code, 2, "a node without reports is known, or a slip");
    assert!(said.err.contains("known: node-1.internal, node-2.internal"), "{}", said.err);
    assert!(run.queue.view().await.unwrap().drains.is_empty(), "nothing was written");
}

#[tokio::test]
async fn drain_is_asked_for_listed_and_taken_back() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "asked").await;
    for node in ["a1", "a2"] {
        run.put_node(node, "ep-0").await;
    }
    let (code, asked) = run.json(&["drain", "a2", "--deadline", "5m"]).await;
    assert_eq!((code, &asked["ok"], &asked["isNew"]), (0, &json!(true), &json!(true)));
    let drain = &asked["drain"];
    let request_id = drain["requestId"].as_str().unwrap();
    assert!(request_id.starts_with("operator-a2-"), "{request_id}");
    assert_eq!((&drain["replica"], &drain["lost"]), (&json!("ep-0"), &json!(["a2"])));
    assert_eq!((&drain["reason"], &drain["state"]), (&json!("operator"), &json!("requested")));
    assert_eq!(drain["unitsHeld"], 6, "of both nodes");
    let left = drain["secondsLeft"].as_f64().unwrap();
    assert!(left > 290.0 && left <= 300.0, "{left}");

    let said = run.command(&["drain", "a1"]).await;
    assert_eq!(said.code, 0);
    assert!(said.out.contains("ep-0 drains already (operator, requested)"), "{}", said.out);
    let (code, list) = run.json(&["drain", "--list"]).await;
    let drains = list["drains"].as_array().unwrap();
    assert_eq!((code, drains.len()), (0, 1));
    assert_eq!(drains[0]["requestId"], request_id, "one drain, asked for twice");
    assert_eq!(drains[0]["lost"], json!(["a1", "a2"]));
    assert!(drains[0]["secondsLeft"].as_f64().unwrap() <= left, "a deadline only comes closer");
    let said = run.command(&["drain", "--list"]).await;
    assert!(said.out.starts_with("REPLICA  GOES "), "{}", said.out);

    let (code, taken_back) = run.json(&["drain", "a1", "--cancel"]).await;
    assert_eq!((code, &taken_back["cancelled"]), (0, &json!(true)));
    assert_eq!(run.queue.view().await.unwrap().drains[0].state, DrainState::Cancelled);
    assert_eq!(run.command(&["drain", "--list"]).await.out, "no drain stands\n");
    let said = run.command(&["drain", "a1", "--cancel"]).await;
    assert_eq!((said.code, said.out.as_str()), (0, "no drain of a1 stands: nothing was done\n"));
}

#[tokio::test]
async fn drain_that_no_operator_began_is_not_taken_back() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "refused").await;
    let reasons = [
        (DrainReason::Notice, "AWS takes"),
        (DrainReason::Lifecycle, "its Auto Scaling group takes the instance out"),
        (DrainReason::ScaleIn, "ebbtide hold rollout"),
        (DrainReason::Foreign, "another handler empties"),
    ];
    for (number, (reason, why)) in reasons.into_iter().enumerate() {
        let node = format!("n{number}");
        run.put_node(&node, &node).await;
        let before = run.request(&node, reason).await;
        let said = run.command(&["drain", &node, "--cancel"]).await;
        assert_eq!(said.code, 1, "{reason:?}");
        assert!(said.out.contains("nothing was done") && said.out.contains(why), "{}", said.out);
        let (code, said) = run.json(&["drill", &node]).await;
        assert_eq!((code, &said["ok"]), (1, &json!(false)), "a node that drains rehearses nothing");
        let drains = run.queue.view().await.unwrap().drains;
        assert!(drains.contains(&before), "{drains:?}");
    }
}

/// Else the drain would end with the rehearsal.
#[tokio::test]
async fn drain_takes_the_place_of_a_rehearsal() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "overtaken").await;
    run.put_node("n1", "n1").await;
    let drill = run.json(&["drill", "n1", "--notice", "2s", "--reserve", "100ms"]);
    let drain = async {
        view_becomes(&run.queue, "the rehearsal", |view| !view.drains.is_empty()).await.unwrap();
        run.json(&["drain", "n1"]).await
    };
    let ((drill_code, drill), (drain_code, drain)) = tokio::join!(drill, drain);
    assert_eq!((drain_code, &drain["isNew"]), (0, &json!(true)));
    assert_eq!(drill_code, 1);
    let verdict = drill["verdict"].as_str().unwrap();
    assert!(verdict.contains("n1 drains in earnest (operator)"), "{verdict}");
    let stands = run.queue.view().await.unwrap().drains.remove(0);
    assert_eq!((stands.reason, stands.state), (DrainReason::Operator, DrainState::Requested));
}

#[tokio::test]
async fn silent_agent_is_said_and_rehearses_nothing() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "silent").await;
    run.put_node("n1", "n1").await;
    redis.talk(&["HSET", "{silent:c}:node:n1", "heartbeat", "1000"]).await.unwrap();
    let said = run.command(&["drill", "n1"]).await;
    assert_eq!(said.code, 1);
    assert!(said.out.contains("the agent of n1 was last heard"), "{}", said.out);
    let said = run.command(&["drain", "n1"]).await;
    assert_eq!(said.code, 0, "it is drained when its agent is back");
    assert!(said.out.contains("nobody drains it until that is back"), "{}", said.out);
}

/// Case 20 of rollouts.
#[tokio::test]
async fn what_nobody_answers_ends_after_its_deadline() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "unanswered").await;
    for node in ["n1", "n2"] {
        run.put_node(node, node).await;
    }
    let drain = run.json(&["drain", "n1", "--deadline", "1s", "--wait"]);
    let drill = run.json(&["drill", "n2", "--notice", "1s", "--reserve", "100ms"]);
    let ((drain_code, drain), (drill_code, drill)) = tokio::join!(drain, drill);
    assert_eq!((drain_code, &drain["end"]), (1, &json!("overdue")));
    assert_eq!(drain["held"], 3, "what is still held is told: {drain}");
    assert_eq!((drill_code, &drill["ok"], &drill["report"]), (1, &json!(false), &json!(null)));
    let view = run.queue.view().await.unwrap();
    let state = |node: &str| view.drains.iter().find(|d| d.replica.as_str() == node).unwrap().state;
    assert_eq!(state("n1"), DrainState::Requested, "it was asked for, and stands");
    assert_eq!(state("n2"), DrainState::Cancelled, "a rehearsal keeps nobody from work");
}

#[tokio::test]
async fn hold_lasts_until_it_is_released_or_its_time_is_over() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "hold").await;
    assert_eq!(run.command(&["hold", "--list"]).await.out, "nothing is on hold\n");
    let reason = "moving to new subnets";
    let arguments = ["hold", "rollout", "--for", "2h", "--reason", reason, "--who", "ann@desk"];
    let said = run.command(&arguments).await;
    assert_eq!(said.code, 0);
    let expected = "rollout is on hold for 2 h, by ann@desk: moving to new subnets\n";
    assert_eq!(said.out, expected);
    let view = run.queue.view().await.unwrap();
    assert_eq!((view.holds.len(), view.holds[0].role.as_str()), (1, "rollout"));
    assert_eq!((view.holds[0].reason.as_str(), view.holds[0].who.as_str()), (reason, "ann@desk"));
    let (_, status) = run.json(&["queue", "status"]).await;
    assert_eq!(status["holds"][0]["role"], "rollout");
    assert!(run.command(&["queue", "status"]).await.out.contains("by ann@desk: moving"));

    let (code, held) = run.json(&["hold", "--for", "1s", "--reason", "a moment"]).await;
    assert_eq!((code, &held["hold"]["role"]), (0, &json!("all")));
    assert_ne!(held["hold"]["who"], "", "whoever it is");
    view_becomes(&run.queue, "the short hold to end", |view| view.holds.len() == 1)
        .await
        .expect("ends");
    let (code, released) = run.json(&["hold", "--release"]).await;
    assert_eq!((code, &released["released"]), (0, &json!(false)), "its time was over");
    assert_eq!(released["holds"][0]["role"], "rollout", "what still lasts is told");
    assert_eq!(run.json(&["hold", "rollout", "--release"]).await.1["released"], true);
    assert!(run.queue.view().await.unwrap().holds.is_empty());
}

#[tokio::test]
async fn wrong_usage_is_refused_before_anything_is_asked() {
    let redis = require!(Redis::start().await);
    let run = Run::begin(&redis, "usage").await;
    run.put_node("n1", "n1").await;
    let wrong: [&[&str]; 11] = [
        &["drain"],
        &["drain", "n1", "--list"],
        &["drain", "n1", "--cancel", "--wait"],
        &["drain", "n1", "--deadline", "10"],
        &["drain", "--report", "--limit", "0"],
        &["drain", "n1", "--limit", "5"],
        &["drill"],
        &["drill", "n1", "--notice", "5s"],
        &["hold", "rollout", "--for", "2h"],
        &["hold", "buffer", "--for", "2h", "--reason", "x"],
        &["hold", "rollout", "--list", "--release"],
    ];
    for arguments in wrong {
        let said = run.command(arguments).await;
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{arguments:?}");
    }
    assert!(run.queue.view().await.unwrap().drains.is_empty());
    for command in ["drain", "drill", "hold"] {
        let said = run.command(&[command, "--help"]).await;
        let (_, examples) = said.out.split_once("Examples:\n  ebbtide").expect("examples");
        assert!(examples.lines().all(|line| line.chars().count() <= 100), "{examples}");
    }
}

#[tokio::test]
async fn redis_that_is_away_is_told_within_seconds() {
    let mut redis = require!(Redis::start().await);
    let mut run = Run::begin(&redis, "away").await;
    run.put_node("n1", "n1").await;
    let waits = Program::options("ebbtide-drain", EBBTIDE).arguments([
        "drain",
        "n1",
        "--wait",
        "--redis",
        run.url.as_str(),
        "--run",
        run.name.as_str(),
    ]);
    let mut waits = waits.start().unwrap();
    waits.logged("n1: requested, 3 units held", EVENT_LIMIT).await.expect("follows");
    redis.pause().unwrap();
    let begun = Instant::now();
    for arguments in [&["drain", "--list"][..], &["drill", "n1"], &["hold", "--list"]] {
        let said = run.command(arguments).await;
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{arguments:?}");
        assert!(said.err.contains("check --redis (EBBTIDE_REDIS)"), "{}", said.err);
    }
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    redis.kill();
    run.url = "redis://127.0.0.1:1".to_owned();
    assert_eq!(run.command(&["drain", "--list"]).await.code, 2);
    let status = waits.ended(EVENT_LIMIT).await.expect("gives up");
    assert_eq!(status.code(), Some(2), "{}", waits.log());
    assert!(waits.log().contains("the drain goes on without this command"), "{}", waits.log());
}
