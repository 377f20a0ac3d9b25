//! What holds for every driver, against emulated engines of both kinds and in every way of theirs.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

use std::time::Duration;

use ebbtide_core::sample::{FinishReason, StopReason};
use futures::StreamExt;
use tokio::time::timeout;

use super::testing::{LIMIT, call, every_way, finished, read_all, span};
use super::*;
use crate::emulator::engine::PauseMode;
use crate::emulator::{EngineConfig, EngineEmulator};

/// An engine in each way, with its driver, probed once.
async fn all_started(change: impl Fn(&mut EngineConfig)) -> Vec<(EngineEmulator, DetectedEngine)> {
    let mut started = Vec::new();
    for mut config in every_way() {
        change(&mut config);
        let emulator = EngineEmulator::start(config).unwrap();
        let engine = DetectedEngine::new(&emulator.base_url()).unwrap();
        timeout(LIMIT, engine.probe()).await.unwrap().unwrap();
        started.push((emulator, engine));
    }
    started
}

async fn first_tokens(events: &mut TokenStream) {
    let first = timeout(LIMIT, events.next()).await.unwrap();
    assert!(matches!(first, Some(Ok(StreamEvent::Tokens { .. }))), "{first:?}");
}

#[tokio::test]
async fn response_is_the_same_by_every_way_and_so_is_its_continuation() {
    let mut responses = Vec::new();
    for (_emulator, engine) in all_started(|_| {}).await {
        let (whole, end) = read_all(engine.generate(call("u1.0000", 40)).await.unwrap()).await;
        assert_eq!(end.map(|end| end.reason), Ok(finished(FinishReason::Length, None)));
        let mut rest = call("u2.0000", 28);
        rest.token_ids.extend(&whole[..12]);
        let (rest, _) = read_all(engine.generate(rest).await.unwrap()).await;
        assert_eq!(rest, whole[12..], "{}", engine.kind());
        responses.push(whole);
    }
    assert!(responses.iter().all(|response| response.len() == 40 && *response == responses[0]));
}

#[tokio::test]
async fn stop_token_ends_the_response_and_is_part_of_it() {
    for (_emulator, engine) in all_started(|_| {}).await {
        let (whole, _) = read_all(engine.generate(call("u1.0000", 40)).await.unwrap()).await;
        let mut stopped = call("u2.0000", 40);
        stopped.sampling.stop_token_ids = vec![whole[9]];
        let (tokens, end) = read_all(engine.generate(stopped).await.unwrap()).await;
        assert_eq!(tokens, whole[..=9], "{}", engine.kind());
        let reason = finished(FinishReason::Stop, Some(StopReason::Token(whole[9])));
        assert_eq!(end.map(|end| end.reason), Ok(reason));
    }
}

/// Cases 10 and 13.
#[tokio::test]
async fn abort_ends_the_named_stream_and_no_other() {
    for (emulator, engine) in all_started(|_| {}).await {
        let short = call("u1.0000", 4_000);
        let mut aborted = engine.generate(short.clone()).await.unwrap();
        let mut other = engine.generate(call("u10.0000", 4_000)).await.unwrap();
        first_tokens(&mut aborted).await;
        engine.abort(&[short.request]).await.unwrap();
        let (_, end) = read_all(aborted).await;
        assert_eq!(end.map(|end| end.reason), Ok(EndReason::Aborted), "{}", engine.kind());
        first_tokens(&mut other).await;
        assert_eq!(emulator.handle().counts().running, 1);
    }
}

/// Case 11: nothing is queued where the abort would not reach it.
#[tokio::test]
async fn call_that_waits_for_a_place_is_aborted_without_a_token() {
    for (emulator, engine) in all_started(|config| config.max_running = 1).await {
        let mut running = engine.generate(call("u1.0000", 4_000)).await.unwrap();
        let waiting = call("u2.0000", 4_000);
        let stream = engine.generate(waiting.clone()).await.unwrap();
        timeout(LIMIT, emulator.handle().wait_for(|counts| counts.waiting == 1)).await.unwrap();
        engine.abort(&[waiting.request]).await.unwrap();
        let (tokens, end) = read_all(stream).await;
        assert_eq!((tokens.len(), end.map(|end| end.reason)), (0, Ok(EndReason::Aborted)));
        first_tokens(&mut running).await;
    }
}

