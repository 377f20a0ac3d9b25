//! Servers that die, hang and come back: what was acknowledged stays, and the others go on.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use ebbtide_harness::{
    EVENT_LIMIT, Redis, RedisCluster, RedisOptions as Server, RedisSentinels, require, until,
};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{Then, UnitWrite};
use ebbtide_queue::reply::WriteReply;
use tokio::time::Instant;

use super::links::{connect, hint_arrives, safe};
use super::worlds::*;

/// Far above a call on this machine, far below the time limit of one that is not answered.
const QUICK: Duration = Duration::from_secs(1);

const SHARDS: u16 = 12;

/// Names of groups, one for each shard.
fn group_of_each_shard(queue: &WorkQueue) -> Vec<String> {
    let name_of = |shard: u16| {
        let names = (0..).map(|number| format!("g{number}"));
        names.into_iter().find(|name| queue.shard_of(&group_id(name)) == shard).unwrap()
    };
    (0..queue.shard_count()).map(name_of).collect()
}

/// Which master has each shard to begin with.
async fn masters_of_shards(cluster: &RedisCluster) -> Vec<usize> {
    let mut masters = Vec::new();
    for shard in 0..SHARDS {
        masters.push(cluster.master_of(&format!("{{run-1:{shard}}}:units")).await.unwrap());
    }
    masters
}

async fn quickly<T>(call: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let answer = call.await;
    assert!(began.elapsed() < QUICK, "a call took {:?}", began.elapsed());
    answer
}

/// Everything works at normal speed on the shards that are there.
async fn others_go_on(queue: &WorkQueue, names: &[String], away: &[u16]) {
    let holder = holder("a");
    let there = (0..SHARDS).filter(|shard| !away.contains(shard));
    for shard in there.clone() {
        let group = group(&names[usize::from(shard)], 1);
        assert_eq!(quickly(queue.enqueue(group)).await.unwrap(), WriteReply::Ok);
    }
    let leased = quickly(queue.lease(&holder, 100, LONG, Default::default())).await.unwrap();
    let mut missing: Vec<u16> = leased.missing.iter().map(|(shard, _)| *shard).collect();
    missing.sort();
    assert_eq!(missing, away, "the shards that are away are named");
    assert_eq!(leased.grants.len(), there.clone().count());
    let writes: Vec<UnitWrite> = leased
        .grants
        .iter()
        .map(|grant| UnitWrite {
            unit: grant.unit.clone(),
            fencing_token: grant.fencing_token,
            tail: vec![tokens(0, 3, 0)],
            then: Then::Complete(stop()),
        })
        .collect();
    for reply in quickly(queue.write(&holder, writes)).await {
        assert_eq!(reply.unwrap(), WriteReply::Ok);
    }
    assert_eq!(quickly(queue.take("t", 100)).await.unwrap().len(), there.count());
    assert_eq!(quickly(queue.status()).await.missing.len(), away.len());
}

async fn shard_works(queue: &WorkQueue, name: &str) {
    until("the shard to be back", EVENT_LIMIT, || async {
        queue.enqueue(group(name, 1)).await.ok()
    })
    .await
    .expect("back");
}

#[tokio::test]
async fn dead_master_of_a_cluster_stops_only_its_own_shards() {
    let mut cluster = require!(RedisCluster::start(0, Redis::options().appendonly()).await);
    let queue = connect(options(&cluster.url(), SHARDS)).await.expect("connects");
    let names = group_of_each_shard(&queue);
    let masters = masters_of_shards(&cluster).await;
    let control = cluster.master_of("{run-1:c}:meta").await.unwrap();
    let lost = (0..3).find(|master| *master != control && masters.contains(master)).unwrap();
    let away: Vec<u16> = (0..SHARDS).filter(|s| masters[usize::from(*s)] == lost).collect();
    cluster.nodes[lost].kill();
    others_go_on(&queue, &names, &away).await;
    let late = connect(options(&cluster.url(), SHARDS)).await;
    assert!(late.is_ok(), "a new client starts without the shards that are away");
    cluster.nodes[lost].restart().await.expect("restarts");
    shard_works(&queue, &names[usize::from(away[0])]).await;
}

