//! Which engine it is, and that another one may come up under the same address.

use std::net::SocketAddr;

use tokio::time::timeout;

use super::*;
use crate::emulator::{EngineConfig, EngineEmulator};
use crate::engine::testing::{LIMIT, call, read_all};

fn emulator(kind: EngineKind, listen: Option<SocketAddr>) -> EngineEmulator {
    let mut config = EngineConfig { kind, ..EngineConfig::default() };
    config.listen = listen.unwrap_or(config.listen);
    EngineEmulator::start(config).unwrap()
}

#[tokio::test]
async fn engine_is_unknown_until_it_has_answered() {
    let engine = DetectedEngine::new("http://127.0.0.1:9").unwrap();
    assert_eq!(engine.kind(), "unknown");
    let refusal = engine.generate(call("u1.0000", 4)).await.err().unwrap();
    assert!(matches!(refusal, EngineError::Unreachable { .. }), "{refusal:?}");
    assert!(engine.probe().await.is_err());
    assert_eq!(engine.kind(), "unknown");
}

#[tokio::test]
async fn engine_of_another_kind_under_the_same_address_is_found_out() {
    use EngineKind::{Sglang, Vllm};
    let first = emulator(Vllm, None);
    let listen = first.base_url().trim_start_matches("http://").parse().unwrap();
    let engine = DetectedEngine::new(&first.base_url()).unwrap();
    let mut running = Some(first);
    for kind in [Vllm, Sglang, Vllm] {
        // The one before goes without a failed probe.
        drop(running.take());
        running = Some(emulator(kind, Some(listen)));
        let probe = async { while !engine.probe().await.is_ok_and(|it| it.is_of(kind)) {} };
        timeout(LIMIT, probe).await.unwrap();
        assert_eq!(engine.kind(), kind.as_str());
        let (tokens, end) = read_all(engine.generate(call("u1.0000", 4)).await.unwrap()).await;
        assert!(end.is_ok() && tokens.len() == 4, "{end:?}");
    }
}

impl EngineFacts {
    fn is_of(&self, kind: EngineKind) -> bool {
        self.name.starts_with(kind.as_str()) && self.weights_label.is_some()
    }
}

#[tokio::test]
async fn one_failed_probe_does_not_take_the_driver_away() {
    let emulator = emulator(EngineKind::Sglang, None);
    let engine = DetectedEngine::new(&emulator.base_url()).unwrap();
    engine.probe().await.unwrap();
    emulator.kill();
    assert!(engine.probe().await.is_err());
    assert!(engine.probe().await.is_err());
    assert_eq!(engine.kind(), "sglang");
}

#[tokio::test]
async fn server_of_neither_kind_is_named() {
    let imds = crate::emulator::ImdsEmulator::start(crate::emulator::InstanceIdentity::spot(
        "i-1",
        "us-east-2b",
    ))
    .unwrap();
    let engine = DetectedEngine::new(&imds.base_url()).unwrap();
    let problem = engine.probe().await.err().unwrap().to_string();
    assert!(problem.contains("neither vLLM") || problem.contains("401"), "{problem}");
}
