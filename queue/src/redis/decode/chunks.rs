//! Reading the stored tokens of units.
//!
//! Scripts answer how many chunks each unit has; the chunks are read afterwards, which is safe
//! because only the holder, or nobody, writes to them.

use ebbtide_core::ids::UnitId;
use ebbtide_core::sample::Chunk;

use super::super::link::Link;
use super::{DecodeError, shape};
use crate::codec::{self, RunOrigin};

/// A unit, and how much of it is stored.
pub(in crate::redis) struct Stored {
    pub unit: UnitId,
    /// Its chunks.
    pub parts: u32,
    /// The origins that they refer to.
    pub origins: u32,
}

/// Reads the chunks of units, many in one round trip.
pub(in crate::redis) struct ChunkFetch {
    link: Link,
    chunks_key: String,
}

impl ChunkFetch {
    pub fn new(link: Link, chunks_key: String) -> Self {
        Self { link, chunks_key }
    }

    /// The chunks of each unit, in the order given; `None` for a unit whose group has ended since,
    /// or whose chunks are damaged: one damaged unit must not keep all others from being answered.
    pub async fn chunks_of(
        &mut self,
        units: &[Stored],
    ) -> Result<Vec<Option<Vec<Chunk>>>, DecodeError> {
        let mut pipeline = redis::pipe();
        for stored in units.iter().filter(|stored| stored.parts > 0) {
            let unit = &stored.unit;
            let origins = (0..stored.origins).map(|origin| format!("{unit}/o{origin}"));
            let parts = (0..stored.parts).map(|part| format!("{unit}/{part}"));
            let fields: Vec<String> = origins.chain(parts).collect();
            pipeline.cmd("HMGET").arg(&self.chunks_key).arg(fields);
        }
        if pipeline.is_empty() {
            return Ok(units.iter().map(|_| Some(Vec::new())).collect());
        }
        let fetched: Vec<Vec<Option<Vec<u8>>>> =
            self.link.query(&self.chunks_key, &pipeline).await?;
        let mut fetched = fetched.into_iter();
        let of_unit = |stored: &Stored| {
            if stored.parts == 0 {
                return Some(Vec::new());
            }
            let values: Option<Vec<Vec<u8>>> =
                fetched.next().unwrap_or_default().into_iter().collect();
            let Some(values) = values else {
                tracing::debug!(unit = %stored.unit, "the group has ended since it was answered");
                return None;
            };
            let parts = values.len().saturating_sub(stored.parts as usize);
            let (origins, parts) = values.split_at(parts);
            match decode(origins, parts) {
                Ok(chunks) => Some(chunks),
                Err(problem) => {
                    let unit = &stored.unit;
                    tracing::error!(%unit, %problem, "stored tokens are damaged; run queue check");
                    None
                }
            }
        };
        Ok(units.iter().map(of_unit).collect())
    }
}

/// Chunks begin with the number of their origin, in two bytes.
fn decode(origins: &[Vec<u8>], parts: &[Vec<u8>]) -> Result<Vec<Chunk>, DecodeError> {
    let origins: Vec<RunOrigin> = origins
        .iter()
        .map(|bytes| codec::decode_origin(bytes).map_err(shape))
        .collect::<Result<_, _>>()?;
    let decode_part = |bytes: &Vec<u8>| {
        let (number, chunk) = bytes.split_first_chunk::<2>().ok_or_else(|| shape("no origin"))?;
        let number = usize::from(u16::from_le_bytes(*number));
        let origin = origins.get(number).ok_or_else(|| shape(format!("no origin {number}")))?;
        codec::decode_chunk(chunk, origin).map_err(shape)
    };
    parts.iter().map(decode_part).collect()
}
