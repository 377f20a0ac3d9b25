//! Servers that are killed, restarted and failed over while a run is at full speed.

use ebbtide_harness::{EVENT_LIMIT, Redis, RedisCluster, RedisSentinels, is_long, require, until};

use super::ledger::Losses;
use super::load::Load;
use crate::links::{connect, safe};
use crate::worlds::options;

const SHARDS: u16 = 4;

/// How often something dies, and how much is done between.
struct Plan {
    kills: u64,
    units_between: u64,
}

/// In a long run two tests share a million units.
fn plan(kills: u64) -> Plan {
    if is_long() {
        Plan { kills: 20, units_between: 25_000 }
    } else {
        Plan { kills, units_between: UNITS_BETWEEN }
    }
}

/// Where only the loss at each kill counts.
fn short_plan(kills: u64) -> Plan {
    Plan { kills: if is_long() { 20 } else { kills }, units_between: UNITS_BETWEEN }
}

/// Enough that everybody is busy when something dies.
const UNITS_BETWEEN: u64 = 300;

/// The end of a run in durability safe.
async fn nothing_is_lost(what: &str, load: Load) {
    let (counts, losses) = load.finish().await;
    assert_eq!(losses, Losses::default(), "of {counts:?}");
    assert_eq!(counts.completed, counts.enqueued);
    println!("{what}: nothing of {} acknowledged writes is lost: {counts:?}", counts.writes());
}

/// The end of a run in durability fast.
async fn losses_are_measured(what: &str, load: Load) {
    let (counts, losses) = load.finish().await;
    let lost = losses.enqueued + losses.completed + losses.handed_back;
    println!("{what}: {lost} of {} acknowledged writes lost: {losses:?}", counts.writes());
    assert_eq!(losses.broken_samples, 0, "what reaches the trainer is whole, {losses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_redis_is_killed_and_restarted_under_load() {
    let always = Redis::options().appendonly().arguments(&["--appendfsync", "always"]);
    let mut redis = require!(always.start().await);
    let load = Load::begin(connect(safe(options(&redis.url(), SHARDS))).await.expect("connects"));
    let plan = plan(6);
    for number in 0..plan.kills {
        load.progress(plan.units_between).await;
        // Every other time it is not killed but stopped in order.
        if number % 2 == 0 {
            redis.kill();
        }
        redis.restart().await.expect("restarts");
        load.progress(1).await;
        load.check().await;
    }
    nothing_is_lost(&format!("{} ends of redis, half of them kills", plan.kills), load).await;
}

/// Kills the master; its replica takes its place, and it comes back as a replica.
async fn fail_over(set: &mut RedisSentinels) {
    set.settled().await.expect("settled");
    let master = set.master().await.expect("a master");
    set.nodes[master].kill();
    set.promoted(master).await.expect("promoted");
    set.rejoin(master).await.expect("rejoins");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_master_fails_over_under_load() {
    let every_write = Redis::options().arguments(&["--min-replicas-to-write", "1"]);
    let mut set = require!(RedisSentinels::start(1, every_write).await);
    let load = Load::begin(connect(safe(options(&set.url(), SHARDS))).await.expect("connects"));
    let plan = plan(3);
    for _ in 0..plan.kills {
        load.progress(plan.units_between).await;
        fail_over(&mut set).await;
        load.progress(1).await;
        load.check().await;
    }
    nothing_is_lost(&format!("{} fail-overs", plan.kills), load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_a_master_of_a_cluster_fails_over_under_load() {
    let every_write = Redis::options().arguments(&["--min-replicas-to-write", "1"]);
    let mut cluster = require!(RedisCluster::start(1, every_write).await);
    let load = Load::begin(connect(safe(options(&cluster.url(), SHARDS))).await.expect("connects"));
    let lost = cluster.master_of("{run-1:0}:units").await.expect("a master");
    load.progress(UNITS_BETWEEN).await;
    cluster.nodes[lost].kill();
    // The masters come first, then the replica of each.
    let promoted = &cluster.nodes[lost + 3];
    until("the replica to be promoted", EVENT_LIMIT, || async {
        let state = promoted.talk(&["INFO", "replication"]).await.ok()?.remove(0);
        state.contains("role:master").then_some(())
    })
    .await
    .expect("promoted");
    cluster.nodes[lost].restart().await.expect("restarts");
    load.progress(1).await;
    load.check().await;
    nothing_is_lost("1 lost master of a cluster", load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_of_durability_fast_at_kills_is_measured() {
    let every_second = Redis::options().appendonly().arguments(&["--appendfsync", "everysec"]);
    let mut redis = require!(every_second.start().await);
    let load = Load::begin(connect(options(&redis.url(), SHARDS)).await.expect("connects"));
    let plan = short_plan(3);
    for _ in 0..plan.kills {
        load.progress(plan.units_between).await;
        redis.kill();
        redis.restart().await.expect("restarts");
        load.progress(1).await;
        load.check().await;
    }
    losses_are_measured(&format!("{} kills with appendfsync everysec", plan.kills), load).await;
}

/// On one machine a replica is never far behind; how the loss grows with its lag is measured in
/// `lag.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_of_durability_fast_at_fail_overs_is_measured() {
    let mut set = require!(RedisSentinels::start(1, Redis::options()).await);
    let load = Load::begin(connect(options(&set.url(), SHARDS)).await.expect("connects"));
    let plan = short_plan(1);
    for _ in 0..plan.kills {
        load.progress(plan.units_between).await;
        fail_over(&mut set).await;
        load.progress(1).await;
        load.check().await;
    }
    losses_are_measured(&format!("{} fail-overs", plan.kills), load).await;
}
