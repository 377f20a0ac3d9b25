//! The driver against streams written from the engine's source, cut in every way.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::sample::{FinishReason, StopReason};
use serde_json::json;

use super::*;
use crate::emulator::{EngineConfig, EngineEmulator};
use crate::engine::testing::{self, Whole, finished, read_pieces, span};
use crate::engine::{EndReason, StreamEnd, StreamEvent};

fn golden(name: &str) -> Vec<u8> {
    testing::golden(&format!("sglang-0.5.23-from-source/{name}"))
}

async fn read(pieces: Vec<Vec<u8>>) -> Whole {
    let mut decoder = Decoder::default();
    read_pieces(pieces, move |data| decoder.read(data)).await
}

async fn read_golden(name: &str) -> Whole {
    read(vec![golden(name)]).await
}

#[tokio::test]
async fn streams_of_both_forms_end_as_they_were_written() {
    let length = || finished(FinishReason::Length, None);
    let stop = finished(FinishReason::Stop, Some(StopReason::Token(488)));
    let all = vec![359, 346, 465, 488];
    let table = [
        ("generate-stream-cumulative.sse", all.clone(), length(), vec![span("v2", 0, 4)]),
        ("generate-stream-incremental.sse", all.clone(), length(), vec![span("v2", 0, 4)]),
        ("version-bump-incremental.sse", all, stop, vec![span("v2", 0, 1), span("v3", 1, 4)]),
        ("abort-running-stream.sse", vec![359, 346], EndReason::Aborted, vec![span("v2", 0, 2)]),
        (
            "abort-in-queue-incremental.sse",
            vec![359, 346],
            EndReason::Aborted,
            vec![span("v2", 0, 2)],
        ),
    ];
    for (name, tokens, reason, spans) in table {
        let (got, end) = read_golden(name).await;
        assert_eq!((got, end), (tokens, Ok(StreamEnd { reason, spans })), "{name}");
    }
}

#[tokio::test]
async fn whole_replies_read_as_one_event() {
    let stop = finished(FinishReason::Stop, Some(StopReason::Token(346)));
    for (name, tokens, reason) in [
        ("generate-nonstream.json", 4, finished(FinishReason::Length, None)),
        ("generate-stop.json", 2, stop),
        ("abort-in-waiting-queue.json", 0, EndReason::Aborted),
    ] {
        let events = Decoder::default().read(&golden(name));
        let count = |event: &Result<StreamEvent, EngineError>| match event {
            Ok(StreamEvent::Tokens { ids, .. }) => ids.len(),
            _ => 0,
        };
        assert_eq!(events.iter().map(count).sum::<usize>(), tokens, "{name}");
        let Some(Ok(StreamEvent::End(end))) = events.last() else { panic!("{name}: {events:?}") };
        assert_eq!(end.reason, reason, "{name}");
    }
}

#[tokio::test]
async fn error_events_keep_the_tokens_and_are_judged_by_their_code() {
    let (tokens, end) = read_golden("error-in-stream.sse").await;
    assert_eq!(tokens, [359]);
    assert!(matches!(end, Err(EngineError::Failed { code: 500, .. })), "{end:?}");
    let (_, end) = read_golden("queue-full.sse").await;
    let Err(refusal @ EngineError::Refused { status: 503, .. }) = end else { panic!("{end:?}") };
    assert!(!refusal.is_about_the_unit() && !refusal.is_engine_in_doubt(), "it is only full");
    let bad = json!({ "error": { "message": "too long", "type": "x", "code": 400 } });
    let (_, end) = read(vec![format!("data: {bad}\n\n").into_bytes()]).await;
    assert!(end.is_err_and(|error| error.is_about_the_unit()));
}

#[tokio::test]
async fn streams_are_the_same_however_they_are_cut_and_break_off_without_a_finish() {
    for name in ["generate-stream-cumulative.sse", "generate-stream-incremental.sse"] {
        let body = golden(name);
        let whole = read(vec![body.clone()]).await;
        for size in [1, 2, 3, 7, 64, 1000] {
            let pieces = body.chunks(size).map(<[u8]>::to_vec).collect();
            assert_eq!(read(pieces).await, whole, "{name} in pieces of {size}");
        }
        let last = body.len() - "data: [DONE]\n\n".len();
        for length in (0..last).step_by(41) {
            let (tokens, end) = read(vec![body[..length].to_vec()]).await;
            assert!(whole.0.starts_with(&tokens), "{name} cut at {length}");
            assert!(matches!(end, Err(EngineError::BrokenStream { .. })), "{name} at {length}");
        }
    }
}

/// One event.
fn event(ids: &[i32], logprobs: &[(f32, i32)], total: usize, finish: serde_json::Value) -> Vec<u8> {
    let logprobs: Vec<_> = logprobs.iter().map(|(value, id)| json!([value, id, null])).collect();
    let meta = json!({
        "completion_tokens": total, "output_token_logprobs": logprobs, "finish_reason": finish,
    });
    format!("data: {}\n\n", json!({ "output_ids": ids, "meta_info": meta })).into_bytes()
}

