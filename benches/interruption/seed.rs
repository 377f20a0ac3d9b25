//! Units that have come far already: put into the queue with their first tokens.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion};
use ebbtide_core::sample::{Chunk, Origin};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_harness::Redis;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{HandBackCause, Then, UnitWrite};
use ebbtide_queue::control::VersionRecord;
use ebbtide_queue::memory::DEFAULT_DEDUP_WINDOW;
use ebbtide_queue::redis::{Durability, Layout, RedisOptions, RedisPort};
use ebbtide_queue::reply::{Grant, WriteReply};

/// Samples of one prompt.
const GROUP_SIZE: u16 = 8;
/// No response ends by itself or by this within a measurement.
const RESPONSE_LIMIT: u32 = 1 << 20;
/// Tokens of one chunk: what an agent appends at a time, at most.
const CHUNK_TOKENS: u32 = 500;
/// Units that are given their tokens by one call.
const UNITS_AT_ONCE: usize = 64;
/// Longer than it takes.
const LEASE: Duration = Duration::from_secs(600);
const VERSION: PolicyVersion = PolicyVersion(1);

/// A client of the run, which is made if it is new.
///
/// # Errors
/// Redis gives no answer.
pub async fn queue(redis: &Redis, run: &str) -> anyhow::Result<WorkQueue> {
    let options = RedisOptions {
        url: redis.url(),
        run: run.parse()?,
        layout: Some(Layout { shard_count: 4, stage_count: 1, dedup_window: DEFAULT_DEDUP_WINDOW }),
        durability: Durability::Fast,
    };
    Ok(WorkQueue::new(Arc::new(RedisPort::connect(options).await?)))
}

/// Enqueues `units` units and stores `tokens` tokens for each, as another node would have.
///
/// # Errors
/// Redis gives no answer, or has too little memory.
pub async fn units(queue: &WorkQueue, units: usize, tokens: u32) -> anyhow::Result<()> {
    let version = VersionRecord { version: VERSION, ..VersionRecord::default() };
    queue.set_version(version).await?;
    for number in 0..units.div_ceil(usize::from(GROUP_SIZE)) {
        let id = format!("group-{number:06}").parse()?;
        let mut group = PromptGroup::new(id, GROUP_SIZE, (100..612).collect());
        group.sampling.max_tokens = RESPONSE_LIMIT;
        group.sampling.seed = Some(7);
        group.max_lag = 4;
        let reply = queue.enqueue(group).await?;
        ensure!(reply == WriteReply::Ok, "a group was not enqueued: {reply:?}");
    }
    let holder: Holder = "seed/boot/agent-0".parse()?;
    let mut grants = Vec::new();
    while grants.len() < units {
        let limit = (units - grants.len()).min(UNITS_AT_ONCE);
        let more = queue.lease(&holder, limit, LEASE, VERSION).await?.grants;
        ensure!(!more.is_empty(), "only {} of {units} units could be leased", grants.len());
        store(queue, &holder, &more, tokens).await?;
        grants.extend(more);
    }
    let back =
        |grant: &Grant| write(grant, Vec::new(), Then::HandBack(HandBackCause::Drain.into()));
    for part in grants.chunks(UNITS_AT_ONCE) {
        write_all(queue, &holder, part.iter().map(back).collect()).await?;
    }
    Ok(())
}

async fn store(
    queue: &WorkQueue,
    holder: &Holder,
    grants: &[Grant],
    tokens: u32,
) -> anyhow::Result<()> {
    let offsets = (0..tokens).step_by(CHUNK_TOKENS as usize);
    let chunks: Vec<Chunk> =
        offsets.map(|offset| chunk(holder, offset, CHUNK_TOKENS.min(tokens - offset))).collect();
    for chunk in chunks {
        let append = |grant| write(grant, vec![chunk.clone()], Then::Continue);
        write_all(queue, holder, grants.iter().map(append).collect()).await?;
    }
    Ok(())
}

fn chunk(holder: &Holder, offset: u32, tokens: u32) -> Chunk {
    Chunk {
        offset,
        weight_version: VERSION,
        token_ids: (offset..offset + tokens).map(|at| 100 + (at % 30_000).cast_signed()).collect(),
        logprobs: (offset..offset + tokens).map(|at| -((at % 97) as f32) / 12.0).collect(),
        origin: Origin {
            holder: holder.clone(),
            fencing_token: FencingToken(0),
            engine: "vllm/0.32.0".to_owned(),
            fabric: FabricVerdict::Passed,
            started_at: UnixMillis(1_764_000_000_000),
            ended_at: UnixMillis(1_764_000_000_500),
        },
    }
}

fn write(grant: &Grant, tail: Vec<Chunk>, then: Then) -> UnitWrite {
    UnitWrite { unit: grant.unit.clone(), fencing_token: grant.fencing_token, tail, then }
}

async fn write_all(
    queue: &WorkQueue,
    holder: &Holder,
    writes: Vec<UnitWrite>,
) -> anyhow::Result<()> {
    for reply in queue.write(holder, writes).await {
        let reply = reply?;
        ensure!(reply == WriteReply::Ok, "a write was refused: {reply:?}");
    }
    Ok(())
}