#[tokio::test]
async fn silent_master_of_a_cluster_stops_only_its_own_shards() {
    let cluster = require!(RedisCluster::start(0, Redis::options()).await);
    let queue = connect(options(&cluster.url(), SHARDS)).await.expect("connects");
    let names = group_of_each_shard(&queue);
    let masters = masters_of_shards(&cluster).await;
    let lost = masters[0];
    let away: Vec<u16> = (0..SHARDS).filter(|s| masters[usize::from(*s)] == lost).collect();
    cluster.nodes[lost].pause().expect("pauses");
    // The first call finds out. No later one waits for that server again.
    assert!(queue.enqueue(group(&names[0], 1)).await.is_err());
    until("the server to count as away", EVENT_LIMIT, || async {
        let began = Instant::now();
        let is_refused = queue.enqueue(group(&names[0], 1)).await.is_err();
        (is_refused && began.elapsed() < QUICK).then_some(())
    })
    .await
    .expect("counts as away");
    others_go_on(&queue, &names, &away).await;
    cluster.nodes[lost].resume().expect("resumes");
    shard_works(&queue, &names[0]).await;
}

#[tokio::test]
async fn shards_of_a_lost_master_go_on_with_its_replica() {
    let mut cluster = require!(RedisCluster::start(1, Redis::options()).await);
    let queue = connect(options(&cluster.url(), SHARDS)).await.expect("connects");
    let names = group_of_each_shard(&queue);
    for name in &names {
        queue.enqueue(group(name, 1)).await.expect("enqueue");
    }
    cluster.nodes[0].kill();
    for name in &names {
        shard_works(&queue, &format!("{name}-later")).await;
        shard_works(&queue, name).await;
    }
    let other = connect(options(&cluster.url(), SHARDS)).await.expect("connects");
    hint_arrives(&queue, &other).await;
}

#[tokio::test]
async fn memory_counts_for_the_server_that_has_the_shard() {
    let limit = ["--maxmemory", "32mb", "--maxmemory-policy", "noeviction"];
    let cluster = require!(RedisCluster::start(0, Redis::options().arguments(&limit)).await);
    let queue = connect(options(&cluster.url(), SHARDS)).await.expect("connects");
    let names = group_of_each_shard(&queue);
    let masters = masters_of_shards(&cluster).await;
    let full = masters[0];
    let ballast = "7".repeat(1 << 20);
    let used = || async {
        let memory = cluster.nodes[full].talk(&["INFO", "memory"]).await.expect("info").remove(0);
        let line = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.and_then(|bytes| bytes.trim().parse::<u64>().ok()).expect("bytes")
    };
    for part in 0.. {
        if used().await > 29 << 20 {
            break;
        }
        let key = format!("{{run-1:0}}:ballast{part}");
        cluster.nodes[full].talk(&["SET", &key, &ballast]).await.expect("set");
    }
    until("the full server to refuse more", EVENT_LIMIT, || async {
        let reply = queue.enqueue(group(&names[0], 1)).await.expect("an answer");
        (reply == WriteReply::Busy).then_some(())
    })
    .await
    .expect("refused");
    let other = (0..masters.len()).find(|shard| masters[*shard] != full).unwrap();
    assert_eq!(queue.enqueue(group(&names[other], 1)).await.unwrap(), WriteReply::Ok);
}

#[tokio::test]
async fn acknowledged_writes_outlast_a_fail_over_under_load() {
    let every_write = Redis::options().arguments(&["--min-replicas-to-write", "1"]);
    let mut set = require!(RedisSentinels::start(1, every_write).await);
    let queue = connect(safe(options(&set.url(), 4))).await.expect("connects");
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let mut producers = tokio::task::JoinSet::new();
    for producer in 0..4 {
        let (queue, acknowledged) = (queue.clone(), acknowledged.clone());
        producers.spawn(async move {
            for number in 0.. {
                let name = format!("p{producer}-{number}");
                match queue.enqueue(group(&name, 1)).await {
                    Ok(_) => acknowledged.lock().unwrap().push(format!("{name}.0000")),
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        });
    }
    let count = || acknowledged.lock().unwrap().len();
    let more_than = |enough: usize| {
        until("acknowledged writes", EVENT_LIMIT, move || async move {
            (count() > enough).then_some(())
        })
    };
    more_than(100).await.expect("work");
    set.nodes[0].kill();
    let promoted = set.promoted(0).await.expect("promoted");
    assert_eq!(promoted, 1);
    set.rejoin(0).await.expect("rejoins");
    let before = count();
    more_than(before + 100).await.expect("work after the fail-over");
    producers.shutdown().await;
    let units = queue.scan().await.expect("scan");
    let stored: std::collections::HashSet<String> =
        units.iter().map(|unit| unit.unit.to_string()).collect();
    let lost: Vec<String> = acknowledged
        .lock()
        .unwrap()
        .iter()
        .filter(|unit| !stored.contains(*unit))
        .cloned()
        .collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), count());
}