/// A paused engine of the SGLang kind puts running streams back into its queue.
#[tokio::test]
async fn stream_aborted_in_a_pause_keeps_each_token_once() {
    for (emulator, engine) in all_started(|_| {}).await {
        let aborted = call("u1.0000", 4_000);
        let mut stream = engine.generate(aborted.clone()).await.unwrap();
        let Some(Ok(StreamEvent::Tokens { ids: mut tokens, .. })) = stream.next().await else {
            panic!("tokens come first");
        };
        emulator.handle().pause(PauseMode::Retract);
        let made = emulator.handle().counts().tokens_generated;
        engine.abort(&[aborted.request]).await.unwrap();
        let (rest, end) = read_all(stream).await;
        tokens.extend(rest);
        assert_eq!(end.map(|end| end.reason), Ok(EndReason::Aborted), "{}", engine.kind());
        assert_eq!(tokens.len() as u64, made, "{}", engine.kind());
    }
}

/// Case 6, as far as the engine is concerned.
#[tokio::test]
async fn weights_that_change_in_mid_stream_are_told_by_span_and_abort_nothing() {
    for (emulator, engine) in all_started(|config| config.weights_label = "7".to_owned()).await {
        let mut stream = engine.generate(call("u1.0000", 60)).await.unwrap();
        first_tokens(&mut stream).await;
        emulator.handle().set_weights_label("8");
        let (_, end) = read_all(stream).await;
        let end = end.unwrap();
        assert_eq!(end.reason, finished(FinishReason::Length, None));
        if engine.probe().await.unwrap().lacks.contains(&Lack::ScaleOut) {
            assert_eq!(end.spans, [], "completions tell none");
            continue;
        }
        let [before, after] = &end.spans[..] else { panic!("{:?}", end.spans) };
        assert_eq!((before, after), (&span("7", 0, after.start), &span("8", before.end, 60)));
    }
}

#[tokio::test]
async fn engine_loads_weights_by_itself_and_takes_their_label_only_then() {
    let weights = |place: &str| WeightsAt { version: PolicyVersion(8), place: place.to_owned() };
    let limit = Duration::from_secs(5);
    for (emulator, engine) in all_started(|config| config.weights_label = "7".to_owned()).await {
        let handle = emulator.handle();
        handle.set_unreadable_weights(Some("/lost"));
        let refused = engine.load_weights(&weights("/lost/8"), limit).await;
        assert!(refused.is_err(), "{}", engine.kind());
        assert_eq!(handle.weights_label(), "7", "{}", engine.kind());
        assert_eq!(engine.load_weights(&weights("/kept/8"), limit).await, Ok(()));
        let label = engine.probe().await.unwrap().weights_label;
        assert_eq!((label.as_deref(), handle.counts().weight_loads), (Some("8"), 2));
    }
}

#[tokio::test]
async fn load_that_takes_too_long_is_given_up() {
    let slow = |config: &mut EngineConfig| config.load_takes = Duration::from_secs(60);
    let weights = WeightsAt { version: PolicyVersion(8), place: "/weights/8".to_owned() };
    for (_emulator, engine) in all_started(slow).await {
        let load = engine.load_weights(&weights, Duration::from_millis(200));
        let given_up = timeout(LIMIT, load).await.unwrap();
        assert!(matches!(given_up, Err(EngineError::Silent { .. })), "{given_up:?}");
    }
}

#[tokio::test]
async fn vllm_without_its_control_routes_names_what_to_set_and_loads_nothing() {
    let config = EngineConfig { dev_mode: false, ..EngineConfig::default() };
    let emulator = EngineEmulator::start(config).unwrap();
    let engine = VllmEngine::new(&emulator.base_url()).unwrap();
    let weights = WeightsAt { version: PolicyVersion(8), place: "/weights/8".to_owned() };
    let problem = engine.load_weights(&weights, LIMIT).await.err().unwrap().to_string();
    assert!(problem.contains("VLLM_SERVER_DEV_MODE=1"), "{problem}");
}

#[tokio::test]
async fn engine_tells_version_weights_models_and_pause() {
    let change = |config: &mut EngineConfig| config.weights_label = "12".to_owned();
    for (emulator, engine) in all_started(change).await {
        let facts = engine.probe().await.unwrap();
        let version = if engine.kind() == "vllm" { "vllm/0.32.0" } else { "sglang/0.5.23" };
        assert_eq!(facts.name, version);
        assert_eq!(facts.weights_label.as_deref(), Some("12"));
        assert_eq!((facts.models, facts.is_paused), (vec!["tiny".to_owned()], false));
        emulator.handle().pause(PauseMode::Keep);
        assert!(engine.probe().await.unwrap().is_paused, "{version}");
        emulator.handle().resume();
        assert!(!engine.probe().await.unwrap().is_paused, "{version}");
    }
}

/// Case 8.
#[tokio::test]
async fn dying_engine_fails_its_streams_and_they_keep_their_tokens() {
    for (emulator, engine) in all_started(|_| {}).await {
        let mut stream = engine.generate(call("u1.0000", 4_000)).await.unwrap();
        first_tokens(&mut stream).await;
        emulator.handle().fail_core();
        let (_, end) = read_all(stream).await;
        assert!(matches!(end, Err(EngineError::Failed { code: 500, .. })), "{end:?}");
        timeout(LIMIT, emulator.handle().ended()).await.unwrap();
        assert!(engine.probe().await.is_err());
    }
}

