//! The whole loop with every controller real: queue, Ebbtide's controller as a process,
//! LeaderWorkerSets, Karpenter. The test plays agents and trainer; `benches/autoscale` tells the
//! same story at 1,000 nodes.

#[expect(dead_code, reason = "the benchmark uses more of it")]
mod story;

use ebbtide_harness::{ControlPlane, EVENT_LIMIT, Karpenter, LwsController, Redis, require};

use self::story::{RUN, SHARDS, Site, Size, instance_types};
use crate::lane::world::client;
use crate::programs::{EBBTIDE, queue};

#[tokio::test]
async fn fleet_of_48_nodes_follows_the_demand_and_loses_nothing() {
    let redis = require!(Redis::start().await);
    let mut cluster = require!(ControlPlane::start().await);
    require!(LwsController::start(&cluster).await);
    let _karpenter = require!(Karpenter::start(&mut cluster, &instance_types()).await);
    let client = client(&cluster).await;
    let site = Site {
        cluster: &cluster,
        client,
        queue: queue(&redis, RUN, SHARDS).await,
        redis: redis.url(),
        program: EBBTIDE,
    };
    let told = story::tell(&site, Size::NODES_48, EVENT_LIMIT).await.unwrap();
    println!("{told:?}");
}
