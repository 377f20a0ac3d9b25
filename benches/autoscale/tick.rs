//! A whole tick with its reads, and what a controller needs: the records of 10,000 nodes are in a
//! real Redis, and a controller, a process of its own, looks at them again and again.

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ebbtide_controller::capacity::Capacity;
use ebbtide_controller::controller::{ControllerConfig, EventParts, Outside, QueueSource, run};
use ebbtide_controller::image_rollout::NoGroups;
use ebbtide_controller::leader::MemoryLease;
use ebbtide_controller::metrics::Metrics;
use ebbtide_controller::observe;
use ebbtide_controller::policy_source::PolicySource;
use ebbtide_controller::signals::NoSources;
use ebbtide_controller::status::ControllerStatus;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::scale::{ScaleMemory, SizingTerms, plan_scale};
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{Figures, Redis, percentile_ms, resident_mib};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::redis::{Durability, Layout, RedisOptions, RedisPort};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::fleet::{Fleet, NODES_PER_REPLICA, StandingPools};

/// The run of these fleets.
pub const RUN: &str = "fleet";

/// Shards of its queue.
pub const SHARDS: u16 = 4;

const FLEET: Fleet = Fleet { nodes: 10_000 };
const TICKS: u32 = 40;
/// Ticks of the controller before its memory is read.
const TICKS_BEFORE: u64 = 20;
/// A controller that has not ticked so often by then never does.
const LIMIT: Duration = Duration::from_mins(3);

/// See the module.
///
/// # Errors
/// Redis or the controller does not answer.
pub async fn measure(quick: bool, figures: &mut Figures) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let queue = connect(&redis.url(), RUN, SHARDS).await?;
    queue.put_trainer(FLEET.trainer(1)).await?;
    for record in FLEET.records() {
        queue.put_node(record).await?;
    }
    let (policy, pools) = (FLEET.policy("observe")?, StandingPools::of(FLEET.pool_views()));
    let terms = SizingTerms::from(&policy);
    let mut memory = ScaleMemory::default();
    let mut took = Vec::new();
    for _ in 0..if quick { TICKS / 10 } else { TICKS } {
        let began_at = Instant::now();
        let watched_since = tokio::time::Instant::now();
        let reads = observe::read(&queue, &pools, &policy, watched_since).await;
        ensure!(reads.problems.is_empty(), "{:?}", reads.problems);
        let observation = observe::build(&reads, u16::try_from(NODES_PER_REPLICA)?, wall_clock());
        memory = plan_scale(&terms, &observation, &memory).memory;
        took.push(began_at.elapsed());
    }
    figures.set("tick10kNodesMs", percentile_ms(&took, 50));
    figures.set("rssMiB", memory_of_a_controller(&redis.url()).await?);
    Ok(())
}

async fn memory_of_a_controller(redis: &str) -> anyhow::Result<f64> {
    let mut controller = Command::new(std::env::current_exe()?)
        .args(["controller", "--redis", redis])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let process_id = controller.id().context("the controller has ended")?;
    let output = controller.stdout.take().context("a pipe was asked for")?;
    let ticked = tokio::time::timeout(LIMIT, BufReader::new(output).lines().next_line()).await;
    ticked.context("the controller does not tick")??.context("the controller has ended")?;
    let resident = resident_mib(process_id)?;
    drop(controller.stdin.take());
    controller.wait().await?;
    Ok(resident)
}

/// The controller: says `ticked` once it has looked often enough, and ends with its input.
///
/// # Errors
/// The policy is wrong or an address cannot be listened on.
pub async fn control(redis: &str) -> anyhow::Result<()> {
    let status = ControllerStatus::default();
    let outside = outside(redis, Arc::new(StandingPools::of(FLEET.pool_views())), status.clone())?;
    let shutdown = CancellationToken::new();
    let config = config(FLEET.policy("observe")?);
    let runs = tokio::spawn(run(config, outside, shutdown.clone()));
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    while status.snapshot().ticks < TICKS_BEFORE {
        looks.tick().await;
    }
    println!("ticked");
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    shutdown.cancel();
    runs.await??;
    Ok(())
}

pub fn config(policy: FleetPolicy) -> ControllerConfig {
    let policy_source = PolicySource::Fixed;
    ControllerConfig { policy, policy_source, listen: None, tick: None, journal: None }
}

/// A controller's outside with this provider, on this Redis.
///
/// # Errors
/// The name of a metric is taken twice.
pub fn outside(
    redis: &str,
    capacity: Arc<dyn Capacity>,
    status: ControllerStatus,
) -> anyhow::Result<Outside> {
    Ok(Outside {
        queue: QueueSource::Redis(options(redis, RUN, SHARDS)?),
        capacity,
        events: EventParts::default(),
        groups: Arc::new(NoGroups),
        leader: Arc::new(MemoryLease::default().candidate()),
        signals: Arc::new(NoSources),
        metrics: Metrics::new()?,
        status,
        now: wall_clock,
    })
}

pub async fn connect(redis: &str, run: &str, shard_count: u16) -> anyhow::Result<WorkQueue> {
    let port = RedisPort::connect(options(redis, run, shard_count)?).await?;
    Ok(WorkQueue::new(Arc::new(port)))
}

fn options(redis: &str, run: &str, shard_count: u16) -> anyhow::Result<RedisOptions> {
    let dedup_window = ebbtide_queue::memory::DEFAULT_DEDUP_WINDOW;
    Ok(RedisOptions {
        url: redis.to_owned(),
        run: run.parse()?,
        layout: Some(Layout { shard_count, stage_count: 1, dedup_window }),
        durability: Durability::Fast,
    })
}

pub fn wall_clock() -> UnixMillis {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
