//! From a change in the queue to the call that raises a pool.
//!
//! A run without any node waits, with a controller that ticks; at a random moment between two ticks
//! a prompt group is put into a real Redis; the clock stops when the provider is called. A fresh
//! run and controller each time. Nothing is stabilised upwards, as is the default.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ebbtide_controller::controller::run;
use ebbtide_controller::status::ControllerStatus;
use ebbtide_core::observation::{Activities, PoolSize, PoolView, Signal};
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_core::work::PromptGroup;
use ebbtide_harness::{Figures, Redis, percentile_ms};
use ebbtide_queue::reply::WriteReply;
use tokio_util::sync::CancellationToken;

use super::fleet::{Fleet, StandingPools, TICK};
use super::tick::{RUN, SHARDS, config, connect, outside};

const CHANGES: u32 = 60;
/// A call that has not come by then never does.
const LIMIT: Duration = Duration::from_secs(30);

const POLICY: &str = "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: fleet}
spec:
  mode: act
  staleness: {maxLag: 1}
  trainer: {groupsPerStep: 8, groupSize: 1}
  rollout: {minReplicas: 0, maxReplicas: 4, pools: [spot], tick: 1s}
  pools: [{name: spot, provider: local, market: spot, maxNodes: 4}]
";

/// See the module.
///
/// # Errors
/// Redis does not answer, or the provider is never called.
pub async fn measure(quick: bool, figures: &mut Figures) -> anyhow::Result<()> {
    let changes = if quick { CHANGES / 10 } else { CHANGES };
    let mut took = Vec::new();
    for change in 0..changes {
        // A share of a tick, another one each time: multiples of the golden ratio.
        let share = (f64::from(change) * 0.618_033_988_75).fract();
        took.push(one_change(TICK.mul_f64(share)).await?);
    }
    figures.set("tickMs", TICK.as_secs_f64() * 1_000.0);
    figures.set("redisChangeToActuationP50Ms", percentile_ms(&took, 50));
    figures.set("redisChangeToActuationP99Ms", percentile_ms(&took, 99));
    Ok(())
}

async fn one_change(after: Duration) -> anyhow::Result<Duration> {
    let redis = Redis::start().await?;
    let queue = connect(&redis.url(), RUN, SHARDS).await?;
    queue.put_trainer(Fleet { nodes: 20 }.trainer(1)).await?;
    let (pools, status) =
        (Arc::new(StandingPools::of(vec![empty("spot".parse()?)])), ControllerStatus::default());
    let outside = outside(&redis.url(), pools.clone(), status.clone())?;
    let shutdown = CancellationToken::new();
    let policy = FleetPolicy::parse(POLICY, "reaction")?;
    let runs = tokio::spawn(run(config(policy), outside, shutdown.clone()));
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    let settled = async {
        while !(status.snapshot().is_leader && status.snapshot().ticks >= 2) {
            looks.tick().await;
        }
    };
    tokio::time::timeout(LIMIT, settled).await.context("the controller does not tick")?;
    tokio::time::sleep(after).await;
    let began_at = Instant::now();
    let reply = queue.enqueue(PromptGroup::new("g1".parse()?, 1, vec![1, 2, 3])).await?;
    ensure!(reply == WriteReply::Ok, "a group was not enqueued: {reply:?}");
    let called = tokio::time::timeout(LIMIT, pools.raised.notified()).await;
    let took = began_at.elapsed();
    called.with_context(|| format!("no call came: {:?}", status.snapshot()))?;
    shutdown.cancel();
    runs.await??;
    Ok(took)
}

fn empty(name: PoolName) -> PoolView {
    let size = Signal::fresh(PoolSize::default());
    PoolView { name, size, activities: Signal::fresh(Activities::default()) }
}
