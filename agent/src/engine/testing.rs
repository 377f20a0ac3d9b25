//! What tests of drivers share: recordings cut in pieces, whole streams, emulated engines of every
//! kind.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

use std::time::Duration;

use bytes::Bytes;
use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_core::sample::{FinishReason, StopReason};
use ebbtide_core::work::Sampling;
use futures::stream::{self, StreamExt};
use tokio::time::timeout;

use super::stream::{Decoded, read_events};
use super::*;
use crate::emulator::EngineConfig;

/// Bound of every wait: it ends a test that hangs and costs the others nothing.
pub(super) const LIMIT: Duration = Duration::from_secs(300);

/// What a stream came to: its tokens, and the end or the error.
pub(super) type Whole = (Vec<i32>, Result<StreamEnd, EngineError>);

/// A recording.
pub(super) fn golden(path: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/");
    std::fs::read(format!("{folder}{path}")).unwrap()
}

/// What a stream of these pieces comes to.
pub(super) async fn read_pieces(
    pieces: Vec<Vec<u8>>,
    decode: impl FnMut(&[u8]) -> Decoded + Send + 'static,
) -> Whole {
    let bytes = stream::iter(pieces.into_iter().map(|piece| Ok(Bytes::from(piece))));
    read_all(read_events(bytes.boxed(), u32::MAX, decode)).await
}

pub(super) async fn read_all(mut events: TokenStream) -> Whole {
    let mut tokens = Vec::new();
    loop {
        match timeout(LIMIT, events.next()).await.unwrap() {
            Some(Ok(StreamEvent::Tokens { ids, logprobs })) => {
                assert_eq!(ids.len(), logprobs.len());
                assert!(logprobs.iter().all(|logprob| *logprob <= 0.0));
                tokens.extend(ids);
            }
            Some(Ok(StreamEvent::End(end))) => return (tokens, Ok(end)),
            Some(Err(error)) => return (tokens, Err(error)),
            None => panic!("a stream must end with an end or an error"),
        }
    }
}

pub(super) fn finished(reason: FinishReason, stop: Option<StopReason>) -> EndReason {
    EndReason::Finished { reason, stop }
}

pub(super) fn span(label: &str, start: u32, end: u32) -> WeightSpan {
    WeightSpan { label: label.to_owned(), start, end }
}

pub(super) fn call(unit: &str, max_tokens: u32) -> GenerateCall {
    let unit: UnitId = unit.parse().unwrap();
    let sampling = Sampling { max_tokens, ignore_eos: true, seed: Some(3), ..Sampling::default() };
    let request = RequestId::new(&unit, FencingToken(7));
    GenerateCall { request, token_ids: vec![5, 6, 7], sampling }
}

/// Engines in all the ways in which a driver has to take work to them.
pub(super) fn every_way() -> [EngineConfig; 4] {
    let sglang = |incremental_streaming| EngineConfig {
        kind: EngineKind::Sglang,
        incremental_streaming,
        ..EngineConfig::default()
    };
    let completions = EngineConfig { scale_out: false, ..EngineConfig::default() };
    [EngineConfig::default(), completions, sglang(false), sglang(true)]
}
