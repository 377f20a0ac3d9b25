//! Custom workers through the agent's socket: from lease to sealed group, and who may do what.

use std::time::Duration;

use ebbtide_agent::AgentConfig;
use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::work::ResumePolicy;
use ebbtide_queue::command::{HandBackCause, ProgressLimits};
use serde_json::{Value, json};
use tokio::time::interval;

use crate::api::{SocketFolder, tokens, unit};
use crate::world::{World, group, until};

fn stop(grant: &Value) -> Value {
    unit(grant, json!({"finish": {"reason": "stop"}}))
}

#[tokio::test(flavor = "multi_thread")]
async fn group_worked_on_through_the_socket_is_the_one_that_an_engine_makes() {
    let calm = World::new();
    calm.enqueue([group("a", 2, 60)]).await;
    let engine = calm.node("n").start();
    let expected = calm.take_samples(2).await;
    drop(engine);

    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 2, 60)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 2).await;
    for (grant, sample) in grants.iter().zip(&expected) {
        assert_eq!(grant["unit"], sample.unit.to_string());
        assert_eq!(grant["group"]["prompt_token_ids"], json!([i32::from(b'a')]));
        assert_eq!((&grant["tokens_left"], &grant["partial"]["offset"]), (&json!(60), &json!(0)));
        let ids = sample.token_ids();
        let logprobs: Vec<f32> =
            sample.chunks.iter().flat_map(|chunk| chunk.logprobs.clone()).collect();
        let part = |from: usize, to: usize| {
            let (ids, logprobs) = (&ids[from..to], &logprobs[from..to]);
            json!({"offset": from, "token_ids": ids, "logprobs": logprobs})
        };
        for _ in 0..2 {
            // Its answer may have been lost: it is sent again.
            let units = vec![unit(grant, part(0, 25))];
            assert_eq!(api.call("/v1/append", "env", units).await, ["OK"]);
        }
        let mut end = unit(grant, part(25, 60));
        end["finish"] = json!({"reason": "length"});
        let ends = [api.call("/v1/complete", "env", vec![end.clone()]).await, {
            api.call("/v1/complete", "env", vec![end]).await
        }];
        assert_eq!(ends.concat(), ["OK", "ALREADY_DONE"]);
    }
    let samples = world.take_samples(2).await;
    for (sample, expected) in samples.iter().zip(&expected) {
        assert_eq!(sample.token_ids(), expected.token_ids());
        assert_eq!((sample.attempts, sample.infra_attempts, sample.hand_backs), (0, 0, 0));
        assert_eq!(sample.finish.reason, expected.finish.reason);
        let origin = &sample.chunks[0].origin;
        assert_eq!((origin.holder.node.as_str(), origin.engine.as_str()), ("n1", "worker/env"));
    }
    let (counts, status) = (node.agent.counts(), world.status().await);
    assert_eq!((counts.units_completed, counts.tokens_stored, node.agent.held()), (2, 120, 0));
    assert_eq!((status.tokens.generated, status.tokens.accepted), (120, 120));
}

