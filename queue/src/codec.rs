//! How prompt groups, chunks and their origins look as bytes; `queue/WIRE.md` is the reference, and
//! `queue/vectors.json` has examples that the Rust and the Python client are both held to.
//!
//! A chunk is binary, since it is what fills the queue: numbers as LEB128, token ids too (most take
//! two bytes instead of four), log-probabilities as little-endian f32. What a run of chunks has in
//! common, its origin, is stored once for all of them.

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion};
use ebbtide_core::sample::{Chunk, Origin, Score};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use thiserror::Error;

/// First byte of a chunk.
const CHUNK_LAYOUT: u8 = 1;

/// Most tokens that a chunk may claim to have, so that damaged bytes cannot ask for all memory.
/// 4 MiB of a command at five bytes a token, the fewest that one takes.
const CHUNK_TOKENS_LIMIT: u64 = (4 << 20) / 5;

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

/// The part of an origin that a run of chunks has in common.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOrigin {
    /// The holder that received the tokens from its engine.
    pub holder: Holder,
    /// The lease under which they were made.
    pub fencing_token: FencingToken,
    /// Engine and version.
    pub engine: String,
    /// The fabric verdict of the node.
    pub fabric: FabricVerdict,
}

/// The bytes of a chunk, without its origin.
pub fn encode_chunk(chunk: &Chunk) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + chunk.token_ids.len() * 7);
    bytes.push(CHUNK_LAYOUT);
    let took = chunk.origin.ended_at.since(chunk.origin.started_at);
    put_number(&mut bytes, u64::from(chunk.offset));
    put_number(&mut bytes, chunk.weight_version.0);
    put_number(&mut bytes, chunk.origin.started_at.0);
    put_number(&mut bytes, ebbtide_core::time::whole_millis(took));
    put_number(&mut bytes, chunk.token_ids.len() as u64);
    for id in &chunk.token_ids {
        put_number(&mut bytes, u64::from(id.cast_unsigned()));
    }
    for logprob in &chunk.logprobs {
        bytes.extend(logprob.to_le_bytes());
    }
    bytes
}

/// Reads a chunk back.
///
/// # Errors
/// Bytes of another layout, too few, or too many.
pub fn decode_chunk(bytes: &[u8], origin: &RunOrigin) -> Result<Chunk, CodecError> {
    let wrong = |problem: String| CodecError::new("chunk", problem);
    let (layout, mut rest) = bytes.split_first().ok_or_else(|| wrong("no bytes".to_owned()))?;
    if *layout != CHUNK_LAYOUT {
        return Err(wrong(format!("layout must be {CHUNK_LAYOUT}, got {layout}")));
    }
    let mut number = || take_number(&mut rest).ok_or_else(|| wrong("it ends early".to_owned()));
    let offset = u32::try_from(number()?).map_err(|error| CodecError::new("chunk", error))?;
    let weight_version = PolicyVersion(number()?);
    let started_at = UnixMillis(number()?);
    let ended_at = started_at.plus(std::time::Duration::from_millis(number()?));
    let count = number()?;
    if count > CHUNK_TOKENS_LIMIT {
        return Err(wrong(format!("{count} tokens are more than a chunk may have")));
    }
    let mut token_ids = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let id = u32::try_from(number()?).map_err(|error| CodecError::new("chunk", error))?;
        token_ids.push(id.cast_signed());
    }
    let (words, odd) = rest.as_chunks::<4>();
    if words.len() as u64 != count || !odd.is_empty() {
        return Err(wrong(format!("{count} tokens with {} bytes of logprobs", rest.len())));
    }
    Ok(Chunk {
        offset,
        weight_version,
        token_ids,
        logprobs: words.iter().copied().map(f32::from_le_bytes).collect(),
        origin: Origin {
            holder: origin.holder.clone(),
            fencing_token: origin.fencing_token,
            engine: origin.engine.clone(),
            fabric: origin.fabric,
            started_at,
            ended_at,
        },
    })
}

/// Reads an origin: the msgpack array `[holder, fencing token, engine, fabric verdict]`.
///
/// # Errors
/// Bytes of another layout.
pub fn decode_origin(bytes: &[u8]) -> Result<RunOrigin, CodecError> {
    let (holder, token, engine, fabric): (Holder, u64, String, FabricVerdict) =
        rmp_serde::from_slice(bytes).map_err(|error| CodecError::new("origin", error))?;
    Ok(RunOrigin { holder, fencing_token: FencingToken(token), engine, fabric })
}

/// LEB128: seven bits a byte, the lowest first; the highest bit says that more follow.
fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, more) = rest.split_first()?;
        *rest = more;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The bytes of a group: the msgpack map of [`PromptGroup`]'s field names.
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

/// The bytes of a score: the msgpack map of [`Score`]'s field names.
pub fn encode_score(score: &Score) -> Vec<u8> {
    rmp_serde::to_vec_named(score).expect("plain fields always serialise")
}

/// Reads a score back.
///
/// # Errors
/// Bytes of another layout.
pub fn decode_score(bytes: &[u8]) -> Result<Score, CodecError> {
    rmp_serde::from_slice(bytes).map_err(|error| CodecError::new("score", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> RunOrigin {
        RunOrigin {
            holder: "n/b/agent-1".parse().expect("valid"),
            fencing_token: FencingToken(9),
            engine: "vllm/0.32.0".to_owned(),
            fabric: FabricVerdict::Passed,
        }
    }

    fn chunk() -> Chunk {
        let RunOrigin { holder, fencing_token, engine, fabric } = origin();
        Chunk {
            offset: 7,
            weight_version: PolicyVersion(3),
            token_ids: vec![1, -2, i32::MAX, 151_000],
            logprobs: vec![-0.5, -6.25, 0.0, f32::NEG_INFINITY],
            origin: Origin {
                holder,
                fencing_token,
                engine,
                fabric,
                started_at: UnixMillis(1_764_000_000_000),
                ended_at: UnixMillis(1_764_000_000_750),
            },
        }
    }

    #[test]
    fn chunk_survives_its_own_bytes() {
        assert_eq!(decode_chunk(&encode_chunk(&chunk()), &origin()), Ok(chunk()));
    }

    #[test]
    fn group_survives_its_own_bytes() {
        let mut group = PromptGroup::new("g".parse().expect("valid"), 2, vec![1, 2, 3]);
        group.on_dead_slot = ebbtide_core::work::OnDeadSlot::Shrink { min_samples: 1 };
        group.meta = vec![0, 255];
        assert_eq!(decode_group(&encode_group(&group)), Ok(group));
    }

    #[test]
    fn score_survives_its_own_bytes() {
        let score =
            Score { value: -0.25, scorer_version: "judge/3".to_owned(), metadata: vec![1, 0] };
        assert_eq!(decode_score(&encode_score(&score)), Ok(score));
    }

    #[test]
    fn damaged_chunks_are_refused() {
        let whole = encode_chunk(&chunk());
        for length in 0..whole.len() {
            assert!(decode_chunk(&whole[..length], &origin()).is_err(), "cut at {length}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(decode_chunk(&longer, &origin()).is_err());
        assert!(decode_chunk(b"nonsense", &origin()).is_err());
        let many = [&[CHUNK_LAYOUT, 0, 0, 0, 0][..], &[0xff; 8], &[0x7f]].concat();
        assert!(decode_chunk(&many, &origin()).is_err(), "no memory is asked for");
    }
}
