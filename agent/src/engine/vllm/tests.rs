//! The driver against recorded streams, cut in every way, and against the emulated engine.

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::sample::{FinishReason, StopReason};
use tokio::time::timeout;

use super::wire::{Chunk, read_event};
use super::*;
use crate::emulator::{EngineConfig, EngineEmulator};
use crate::engine::testing::{self, LIMIT, Whole, call, finished, read_all, span};
use crate::engine::{EndReason, StreamEnd, StreamEvent};

/// Body of a recording.
fn golden(name: &str) -> Vec<u8> {
    let whole = testing::golden(&format!("vllm-0.32/{name}.http"));
    let head = whole.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    whole[head + 4..].to_vec()
}

async fn read_pieces(pieces: Vec<Vec<u8>>) -> Whole {
    testing::read_pieces(pieces, read_event).await
}

async fn read_golden(name: &str) -> Whole {
    read_pieces(vec![golden(name)]).await
}

#[tokio::test]
async fn recorded_streams_end_as_they_were_recorded() {
    let length = finished(FinishReason::Length, None);
    let table = [
        ("generate-stream-16", 16, length.clone(), vec![span("default", 0, 16)]),
        ("generate-stream-usage", 3, length.clone(), vec![span("default", 0, 3)]),
        (
            "generate-stop-token",
            10,
            finished(FinishReason::Stop, Some(StopReason::Token(264))),
            vec![span("default", 0, 10)],
        ),
        ("abort-stream", 3, EndReason::Aborted, vec![span("v3", 0, 3)]),
        ("abort-before-first-token-stream", 0, EndReason::Aborted, vec![]),
        ("abort-waiting-stream", 0, EndReason::Aborted, vec![]),
        (
            "version-bump-no-pause-stream",
            32,
            length.clone(),
            vec![span("v2", 0, 10), span("v3", 10, 32)],
        ),
        ("sigterm-drain-stream", 40, length.clone(), vec![span("v3", 0, 40)]),
        ("completions-stream", 4, length, vec![]),
    ];
    for (name, tokens, reason, spans) in table {
        let (got, end) = read_golden(name).await;
        assert_eq!(got.len(), tokens, "{name}");
        assert_eq!(end, Ok(StreamEnd { reason, spans }), "{name}");
    }
}

#[tokio::test]
async fn chunk_that_aborts_may_carry_a_token() {
    let (tokens, end) = read_golden("abort-last-chunk-has-token-stream").await;
    assert_eq!(end.map(|end| end.reason), Ok(EndReason::Aborted));
    let body = String::from_utf8(golden("abort-last-chunk-has-token-stream")).unwrap();
    assert_eq!(tokens.len(), body.matches("\"token_ids\":[").count(), "every chunk has one");
}

#[tokio::test]
async fn continuation_goes_on_where_the_prefix_ends() {
    let (whole, _) = read_whole("continuation-whole");
    let (rest, _) = read_whole("continuation-rest");
    assert_eq!(whole[10..], rest);
}

/// The two recordings of a continuation are no streams: one event would have the same shape.
fn read_whole(name: &str) -> (Vec<i32>, ()) {
    let chunk: Chunk = serde_json::from_slice(&golden(name)).unwrap();
    let mut events = chunk.read(b"").into_iter();
    match events.next() {
        Some(Ok(StreamEvent::Tokens { ids, .. })) => (ids, ()),
        other => panic!("expected tokens, got {other:?}"),
    }
}

#[tokio::test]
async fn dying_engine_fails_the_stream_and_keeps_its_tokens() {
    let (tokens, end) = read_golden("engine-death-stream.assembled").await;
    assert_eq!(tokens, [359, 346, 465]);
    assert!(matches!(end, Err(EngineError::Failed { code: 500, .. })), "{end:?}");
}

#[tokio::test]
async fn stream_that_breaks_off_anywhere_keeps_what_came_and_is_no_finish() {
    let body = golden("generate-stream-16");
    for length in (0..body.len() - 1).step_by(97) {
        let (tokens, end) = read_pieces(vec![body[..length].to_vec()]).await;
        let came = String::from_utf8_lossy(&body[..length]).matches("}]}}]}\n\n").count();
        assert_eq!(tokens.len(), came, "cut at {length}");
        let is_whole = came == 16;
        assert_eq!(end.is_ok(), is_whole, "cut at {length} gave {end:?}");
    }
}

#[tokio::test]
async fn stream_is_the_same_however_it_is_cut() {
    let body = golden("version-bump-stream");
    let whole = read_pieces(vec![body.clone()]).await;
    for size in [1, 2, 3, 7, 64, 1000] {
        let pieces = body.chunks(size).map(<[u8]>::to_vec).collect();
        assert_eq!(read_pieces(pieces).await, whole, "pieces of {size}");
    }
}

#[tokio::test]
async fn tokens_without_logprobs_and_garbage_are_malformed() {
    for event in ["data: {\"choices\":[{\"token_ids\":[1]}]}\n\n", "data: nonsense\n\n"] {
        let (_, end) = read_pieces(vec![event.as_bytes().to_vec()]).await;
        assert!(matches!(end, Err(EngineError::Malformed { .. })), "{event}: {end:?}");
    }
}

fn started(config: EngineConfig) -> (EngineEmulator, VllmEngine) {
    let emulator = EngineEmulator::start(config).unwrap();
    let engine = VllmEngine::new(&emulator.base_url()).unwrap();
    (emulator, engine)
}

#[tokio::test]
async fn engine_tells_its_version_weights_and_models() {
    let (emulator, engine) = started(EngineConfig::default());
    emulator.handle().set_weights_label("12");
    let facts = timeout(LIMIT, engine.probe()).await.unwrap().unwrap();
    let expected = EngineFacts {
        name: "vllm/0.32.0".to_owned(),
        weights_label: Some("12".to_owned()),
        is_paused: false,
        models: vec!["tiny".to_owned()],
        lacks: Vec::new(),
    };
    assert_eq!(facts, expected);
}

