//! Holds the emulated engine to the replies recorded from vLLM 0.32: the recorded request is sent
//! again, and status, content type and body must be the same, numbers left aside where the tokens
//! of another model are meant.

use std::time::Duration;

use serde_json::{Value, json};

use super::tests::{Client, bounded, engine_like_recorded};
use super::{EngineConfig, EngineEmulator, EngineHandle};

/// A recorded reply.
struct Golden {
    status: u16,
    content_type: Option<String>,
    body: String,
}

impl Golden {
    fn read(name: &str) -> Self {
        let text = read_file(name);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: "));
        Self { status, content_type: content_type.map(str::to_owned), body: body.to_owned() }
    }

    fn events(&self) -> Vec<String> {
        events(&self.body)
    }
}

fn read_file(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/vllm-0.32");
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

/// Method, path and body of the request behind a recording.
fn recorded_request(name: &str) -> (String, String, Option<Value>) {
    let requests: Value = serde_json::from_str(&read_file("requests.json")).unwrap();
    let mut request = requests[name].clone();
    let repeat = request.pointer("/body/token_ids/repeat").cloned();
    if let Some(repeat) = repeat {
        let count = repeat[1].as_u64().unwrap() as usize;
        request["body"]["token_ids"] = vec![repeat[0].clone(); count].into();
    }
    let text = |key: &str| request[key].as_str().unwrap().to_owned();
    (text("method"), text("path"), request.get("body").cloned())
}

/// The `X-Request-Id` of the request behind a recording.
fn recorded_id(name: &str) -> Option<String> {
    let requests: Value = serde_json::from_str(&read_file("requests.json")).unwrap();
    let header = requests[name].pointer("/headers/0")?.as_str()?;
    header.strip_prefix("X-Request-Id: ").map(str::to_owned)
}

fn events(body: &str) -> Vec<String> {
    body.split_terminator("\n\n").map(str::to_owned).collect()
}

/// The text with every number replaced by 0, and the random part of a permission's id left out.
pub(super) fn without_numbers(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("modelperm-") {
            rest = after.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        } else if first.is_ascii_digit() || first == '-' {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || "-.".contains(c));
            plain.push('0');
        } else {
            plain.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    plain
}

/// Sends the recorded request.
async fn repeat(client: &Client, name: &str) -> Golden {
    let (method, path, body) = recorded_request(name);
    let id = recorded_id(name);
    let sent = client.send_as(id.as_deref(), &method, &path, body.as_ref());
    let reply = bounded(sent).await.unwrap();
    let content_type = reply.headers().get("content-type");
    Golden {
        status: reply.status().as_u16(),
        content_type: content_type.map(|value| value.to_str().unwrap().to_owned()),
        body: bounded(reply.text()).await.unwrap(),
    }
}

async fn assert_same_but_numbers(client: &Client, name: &str) {
    let (golden, reply) = (Golden::read(name), repeat(client, name).await);
    assert_eq!(without_numbers(&reply.body), without_numbers(&golden.body), "{name}");
    assert_eq!((reply.status, reply.content_type), (golden.status, golden.content_type), "{name}");
}

async fn assert_same(client: &Client, name: &str) {
    let (golden, reply) = (Golden::read(name), repeat(client, name).await);
    assert_eq!(reply.body, golden.body, "{name}");
    assert_eq!((reply.status, reply.content_type), (golden.status, golden.content_type), "{name}");
}

/// Whether the stream in `body` ends as the recorded one does, and begins as it does.
fn assert_same_ends(body: &str, name: &str) {
    let (got, golden) = (events(body), Golden::read(name).events());
    let ends = |events: &[String]| {
        let last = events.iter().rev().take(2).map(|event| without_numbers(event));
        let first = events.first().map(|event| without_numbers(event));
        (first, last.collect::<Vec<_>>())
    };
    assert_eq!(ends(&got), ends(&golden), "{name}");
}

fn started() -> (EngineEmulator, EngineHandle, Client) {
    let engine = EngineEmulator::start(engine_like_recorded()).unwrap();
    let (handle, client) = (engine.handle(), Client::of(&engine));
    (engine, handle, client)
}

/// Sends the recorded generation and reads its reply in the background.
fn begin(client: &Client, name: &'static str) -> tokio::task::JoinHandle<Golden> {
    let client = client.clone();
    tokio::spawn(async move { repeat(&client, name).await })
}

#[tokio::test]
async fn whole_replies_and_streams_are_as_recorded() {
    let (_engine, handle, client) = started();
    for name in [
        "generate-nonstream.http",
        "generate-no-logprobs.http",
        "generate-stream-16.http",
        "generate-stream-usage.http",
        "continuation-whole.http",
        "continuation-rest.http",
        "capped-at-context.http",
        "unknown-sampling-key.http",
        "models.http",
        "completions-stream.http",
    ] {
        assert_same_but_numbers(&client, name).await;
    }
    handle.set_weights_label("v3");
    assert_same_but_numbers(&client, "request-while-paused.http").await;
}

#[tokio::test]
async fn errors_and_control_replies_are_byte_for_byte_as_recorded() {
    let (_engine, handle, client) = started();
    handle.set_unreadable_weights(Some("/models/absent"));
    for name in [
        "health.http",
        "version.http",
        "error-max-tokens-0.http",
        "error-missing-token-ids.http",
        "error-prompt-too-long.http",
        "error-token-out-of-vocab.http",
        "error-unknown-route.http",
        "is-paused-false.http",
        "pause-keep-reply.http",
        "is-paused-true.http",
        "health-while-paused.http",
        "pause-abort-reply.http",
        "resume-reply.http",
        "weight-info-initial.http",
        "update-weight-version-reply.http",
        "weight-info-v2.http",
        "abort-reply-bare-id.http",
        "abort-reply-prefixed-id.http",
        "abort-reply-scaleout.http",
        "reload-weights-failed.http",
        "reload-weights-reply.http",
        "reset-prefix-cache-reply.http",
    ] {
        assert_same(&client, name).await;
    }
}

#[tokio::test]
async fn closed_scale_out_is_refused_as_recorded() {
    let config = EngineConfig { scale_out: false, ..engine_like_recorded() };
    let engine = EngineEmulator::start(config).unwrap();
    assert_same(&Client::of(&engine), "scale-out-disabled-403.assembled.http").await;
}

#[tokio::test]
async fn stop_token_ends_a_stream_as_recorded() {
    // With this seed the first token is none of the stop tokens.
    let engine = EngineEmulator::start(EngineConfig { seed: 1, ..engine_like_recorded() }).unwrap();
    let name = "generate-stop-token.http";
    assert_same_ends(&repeat(&Client::of(&engine), name).await.body, name);
}

#[tokio::test]
async fn aborted_streams_end_as_recorded() {
    let (_engine, handle, client) = started();
    handle.set_weights_label("v3");
    let name = "abort-stream.http";
    let stream = begin(&client, name);
    bounded(handle.wait_for(|counts| counts.tokens_generated >= 3)).await;
    handle.set_tokens_per_second(0.0);
    assert_same(&client, "abort-reply-scaleout.http").await;
    assert_same(&client, "abort-reply-prefixed-id.http").await;
    assert_same_ends(&bounded(stream).await.unwrap().body, name);

    let stream = begin(&client, "abort-before-first-token-stream.http");
    bounded(handle.wait_for(|counts| counts.running == 1)).await;
    bounded(client.send("POST", "/abort_requests", None)).await.unwrap();
    let golden = Golden::read("abort-before-first-token-stream.http");
    assert_eq!(bounded(stream).await.unwrap().body, golden.body);
}

#[tokio::test]
async fn waiting_stream_is_aborted_as_recorded() {
    let (_engine, handle, client) = started();
    handle.set_tokens_per_second(0.0);
    let others: Vec<_> = (0..16).map(|_| begin(&client, "pause-abort-stream.http")).collect();
    bounded(handle.wait_for(|counts| counts.running == 16)).await;
    let name = "abort-waiting-stream.http";
    let waiting = begin(&client, name);
    bounded(handle.wait_for(|counts| counts.waiting == 1)).await;
    let ids = json!({ "request_ids": ["generate-tokens-u11-w"] });
    bounded(client.send("POST", "/abort_requests", Some(&ids))).await.unwrap();
    assert_eq!(bounded(waiting).await.unwrap().body, Golden::read(name).body);

    assert_same(&client, "abort-all-reply.http").await;
    for other in others {
        bounded(other).await.unwrap();
    }
}

#[tokio::test]
async fn aborted_whole_reply_is_as_recorded() {
    let (_engine, handle, client) = started();
    handle.set_weights_label("v3");
    let name = "abort-nonstream.http";
    let reply = begin(&client, name);
    bounded(handle.wait_for(|counts| counts.tokens_generated >= 3)).await;
    bounded(client.send("POST", "/abort_requests", None)).await.unwrap();
    let (reply, golden) = (bounded(reply).await.unwrap(), Golden::read(name));
    assert_eq!(reply.status, golden.status);
    assert_same_shape(&reply, &golden);
}

#[tokio::test]
async fn whole_completion_has_the_recorded_shape() {
    let (_engine, _handle, client) = started();
    let name = "completions-nonstream.http";
    assert_same_shape(&repeat(&client, name).await, &Golden::read(name));
}

/// Whether both have the same keys with values of the same types.
fn assert_same_shape(reply: &Golden, golden: &Golden) {
    let parse = |body: &str| serde_json::from_str::<Value>(body).unwrap();
    assert_eq!(shape(&parse(&reply.body)), shape(&parse(&golden.body)));
}

/// The value with every leaf replaced by its type and every list by its first element.
pub(super) fn shape(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), shape(value))).collect(),
    }
}

