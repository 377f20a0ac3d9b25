//! From what a script answered to a [`Reply`].
//!
//! LEASE and TAKE answer how many chunks each unit has; the chunks are read afterwards, which is
//! safe because only the holder, or nobody, writes to them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ebbtide_core::ids::{FencingToken, PolicyVersion, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{Chunk, PromptGroup, Sample};
use redis::aio::ConnectionManager;
use redis::{FromRedisValue, Value, from_redis_value};
use thiserror::Error;

use crate::codec;
use crate::command::{
    Command, Grant, GroupFailure, LeaseReply, Reply, ScanPage, ShardStatus, SlotState, TakenGroup,
    TokenCounts, UnitSnapshot, WriteReply,
};

/// Why an answer was not understood.
#[derive(Debug, Error)]
pub(super) enum DecodeError {
    #[error(transparent)]
    Redis(#[from] redis::RedisError),
    #[error("{0}")]
    Shape(String),
}

fn shape(problem: impl ToString) -> DecodeError {
    DecodeError::Shape(problem.to_string())
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, DecodeError> {
    from_redis_value(value).map_err(shape)
}

/// Reads the chunks of units, many in one round trip.
pub(super) struct ChunkFetch {
    connection: ConnectionManager,
    chunks_key: String,
}

impl ChunkFetch {
    pub fn new(connection: ConnectionManager, shard_keys: &[String]) -> Self {
        Self { connection, chunks_key: shard_keys[5].clone() }
    }

    /// The chunks of each unit, in the order given; `None` for a unit whose group has ended since.
    async fn chunks_of(
        &mut self,
        units: &[(UnitId, u32)],
    ) -> Result<Vec<Option<Vec<Chunk>>>, DecodeError> {
        let mut pipeline = redis::pipe();
        for (unit, parts) in units.iter().filter(|(_, parts)| *parts > 0) {
            let fields = (0..*parts).map(|part| format!("{unit}/{part}"));
            pipeline.cmd("HMGET").arg(&self.chunks_key).arg(fields.collect::<Vec<_>>());
        }
        let mut stored: std::vec::IntoIter<Vec<Option<Vec<u8>>>> = if pipeline.is_empty() {
            Vec::new().into_iter()
        } else {
            pipeline.query_async::<Vec<_>>(&mut self.connection).await?.into_iter()
        };
        let of_unit = |(unit, parts): &(UnitId, u32)| {
            let parts = if *parts > 0 { stored.next().unwrap_or_default() } else { Vec::new() };
            let Some(parts) = parts.into_iter().collect::<Option<Vec<Vec<u8>>>>() else {
                tracing::debug!(%unit, "the group has ended since it was answered");
                return Ok(None);
            };
            let decode = |bytes: &Vec<u8>| codec::decode_chunk(bytes).map_err(shape);
            parts.iter().map(decode).collect::<Result<Vec<Chunk>, DecodeError>>().map(Some)
        };
        units.iter().map(of_unit).collect()
    }
}

/// Understands the answer to `command`.
pub(super) async fn reply(
    command: &Command,
    value: Value,
    fetch: &mut ChunkFetch,
) -> Result<Reply, DecodeError> {
    Ok(match command {
        Command::Enqueue(_) | Command::FailGroup { .. } => {
            Reply::Write(write_reply(&read::<String>(value)?)?)
        }
        Command::Lease(_) => Reply::Lease(lease_reply(value, fetch).await?),
        Command::Renew { .. } => {
            let lost: Vec<String> = read(value)?;
            Reply::Lost(
                lost.iter().map(|unit| unit.parse().map_err(shape)).collect::<Result<_, _>>()?,
            )
        }
        Command::Write { .. } => {
            let replies: Vec<String> = read(value)?;
            Reply::Writes(replies.iter().map(|text| write_reply(text)).collect::<Result<_, _>>()?)
        }
        Command::Reap { .. }
        | Command::Reclaim { .. }
        | Command::Acknowledge { .. }
        | Command::TakeOver { .. } => Reply::Count(read(value)?),
        Command::SetVersion(_) => Reply::Version(PolicyVersion(read(value)?)),
        Command::Take { .. } => Reply::Taken(taken_groups(value, fetch).await?),
        Command::Status => Reply::Status(Box::new(status(value)?)),
        Command::Scan { .. } => Reply::Page(page(value)?),
        Command::Failures { .. } => Reply::Failures(failures(value)?),
    })
}

fn write_reply(text: &str) -> Result<WriteReply, DecodeError> {
    Ok(match text {
        "OK" => WriteReply::Ok,
        "ALREADY_DONE" => WriteReply::AlreadyDone,
        "FENCED" => WriteReply::Fenced,
        "UNKNOWN" => WriteReply::Unknown,
        "BUSY" => WriteReply::Busy,
        "BAD_VERSION" => WriteReply::BadVersion,
        other => match other.strip_prefix("OFFSET ").and_then(|offset| offset.parse().ok()) {
            Some(offset) => WriteReply::Offset(offset),
            None => return Err(shape(format!("unknown reply {other:?}"))),
        },
    })
}

async fn lease_reply(value: Value, fetch: &mut ChunkFetch) -> Result<LeaseReply, DecodeError> {
    type WireGrant = (String, u64, u32, u16);
    let (version, resume_at, grants, specs): (u64, u64, Vec<WireGrant>, Vec<Vec<u8>>) =
        read(value)?;
    let mut groups = HashMap::<String, Arc<PromptGroup>>::new();
    for pair in specs.chunks_exact(2) {
        let id = String::from_utf8_lossy(&pair[0]).into_owned();
        groups.insert(id, Arc::new(codec::decode_group(&pair[1]).map_err(shape)?));
    }
    let mut units = Vec::with_capacity(grants.len());
    for (unit, _, parts, _) in &grants {
        units.push((unit.parse::<UnitId>().map_err(shape)?, *parts));
    }
    let partials = fetch.chunks_of(&units).await?;
    let mut reply = LeaseReply {
        grants: Vec::with_capacity(units.len()),
        resume_at,
        current_version: PolicyVersion(version),
    };
    for (((unit, _), partial), (_, token, _, attempts)) in
        units.into_iter().zip(partials).zip(grants)
    {
        let group = groups.get(unit.group.as_str()).cloned();
        let group = group.ok_or_else(|| shape(format!("no spec for the group of {unit}")))?;
        let Some(partial) = partial else { continue };
        reply.grants.push(Grant {
            unit,
            fencing_token: FencingToken(token),
            group,
            partial,
            attempts,
        });
    }
    Ok(reply)
}

async fn taken_groups(
    value: Value,
    fetch: &mut ChunkFetch,
) -> Result<Vec<TakenGroup>, DecodeError> {
    type WireSlot = (u8, u32, Vec<u8>, u16, u16, u16);
    type WireGroup = (u8, String, Vec<u8>, Vec<WireSlot>);
    let (version, groups): (u64, Vec<WireGroup>) = read(value)?;
    let mut taken = Vec::with_capacity(groups.len());
    for (is_redelivered, _, spec, slots) in groups {
        let group = Arc::new(codec::decode_group(&spec).map_err(shape)?);
        let is_complete =
            |slot: &WireSlot| slot_state(slot.0).is_ok_and(|s| s == SlotState::Completed);
        let complete: Vec<(u16, &WireSlot)> =
            (0..).zip(&slots).filter(|(_, slot)| is_complete(slot)).collect();
        let units: Vec<(UnitId, u32)> =
            complete.iter().map(|(index, slot)| (group.unit_id(*index), slot.1)).collect();
        let chunks = fetch.chunks_of(&units).await?;
        let mut samples = Vec::with_capacity(complete.len());
        for (((unit, _), chunks), (_, slot)) in units.into_iter().zip(chunks).zip(&complete) {
            let chunks = chunks.ok_or_else(|| shape(format!("a chunk of {unit} is missing")))?;
            samples.push(Sample {
                unit,
                finish: rmp_serde::from_slice(&slot.2).map_err(shape)?,
                chunks,
                attempts: slot.3,
                infra_attempts: slot.4,
                hand_backs: slot.5,
            });
        }
        taken.push(TakenGroup {
            missing_slots: (0..)
                .zip(&slots)
                .filter(|(_, slot)| !is_complete(slot))
                .map(|(index, _)| index)
                .collect(),
            group,
            samples,
            is_redelivered: is_redelivered == 1,
            taken_at_version: PolicyVersion(version),
        });
    }
    Ok(taken)
}

fn status(value: Value) -> Result<ShardStatus, DecodeError> {
    type Head = (u64, u64, u64, u64, u64, u64, u64, HashMap<String, u64>, HashMap<String, u64>);
    let (now, version, ready, leased, waiting, taken, oldest, counters, nodes): Head = read(value)?;
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    let family = |prefix: &str| -> BTreeMap<String, u64> {
        let member =
            |(name, count): (&String, &u64)| Some((name.strip_prefix(prefix)?.to_owned(), *count));
        counters.iter().filter_map(member).collect()
    };
    let mut leased_by_node = BTreeMap::new();
    for (node, count) in nodes {
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
        sealed_waiting: waiting,
        sealed_taken: taken,
        oldest_ready_at: (oldest > 0).then_some(UnixMillis(oldest)),
        hand_backs: family("hand_backs:"),
        lease_expiries: counter("lease_expiries"),
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

fn slot_state(code: u8) -> Result<SlotState, DecodeError> {
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

fn page(value: Value) -> Result<ScanPage, DecodeError> {
    type WireUnit = (String, u8, u32, String, u64, u16, u16, u16, u8);
    let (cursor, units): (u64, Vec<WireUnit>) = read(value)?;
    let mut page = ScanPage { cursor, units: Vec::with_capacity(units.len()) };
    for (unit, state, tokens, holder, token, attempts, infra, hand_backs, sealed) in units {
        page.units.push(UnitSnapshot {
            unit: unit.parse().map_err(shape)?,
            state: slot_state(state)?,
            tokens,
            holder: if holder.is_empty() { None } else { Some(holder.parse().map_err(shape)?) },
            fencing_token: FencingToken(token),
            attempts,
            infra_attempts: infra,
            hand_backs,
            is_sealed: sealed == 1,
        });
    }
    Ok(page)
}

fn failures(value: Value) -> Result<Vec<GroupFailure>, DecodeError> {
    let entries: Vec<(String, HashMap<String, String>)> = read(value)?;
    let failure = |(record_id, fields): (String, HashMap<String, String>)| {
        let text = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let number = |name: &str| text(name).parse().unwrap_or(0);
        Ok(GroupFailure {
            record_id,
            group: text("group").parse().map_err(shape)?,
            reason: text("reason"),
            group_size: number("size"),
            completed: number("completed"),
            dead: number("dead"),
            expired: number("expired"),
            cancelled: number("cancelled"),
            tokens_wasted: text("wasted").parse().unwrap_or(0),
        })
    };
    entries.into_iter().map(failure).collect()
}
