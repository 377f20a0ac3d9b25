//! Holds the emulated engine to the shapes that the source of SGLang 0.5.23 has, and to what is
//! unlike vLLM.

use serde_json::{Value, json};

use super::super::golden_tests::{shape, without_numbers};
use super::super::tests::{Client, bounded, engine_like_recorded};
use super::super::{EngineConfig, EngineEmulator, EngineHandle};
use crate::engine::EngineKind;

fn golden(name: &str) -> String {
    let folder = "/tests/goldens/sglang-0.5.23-from-source/";
    std::fs::read_to_string(format!("{}{folder}{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn started(change: impl FnOnce(&mut EngineConfig)) -> (EngineEmulator, EngineHandle, Client) {
    let mut config = EngineConfig {
        kind: EngineKind::Sglang,
        weights_label: "v2".to_owned(),
        ..engine_like_recorded()
    };
    change(&mut config);
    let engine = EngineEmulator::start(config).unwrap();
    let (handle, client) = (engine.handle(), Client::of(&engine));
    (engine, handle, client)
}

/// A request of the goldens, with other values in it.
fn request(name: &str, change: impl FnOnce(&mut Value)) -> (String, Value) {
    let requests: Value = serde_json::from_str(&golden("requests.json")).unwrap();
    let mut body = requests[name]["body"].clone();
    change(&mut body);
    (requests[name]["path"].as_str().unwrap().to_owned(), body)
}

/// Status and body of a reply.
async fn send(client: &Client, (path, body): &(String, Value)) -> (u16, String) {
    let reply = bounded(client.send("POST", path, Some(body))).await.unwrap();
    (reply.status().as_u16(), bounded(reply.text()).await.unwrap())
}

fn generate(rid: &str, max_new_tokens: u32) -> (String, Value) {
    request("generate", |body| {
        body["rid"] = rid.into();
        body["sampling_params"]["max_new_tokens"] = max_new_tokens.into();
    })
}

fn begin(client: &Client, request: (String, Value)) -> tokio::task::JoinHandle<(u16, String)> {
    let client = client.clone();
    tokio::spawn(async move { send(&client, &request).await })
}

/// Whether the last two events are as in the golden.
fn assert_same_end(body: &str, name: &str) {
    let last = |body: &str| {
        let events: Vec<String> = body.split_terminator("\n\n").map(without_numbers).collect();
        let shortened = |event: &String| cut_lists(event);
        events.iter().rev().take(2).map(shortened).collect::<Vec<_>>()
    };
    assert_eq!(last(body), last(&golden(name)), "{name}");
}

/// Lists of numbers and of log-probabilities with one element.
fn cut_lists(event: &str) -> String {
    let mut text = event.replace("[0,0,null]", "L").replace("L,L", "L");
    while text.contains("L,L") || text.contains("[0,0") {
        text = text.replace("L,L", "L").replace("[0,0", "[0");
    }
    text
}

#[tokio::test]
async fn replies_are_as_the_goldens_say() {
    for (is_incremental, name) in
        [(false, "generate-stream-cumulative.sse"), (true, "generate-stream-incremental.sse")]
    {
        let (_engine, _handle, client) = started(|config| {
            config.incremental_streaming = is_incremental;
        });
        let (status, body) = send(&client, &generate("u1.0001.", 4)).await;
        assert_eq!(status, 200);
        if is_incremental {
            // How many tokens an event has is a matter of the moment.
            assert_same_end(&body, name);
        } else {
            assert_eq!(without_numbers(&body), without_numbers(&golden(name)));
        }
    }
    let (_engine, _handle, client) = started(|_| {});
    let whole = request("generate", |body| body["stream"] = false.into());
    let body = send(&client, &whole).await.1;
    assert_eq!(without_numbers(&body), without_numbers(golden("generate-nonstream.json").trim()));
    let all: Value = serde_json::from_str(&body).unwrap();
    let stop = request("generate", |body| {
        body["stream"] = false.into();
        body["sampling_params"]["stop_token_ids"] = vec![all["output_ids"][1].clone()].into();
    });
    let body = send(&client, &stop).await.1;
    assert_eq!(without_numbers(&body), without_numbers(golden("generate-stop.json").trim()));
}

#[tokio::test]
async fn aborts_end_streams_as_the_goldens_say() {
    let (_engine, handle, client) = started(|config| config.max_running = 1);
    let running = begin(&client, generate("u1.0001.", 2_000));
    bounded(handle.wait_for(|counts| counts.tokens_generated >= 3)).await;
    handle.set_tokens_per_second(0.0);
    let waiting = begin(&client, generate("u2.0001.", 4));
    bounded(handle.wait_for(|counts| counts.waiting == 1)).await;
    let abort = |rid: &str| request("abort one", |body| body["rid"] = rid.into());
    assert_eq!(send(&client, &abort("u2.0001.")).await, (200, String::new()));
    let (_, body) = bounded(waiting).await.unwrap();
    let event = body.strip_prefix("data: ").unwrap().split("\n\n").next().unwrap();
    let told = without_numbers(golden("abort-in-waiting-queue.json").trim());
    // Without a token there is no label but the empty one.
    let without_label =
        |text: &str| text.replace("\"weight_version\":\"v0\"", "\"weight_version\":\"\"");
    assert_eq!(without_label(&without_numbers(event)), without_label(&told));
    send(&client, &abort("u1.0001.")).await;
    assert_same_end(&bounded(running).await.unwrap().1, "abort-running-stream.sse");
}

#[tokio::test]
async fn abort_takes_all_ids_that_begin_with_one_that_is_known() {
    let (_engine, handle, client) = started(|config| config.tokens_per_second = 0.0);
    let streams = ["u1", "u10", "u2"].map(|rid| begin(&client, generate(rid, 2_000)));
    bounded(handle.wait_for(|counts| counts.running == 3)).await;
    for (rid, running) in [("u", 3), ("", 3), ("u1", 1)] {
        send(&client, &request("abort one", |body| body["rid"] = rid.into())).await;
        bounded(handle.wait_for(|counts| counts.running == running)).await;
    }
    handle.kill();
    for stream in streams {
        stream.abort();
    }
}

#[tokio::test]
async fn bad_calls_are_refused_by_status_or_by_event() {
    let (_engine, _handle, client) = started(|_| {});
    let parse = |body: &str| serde_json::from_str::<Value>(body).unwrap();
    let bad_field = request("generate", |body| body["input_ids"] = "text".into());
    let (status, body) = send(&client, &bad_field).await;
    assert_eq!((status, shape(&parse(&body))), (400, shape(&parse(&golden("bad-field-400.json")))));
    let too_long = request("generate", |body| body["input_ids"] = vec![5; 2_048].into());
    let (status, body) = send(&client, &too_long).await;
    let mut golden_events = golden("error-in-stream.sse");
    golden_events = golden_events.split("\n\n").nth(1).unwrap().to_owned();
    let event = |text: &str| parse(text.strip_prefix("data: ").unwrap());
    let mut events = body.split("\n\n");
    assert_eq!(shape(&event(events.next().unwrap())), shape(&event(&golden_events)));
    assert_eq!((status, events.next()), (200, Some("data: [DONE]")));
}

#[tokio::test]
async fn pause_closes_ready_and_label_update_aborts_unless_told_not_to() {
    let (_engine, handle, client) = started(|_| {});
    let ready = async || client.send("GET", "/ready", None).await.unwrap().status().as_u16();
    assert_eq!(ready().await, 200);
    let paused = send(&client, &request("pause", |_| {})).await;
    assert_eq!(paused, (200, golden("pause-reply.json").trim().to_owned()));
    assert_eq!(ready().await, 503);
    send(&client, &request("continue", |_| {})).await;
    assert_eq!(ready().await, 200);
    handle.set_tokens_per_second(0.0);
    let stream = begin(&client, generate("u1.0001.", 2_000));
    bounded(handle.wait_for(|counts| counts.running == 1)).await;
    send(&client, &request("set label", |body| body["new_version"] = "v3".into())).await;
    assert_eq!((handle.counts().running, handle.weights_label().as_str()), (1, "v3"));
    send(&client, &("/update_weight_version".to_owned(), json!({ "new_version": "v4" }))).await;
    assert!(bounded(stream).await.unwrap().1.contains("\"type\":\"abort\""));
}

#[tokio::test]
async fn metrics_have_the_names_of_the_golden() {
    let (_engine, handle, client) = started(|config| config.max_running = 3);
    for rid in ["a", "b", "c", "d"] {
        begin(&client, generate(rid, 2_000));
    }
    bounded(handle.wait_for(|counts| counts.waiting == 1 && counts.tokens_generated > 0)).await;
    let reply = bounded(client.send("GET", "/metrics", None)).await.unwrap();
    let page = bounded(reply.text()).await.unwrap();
    let value = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")));
        let line = line.unwrap_or_else(|| panic!("{name} is missing in {page}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    for line in golden("metrics.txt").lines() {
        value(line.split(' ').next().unwrap());
    }
    assert_eq!((value("sglang:num_running_reqs"), value("sglang:num_queue_reqs")), (3.0, 1.0));
    assert_eq!(value("sglang:gen_throughput"), 1_500.0);
    assert_eq!(value("sglang:time_to_first_token_seconds_count"), 3.0);
}