#[tokio::test]
async fn broken_streams_and_error_events_are_no_finish() {
    for (emulator, engine) in all_started(|_| {}).await {
        let handle = emulator.handle();
        let mut stream = engine.generate(call("u1.0000", 4_000)).await.unwrap();
        first_tokens(&mut stream).await;
        handle.break_streams();
        let (_, end) = read_all(stream).await;
        assert!(matches!(end, Err(EngineError::BrokenStream { .. })), "{end:?}");
        let mut stream = engine.generate(call("u2.0000", 4_000)).await.unwrap();
        first_tokens(&mut stream).await;
        handle.fail_streams();
        let (_, end) = read_all(stream).await;
        assert!(matches!(end, Err(EngineError::Failed { code: 500, .. })), "{end:?}");
        let mut stream = engine.generate(call("u3.0000", 4_000)).await.unwrap();
        first_tokens(&mut stream).await;
        emulator.kill();
        let (_, end) = read_all(stream).await;
        assert!(matches!(end, Err(EngineError::BrokenStream { .. })), "{end:?}");
    }
}

#[tokio::test]
async fn refusals_failures_and_absence_are_told_apart() {
    for (emulator, engine) in all_started(|_| {}).await {
        let mut too_long = call("u1.0000", 8);
        too_long.token_ids = vec![5; 9_000];
        let refusal = match engine.generate(too_long).await {
            Ok(stream) => read_all(stream).await.1.err().unwrap(),
            Err(error) => error,
        };
        assert!(refusal.is_about_the_unit(), "{refusal:?}");
        assert!(refusal.to_string().contains("9000"), "{refusal}");
        emulator.handle().fail_next(1, 503);
        let failure = engine.generate(call("u1.0000", 4)).await.err().unwrap();
        assert!(matches!(failure, EngineError::Failed { code: 503, .. }), "{failure:?}");
        emulator.kill();
        let absence = engine.generate(call("u1.0000", 4)).await.err().unwrap();
        assert!(matches!(absence, EngineError::Unreachable { .. }), "{absence:?}");
        assert!(engine.probe().await.is_err());
    }
}

#[tokio::test]
async fn request_beyond_the_context_is_cut_to_it() {
    for (_emulator, engine) in all_started(|config| config.context_length = 20).await {
        let (tokens, end) = read_all(engine.generate(call("u1.0000", 40)).await.unwrap()).await;
        let length = finished(FinishReason::Length, None);
        assert_eq!((tokens.len(), end.map(|end| end.reason)), (17, Ok(length)));
    }
}

#[tokio::test]
async fn finish_counts_without_the_done_line_and_without_a_close() {
    for (emulator, engine) in all_started(|_| {}).await {
        emulator.handle().set_omits_done(true);
        emulator.handle().set_leaves_open(true);
        let (tokens, end) = read_all(engine.generate(call("u1.0000", 8)).await.unwrap()).await;
        assert_eq!(tokens.len(), 8);
        assert_eq!(end.map(|end| end.reason), Ok(finished(FinishReason::Length, None)));
    }
}

#[tokio::test]
async fn silent_engine_says_nothing_and_stays_healthy() {
    for (emulator, engine) in all_started(|_| {}).await {
        emulator.handle().set_hung(true);
        let mut stream = engine.generate(call("u1.0000", 8)).await.unwrap();
        assert!(engine.probe().await.is_ok());
        assert!(timeout(Duration::from_millis(100), stream.next()).await.is_err());
        emulator.handle().set_hung(false);
        assert_eq!(read_all(stream).await.0.len(), 8);
    }
}

#[tokio::test]
async fn abilities_that_an_engine_lacks_are_named_with_the_flag_to_set() {
    for (_emulator, engine) in all_started(|config| config.dev_mode = false).await {
        let facts = engine.probe().await.unwrap();
        let advice: Vec<_> = facts.lacks.iter().map(|lack| lack.advice()).collect();
        for (lack, flag) in [
            (Lack::ScaleOut, "--enable-scale-out"),
            (Lack::DevMode, "VLLM_SERVER_DEV_MODE=1"),
            (Lack::IncrementalStreaming, "--incremental-streaming-output"),
        ] {
            let is_named = advice.iter().any(|advice| advice.contains(flag));
            assert_eq!(facts.lacks.contains(&lack), is_named, "{advice:?}");
        }
        assert_eq!(facts.lacks.contains(&Lack::DevMode), engine.kind() == "vllm");
        assert_eq!(facts.weights_label.is_none(), engine.kind() == "vllm");
    }
}
