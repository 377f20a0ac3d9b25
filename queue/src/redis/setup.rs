//! Checks at start: is this Redis fit for a queue, and does the run have the layout we expect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::ConnectionManager;

use super::{Durability, Layout, RedisOptions, keys, unavailable};
use crate::client::QueueError;
use crate::memory::DEFAULT_DEDUP_WINDOW;
use ebbtide_core::ids::RunId;
use ebbtide_core::time::whole_millis;

/// Version of the key layout and scripts.
const LAYOUT_SCHEMA: &str = "2";

/// Oldest server: `#!lua` headers and script flags came with 7.0.
const OLDEST_MAJOR_VERSION: u32 = 7;

/// What the checks found out.
pub(super) struct ServerFacts {
    pub waits_for_replica: bool,
    pub is_memory_short: bool,
}

/// Part of `maxmemory` above which nothing is added (contract, section 2).
const MEMORY_SHORT_ABOVE: f64 = 0.85;

/// Between two looks at the server's memory.
const MEMORY_LOOK_INTERVAL: Duration = Duration::from_secs(1);

fn is_memory_short(info: &redis::InfoDict) -> bool {
    let limit: f64 = info.get("maxmemory").unwrap_or(0.0);
    limit > 0.0 && info.get::<f64>("used_memory").unwrap_or(0.0) > MEMORY_SHORT_ABOVE * limit
}

/// Looks at the server's memory every second. While it does not answer nothing changes.
pub(super) async fn watch_memory(mut connection: ConnectionManager, is_short: Arc<AtomicBool>) {
    loop {
        tokio::time::sleep(MEMORY_LOOK_INTERVAL).await;
        let mut ask = redis::cmd("INFO");
        let Ok(info) = ask.arg("memory").query_async(&mut connection).await else { continue };
        let is_now = is_memory_short(&info);
        if is_short.swap(is_now, Ordering::Relaxed) != is_now {
            tracing::warn!(
                is_memory_short = is_now,
                "memory of redis, no work is added when short"
            );
        }
    }
}

/// Checks version, eviction, cluster mode and, in safe mode, persistence.
pub(super) async fn check_server(
    connection: &mut ConnectionManager,
    name: &str,
    durability: Durability,
) -> Result<ServerFacts, QueueError> {
    let info: redis::InfoDict = redis::cmd("INFO")
        .query_async(connection)
        .await
        .map_err(|error| unavailable(name, &error))?;
    let version: String = info.get("redis_version").unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < OLDEST_MAJOR_VERSION) {
        return Err(unsuitable(format!("{name} must be Redis 7.0 or newer, got {version:?}")));
    }
    if info.get::<u64>("loading").unwrap_or(0) == 1 {
        return Err(QueueError::Unavailable {
            what: name.to_owned(),
            problem: "it is loading its data".to_owned(),
        });
    }
    let eviction: String = info.get("maxmemory_policy").unwrap_or_default();
    let limit: u64 = info.get("maxmemory").unwrap_or(0);
    if eviction != "noeviction" && limit > 0 {
        return Err(unsuitable(format!(
            "{name} must not evict keys, or work is lost in silence: maxmemory-policy must be \
             noeviction, got {eviction}; change it with CONFIG SET or in the parameter group"
        )));
    }
    if info.get::<u64>("cluster_enabled").unwrap_or(0) == 1 {
        return Err(unsuitable(format!(
            "{name} runs in cluster mode, which this version does not speak yet; use a single \
             Redis"
        )));
    }
    let waits_for_replica =
        durability == Durability::Safe && info.get::<u64>("connected_slaves").unwrap_or(0) > 0;
    if durability == Durability::Safe && !waits_for_replica {
        check_disk(connection, name).await?;
    }
    Ok(ServerFacts { waits_for_replica, is_memory_short: is_memory_short(&info) })
}

/// Safe mode without replicas needs every write on disk before it is acknowledged.
async fn check_disk(connection: &mut ConnectionManager, name: &str) -> Result<(), QueueError> {
    for (setting, wanted) in [("appendonly", "yes"), ("appendfsync", "always")] {
        let (_, got): (String, String) = redis::cmd("CONFIG")
            .arg("GET")
            .arg(setting)
            .query_async(connection)
            .await
            .map_err(|error| unavailable(name, &error))?;
        if got != wanted {
            return Err(unsuitable(format!(
                "durability safe without a replica needs {setting} {wanted} on {name}, got {got}; \
                 set it, add a replica, or use durability fast"
            )));
        }
    }
    Ok(())
}

/// Writes the run's layout when this is its first client, else checks it; gives what holds.
pub(super) async fn agree_on_layout(
    connection: &mut ConnectionManager,
    name: &str,
    options: &RedisOptions,
) -> Result<Layout, QueueError> {
    let meta = keys::control(&options.run, "meta");
    let mut pipeline = redis::pipe();
    if let Some(layout) = options.layout {
        let window = whole_millis(layout.dedup_window);
        pipeline.cmd("HSETNX").arg(&meta).arg("schema").arg(LAYOUT_SCHEMA).ignore();
        pipeline.cmd("HSETNX").arg(&meta).arg("shards").arg(layout.shard_count.max(1)).ignore();
        pipeline.cmd("HSETNX").arg(&meta).arg("stages").arg(layout.stage_count.max(1)).ignore();
        pipeline.cmd("HSET").arg(&meta).arg("dedup_window_ms").arg(window).ignore();
    }
    type Stands = (Option<String>, Option<u16>, Option<u8>, Option<u64>);
    let names = ["schema", "shards", "stages", "dedup_window_ms"];
    pipeline.cmd("HMGET").arg(&meta).arg(&names);
    let ((schema, shards, stages, window),): (Stands,) =
        pipeline.query_async(connection).await.map_err(|error| unavailable(name, &error))?;
    let (Some(schema), Some(shard_count)) = (schema, shards) else {
        return Err(QueueError::Unavailable {
            what: format!("run {} on {name}", options.run),
            problem: "nobody has started it yet".to_owned(),
        });
    };
    if schema != LAYOUT_SCHEMA {
        return Err(unsuitable(format!(
            "run {} on {name} has layout {schema}, this version speaks {LAYOUT_SCHEMA}; use the \
             version that began the run, or a new run name",
            options.run
        )));
    }
    let stands = Layout {
        shard_count,
        stage_count: stages.unwrap_or(1),
        dedup_window: window.map_or(DEFAULT_DEDUP_WINDOW, Duration::from_millis),
    };
    if let Some(wanted) = options.layout {
        check_layout(stands, wanted, &options.run, name)?;
    }
    Ok(stands)
}

fn check_layout(stands: Layout, wanted: Layout, run: &RunId, name: &str) -> Result<(), QueueError> {
    if wanted.shard_count != stands.shard_count {
        let (shards, asked) = (stands.shard_count, wanted.shard_count);
        return Err(unsuitable(format!(
            "run {run} on {name} has {shards} shards, the policy says {asked}; a run keeps its \
             shard count: set spec.queue.shards to {shards} or use a new run name"
        )));
    }
    if wanted.stage_count != stands.stage_count {
        let words = |layout: Layout| match layout.stage_count {
            1 => "[generate]",
            _ => "[generate, reward]",
        };
        let (stages, asked) = (words(stands), words(wanted));
        return Err(unsuitable(format!(
            "run {run} on {name} has stages {stages}, the policy says {asked}; a run keeps its \
             stages: set spec.queue.stages to {stages} or use a new run name"
        )));
    }
    Ok(())
}

fn unsuitable(problem: String) -> QueueError {
    QueueError::Unsuitable { problem }
}