/// Several events may wait when the server writes: it then joins them, and an abort in the queue
/// repeats the last token there, with the log-probabilities of all.
#[test]
fn joined_events_with_an_abort_give_each_token_once() {
    let abort = json!({ "type": "abort", "message": "Abort in waiting queue" });
    // The same token over and over is where the forms are hardest to tell apart.
    for (taken, new) in [(0, 1), (0, 3), (1, 1), (1, 2), (2, 1), (4, 3)] {
        for id in [|_| 5, |place: i32| place + 5] {
            let all: Vec<(f32, i32)> = (0..taken + new).map(|n| (-(n + 1) as f32, id(n))).collect();
            let (old, fresh) = all.split_at(taken as usize);
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for (place, token) in old.iter().enumerate() {
                got.extend(decode(&mut decoder, &[token.1], &[*token], place + 1, json!(null)));
            }
            let mut ids: Vec<i32> = fresh.iter().map(|(_, id)| *id).collect();
            ids.push(id(taken + new - 1));
            let logprobs = [fresh, &all].concat();
            got.extend(decode(&mut decoder, &ids, &logprobs, all.len(), abort.clone()));
            assert_eq!(got, all, "{taken} and {new}");
        }
    }
}

/// The tokens of one event, with their log-probabilities.
fn decode(
    decoder: &mut Decoder,
    ids: &[i32],
    logprobs: &[(f32, i32)],
    total: usize,
    finish: serde_json::Value,
) -> Vec<(f32, i32)> {
    let event = event(ids, logprobs, total, finish);
    let data = event.strip_prefix(b"data: ").unwrap();
    match decoder.read(data).swap_remove(0) {
        Ok(StreamEvent::Tokens { ids, logprobs }) => logprobs.into_iter().zip(ids).collect(),
        other => panic!("expected tokens, got {other:?}"),
    }
}

#[tokio::test]
async fn output_that_is_not_a_number_is_a_fault_and_its_end_token_is_left_out() {
    let finish = json!({ "type": "stop", "matched": "NaN happened" });
    let first = event(&[7], &[(-1.0, 7)], 1, json!(null));
    for ids in [vec![8, 2], vec![7, 8, 2]] {
        // The end token stands in for another one, whose log-probability it still has.
        let logprobs: Vec<_> =
            ids.iter().map(|id| (-1.0, if *id == 2 { 99_999 } else { *id })).collect();
        let last = event(&ids, &logprobs, 3, finish.clone());
        let (tokens, end) = read(vec![first.clone(), last]).await;
        assert_eq!(tokens, [7, 8]);
        assert!(matches!(end, Err(EngineError::Failed { code: 500, .. })), "{end:?}");
    }
}

#[tokio::test]
async fn missing_tokens_and_garbage_are_malformed() {
    let gap =
        [event(&[7], &[(-1.0, 7)], 1, json!(null)), event(&[9], &[(-1.0, 9)], 3, json!(null))];
    let fewer = [
        event(&[7, 8], &[(-1.0, 7), (-1.0, 8)], 2, json!(null)),
        event(&[7], &[(-1.0, 7)], 1, json!(null)),
    ];
    let no_logprobs = event(&[7], &[], 1, json!(null));
    let others_logprob = event(&[7], &[(-1.0, 8)], 1, json!(null));
    let garbage = b"data: nonsense\n\n".to_vec();
    for bytes in [gap.concat(), fewer.concat(), no_logprobs, others_logprob, garbage] {
        let (_, end) = read(vec![bytes.clone()]).await;
        let text = String::from_utf8_lossy(&bytes);
        assert!(matches!(end, Err(EngineError::Malformed { .. })), "{text}: {end:?}");
    }
}

/// `/update_weights_from_disk` renames the model after its path.
#[tokio::test]
async fn model_keeps_its_name_after_weights_were_loaded_from_disk() {
    let config = EngineConfig { kind: EngineKind::Sglang, ..EngineConfig::default() };
    let emulator = EngineEmulator::start(config).unwrap();
    let update = json!({ "model_path": "/weights/8", "weight_version": "8" });
    let url = format!("{}/update_weights_from_disk", emulator.base_url());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    http.post(url).json(&update).send().await.unwrap().error_for_status().unwrap();
    let facts = SglangEngine::new(&emulator.base_url()).unwrap().probe().await.unwrap();
    assert_eq!(facts.models, ["/weights/8", "tiny"]);
    assert_eq!(facts.weights_label.as_deref(), Some("8"));
}

#[tokio::test]
async fn engine_that_was_never_ready_is_not_taken_for_a_paused_one() {
    let config = EngineConfig { kind: EngineKind::Sglang, ..EngineConfig::default() };
    let emulator = EngineEmulator::start(config).unwrap();
    emulator.handle().pause(crate::emulator::engine::PauseMode::Keep);
    let engine = SglangEngine::new(&emulator.base_url()).unwrap();
    let problem = engine.probe().await.err().unwrap().to_string();
    assert!(problem.contains("/ready"), "{problem}");
    emulator.handle().resume();
    assert!(engine.probe().await.is_ok());
}

/// A server that refuses the first of several aborts.
#[tokio::test]
async fn abort_that_is_refused_keeps_no_other_from_being_sent() {
    let (seen, asked) = (Arc::new(AtomicUsize::new(0)), 3 * ABORTS_AT_ONCE);
    let counted = seen.clone();
    let abort = axum::routing::post(move || async move {
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::OK,
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().route("/abort_request", abort);
    tokio::spawn(axum::serve(listener, app).into_future());
    let engine = SglangEngine::new(&address).unwrap();
    let requests: Vec<RequestId> =
        (0..asked).map(|n| testing::call(&format!("u{n}.0000"), 4).request).collect();
    assert!(engine.abort(&requests).await.is_err(), "it is told, and tried again");
    assert_eq!(seen.load(Ordering::SeqCst), asked);
}

/// Case 6 of rollouts.
#[test]
fn load_of_weights_says_that_it_aborts_nothing() {
    let weights = WeightsAt { version: PolicyVersion(8), place: "/weights/8".to_owned() };
    let body = serde_json::to_value(wire::LoadBody::of(&weights)).unwrap();
    assert_eq!(body["abort_all_requests"], json!(false));
}