#[tokio::test]
async fn label_change_in_mid_stream_is_told_as_recorded() {
    let (_engine, handle, client) = started();
    // 48 tokens take a second, so that the change falls inside.
    handle.set_tokens_per_second(50.0);
    let name = "version-bump-stream.http";
    let stream = begin(&client, name);
    bounded(handle.wait_for(|counts| counts.tokens_generated >= 5)).await;
    assert_same(&client, "pause-keep-reply.http").await;
    assert_same(&client, "update-weight-version-reply.http").await;
    assert_same(&client, "resume-reply.http").await;
    assert_same_ends(&bounded(stream).await.unwrap().body, name);
}

#[tokio::test]
async fn pause_that_aborts_ends_a_stream_as_recorded() {
    let (_engine, handle, client) = started();
    handle.set_weights_label("v3");
    let name = "pause-abort-stream.http";
    let stream = begin(&client, name);
    bounded(handle.wait_for(|counts| counts.tokens_generated >= 3)).await;
    handle.set_tokens_per_second(0.0);
    assert_same(&client, "pause-abort-reply.http").await;
    assert_same_ends(&bounded(stream).await.unwrap().body, name);
}

#[tokio::test]
async fn core_death_ends_a_stream_as_recorded() {
    let (_engine, handle, client) = started();
    let name = "engine-death-stream.assembled.http";
    handle.set_tokens_per_second(50.0);
    let stream = begin(&client, name);
    bounded(handle.wait_for(|counts| counts.tokens_generated >= 3)).await;
    handle.fail_core();
    assert_same_ends(&bounded(stream).await.unwrap().body, name);
}

