//! Custom workers on a node that goes: they are told, send their tail, and nothing is lost.

use std::time::Duration;

use ebbtide_agent::AgentHandle;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::NodeState;
use serde_json::{Value, json};
use tokio::time::{Instant, interval};

use crate::api::{Api, SocketFolder, tokens, unit};
use crate::world::{Node, World, group, until};

fn handed_back(agent: &AgentHandle, cause: HandBackCause) -> u64 {
    agent.counts().units_handed_back.get(&cause).copied().unwrap_or(0)
}

/// Appends the first tokens to every unit.
async fn begin(api: &Api, worker: &str, grants: &[Value], count: u32) {
    let units = grants.iter().map(|grant| tokens(grant, 0, count)).collect();
    assert!(api.call("/v1/append", worker, units).await.iter().all(|word| word == "OK"));
}

/// A node whose worker `env` holds so many units and has made four tokens of each.
async fn begun(world: &World, folder: &SocketFolder, units: u16) -> (Node, Api, Vec<Value>) {
    world.enqueue([group("a", units, 1_000)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", usize::from(units)).await;
    begin(&api, "env", &grants, 4).await;
    (node, api, grants)
}

#[tokio::test(flavor = "multi_thread")]
async fn noticed_worker_sends_its_tail_and_another_goes_on_behind_it() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let (node, api, grants) = begun(&world, &folder, 2).await;
    let mut notices = api.listen("env").await;
    node.announce(60);
    let notice = notices.wait_for("notice").await;
    assert_eq!((&notice["kind"], &notice["reason"]), (&json!("spot_terminate"), &json!("notice")));
    let remaining = notice["remaining_ms"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&remaining), "{remaining}");
    let release = notices.wait_for("release").await;
    assert_eq!(release["units"].as_array().map(Vec::len), Some(2));
    assert!(release["remaining_ms"].as_u64().unwrap() <= 2_000, "{release}");
    let units = grants.iter().map(|grant| tokens(grant, 4, 9)).collect();
    assert_eq!(api.call("/v1/hand-back", "env", units).await, ["OK", "OK"]);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    assert_eq!(handed_back(&node.agent, HandBackCause::Notice), 2);
    let report = node.agent.report().drains.remove(0);
    assert_eq!((report.units_held, report.units_handed_back), (2, 2));

    let folder = SocketFolder::new();
    let _heir = world.node("n2").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    for grant in api.lease_all("env", 2).await {
        assert_eq!(grant["partial"]["token_ids"], json!([0, 1, 2, 3, 4, 5, 6, 7, 8]));
        let mut end = tokens(&grant, 9, 12);
        end["finish"] = json!({"reason": "stop"});
        assert_eq!(api.call("/v1/complete", "env", vec![end]).await, ["OK"]);
    }
    let samples = world.take_samples(2).await;
    for sample in &samples {
        assert_eq!((sample.hand_backs, sample.attempts, sample.infra_attempts), (1, 0, 0));
        let holders: Vec<_> = sample.chunks.iter().map(|c| c.origin.holder.node.as_str()).collect();
        assert_eq!(holders, ["n1", "n1", "n2"]);
    }
    assert_eq!(world.status().await.tokens.wasted_total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_that_does_not_answer_loses_its_unit_after_two_seconds_as_it_was_stored() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 1, 1_000)]).await;
    let lease =
        |config: &mut ebbtide_agent::AgentConfig| config.lease.ttl = Duration::from_secs(60);
    let node = world.node("n1").for_workers(&folder.socket()).with(lease).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 1).await;
    begin(&api, "env", &grants, 4).await;
    let mut notices = api.listen("env").await;
    node.announce(60);
    notices.wait_for("release").await;
    let told = Instant::now();
    // What it appends meanwhile is taken, and it is told how long it still may.
    let (_, answer) =
        api.post("/v1/append", json!({"worker": "env", "units": [tokens(&grants[0], 4, 6)]})).await;
    assert_eq!(answer["replies"][0]["reply"], "OK");
    assert!(answer["replies"][0]["release_in_ms"].as_u64().unwrap() <= 2_000);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let taken_after = told.elapsed();
    assert!(taken_after > Duration::from_millis(1_500), "{taken_after:?}");
    assert!(taken_after < Duration::from_secs(4), "{taken_after:?}");
    assert_eq!(handed_back(&node.agent, HandBackCause::Notice), 1);
    let late = api.call("/v1/hand-back", "env", vec![tokens(&grants[0], 6, 8)]).await;
    assert_eq!(late, ["FENCED"], "its last tokens are not stored");
    assert_eq!(api.call("/v1/append", "env", vec![tokens(&grants[0], 6, 8)]).await, ["FENCED"]);
    let units = world.queue.scan().await.unwrap();
    assert_eq!((units[0].tokens, units[0].hand_backs), (6, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn unit_that_finishes_in_time_is_kept_and_the_other_one_goes() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("short", 1, 400), group("long", 1, 100_000)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 2).await;
    let mut notices = api.listen("env").await;
    // A hundred tokens a second, a quarter of a second at a time.
    let mut pace = interval(Duration::from_millis(250));
    let mut made = 0;
    while made < 150 {
        pace.tick().await;
        let units = grants.iter().map(|grant| tokens(grant, made, made + 25)).collect();
        assert_eq!(api.call("/v1/append", "env", units).await, ["OK", "OK"]);
        made += 25;
    }
    node.announce(10);
    let release = notices.wait_for("release").await;
    assert_eq!(release["units"][0]["unit"], "long.0000");
    let keep = notices.wait_for("keep").await;
    assert_eq!(keep["units"][0]["unit"], "short.0000");
    assert!(keep["remaining_ms"].as_u64().unwrap() < 9_500, "up to deadline − reserve: {keep}");
    let (goes, stays): (Vec<_>, Vec<_>) =
        grants.iter().partition(|grant| grant["unit"] == "long.0000");
    assert_eq!(api.call("/v1/hand-back", "env", vec![unit(goes[0], json!({}))]).await, ["OK"]);
    while made < 375 {
        pace.tick().await;
        let words = api.call("/v1/append", "env", vec![tokens(stays[0], made, made + 25)]).await;
        assert_eq!(words, ["OK"], "at {made}");
        made += 25;
    }
    let mut end = tokens(stays[0], made, 400);
    end["finish"] = json!({"reason": "length"});
    assert_eq!(api.call("/v1/complete", "env", vec![end]).await, ["OK"]);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let report = node.agent.report().drains.remove(0);
    assert_eq!((report.units_completed, report.units_handed_back), (1, 1));
    assert_eq!(world.take_samples(1).await[0].len(), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_leased_once_the_gate_is_closed_and_who_waits_is_told() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    node.wait_until(|agent| agent.is_gate_open()).await;
    let ask = json!({"worker": "env", "limit": 1, "weights_version": 0, "wait_ms": 30_000});
    let asked = world.lease_calls();
    let waiting = tokio::spawn({
        let (api, ask) = (api.clone(), ask.clone());
        async move { api.post("/v1/lease", ask).await }
    });
    until(|| async { world.lease_calls() > asked }).await;
    node.announce(60);
    let (status, answer) = waiting.await.unwrap();
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("gate_closed")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("drain"), "{answer}");
    assert_eq!(answer["error"]["retry_after_ms"], 1_000);
    let calls = world.lease_calls();
    world.enqueue([group("a", 4, 8)]).await;
    for _ in 0..20 {
        assert_eq!(api.post("/v1/lease", ask.clone()).await.0, 503);
    }
    assert_eq!(world.lease_calls(), calls, "work was waiting all the time");
    assert_eq!(world.status().await.ready, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn storm_of_leases_gets_nothing_after_the_moment_of_handling() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue((0..200).map(|n| group(&format!("g{n}"), 1, 8))).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    node.wait_until(|agent| agent.is_gate_open()).await;
    let storm: Vec<_> = (0..8)
        .map(|n| {
            let (api, worker) = (api.clone(), format!("w{n}"));
            tokio::spawn(async move {
                loop {
                    let body = json!({"worker": worker, "limit": 1, "weights_version": 0});
                    let (status, mut answer) = api.post("/v1/lease", body).await;
                    let Some(grant) = answer["grants"].as_array_mut().and_then(Vec::pop) else {
                        return status;
                    };
                    // Done at once; one that is asked back meanwhile is fenced or taken.
                    let end = unit(&grant, json!({"finish": {"reason": "stop"}}));
                    api.call("/v1/complete", &worker, vec![end]).await;
                }
            })
        })
        .collect();
    node.wait_until(|agent| agent.counts().units_completed > 20).await;
    node.announce(60);
    node.wait_until(|agent| !agent.is_gate_open()).await;
    let calls = world.lease_calls();
    for task in storm {
        assert_eq!(task.await.unwrap(), 503);
    }
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    // At most the one call that had begun.
    assert!(world.lease_calls() <= calls + 1, "{} after {calls}", world.lease_calls());
    let status = world.status().await;
    assert_eq!((status.leased, status.lease_expiries), (0, 0));
    assert_eq!(status.ready + status.completed, 200, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_units_go_back_at_once_beside_workers_that_take_their_time() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let socket = folder.socket();
    let node = world.node("n1").with(|config| config.socket = Some(socket)).start();
    let api = folder.api().await;
    world.enqueue([group("engine", 8, 4_000)]).await;
    node.wait_until_busy(8).await;
    // The engine is full, so the worker gets the rest.
    world.enqueue([group("worker", 2, 1_000)]).await;
    let grants = api.lease_all("env", 2).await;
    begin(&api, "env", &grants, 4).await;
    assert_eq!(node.agent.held(), 10);
    node.announce(60);
    node.wait_until(|agent| !agent.is_gate_open()).await;
    let closed = Instant::now();
    node.wait_until(|agent| agent.held() == 2).await;
    let engines_took = closed.elapsed();
    assert!(engines_took < Duration::from_millis(1_000), "{engines_took:?}");
    assert_eq!(handed_back(&node.agent, HandBackCause::Notice), 8);
    assert_eq!(node.agent.state(), NodeState::Draining, "the worker has its two seconds");
    until(|| async { world.queue.view().await.unwrap().nodes[0].in_flight == 2 }).await;
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    assert_eq!(handed_back(&node.agent, HandBackCause::Notice), 10);
    let report = node.agent.report().drains.remove(0);
    assert_eq!((report.units_held, report.units_handed_back), (10, 10));
    assert_eq!(world.status().await.leased, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_connects_again_is_told_everything_that_stands() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let (node, api, _) = begun(&world, &folder, 1).await;
    let mut first = api.listen("env").await;
    let (name, state) = first.next().await.unwrap();
    assert_eq!((name.as_str(), &state["gate"]), ("state", &json!("open")));
    assert_eq!(
        (&state["units"][0]["state"], &state["units"][0]["tokens"]),
        (&json!("working"), &json!(4))
    );
    drop(first);
    node.announce(60);
    node.wait_until(|agent| !agent.is_gate_open()).await;
    let mut second = api.listen("env").await;
    let mut names = Vec::new();
    for _ in 0..3 {
        names.push(second.next().await.unwrap().0);
    }
    assert_eq!(names, ["state", "notice", "release"]);
    // Another worker hears of the node, and not of this unit.
    let mut other = api.listen("other").await;
    let (_, state) = other.next().await.unwrap();
    assert_eq!((&state["gate"], &state["units"]), (&json!("closed"), &json!([])));
    assert_eq!(other.next().await.unwrap().0, "notice");
    node.imds().withdraw_spot();
    second.wait_for("reopened").await;
    assert_eq!(other.next().await.unwrap().0, "reopened");
    let (_, state) = api.listen("env").await.next().await.unwrap();
    assert_eq!((&state["gate"], &state["notice"]), (&json!("open"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_tells_workers_and_takes_their_tails() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let (node, api, grants) = begun(&world, &folder, 2).await;
    let mut notices = api.listen("env").await;
    let agent = node.agent.clone();
    let ending = tokio::spawn(node.stop());
    let notice = notices.wait_for("notice").await;
    assert_eq!((&notice["reason"], &notice["kind"]), (&json!("shutdown"), &Value::Null));
    let release = notices.wait_for("release").await;
    assert_eq!(release["reason"], "agent_restart");
    let tail = tokens(&grants[0], 4, 7);
    assert_eq!(api.call("/v1/hand-back", "env", vec![tail]).await, ["OK"]);
    let (report, _place) = ending.await.unwrap();
    assert_eq!(report.counts.units_handed_back[&HandBackCause::AgentRestart], 2);
    assert_eq!(report.counts.tokens_waiting, 0);
    while let Some((name, _)) = notices.next().await {
        assert_ne!(name, "reopened");
    }
    assert_eq!(agent.held(), 0);
    let mut stored: Vec<u32> =
        world.queue.scan().await.unwrap().iter().map(|unit| unit.tokens).collect();
    stored.sort_unstable();
    assert_eq!(stored, [4, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rebalance_is_told_and_running_units_go_on() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 1, 8)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 1).await;
    let mut notices = api.listen("env").await;
    node.imds().recommend_rebalance(crate::world::timestamp_now());
    let notice = notices.wait_for("notice").await;
    assert_eq!((&notice["kind"], &notice["deadline_ms"]), (&json!("rebalance"), &Value::Null));
    let end = unit(&grants[0], json!({"finish": {"reason": "stop"}}));
    assert_eq!(api.call("/v1/complete", "env", vec![end]).await, ["OK"]);
    assert_eq!(world.take_samples(1).await[0].hand_backs, 0);
}
