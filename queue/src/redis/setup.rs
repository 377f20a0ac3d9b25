//! The run's layout, agreed on at start, and the watch on each server's memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ebbtide_core::ids::RunId;
use ebbtide_core::time::whole_millis;
use futures::future::join_all;
use redis::{Value, from_redis_value};

use super::link::{Link, Server};
use super::{Layout, RedisOptions, keys};
use crate::client::QueueError;
use crate::memory::DEFAULT_DEDUP_WINDOW;

/// Version of the key layout and of the functions.
const LAYOUT_SCHEMA: &str = "3";

/// Part of `maxmemory` above which nothing is added (contract, section 2).
const MEMORY_SHORT_ABOVE: f64 = 0.85;

/// Between two looks at the memory of servers that this client works with.
const MEMORY_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Looks of a client at work for each one of a client that finds no work.
const IDLE_LOOK_EVERY: u64 = 5;

/// Whether a server has little memory left, by its INFO.
pub(super) fn is_memory_short(info: &redis::InfoDict) -> bool {
    let limit: f64 = info.get("maxmemory").unwrap_or(0.0);
    limit > 0.0 && info.get::<f64>("used_memory").unwrap_or(0.0) > MEMORY_SHORT_ABOVE * limit
}

/// Looks at the memory of every server, each second, or less often while there is no work. While
/// one does not answer nothing changes for it, and the others are looked at all the same.
pub(super) async fn watch_memory(link: Link) {
    for round in 1_u64.. {
        tokio::time::sleep(MEMORY_LOOK_INTERVAL).await;
        let is_idle_look = round % IDLE_LOOK_EVERY == 0;
        let is_due =
            |server: &Arc<Server>| server.is_in_use.swap(false, Ordering::Relaxed) || is_idle_look;
        join_all(link.masters().into_iter().filter(is_due).map(look_at_memory)).await;
    }
}

async fn look_at_memory(server: Arc<Server>) {
    let mut question = redis::pipe();
    question.cmd("INFO").arg("memory");
    let Ok((info,)) = server.query::<(redis::InfoDict,)>(&question).await else { return };
    let is_short = is_memory_short(&info);
    if server.is_memory_short.swap(is_short, Ordering::Relaxed) != is_short {
        tracing::warn!(
            server = server.name(),
            is_memory_short = is_short,
            "memory of redis, no work is added when short"
        );
    }
}

/// Writes the run's layout when this is its first client, else checks it; gives what holds.
pub(super) async fn agree_on_layout(
    link: &Link,
    options: &RedisOptions,
) -> Result<Layout, QueueError> {
    let name = link.name();
    let meta = keys::control(&options.run, "meta");
    let mut pipeline = redis::pipe();
    if let Some(layout) = options.layout {
        let window = whole_millis(layout.dedup_window);
        pipeline.cmd("HSETNX").arg(&meta).arg("schema").arg(LAYOUT_SCHEMA);
        pipeline.cmd("HSETNX").arg(&meta).arg("shards").arg(layout.shard_count.max(1));
        pipeline.cmd("HSETNX").arg(&meta).arg("stages").arg(layout.stage_count.max(1));
        pipeline.cmd("HSET").arg(&meta).arg("dedup_window_ms").arg(window);
    }
    type Stands = (Option<String>, Option<u16>, Option<u8>, Option<u64>);
    let names = ["schema", "shards", "stages", "dedup_window_ms"];
    pipeline.cmd("HMGET").arg(&meta).arg(&names);
    let answers: Result<Vec<Value>, _> = link.query(&meta, &pipeline).await;
    let stands = answers.map_err(|error| error.to_queue_error())?.pop().unwrap_or(Value::Nil);
    let (schema, shards, stages, window): Stands = from_redis_value(stands)
        .map_err(|error| QueueError::Protocol { problem: format!("{name}: {error}") })?;
    let (Some(schema), Some(shard_count)) = (schema, shards) else {
        let run = options.run.to_string();
        return Err(QueueError::NotBegun { run, name: name.to_owned() });
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
