//! The whole loop at 1,000 nodes, with every controller real: the story of
//! `tests/suite/whole_loop`, told at 250 replicas of four nodes.

use std::time::Duration;

use ebbtide_harness::{ControlPlane, Figures, Karpenter, LwsController, Redis};

use super::faulty::client;
use super::story::{self, RUN, SHARDS, Site, Size, instance_types};
use super::tick::connect;

/// Longest time that one act may wait for anything.
const LIMIT: Duration = Duration::from_mins(10);
/// Longest time that all of it may take.
const STORY_LIMIT: Duration = Duration::from_mins(20);

/// See the module. The quick one has 48 nodes, and no figures.
///
/// # Errors
/// A part does not start, or the story does not end as it should.
pub async fn measure(quick: bool, figures: &mut Figures) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let mut cluster = ControlPlane::start().await?;
    LwsController::start(&cluster).await?;
    let _karpenter = Karpenter::start(&mut cluster, &instance_types()).await?;
    let site = Site {
        cluster: &cluster,
        client: client(&cluster).await,
        queue: connect(&redis.url(), RUN, SHARDS).await?,
        redis: redis.url(),
        program: env!("CARGO_BIN_EXE_ebbtide"),
    };
    let size = if quick { Size::NODES_48 } else { Size::NODES_1000 };
    let told = tokio::time::timeout(STORY_LIMIT, story::tell(&site, size, LIMIT)).await;
    let told = told.map_err(anyhow::Error::from).flatten();
    if quick {
        return told.map(drop);
    }
    figures.set_truth("cluster1000NodesLoopOk", told.is_ok());
    let told = told?;
    figures.set("cluster1000NodesGrowthS", told.grown_in.as_secs_f64());
    figures.set("cluster1000NodesMoveS", told.moved_in.as_secs_f64());
    figures.set("cluster1000NodesShrinkS", told.shrunk_in.as_secs_f64());
    figures.set("cluster1000NodesEmptiedS", told.emptied_in.as_secs_f64());
    figures.set("cluster1000NodesLoopS", told.told_in.as_secs_f64());
    if let Some(cost) = told.controller {
        figures.set("cluster1000NodesRssMiB", cost.resident_mib);
        figures.set("cluster1000NodesCores", cost.cores);
    }
    Ok(())
}