#[tokio::test]
async fn call_during_a_drain_is_answered_as_recorded() {
    let (_engine, handle, client) = started();
    handle.set_tokens_per_second(50.0);
    handle.set_weights_label("v3");
    let name = "sigterm-drain-stream.http";
    let stream = begin(&client, name);
    bounded(handle.wait_for(|counts| counts.running == 1)).await;
    handle.begin_drain(Duration::from_secs(60));
    assert_same_but_numbers(&client, "sigterm-new-request-during-drain.http").await;
    assert_same(&client, "sigterm-health-during-drain.http").await;
    assert_same_ends(&bounded(stream).await.unwrap().body, name);
    bounded(handle.ended()).await;
}

#[tokio::test]
async fn metrics_have_the_recorded_names_and_labels() {
    let (_engine, handle, client) = started();
    let page = async || {
        let reply = bounded(client.send("GET", "/metrics", None)).await.unwrap();
        bounded(reply.text()).await.unwrap()
    };
    let series = |page: &str| -> Vec<(String, f64)> {
        let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let parts = lines.map(|line| line.rsplit_once(' ').unwrap());
        parts.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    };
    let names = |page: &str| series(page).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let (idle, recorded) = (page().await, names(&read_file("metrics-idle.txt")));
    // The recording has four families alone; two more follow them.
    assert_eq!(names(&idle)[..recorded.len()], recorded);
    let first_tokens = "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"tiny\"}";
    for (name, value) in [(first_tokens, 0.0), (&first_tokens.replace("count", "sum"), 0.0)] {
        assert!(series(&idle).contains(&(name.to_owned(), value)), "{idle}");
    }

    let stream = begin(&client, "abort-stream.http");
    bounded(handle.wait_for(|counts| counts.running == 1 && counts.tokens_generated > 0)).await;
    let busy = series(&page().await);
    assert_eq!(busy[0].1, 1.0);
    assert!(busy.contains(&(first_tokens.to_owned(), 1.0)), "{busy:?}");
    handle.pause(super::PauseMode::Keep);
    let paused = series(&page().await);
    assert!(paused[..5].iter().all(|(_, value)| *value == 0.0), "got {paused:?}");
    stream.abort();
}
