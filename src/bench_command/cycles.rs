//! Cycles of the queue: a unit leased, perhaps written to, and completed.
//!
//! Units wait in a run of their own before the clock starts. A caller holds up to `batch` units;
//! each of its calls completes those and leases the next ([`WorkQueue::exchange`]), until none is
//! left or the time is over. A unit counts once its completion is acknowledged. With partials, each
//! unit's response is appended in four calls of 2 KiB (for all units that the caller holds) before
//! that. Callers share one connection, as the agent's units do.

use std::time::Duration;

use anyhow::ensure;
use ebbtide_core::sample::Chunk;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::Then;
use ebbtide_queue::reply::WriteReply;
use futures::future::try_join_all;
use tokio::time::Instant;

use super::material::{LONG_LEASE, Material, complete, enqueue, holder, terms, write, write_all};
use super::meter::{Meter, Rate};
use super::site::Site;
use super::sizes::UNITS_IN_FLIGHT;

/// Units a call where calls are batched.
pub const BATCH: usize = 16;
/// Appends of a unit with partials, and bytes of each as they are stored.
pub const APPENDS: usize = 4;
pub const APPEND_BYTES: usize = 2 * 1024;
/// Workers that say they are of the same node.
const WORKERS_A_NODE: usize = 8;
/// However slow Redis is, a measurement ends then.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub units: usize,
    /// Units of one prompt group.
    pub group_size: u16,
    /// Units a call.
    pub batch: usize,
    pub has_partials: bool,
}

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    pub cycles: Rate,
    /// Groups a second while the units were put in.
    pub enqueued_groups_per_second: f64,
}

/// Measures one load.
///
/// # Errors
/// Redis gives no answer, or refuses a write.
pub async fn measure(site: &Site, material: &mut Material, load: Load) -> anyhow::Result<Measured> {
    let run = site.begin().await?;
    let groups = load.units / usize::from(load.group_size);
    let enqueued_groups_per_second =
        enqueue(&run.queue, material, 0, groups, load.group_size).await?;
    let partial = if load.has_partials { partial(material) } else { Vec::new() };
    let units = groups * usize::from(load.group_size);
    let meter = Meter::start(site.server.as_ref()).await?;
    let until = Instant::now() + TIME_LIMIT;
    let callers = (0..(UNITS_IN_FLIGHT / load.batch).max(1))
        .map(|number| cycle(&run.queue, number, load.batch, usize::MAX, until, &partial));
    let done: usize = try_join_all(callers).await?.into_iter().sum();
    let is_over = Instant::now() >= until;
    let cycles = meter.stop(site.server.as_ref(), done).await?;
    ensure!(done == units || is_over, "{done} of {units} units were completed");
    site.end(run).await?;
    Ok(Measured { cycles, enqueued_groups_per_second })
}

/// A response in parts, each of at least 2 KiB as it is stored.
fn partial(material: &mut Material) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    for _ in 0..APPENDS {
        let offset = chunks.last().map_or(0, Chunk::end);
        chunks.push(material.chunk_of_bytes(offset, APPEND_BYTES));
    }
    chunks
}

/// One caller: works on `batch` units at a time, `batches` times at most; gives how many units it
/// completed.
pub async fn cycle(
    queue: &WorkQueue,
    number: usize,
    batch: usize,
    batches: usize,
    until: Instant,
    partial: &[Chunk],
) -> anyhow::Result<usize> {
    let holder = holder(number / WORKERS_A_NODE, number);
    let terms = terms(&holder, LONG_LEASE);
    let mut grants = queue.lease_while(terms, batch, || true).await?.grants;
    let mut done = 0;
    for turn in 1..=batches {
        if grants.is_empty() || Instant::now() >= until {
            break;
        }
        for chunk in partial {
            let append = |grant| write(grant, vec![chunk.clone()], Then::Continue);
            write_all(queue, &holder, grants.iter().map(append).collect()).await?;
        }
        let writes = grants.iter().map(|grant| write(grant, Vec::new(), complete())).collect();
        if turn == batches {
            write_all(queue, &holder, writes).await?;
            return Ok(done + grants.len());
        }
        let (replies, leased) = queue.exchange(terms, writes, batch).await;
        for reply in replies {
            let reply = reply?;
            ensure!(reply == WriteReply::Ok, "a completion was refused: {reply:?}");
            done += 1;
        }
        grants = leased.grants;
    }
    Ok(done)
}