#[tokio::test]
async fn engine_tells_its_load() {
    let (emulator, engine) = started(EngineConfig { max_running: 1, ..EngineConfig::default() });
    let idle = timeout(LIMIT, engine.load()).await.unwrap().unwrap();
    assert_eq!((idle.running, idle.waiting, idle.kv_cache_use), (Some(0), Some(0), Some(0.0)));
    let _first = engine.generate(call("u1.0000", 4_000)).await.unwrap();
    let _second = engine.generate(call("u2.0000", 4_000)).await.unwrap();
    let counts = emulator.handle().wait_for(|counts| counts.tokens_generated > 3).await;
    let busy = timeout(LIMIT, engine.load()).await.unwrap().unwrap();
    assert_eq!((busy.running, busy.waiting), (Some(1), Some(1)));
    assert!(busy.generated_tokens >= Some(counts.tokens_generated), "{busy:?}");
    emulator.kill();
    assert!(engine.load().await.is_err());
}

#[tokio::test]
async fn engine_that_was_away_is_asked_again_who_it_is() {
    let (emulator, engine) = started(EngineConfig::default());
    let listen = emulator.base_url().trim_start_matches("http://").parse().unwrap();
    assert_eq!(engine.probe().await.unwrap().models, ["tiny"]);
    emulator.kill();
    assert!(engine.probe().await.is_err());
    drop(emulator);
    let model_name = "huge".to_owned();
    let config = EngineConfig { listen, model_name, ..EngineConfig::default() };
    let _successor = EngineEmulator::start(config).unwrap();
    assert_eq!(engine.probe().await.unwrap().models, ["huge"]);
}

#[tokio::test]
async fn engine_without_dev_mode_does_not_tell_its_weights() {
    let (_emulator, engine) = started(EngineConfig { dev_mode: false, ..EngineConfig::default() });
    let facts = timeout(LIMIT, engine.probe()).await.unwrap().unwrap();
    assert_eq!((facts.weights_label, facts.is_paused), (None, false));
}

#[tokio::test]
async fn call_goes_by_completions_where_scale_out_is_off_probed_or_not() {
    let (emulator, engine) = started(EngineConfig { scale_out: false, ..EngineConfig::default() });
    let (tokens, end) = read_all(engine.generate(call("u1.0000", 4)).await.unwrap()).await;
    assert_eq!((tokens.len(), end.map(|end| end.spans)), (4, Ok(Vec::new())));
    assert_eq!(emulator.handle().counts().requests, 1, "the refused one was not taken");
    assert_eq!(engine.probe().await.unwrap().lacks, [Lack::ScaleOut]);
}

#[tokio::test]
async fn looking_for_abilities_generates_nothing() {
    let (emulator, engine) = started(EngineConfig::default());
    assert_eq!(engine.probe().await.unwrap().lacks, []);
    assert_eq!(emulator.handle().counts().requests, 0);
}

#[tokio::test]
async fn engine_that_takes_work_by_no_route_names_the_flag() {
    let config = EngineConfig { scale_out: false, completions: false, ..EngineConfig::default() };
    let (_emulator, engine) = started(config);
    let refusal = engine.generate(call("u1.0000", 4)).await.err().unwrap();
    assert!(matches!(refusal, EngineError::Unable { .. }), "{refusal:?}");
    assert!(refusal.to_string().contains("--enable-scale-out"), "{refusal}");
}

#[tokio::test]
async fn abort_without_a_route_names_the_switch() {
    let config = EngineConfig { scale_out: false, dev_mode: false, ..EngineConfig::default() };
    let (_emulator, engine) = started(config);
    engine.probe().await.unwrap();
    let refusal = engine.abort(&[call("u1.0000", 4).request]).await.err().unwrap();
    assert!(refusal.to_string().contains("VLLM_SERVER_DEV_MODE=1"), "{refusal}");
}

#[tokio::test]
async fn error_event_about_the_call_is_not_held_against_the_engine() {
    let event = |code: u16| {
        let error = serde_json::json!({ "error": { "message": "no", "code": code } });
        vec![format!("data: {error}\n\n").into_bytes()]
    };
    let (_, end) = read_pieces(event(400)).await;
    let error = end.err().unwrap();
    assert!(error.is_about_the_unit() && !error.is_engine_in_doubt(), "{error:?}");
    let (_, end) = read_pieces(event(500)).await;
    assert!(end.is_err_and(|error| error.is_engine_in_doubt()));
}

/// Case 10 of rollouts: whichever form of the id the stream has.
#[tokio::test]
async fn abort_is_heard_by_completions_although_a_probe_has_failed() {
    let config = EngineConfig {
        scale_out: false,
        load_takes: Duration::from_secs(600),
        ..EngineConfig::default()
    };
    let (emulator, engine) = started(config);
    engine.probe().await.unwrap();
    let call = call("u1.0000", 4_000);
    let stream = engine.generate(call.clone()).await.unwrap();
    let weights = WeightsAt { version: PolicyVersion(8), place: "/weights/8".to_owned() };
    let load = engine.load_weights(&weights, LIMIT);
    let abort = async {
        while engine.probe().await.is_ok() {}
        engine.abort(&[call.request]).await.unwrap();
        read_all(stream).await
    };
    let (_, end) = tokio::select! {
        ended = abort => ended,
        loaded = load => panic!("{loaded:?}"),
    };
    assert_eq!(end.map(|end| end.reason), Ok(EndReason::Aborted));
    assert_eq!(emulator.handle().counts().running, 0);
}
