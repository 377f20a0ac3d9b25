//! What audits and operators read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion};
use ebbtide_core::staleness::PartialVersions;
use ebbtide_core::time::UnixMillis;
use redis::Value;

use super::chunks::{ChunkFetch, Stored};
use super::{DecodeError, read, shape};
use crate::codec;
use crate::command::Stage;
use crate::reply::{Failure, Reply};
use crate::state::{
    Finding, GroupTrace, ScanPage, SlotState, SlotSummary, UnitEvent, UnitSnapshot, UnitTrace,
};
use crate::status::{ShardStatus, TokenCounts};

pub(super) fn status(value: Value) -> Result<ShardStatus, DecodeError> {
    type Head = ([u64; 10], HashMap<String, String>);
    let Value::Array(mut values) = value else { return Err(shape("no status")) };
    let counters = values.pop().ok_or_else(|| shape("an empty status"))?;
    let (head, counters): Head = (read(Value::Array(values))?, read(counters)?);
    let [now, version, ready, leased, reward_ready, reward_leased, ..] = head;
    let [.., sealed_waiting, sealed_taken, oldest, failure_records] = head;
    let counter = |name: &str| counters.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    let family = |prefix: &str| -> BTreeMap<String, u64> {
        let names = counters.keys().filter(|name| name.starts_with(prefix));
        names.map(|name| (name[prefix.len()..].to_owned(), counter(name))).collect()
    };
    let mut leased_by_node = BTreeMap::new();
    for (node, count) in family("held:") {
        leased_by_node.insert(node.parse().map_err(shape)?, count);
    }
    Ok(ShardStatus {
        enqueued: counter("enqueued"),
        completed: counter("completed"),
        dead: counter("dead"),
        expired: counter("expired"),
        cancelled: counter("cancelled"),
        groups_sealed: counter("groups_sealed"),
        groups_failed: counter("groups_failed"),
        ready,
        leased,
        reward_ready,
        reward_leased,
        sealed_waiting,
        sealed_taken,
        oldest_ready_at: (oldest > 0).then_some(UnixMillis(oldest)),
        hand_backs: family("hand_backs:"),
        lease_expiries: counter("lease_expiries"),
        failure_records,
        versions_refused: counter("versions_refused"),
        repaired: counter("repaired"),
        tokens: TokenCounts {
            generated: counter("tokens_generated"),
            accepted: counter("tokens_accepted"),
            preserved: counter("tokens_preserved"),
            wasted: family("wasted:"),
        },
        leased_by_node,
        version: PolicyVersion(version),
        now: UnixMillis(now),
    })
}

pub(super) fn slot_state(code: u8) -> Result<SlotState, DecodeError> {
    Ok(match code {
        0 => SlotState::Enqueued,
        1 => SlotState::Leased,
        2 => SlotState::Streaming,
        3 => SlotState::Completed,
        4 => SlotState::Dead,
        5 => SlotState::Expired,
        6 => SlotState::Cancelled,
        other => return Err(shape(format!("unknown slot state {other}"))),
    })
}

fn holder(text: &str) -> Result<Option<Holder>, DecodeError> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(shape) }
}

pub(super) fn page(value: Value) -> Result<ScanPage, DecodeError> {
    let (cursor, found): (u64, Vec<Value>) = read(value)?;
    Ok(ScanPage { cursor, units: units(found)? })
}

pub(super) fn units(values: Vec<Value>) -> Result<Vec<UnitSnapshot>, DecodeError> {
    values.into_iter().map(unit).collect()
}

fn unit(value: Value) -> Result<UnitSnapshot, DecodeError> {
    type Head = (String, u8, u8, u32, String, u64, u16, u16, u16, u8);
    type Tail = (i64, i64, u64, u64, u64);
    let Value::Array(mut fields) = value else { return Err(shape("a unit must be an array")) };
    let tail = fields.split_off(fields.len().min(10));
    let (unit, state, stage, tokens, held_by, token, attempts, infra, hand_backs, sealed): Head =
        read(Value::Array(fields))?;
    let (first, last, enqueued_at, leased_at, deadline): Tail = read(Value::Array(tail))?;
    let state = slot_state(state)?;
    let version = |number: i64| u64::try_from(number).ok().map(PolicyVersion);
    Ok(UnitSnapshot {
        unit: unit.parse().map_err(shape)?,
        state,
        stage: if stage == 0 { Stage::Generate } else { Stage::Reward },
        tokens,
        versions: version(first)
            .zip(version(last))
            .map(|(first, last)| PartialVersions { first, last }),
        holder: holder(&held_by)?,
        fencing_token: FencingToken(token),
        attempts,
        infra_attempts: infra,
        hand_backs,
        is_sealed: sealed == 1,
        enqueued_at: UnixMillis(enqueued_at),
        leased_at: (token > 0).then_some(UnixMillis(leased_at)),
        lease_deadline: state.is_leased().then_some(UnixMillis(deadline)),
    })
}

