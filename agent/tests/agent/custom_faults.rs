//! Custom workers when something breaks: the agent, the queue, or what they send.

use std::time::Duration;

use ebbtide_agent::{Agent, AgentError};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::{SocketFolder, tokens, unit};
use crate::world::{World, group};

#[tokio::test(flavor = "multi_thread")]
async fn killed_agents_successor_hands_back_and_the_late_write_is_fenced() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 1, 8)]).await;
    // Leases that never run out within the test: only the successor can bring the unit back.
    let lease =
        |config: &mut ebbtide_agent::AgentConfig| config.lease.ttl = Duration::from_secs(600);
    let first = world.node("n1").for_workers(&folder.socket()).with(lease).start();
    let api = folder.api().await;
    let lost = api.lease_all("env", 1).await.remove(0);
    assert_eq!(api.call("/v1/append", "env", vec![tokens(&lost, 0, 3)]).await, ["OK"]);
    let mut notices = api.listen("env").await;
    let handle = first.agent.clone();
    let place = first.kill().await;
    while notices.next().await.is_some() {}
    let counts = handle.counts();
    let _second = world.node("n1").for_workers(&folder.socket()).with(lease).start_at(place);
    let api = folder.api().await;
    // It has another holder: whatever the old lease says is refused, before and after.
    let (_, late) =
        api.post("/v1/append", json!({"worker": "env", "units": [tokens(&lost, 3, 4)]})).await;
    assert_eq!(late["replies"][0]["reply"], "FENCED");
    let again = api.lease_all("env", 1).await.remove(0);
    assert_eq!((&again["unit"], &again["partial"]["offset"]), (&lost["unit"], &json!(3)));
    assert_ne!(again["fencing_token"], lost["fencing_token"]);
    assert_eq!(api.call("/v1/append", "env", vec![tokens(&lost, 3, 4)]).await, ["FENCED"]);
    let mut end = tokens(&again, 3, 4);
    end["finish"] = json!({"reason": "stop"});
    assert_eq!(api.call("/v1/complete", "env", vec![end]).await, ["OK"]);
    let sample = world.take_samples(1).await.remove(0);
    assert_eq!((sample.hand_backs, sample.attempts, sample.infra_attempts), (1, 0, 0));
    assert_eq!(world.status().await.hand_backs["agent_restart"], 1);
    assert_eq!(handle.counts(), counts, "nothing of a killed agent goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_that_is_away_is_named_and_everything_may_be_sent_again() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 2, 8)]).await;
    let lease =
        |config: &mut ebbtide_agent::AgentConfig| config.lease.ttl = Duration::from_secs(60);
    let node = world.node("n1").for_workers(&folder.socket()).with(lease).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 1).await;
    world.set_queue_down(true);
    let ask = json!({"worker": "env", "limit": 1, "weights_version": 0});
    let (status, answer) = api.post("/v1/lease", ask.clone()).await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("queue_unavailable")));
    for path in ["/v1/append", "/v1/renew"] {
        let item = match path {
            "/v1/append" => tokens(&grants[0], 0, 3),
            _ => unit(&grants[0], json!({})),
        };
        let (_, answer) = api.post(path, json!({"worker": "env", "units": [item]})).await;
        assert_eq!(answer["replies"][0]["reply"], "UNANSWERED", "{path}");
        assert!(answer["replies"][0]["problem"].as_str().unwrap().contains("taken away"));
    }
    node.announce(60);
    node.wait_until(|agent| !agent.is_gate_open()).await;
    // Its hand-back is repeated by the agent until the queue is there again.
    let back = api.call("/v1/hand-back", "env", vec![tokens(&grants[0], 0, 3)]).await;
    assert_eq!(back, ["UNANSWERED"]);
    world.set_queue_down(false);
    let back = api.call("/v1/hand-back", "env", vec![tokens(&grants[0], 0, 3)]).await;
    assert_eq!(back, ["OK"]);
    node.wait_until(|agent| agent.held() == 0).await;
    let status = world.status().await;
    assert_eq!((status.tokens.generated, status.leased, status.ready), (3, 0, 2));
    assert_eq!(api.post("/v1/lease", ask).await.0, 503, "the gate is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_in_one_form_and_nothing_is_written() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 1, 8)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grant = api.lease_all("env", 1).await.remove(0);
    let good = tokens(&grant, 0, 2);
    let mut bad = tokens(&grant, 2, 4);
    bad["logprobs"] = json!([0.5]);
    let batch = json!({"worker": "env", "units": [good, bad]}).to_string();
    let large = format!("{{\"worker\":\"{}\"}}", "x".repeat(4 << 20));
    for (method, path, body, status, code, word) in [
        ("post", "/v1/append", batch, 400, "bad_request", "units[1]: logprobs"),
        ("post", "/v1/append", "{".to_owned(), 400, "bad_request", "openapi.json"),
        ("post", "/v1/append", large, 413, "too_large", "at most 4194304 bytes"),
        ("post", "/v1/lease", "{\"worker\":7}".to_owned(), 400, "bad_request", "expected a string"),
        ("get", "/v1/notices", String::new(), 400, "bad_request", "worker=NAME"),
        ("get", "/v1/notices?worker=a%20b", String::new(), 400, "bad_request", "worker must match"),
        ("get", "/v1/status?wrker=a", String::new(), 400, "bad_request", "unknown field"),
        ("get", "/v1/append", String::new(), 405, "method_not_allowed", "GET"),
        ("post", "/v1/status", String::new(), 405, "method_not_allowed", "POST"),
        ("get", "/v2/lease", String::new(), 404, "not_found", "/v2/lease"),
        ("post", "/", String::new(), 404, "not_found", "openapi.json"),
    ] {
        let (got, answer) = api.send(method, path, body).await;
        assert_eq!((got, &answer["error"]["code"]), (status, &json!(code)), "{method} {path}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{method} {path}: {message}");
    }
    assert_eq!(world.status().await.tokens.generated, 0);
    assert_eq!(node.agent.held(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_units_of_one_worker_are_bounded() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue((0..33).map(|n| group(&format!("g{n}"), 4, 8))).await;
    let lease =
        |config: &mut ebbtide_agent::AgentConfig| config.lease.ttl = Duration::from_secs(60);
    let node = world.node("n1").for_workers(&folder.socket()).with(lease).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 128).await;
    let ask = json!({"worker": "env", "limit": 1, "weights_version": 0});
    let (status, answer) = api.post("/v1/lease", ask).await;
    assert_eq!((status, &answer["error"]["code"]), (429, &json!("too_many")));
    assert_eq!((node.agent.held(), world.status().await.leased), (128, 128));
    let ends = |grant: &Value| unit(grant, json!({"finish": {"reason": "stop"}}));
    let words = api.call("/v1/complete", "env", grants.iter().map(ends).collect()).await;
    assert!(words.iter().all(|word| word == "OK"));
    assert_eq!(api.lease("env", 128).await.len(), 4);

    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(api.listen("env").await);
    }
    let (status, answer) = api.send("get", "/v1/notices?worker=env", String::new()).await;
    assert_eq!((status, &answer["error"]["code"]), (429, &json!("too_many")));
    assert_eq!(api.get("/v1/status").await["workers"][0]["streams"], 4);
    streams.clear();
    crate::world::until(|| async { api.get("/v1/status").await["workers"][0]["streams"] == 0 })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn socket_that_cannot_be_made_keeps_the_agent_from_beginning() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let plan = world.node("n1").for_workers(&folder.socket().join("no/agent.sock"));
    let place = plan.place();
    let outside = plan.outside(&place);
    let refused = Agent::new(plan.config, outside).run(CancellationToken::new()).await;
    let Err(AgentError::Socket { problem, .. }) = &refused else { panic!("{refused:?}") };
    assert!(problem.contains("there is no folder"), "{problem}");
}
