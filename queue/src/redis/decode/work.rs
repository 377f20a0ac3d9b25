//! Grants and taken groups.

use std::collections::HashMap;
use std::sync::Arc;
use std::vec::IntoIter;

use ebbtide_core::ids::{FencingToken, PolicyVersion};
use ebbtide_core::sample::Sample;
use ebbtide_core::work::PromptGroup;
use redis::Value;

use super::chunks::{ChunkFetch, Stored};
use super::inspect::slot_state;
use super::{DecodeError, next, read, shape};
use crate::codec;
use crate::reply::{Grant, LeaseReply, TakenGroup};
use crate::state::SlotState;

/// Values before the grants of a lease: version, resume_at, the number of grants.
pub(in crate::redis) const LEASE_HEAD: usize = 3;
/// Values of a grant: unit, token, parts, origins, attempts, finish.
pub(in crate::redis) const GRANT_VALUES: usize = 6;

/// How many grants stand behind the head of a lease.
pub(in crate::redis) fn count_of_grants(head: &[Value]) -> Result<usize, DecodeError> {
    read(head.get(LEASE_HEAD - 1).cloned().unwrap_or(Value::Nil))
}

/// Each group's id and spec.
pub(in crate::redis) fn specs(
    mut values: IntoIter<Value>,
) -> Result<HashMap<Vec<u8>, Arc<PromptGroup>>, DecodeError> {
    let mut groups = HashMap::new();
    while values.len() > 0 {
        let (id, spec): (Vec<u8>, Vec<u8>) = (next(&mut values)?, next(&mut values)?);
        groups.insert(id, Arc::new(codec::decode_group(&spec).map_err(shape)?));
    }
    Ok(groups)
}

pub(super) async fn lease_reply(
    lease: Vec<Value>,
    groups: &HashMap<Vec<u8>, Arc<PromptGroup>>,
    fetch: &mut ChunkFetch,
) -> Result<LeaseReply, DecodeError> {
    let mut values = lease.into_iter();
    let (version, resume_at): (u64, u64) = (next(&mut values)?, next(&mut values)?);
    let _count: Value = next(&mut values)?;
    let (mut units, mut grants) = (Vec::new(), Vec::new());
    while values.len() > 0 {
        let unit = next::<String>(&mut values)?.parse().map_err(shape)?;
        let token: u64 = next(&mut values)?;
        let (parts, origins) = (next(&mut values)?, next(&mut values)?);
        let (attempts, finish): (u16, Vec<u8>) = (next(&mut values)?, next(&mut values)?);
        units.push(Stored { unit, parts, origins });
        grants.push((token, attempts, finish));
    }
    let partials = fetch.chunks_of(&units).await?;
    let mut reply = LeaseReply {
        grants: Vec::with_capacity(units.len()),
        resume_at,
        current_version: PolicyVersion(version),
    };
    for ((Stored { unit, .. }, partial), (token, attempts, finish)) in
        units.into_iter().zip(partials).zip(grants)
    {
        let group = groups.get(unit.group.as_str().as_bytes()).cloned();
        let group = group.ok_or_else(|| shape(format!("no spec for the group of {unit}")))?;
        let Some(partial) = partial else { continue };
        reply.grants.push(Grant {
            unit,
            fencing_token: FencingToken(token),
            group,
            partial,
            finish: optional(&finish, |bytes| rmp_serde::from_slice(bytes).map_err(shape))?,
            attempts,
        });
    }
    Ok(reply)
}

/// No bytes stand for nothing.
fn optional<T>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) -> Result<Option<T>, DecodeError> {
    if bytes.is_empty() { Ok(None) } else { decode(bytes).map(Some) }
}

/// State, parts, origins, finish, score, attempts, lost holders, hand-backs.
type WireSlot = (u8, u32, u32, Vec<u8>, Vec<u8>, u16, u16, u16);

pub(super) async fn taken_groups(
    value: Value,
    fetch: &mut ChunkFetch,
) -> Result<Vec<TakenGroup>, DecodeError> {
    type WireGroup = (u8, String, Vec<u8>, Vec<WireSlot>);
    let (version, groups): (u64, Vec<WireGroup>) = read(value)?;
    let mut taken = Vec::with_capacity(groups.len());
    for (is_redelivered, _, spec, slots) in groups {
        let group = Arc::new(codec::decode_group(&spec).map_err(shape)?);
        let mut complete = Vec::new();
        let mut missing_slots = Vec::new();
        for (index, slot) in (0..).zip(slots) {
            if slot_state(slot.0)? == SlotState::Completed {
                complete.push((index, slot));
            } else {
                missing_slots.push(index);
            }
        }
        let Some(samples) = samples(&group, complete, fetch).await? else { continue };
        taken.push(TakenGroup {
            samples,
            group,
            missing_slots,
            is_redelivered: is_redelivered == 1,
            taken_at_version: PolicyVersion(version),
        });
    }
    Ok(taken)
}

/// The samples of a group; `None` when one is damaged, which leaves the group unacknowledged.
async fn samples(
    group: &PromptGroup,
    complete: Vec<(u16, WireSlot)>,
    fetch: &mut ChunkFetch,
) -> Result<Option<Vec<Sample>>, DecodeError> {
    let stored = |(index, slot): &(u16, WireSlot)| Stored {
        unit: group.unit_id(*index),
        parts: slot.1,
        origins: slot.2,
    };
    let units: Vec<Stored> = complete.iter().map(stored).collect();
    let chunks = fetch.chunks_of(&units).await?;
    let mut samples = Vec::with_capacity(complete.len());
    for ((Stored { unit, .. }, chunks), (_, slot)) in units.into_iter().zip(chunks).zip(complete) {
        let (_, _, _, finish, score, attempts, infra_attempts, hand_backs) = slot;
        let Some(chunks) = chunks else {
            let group = &group.group_id;
            tracing::error!(%group, %unit, "not delivered: a sample is damaged; run queue check");
            return Ok(None);
        };
        samples.push(Sample {
            chunks,
            unit,
            finish: rmp_serde::from_slice(&finish).map_err(shape)?,
            score: optional(&score, |bytes| codec::decode_score(bytes).map_err(shape))?,
            attempts,
            infra_attempts,
            hand_backs,
        });
    }
    Ok(Some(samples))
}