fn history(packed: &[u8]) -> Result<Vec<UnitEvent>, DecodeError> {
    type WireEvent = (u64, String, String, String, u64, u32);
    if packed.is_empty() {
        return Ok(Vec::new());
    }
    let events: Vec<WireEvent> = rmp_serde::from_slice(packed).map_err(shape)?;
    let event = |(at, what, detail, held_by, token, tokens): WireEvent| {
        Ok(UnitEvent {
            at: UnixMillis(at),
            what,
            detail,
            holder: holder(&held_by)?,
            fencing_token: FencingToken(token),
            tokens,
        })
    };
    events.into_iter().map(event).collect()
}

pub(super) async fn trace(value: Value, fetch: &mut ChunkFetch) -> Result<GroupTrace, DecodeError> {
    type Wire = (Vec<u8>, Vec<Value>, Vec<(u32, u32)>, Vec<Vec<u8>>, u64);
    let (spec, found, parts, histories, forgotten_at): Wire = read(value)?;
    let found = units(found)?;
    let stored: Vec<Stored> = found
        .iter()
        .zip(parts)
        .map(|(unit, (parts, origins))| Stored { unit: unit.unit.clone(), parts, origins })
        .collect();
    let chunks = fetch.chunks_of(&stored).await?;
    let mut trace = GroupTrace {
        spec: if spec.is_empty() {
            None
        } else {
            Some(Arc::new(codec::decode_group(&spec).map_err(shape)?))
        },
        units: Vec::with_capacity(found.len()),
        forgotten_at: (forgotten_at > 0).then_some(UnixMillis(forgotten_at)),
    };
    for ((unit, chunks), packed) in found.into_iter().zip(chunks).zip(histories) {
        let chunks = chunks.unwrap_or_default();
        trace.units.push(UnitTrace { unit, chunks, history: history(&packed)? });
    }
    Ok(trace)
}

pub(super) fn failures(value: Value) -> Result<Vec<Failure>, DecodeError> {
    let entries: Vec<(String, HashMap<String, Vec<u8>>)> = read(value)?;
    entries.into_iter().map(|(record_id, fields)| failure(record_id, &fields)).collect()
}

fn failure(record_id: String, fields: &HashMap<String, Vec<u8>>) -> Result<Failure, DecodeError> {
    type WireSlot = (u8, u32, u16, u16, u16, String);
    let bytes = |name: &str| fields.get(name).map(Vec::as_slice).unwrap_or_default();
    let text = |name: &str| String::from_utf8_lossy(bytes(name)).into_owned();
    let number = |name: &str| text(name).parse::<u64>().unwrap_or(0);
    let small = |name: &str| u16::try_from(number(name)).unwrap_or(u16::MAX);
    let slot = |(state, tokens, attempts, infra_attempts, hand_backs, held_by): WireSlot| {
        Ok::<_, DecodeError>(SlotSummary {
            state: slot_state(state)?,
            tokens,
            attempts,
            infra_attempts,
            hand_backs,
            holder: holder(&held_by)?,
        })
    };
    let slots: Vec<WireSlot> = rmp_serde::from_slice(bytes("slots")).map_err(shape)?;
    let unit = text("unit");
    let millis = record_id.split('-').next().and_then(|text| text.parse().ok());
    Ok(Failure {
        failed_at: millis.map(UnixMillis),
        record_id,
        group: text("group").parse().map_err(shape)?,
        ends_group: number("ends_group") == 1,
        reason: text("reason"),
        culprit: if unit.is_empty() { None } else { Some(unit.parse().map_err(shape)?) },
        detail: text("detail"),
        history: history(bytes("history"))?,
        slots: slots.into_iter().map(slot).collect::<Result<_, _>>()?,
        spec: codec::decode_group(bytes("spec")).ok().map(Arc::new),
        group_size: small("size"),
        completed: small("completed"),
        dead: small("dead"),
        expired: small("expired"),
        cancelled: small("cancelled"),
        tokens_wasted: number("wasted"),
    })
}

pub(super) fn findings(value: Value) -> Result<Reply, DecodeError> {
    let (cursor, findings): (u64, Vec<(String, String)>) = read(value)?;
    let finding = |(subject, problem)| Finding { subject, problem };
    Ok(Reply::Findings(cursor, findings.into_iter().map(finding).collect()))
}
