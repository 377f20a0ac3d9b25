//! How prompt groups and chunks look on the wire: msgpack maps, numbers of tokens in binary.
//!
//! A chunk is the map `{v, o, w, t, l, h, f, e, a, s, d}`: schema version, offset, weight version,
//! token ids as little-endian i32, log-probabilities as little-endian f32, holder, fencing token,
//! engine, fabric verdict, start and end in Unix milliseconds. A group is the map of
//! [`PromptGroup`]'s field names.

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{Chunk, Origin, PromptGroup, WORK_SCHEMA};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes that do not hold what they should.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}: {problem}")]
pub struct CodecError {
    what: &'static str,
    problem: String,
}

impl CodecError {
    fn new(what: &'static str, problem: impl ToString) -> Self {
        Self { what, problem: problem.to_string() }
    }
}

#[derive(Serialize, Deserialize)]
struct WireChunk {
    v: u16,
    o: u32,
    w: u64,
    #[serde(with = "serde_bytes")]
    t: Vec<u8>,
    #[serde(with = "serde_bytes")]
    l: Vec<u8>,
    h: Holder,
    f: u64,
    e: String,
    a: FabricVerdict,
    s: u64,
    d: u64,
}

/// The bytes of a chunk.
pub fn encode_chunk(chunk: &Chunk) -> Vec<u8> {
    let wire = WireChunk {
        v: WORK_SCHEMA,
        o: chunk.offset,
        w: chunk.weight_version.0,
        t: chunk.token_ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        l: chunk.logprobs.iter().flat_map(|value| value.to_le_bytes()).collect(),
        h: chunk.origin.holder.clone(),
        f: chunk.origin.fencing_token.0,
        e: chunk.origin.engine.clone(),
        a: chunk.origin.fabric,
        s: chunk.origin.started_at.0,
        d: chunk.origin.ended_at.0,
    };
    rmp_serde::to_vec_named(&wire).expect("plain fields always serialise")
}

/// Reads a chunk back.
///
/// # Errors
/// Bytes of another layout, or not one log-probability for each token.
pub fn decode_chunk(bytes: &[u8]) -> Result<Chunk, CodecError> {
    let wire: WireChunk =
        rmp_serde::from_slice(bytes).map_err(|error| CodecError::new("chunk", error))?;
    if wire.v != WORK_SCHEMA {
        return Err(CodecError::new("chunk", format!("schema must be 1, got {}", wire.v)));
    }
    let token_ids = numbers(&wire.t, i32::from_le_bytes)?;
    let logprobs = numbers(&wire.l, f32::from_le_bytes)?;
    if token_ids.len() != logprobs.len() {
        let problem = format!("{} tokens with {} logprobs", token_ids.len(), logprobs.len());
        return Err(CodecError::new("chunk", problem));
    }
    Ok(Chunk {
        offset: wire.o,
        weight_version: PolicyVersion(wire.w),
        token_ids,
        logprobs,
        origin: Origin {
            holder: wire.h,
            fencing_token: FencingToken(wire.f),
            engine: wire.e,
            fabric: wire.a,
            started_at: UnixMillis(wire.s),
            ended_at: UnixMillis(wire.d),
        },
    })
}

fn numbers<T>(bytes: &[u8], read: fn([u8; 4]) -> T) -> Result<Vec<T>, CodecError> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        let problem = format!("numbers take 4 bytes each, got {} bytes", bytes.len());
        return Err(CodecError::new("chunk", problem));
    }
    Ok(words.iter().copied().map(read).collect())
}

/// The bytes of a group.
pub fn encode_group(group: &PromptGroup) -> Vec<u8> {
    rmp_serde::to_vec_named(group).expect("plain fields always serialise")
}

/// Reads a group back.
///
/// # Errors
/// Bytes of another layout.
pub fn decode_group(bytes: &[u8]) -> Result<PromptGroup, CodecError> {
    rmp_serde::from_slice(bytes).map_err(|error| CodecError::new("prompt group", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> Chunk {
        Chunk {
            offset: 7,
            weight_version: PolicyVersion(3),
            token_ids: vec![1, -2, i32::MAX],
            logprobs: vec![-0.5, -6.25, 0.0],
            origin: Origin {
                holder: "n/b/agent-1".parse().expect("valid"),
                fencing_token: FencingToken(9),
                engine: "vllm/0.32.0".to_owned(),
                fabric: FabricVerdict::Passed,
                started_at: UnixMillis(10),
                ended_at: UnixMillis(20),
            },
        }
    }

    #[test]
    fn chunk_survives_its_own_bytes() {
        assert_eq!(decode_chunk(&encode_chunk(&chunk())), Ok(chunk()));
    }

    #[test]
    fn group_survives_its_own_bytes() {
        let mut group = PromptGroup::new("g".parse().expect("valid"), 2, vec![1, 2, 3]);
        group.on_dead_slot = ebbtide_core::work::OnDeadSlot::Shrink { min_samples: 1 };
        group.meta = vec![0, 255];
        assert_eq!(decode_group(&encode_group(&group)), Ok(group));
    }

    #[test]
    fn tokens_without_their_logprobs_are_refused() {
        let mut lopsided = chunk();
        lopsided.logprobs.pop();
        assert!(decode_chunk(&encode_chunk(&lopsided)).is_err());
        assert!(decode_chunk(b"nonsense").is_err());
    }
}
