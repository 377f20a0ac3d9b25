//! Behaviour of the emulated engine over real HTTP, failures first of all.

use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;

/// No test waits longer than this for one event.
const LIMIT: Duration = Duration::from_secs(300);

pub(super) async fn bounded<T>(event: impl Future<Output = T>) -> T {
    timeout(LIMIT, event).await.expect("the event did not come in time")
}

/// An engine as small as the recorded one, and fast.
pub(super) fn engine_like_recorded() -> EngineConfig {
    EngineConfig {
        vocabulary: 512,
        context_length: 2048,
        tokens_per_second: 500.0,
        tick: Duration::from_millis(2),
        chunk_tokens_max: 1,
        ..EngineConfig::default()
    }
}

#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    pub(super) fn of(engine: &EngineEmulator) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { http, base: engine.base_url() }
    }

    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> reqwest::Result<reqwest::Response> {
        self.send_as(None, method, path, body).await
    }

    /// Sends a call that has this `X-Request-Id`.
    pub(super) async fn send_as(
        &self,
        id: Option<&str>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> reqwest::Result<reqwest::Response> {
        let request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.base));
        let request = id.into_iter().fold(request, |it, id| it.header("X-Request-Id", id));
        match body {
            Some(body) => request.json(body).send().await,
            None => request.send().await,
        }
    }

    async fn generate(&self, body: &Value) -> reqwest::Result<reqwest::Response> {
        bounded(self.send("POST", "/inference/v1/generate", Some(body))).await
    }

    async fn health(&self) -> Option<u16> {
        let reply = bounded(self.send("GET", "/health", None)).await;
        reply.ok().map(|reply| reply.status().as_u16())
    }
}

fn started(change: impl FnOnce(&mut EngineConfig)) -> (EngineEmulator, EngineHandle, Client) {
    let mut config = engine_like_recorded();
    change(&mut config);
    let engine = EngineEmulator::start(config).unwrap();
    let (handle, client) = (engine.handle(), Client::of(&engine));
    (engine, handle, client)
}

fn call(id: &str, prompt: &[u32], max_tokens: u32, is_stream: bool) -> Value {
    json!({
        "request_id": id, "token_ids": prompt, "stream": is_stream,
        "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0, "logprobs": 0, "seed": 7},
    })
}

