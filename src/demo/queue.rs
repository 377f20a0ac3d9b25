//! The queue of the demo: in memory, or a run on a real Redis that nobody else depends on.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::RunId;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_queue::client::{MemoryPort, QueueError, QueuePort, WorkQueue, wall_clock_now};
use ebbtide_queue::redis::{RedisOptions, RedisPort};

use super::arguments::DemoArgs;
use crate::setup;

/// A node that has reported within it serves the run. Agents report every second or more often.
const SERVING_WITHIN: Duration = Duration::from_secs(10);

/// A queue, and Redis if it is there.
pub struct DemoQueue {
    pub queue: WorkQueue,
    redis: Option<Arc<RedisPort>>,
}

/// Opens the queue of a run under a policy.
///
/// # Errors
/// Redis is not reachable or not fit, or the run is in use.
pub async fn open(args: &DemoArgs, policy: &FleetPolicy, run: &RunId) -> anyhow::Result<DemoQueue> {
    let Some(url) = &args.redis else {
        let settings = setup::shard_settings(&policy.queue);
        let port = MemoryPort::new(policy.queue.shards, settings, wall_clock_now);
        return Ok(DemoQueue { queue: WorkQueue::new(Arc::new(port)), redis: None });
    };
    let options = RedisOptions { run: run.clone(), ..setup::redis_options(url, policy) };
    if args.run.is_some() {
        refuse_run_in_use(args, &options).await?;
    }
    let port = Arc::new(RedisPort::connect(options).await?);
    let queue = WorkQueue::new(port.clone() as Arc<dyn QueuePort>);
    Ok(DemoQueue { queue, redis: Some(port) })
}

/// The demo's own trainer removes its run in the end, and emulated engines answer nonsense: neither
/// may befall a run that somebody depends on.
async fn refuse_run_in_use(args: &DemoArgs, options: &RedisOptions) -> anyhow::Result<()> {
    let run = &options.run;
    let port = match RedisPort::connect(RedisOptions { layout: None, ..options.clone() }).await {
        Ok(port) => port,
        // Nobody has begun it yet; or Redis is away, which the caller finds out as well.
        Err(QueueError::NotBegun { .. } | QueueError::Unavailable { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    anyhow::ensure!(
        args.is_external(),
        "run {run} exists on this redis: the demo's own trainer begins a run anew and removes it \
         afterwards; choose another --run, or --trainer external"
    );
    let view = WorkQueue::new(Arc::new(port)).view().await?;
    let serving = view.nodes.iter().filter(|node| view.now.since(node.heartbeat) < SERVING_WITHIN);
    let names: Vec<&str> = serving.map(|node| node.node.as_str()).collect();
    anyhow::ensure!(
        names.is_empty(),
        "run {run} is served by {} already: the demo's emulated engines would answer its work; \
         choose another --run, or wait {} s after they have ended",
        names.join(", "),
        SERVING_WITHIN.as_secs(),
    );
    Ok(())
}

impl DemoQueue {
    /// Removes the demo's own run from Redis; one of an external trainer stays.
    pub async fn clear(&self, args: &DemoArgs) {
        let Some(redis) = self.redis.as_ref().filter(|_| !args.is_external()) else { return };
        if let Err(error) = redis.remove_run().await {
            eprintln!("ebbtide demo: run {} stays in redis: {error}", redis.run());
        }
    }
}