#[tokio::test(flavor = "multi_thread")]
async fn scorer_gets_the_response_and_its_score_seals_the_group() {
    let (world, folder) = (World::scored(), SocketFolder::new());
    world.enqueue([group("a", 1, 8)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grant = api.lease_all("env", 1).await.remove(0);
    assert_eq!(api.call("/v1/append", "env", vec![tokens(&grant, 0, 5)]).await, ["OK"]);
    let score = json!({"value": 0.5, "scorer_version": "rule/1", "metadata": "why"});
    let early = api.call("/v1/score", "env", vec![unit(&grant, score.clone())]).await;
    assert_eq!(early, ["WRONG_STAGE"]);
    assert_eq!(api.call("/v1/complete", "env", vec![stop(&grant)]).await, ["OK"]);
    let body = json!({"worker": "judge", "stage": "reward", "limit": 4, "wait_ms": 5_000});
    let (_, leased) = api.post("/v1/lease", body).await;
    let grant = &leased["grants"][0];
    assert_eq!(grant["partial"]["token_ids"], json!([0, 1, 2, 3, 4]));
    assert_eq!(grant["finish"], json!({"reason": "stop", "stop_reason": null}));
    assert_eq!(api.call("/v1/complete", "judge", vec![stop(grant)]).await, ["WRONG_STAGE"]);
    assert_eq!(api.call("/v1/score", "judge", vec![unit(grant, score)]).await, ["OK"]);
    let sample = world.take_samples(1).await.remove(0);
    let score = sample.score.expect("scored");
    assert_eq!((score.value, score.metadata.as_slice()), (0.5, &b"why"[..]));
    assert_eq!(node.agent.held(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_neither_see_nor_touch_the_units_of_others() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 1, 4_000)]).await;
    let node = world.node("n1").with(|config| config.socket = Some(folder.socket())).start();
    let api = folder.api().await;
    node.wait_until_busy(1).await;
    let status = api.get("/v1/status?worker=one").await;
    assert_eq!((&status["held"], &status["units"]), (&json!(1), &json!([])));
    let engines = world.queue.scan().await.unwrap();
    let engines = engines.iter().find(|unit| unit.state.is_leased()).expect("the engine's");
    let key = json!({"unit": engines.unit, "fencing_token": engines.fencing_token});
    let (end, back) = (stop(&key), unit(&key, json!({})));
    assert_eq!(api.call("/v1/complete", "one", vec![end]).await, ["FENCED"]);
    assert_eq!(api.call("/v1/hand-back", "one", vec![back.clone()]).await, ["FENCED"]);
    assert_eq!(api.call("/v1/renew", "one", vec![back]).await, ["FENCED"]);

    let (other, folder) = (World::new(), SocketFolder::new());
    other.enqueue([group("x", 1, 8), group("y", 1, 8)]).await;
    let node = other.node("n2").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let one = api.lease_all("one", 1).await.remove(0);
    let two = api.lease_all("two", 1).await.remove(0);
    for path in ["/v1/append", "/v1/hand-back", "/v1/renew"] {
        let item = if path == "/v1/append" { tokens(&one, 0, 3) } else { unit(&one, json!({})) };
        assert_eq!(api.call(path, "two", vec![item]).await, ["FENCED"], "{path}");
    }
    let status = api.get("/v1/status?worker=two").await;
    assert_eq!(status["units"].as_array().map(Vec::len), Some(1));
    assert_eq!(status["units"][0]["unit"], two["unit"]);
    assert_eq!(status["workers"].as_array().map(Vec::len), Some(2));
    assert_eq!(node.agent.held(), 2, "nothing has changed");
    let both = vec![stop(&one), stop(&two)];
    assert_eq!(api.call("/v1/complete", "one", both).await, ["OK", "FENCED"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_lease_is_granted_the_same_units() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 4, 8)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    node.wait_until(|agent| agent.is_gate_open()).await;
    let ask = |worker: &str, id: &str| {
        let version = 0;
        json!({"worker": worker, "limit": 2, "weights_version": version, "request_id": id})
    };
    let (_, first) = api.post("/v1/lease", ask("env", "1")).await;
    let (_, again) = api.post("/v1/lease", ask("env", "1")).await;
    assert_eq!(first["grants"].as_array().map(Vec::len), Some(2));
    assert_eq!(first, again);
    let (_, other) = api.post("/v1/lease", ask("other", "1")).await;
    assert_ne!(first["grants"][0]["unit"], other["grants"][0]["unit"]);
    assert_eq!((node.agent.held(), world.status().await.leased), (4, 4));
    let (status, none) = api.post("/v1/lease", ask("env", "2")).await;
    assert_eq!((status, &none["reason"]), (200, &json!("empty")));
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_that_waits_is_answered_when_work_comes() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    node.wait_until(|agent| agent.is_gate_open()).await;
    let waiting = tokio::spawn({
        let api = api.clone();
        async move { api.lease_all("env", 1).await }
    });
    let asked = world.lease_calls();
    until(|| async { world.lease_calls() > asked }).await;
    world.enqueue([group("a", 1, 8)]).await;
    assert_eq!(waiting.await.unwrap()[0]["unit"], "a.0000");
}

#[tokio::test(flavor = "multi_thread")]
async fn tended_unit_is_never_redelivered_and_waits_for_its_environment() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 2, 8)]).await;
    let short = |config: &mut AgentConfig| {
        config.lease.ttl = Duration::from_millis(600);
        config.lease.renew_every = Duration::from_millis(100);
        let idle = Duration::from_millis(800);
        config.lease.progress = ProgressLimits { idle, ..ProgressLimits::default() };
    };
    let node = world.node("n1").for_workers(&folder.socket()).with(short).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 2).await;
    // One waits for its environment, one says nothing of the kind: beyond the progress limit only
    // the first one is still held.
    let mut ticks = interval(Duration::from_millis(100));
    let (waits, stands) =
        (unit(&grants[0], json!({"waiting": "environment"})), { unit(&grants[1], json!({})) });
    loop {
        ticks.tick().await;
        let words = api.call("/v1/renew", "env", vec![waits.clone(), stands.clone()]).await;
        assert_eq!(words[0], "OK");
        if words[1] == "FENCED" {
            break;
        }
    }
    let fenced = api.call("/v1/append", "env", vec![tokens(&grants[1], 0, 1)]).await;
    assert_eq!(fenced, ["FENCED"]);
    assert_eq!(api.call("/v1/complete", "env", vec![stop(&grants[0])]).await, ["OK"]);
    let again = api.lease_all("env", 1).await.remove(0);
    assert_eq!((&again["unit"], &again["attempts"]), (&grants[1]["unit"], &json!(1)));
    assert_eq!(node.agent.counts().units_lost, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_worker_loses_its_units_once_and_keeps_nothing_back() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 1, 8)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let lost = api.lease_all("dies", 1).await.remove(0);
    assert_eq!(api.call("/v1/append", "dies", vec![tokens(&lost, 0, 3)]).await, ["OK"]);
    node.wait_until(|agent| agent.held() == 0).await;
    assert_eq!(node.agent.counts().units_handed_back.get(&HandBackCause::Engine), Some(&1));
    let next = api.lease_all("lives", 1).await.remove(0);
    assert_eq!(next["partial"]["token_ids"], json!([0, 1, 2]));
    assert_eq!(api.call("/v1/append", "dies", vec![tokens(&lost, 3, 4)]).await, ["FENCED"]);
    let mut end = tokens(&next, 3, 5);
    end["finish"] = json!({"reason": "stop"});
    assert_eq!(api.call("/v1/complete", "lives", vec![end]).await, ["OK"]);
    let sample = world.take_samples(1).await.remove(0);
    assert_eq!((sample.hand_backs, sample.attempts, sample.infra_attempts), (1, 0, 0));
    assert_eq!(sample.token_ids(), [0, 1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_is_an_attempt_and_a_hand_back_is_none() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 1, 8)]).await;
    let _node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let first = api.lease_all("env", 1).await.remove(0);
    let mut fault = tokens(&first, 0, 2);
    fault["problem"] = json!("the browser crashed");
    assert_eq!(api.call("/v1/fail", "env", vec![fault]).await, ["OK"]);
    let second = api.lease_all("env", 1).await.remove(0);
    assert_eq!((&second["attempts"], &second["partial"]["offset"]), (&json!(1), &json!(2)));
    assert_eq!(api.call("/v1/hand-back", "env", vec![tokens(&second, 2, 4)]).await, ["OK"]);
    let third = api.lease_all("env", 1).await.remove(0);
    assert_eq!((&third["attempts"], &third["partial"]["offset"]), (&json!(1), &json!(4)));
    let wrong = api.post("/v1/append", json!({"worker": "env", "units": [tokens(&third, 6, 7)]}));
    let (_, answer) = wrong.await;
    assert_eq!(answer["replies"][0]["reply"], "OFFSET");
    assert_eq!(answer["replies"][0]["stored_tokens"], 4);
    let mut older = tokens(&third, 4, 5);
    older["weights_version"] = json!(3);
    assert_eq!(api.call("/v1/append", "env", vec![older]).await, ["OK"]);
    let newer = tokens(&third, 5, 6);
    assert_eq!(api.call("/v1/append", "env", vec![newer]).await, ["BAD_VERSION"]);
    let unknown = json!({"unit": "nobody.0000", "fencing_token": 1});
    assert_eq!(api.call("/v1/hand-back", "env", vec![unknown]).await, ["UNKNOWN"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_restart_under_newer_weights_are_asked_back() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let mut restarting = group("a", 1, 8);
    restarting.resume_policy = ResumePolicy::RestartIfNewer;
    world.enqueue([restarting, group("b", 1, 8)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 2).await;
    let mut notices = api.listen("env").await;
    world.set_version(1).await;
    let release = notices.wait_for("release").await;
    assert_eq!(
        (&release["reason"], &release["units"][0]["unit"]),
        (&json!("weights"), &json!("a.0000"))
    );
    assert_eq!(release["units"].as_array().map(Vec::len), Some(1));
    let goes = grants.iter().find(|grant| grant["unit"] == "a.0000").unwrap();
    assert_eq!(api.call("/v1/hand-back", "env", vec![unit(goes, json!({}))]).await, ["OK"]);
    let counts = node.agent.counts();
    assert_eq!(counts.units_handed_back.get(&HandBackCause::Weights), Some(&1));
    assert_eq!(world.queue.view().await.unwrap().version.version, PolicyVersion(1));
    assert_eq!(node.agent.held(), 1);
}