/// Reads a stream to its end, good or bad: token ids, the last finish reason, whether `[DONE]`
/// came and whether the body ended in an orderly way.
async fn read_stream(mut reply: reqwest::Response) -> (Vec<u64>, Option<String>, bool, bool) {
    let mut text = String::new();
    let is_orderly = loop {
        match bounded(reply.chunk()).await {
            Ok(Some(bytes)) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    let (mut tokens, mut finish) = (Vec::new(), None);
    for event in text.split_terminator("\n\n").filter(|event| *event != "data: [DONE]") {
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        let choice = &event["choices"][0];
        tokens.extend(
            choice["token_ids"].as_array().into_iter().flatten().map(|id| id.as_u64().unwrap()),
        );
        finish = choice["finish_reason"].as_str().map(str::to_owned);
    }
    (tokens, finish, text.ends_with("data: [DONE]\n\n"), is_orderly)
}

#[tokio::test]
async fn continuation_on_another_engine_goes_on_with_the_same_response() {
    let lengths = ResponseLengths { mean: 40.0, spread: 0.0 };
    let (_first, _, first) = started(|config| config.lengths = lengths);
    let (_second, _, second) = started(|config| config.lengths = lengths);
    let reply = first.generate(&call("a", &[5, 6, 7], 100, true)).await.unwrap();
    let (whole, finish, ..) = read_stream(reply).await;
    assert_eq!((whole.len(), finish.as_deref()), (40, Some("stop")));

    let mut prompt = vec![5, 6, 7];
    prompt.extend(whole[..15].iter().map(|id| *id as u32));
    let reply = second.generate(&call("b", &prompt, 85, true)).await.unwrap();
    assert_eq!(read_stream(reply).await.0, whole[15..]);
}

#[tokio::test]
async fn killed_node_cuts_its_streams_and_answers_nothing_any_more() {
    let (engine, handle, client) = started(|_| {});
    let reply = client.generate(&call("a", &[5, 6, 7], 2000, true)).await.unwrap();
    bounded(handle.wait_for(|counts| counts.tokens_generated >= 3)).await;
    engine.kill();
    let generated = engine.tokens_generated();
    let (tokens, finish, has_done, is_orderly) = read_stream(reply).await;
    assert!(!is_orderly && !has_done && finish.is_none());
    assert!(tokens.len() as u64 <= generated);
    assert_eq!(client.health().await, None);
    assert!(client.generate(&call("b", &[5], 1, true)).await.is_err());
    assert_eq!(engine.tokens_generated(), generated);
    bounded(handle.ended()).await;
}

#[tokio::test]
async fn configured_failure_comes_after_its_tokens() {
    let fail_after = Some(FailAfter { tokens: 20, failure: Failure::NodeLoss });
    let (engine, handle, client) = started(|config| config.fail_after = fail_after);
    let reply = client.generate(&call("a", &[5, 6, 7], 2000, true)).await.unwrap();
    bounded(handle.ended()).await;
    assert!(engine.tokens_generated() >= 20);
    assert!(!read_stream(reply).await.3);
}

#[tokio::test]
async fn dead_core_fails_health_and_calls_and_then_exits() {
    let (_engine, handle, client) = started(|_| {});
    let whole = call("a", &[5, 6, 7], 2000, false);
    let reply = tokio::spawn({
        let client = client.clone();
        async move { client.generate(&whole).await.unwrap().status().as_u16() }
    });
    bounded(handle.wait_for(|counts| counts.running == 1)).await;
    handle.fail_core();
    assert_eq!(client.health().await, Some(503));
    assert_eq!(bounded(reply).await.unwrap(), 500);
    bounded(handle.ended()).await;
    assert_eq!(client.health().await, None);
}

/// As the real one was seen to do.
#[tokio::test]
async fn failed_load_leaves_no_weights_until_one_works() {
    let (_engine, handle, client) = started(|_| {});
    handle.set_unreadable_weights(Some("/lost"));
    let load = async |place: &str| {
        let kwargs = json!({ "weights_path": place });
        let body = json!({ "method": "reload_weights", "kwargs": kwargs });
        bounded(client.send("POST", "/collective_rpc", Some(&body))).await.unwrap()
    };
    assert_eq!(load("/lost/1").await.status(), 500);
    assert_eq!(load("/kept/1").await.status(), 200);
    let reply = client.generate(&call("a", &[5, 6, 7], 2, false)).await.unwrap();
    assert_eq!(reply.status(), 200);

    load("/lost/2").await;
    assert_eq!(client.health().await, Some(200));
    let reply = client.generate(&call("b", &[5, 6, 7], 2, false)).await.unwrap();
    assert_eq!(reply.status(), 500);
    bounded(handle.ended()).await;
}

#[tokio::test]
async fn engine_refuses_until_it_has_started() {
    let (_engine, _handle, client) = started(|c| c.start_after = Duration::from_millis(300));
    assert_eq!(client.health().await, None);
    let healthy = async { while client.health().await != Some(200) {} };
    bounded(healthy).await;
}

#[tokio::test]
async fn next_calls_fail_as_asked_and_no_more() {
    let (_engine, handle, client) = started(|_| {});
    handle.fail_next(2, 502);
    let mut statuses = Vec::new();
    for id in ["a", "b", "c"] {
        let reply = client.generate(&call(id, &[5, 6, 7], 2, false)).await.unwrap();
        statuses.push(reply.status().as_u16());
    }
    assert_eq!(statuses, [502, 502, 200]);
}

#[tokio::test]
async fn abort_by_the_bare_id_is_counted_and_aborts_nothing() {
    let (_engine, handle, client) = started(|_| {});
    let stream = client.generate(&call("a", &[5, 6, 7], 60, true)).await.unwrap();
    let ids = json!({ "request_ids": ["a"] });
    let reply = bounded(client.send("POST", "/abort_requests", Some(&ids))).await.unwrap();
    assert_eq!(bounded(reply.text()).await.unwrap(), r#"{"status":"aborted","aborted":1}"#);
    assert_eq!(handle.counts().abort_ids, 1);
    assert_ne!(read_stream(stream).await.1.as_deref(), Some("abort"));
}

#[tokio::test]
async fn ignored_abort_is_answered_and_the_stream_runs_on() {
    let (_engine, handle, client) = started(|_| {});
    handle.set_ignores_aborts(true);
    let stream = client.generate(&call("a", &[5, 6, 7], 60, true)).await.unwrap();
    let ids = json!({ "request_ids": ["generate-tokens-a"] });
    let reply = bounded(client.send("POST", "/abort_requests", Some(&ids))).await.unwrap();
    assert_eq!(reply.status(), 200);
    assert_ne!(read_stream(stream).await.1.as_deref(), Some("abort"));
}

#[tokio::test]
async fn stream_may_lack_its_done_line() {
    let (_engine, handle, client) = started(|_| {});
    handle.set_omits_done(true);
    let stream = client.generate(&call("a", &[5, 6, 7], 5, true)).await.unwrap();
    let (tokens, finish, has_done, is_orderly) = read_stream(stream).await;
    assert_eq!((tokens.len(), finish.as_deref()), (5, Some("length")));
    assert!(is_orderly && !has_done);
}

#[tokio::test]
async fn hung_engine_stays_healthy_and_goes_on_when_freed() {
    let (_engine, handle, client) = started(|_| {});
    handle.set_hung(true);
    let stream = client.generate(&call("a", &[5, 6, 7], 5, true)).await.unwrap();
    assert_eq!(client.health().await, Some(200));
    assert_eq!(handle.tokens_generated(), 0);
    handle.set_hung(false);
    assert_eq!(read_stream(stream).await.0.len(), 5);
}

#[tokio::test]
async fn stream_that_outlives_the_drain_is_left_open_in_silence() {
    let (_engine, handle, client) = started(|_| {});
    let mut stream = client.generate(&call("a", &[5, 6, 7], 2000, true)).await.unwrap();
    bounded(handle.wait_for(|counts| counts.tokens_generated >= 1)).await;
    handle.begin_drain(Duration::ZERO);
    let refused = async { while client.health().await.is_some() {} };
    bounded(refused).await;
    let generated = handle.tokens_generated();
    // What was sent before arrives; after it comes neither a chunk nor an end.
    let silence = async { while let Ok(Some(_)) = stream.chunk().await {} };
    assert!(timeout(Duration::from_millis(300), silence).await.is_err());
    assert_eq!(handle.tokens_generated(), generated);
    drop(stream);
    bounded(handle.ended()).await;
}

#[tokio::test]
async fn client_that_hangs_up_frees_its_place() {
    let (_engine, handle, client) = started(|_| {});
    let stream = client.generate(&call("a", &[5, 6, 7], 2000, true)).await.unwrap();
    bounded(handle.wait_for(|counts| counts.running == 1)).await;
    drop(stream);
    bounded(handle.wait_for(EngineCounts::is_idle)).await;
}

#[tokio::test]
async fn label_can_be_acknowledged_without_being_taken_over() {
    let (_engine, handle, client) = started(|_| {});
    handle.set_ignores_labels(true);
    let body = json!({ "new_version": "8" });
    let reply = bounded(client.send("POST", "/update_weight_version", Some(&body))).await.unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(handle.weights_label(), "default");
}

#[tokio::test]
async fn every_token_delivered_was_counted_and_none_twice() {
    let (engine, _handle, client) = started(|config| config.max_running = 8);
    let mut streams = tokio::task::JoinSet::new();
    for index in 0..32_u32 {
        let client = client.clone();
        streams.spawn(async move {
            let body = call(&format!("s{index}"), &[5, index], 50, true);
            read_stream(client.generate(&body).await.unwrap()).await.0.len() as u64
        });
    }
    let delivered: u64 = bounded(streams.join_all()).await.into_iter().sum();
    assert_eq!(engine.tokens_generated(), delivered);
}

#[tokio::test]
async fn impossible_configuration_is_refused() {
    let config = EngineConfig { vocabulary: 10, ..EngineConfig::default() };
    let error = EngineEmulator::start(config).err().unwrap();
    assert_eq!(error.to_string(), "vocabulary must be at least 64, got 10");
}