#[tokio::test]
async fn link_moves_to_the_new_master_when_the_old_one_hangs() {
    let mut set = require!(RedisSentinels::start(1, Redis::options()).await);
    let queue = connect(options(&set.url(), 1)).await.expect("connects");
    let other = connect(options(&set.url(), 1)).await.expect("connects");
    queue.enqueue(group("before", 1)).await.expect("enqueue");
    set.kill_sentinel(0);
    set.nodes[0].pause().expect("pauses");
    until("another master", EVENT_LIMIT, || async { queue.enqueue(group("after", 1)).await.ok() })
        .await
        .expect("moves");
    hint_arrives(&queue, &other).await;
    // The old one comes back as a replica and misleads nobody.
    set.nodes[0].resume().expect("resumes");
    shard_works(&queue, "later").await;
    let state = set.nodes[1].talk(&["INFO", "replication"]).await.unwrap().remove(0);
    assert!(state.contains("role:master"), "{state}");
}

/// A master and its replica, both of them Redis or Valkey.
async fn pair(kind: Server) -> Result<(Redis, Redis), ebbtide_harness::Error> {
    let master = kind.clone().start().await?;
    let replica_of = format!("127.0.0.1 {}", master.port());
    let replica = kind.arguments(&["--replicaof", &replica_of]).start().await?;
    until("the replica to have the data", EVENT_LIMIT, || async {
        let state = master.talk(&["INFO", "replication"]).await.ok()?.remove(0);
        state.contains("state=online").then_some(())
    })
    .await?;
    Ok((master, replica))
}

async fn repeated_write_is_acknowledged_only_by_a_replica(kind: Server) {
    let (master, replica) = require!(pair(kind).await);
    let queue = connect(safe(options(&master.url(), 1))).await.expect("connects");
    let later = connect(safe(options(&master.url(), 1))).await.expect("connects");
    queue.enqueue(group("held", 1)).await.expect("enqueue");
    replica.pause().expect("pauses");
    let first = queue.enqueue(group("g", 1)).await;
    assert!(first.is_err(), "no replica has it");
    // Stored already, so that this call writes nothing; on a connection that has written nothing.
    let mut waiting = std::pin::pin!(later.enqueue(group("g", 1)));
    let holder = holder("a");
    let granted = tokio::select! {
        biased;
        _ = &mut waiting => panic!("others wait behind it"),
        granted = later.lease(&holder, 1, LONG, Default::default()) => granted,
    };
    assert_eq!(granted.unwrap().grants.len(), 1);
    assert!(waiting.await.is_err(), "still no replica has it");
    replica.resume().expect("resumes");
    let reply =
        until("the replica", EVENT_LIMIT, || async { later.enqueue(group("g", 1)).await.ok() });
    assert_eq!(reply.await.expect("acknowledged"), WriteReply::AlreadyDone);
}

#[tokio::test]
async fn repeated_write_is_acknowledged_only_by_a_replica_of_redis() {
    repeated_write_is_acknowledged_only_by_a_replica(Redis::options()).await;
}

#[tokio::test]
async fn repeated_write_is_acknowledged_only_by_a_replica_of_valkey() {
    repeated_write_is_acknowledged_only_by_a_replica(Redis::options().valkey()).await;
}

#[tokio::test]
async fn server_that_hangs_holds_up_many_workers_no_longer_than_one() {
    let redis = require!(Redis::start().await);
    let queue = connect(options(&redis.url(), 1)).await.expect("connects");
    redis.pause().expect("pauses");
    let lease_all = async || {
        let began = Instant::now();
        let leases = (0..1000).map(|number| {
            let (queue, holder) = (queue.clone(), holder(&format!("w{number}")));
            async move { queue.lease(&holder, 1, LONG, Default::default()).await.is_err() }
        });
        let failed = futures::future::join_all(leases).await;
        assert!(failed.into_iter().all(|failed| failed));
        began.elapsed()
    };
    // Its time limit, twice: for those under way and for those that came while they failed.
    let waited = lease_all().await;
    assert!(waited < Duration::from_secs(6), "a thousand workers waited for {waited:?}");
    redis.resume().expect("resumes");
    shard_works(&queue, "later").await;
}
