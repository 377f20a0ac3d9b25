//! Redis for real: what must stand before a queue is built on it, and what outlasts its end.

use std::sync::Arc;

use ebbtide_harness::{EVENT_LIMIT, Redis, require, until};
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::redis::{Durability, RedisOptions, RedisPort};
use ebbtide_queue::reply::WriteReply;

use super::worlds::*;

async fn refusal(options: RedisOptions) -> String {
    match RedisPort::connect(options).await {
        Err(error @ QueueError::Unsuitable { .. }) => error.to_string(),
        Err(other) => panic!("expected an unsuitable redis, got {other}"),
        Ok(_) => panic!("expected an unsuitable redis, got a connection"),
    }
}

#[tokio::test]
async fn evicting_redis_is_refused() {
    let arguments = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = require!(Redis::options().arguments(&arguments).start().await);
    let message = refusal(options(&redis.url(), 1)).await;
    assert!(message.contains("noeviction") && message.contains("allkeys-lru"), "{message}");
}

#[tokio::test]
async fn run_keeps_its_shard_count() {
    let redis = require!(Redis::start().await);
    RedisPort::connect(options(&redis.url(), 2)).await.expect("connects");
    let message = refusal(options(&redis.url(), 3)).await;
    assert!(message.contains("has 2 shards, the policy says 3"), "{message}");
    let unasked = RedisOptions { layout: None, ..options(&redis.url(), 1) };
    let port = RedisPort::connect(unasked).await.expect("connects");
    assert_eq!(WorkQueue::new(Arc::new(port)).shard_count(), 2);
}

#[tokio::test]
async fn safe_mode_needs_every_write_on_disk_or_a_replica() {
    let redis = require!(Redis::start().await);
    let safe = RedisOptions { durability: Durability::Safe, ..options(&redis.url(), 1) };
    let message = refusal(safe).await;
    assert!(message.contains("appendonly yes"), "{message}");
}

#[tokio::test]
async fn absent_redis_is_unavailable_and_not_a_setup_fault() {
    let mut redis = require!(Redis::start().await);
    redis.stop().await.expect("stops");
    match RedisPort::connect(options(&redis.url(), 1)).await {
        Err(error) => assert!(error.is_retriable(), "{error}"),
        Ok(_) => panic!("nobody listens there"),
    }
}

#[tokio::test]
async fn client_and_work_outlast_a_restart_of_redis() {
    let arguments = ["--appendfsync", "always"];
    let mut redis = require!(Redis::options().appendonly().arguments(&arguments).start().await);
    let port = RedisPort::connect(options(&redis.url(), 1)).await.expect("connects");
    let queue = WorkQueue::new(Arc::new(port));
    let world_holder = holder("a");
    queue.enqueue(group("g", 1)).await.expect("enqueue");
    let grants = queue.lease(&world_holder, 1, LONG, Default::default()).await.expect("lease");
    redis.kill();
    let during = queue.enqueue(group("h", 1)).await;
    assert!(during.is_err(), "nobody may be told that it was stored");
    redis.restart().await.expect("restarts");
    let reply = until("the queue to answer again", EVENT_LIMIT, || async {
        queue.enqueue(group("h", 1)).await.ok()
    });
    assert_eq!(reply.await.expect("answers"), WriteReply::Ok);
    let write = ebbtide_queue::command::UnitWrite {
        unit: grants.grants[0].unit.clone(),
        fencing_token: grants.grants[0].fencing_token,
        tail: vec![tokens(0, 3, 0)],
        then: ebbtide_queue::command::Then::Complete(stop()),
    };
    let reply = queue.write(&world_holder, vec![write]).await.remove(0);
    assert_eq!(reply.expect("write"), WriteReply::Ok);
    assert_eq!(queue.take("t", 9).await.expect("take").len(), 1);
}

#[tokio::test]
async fn lease_whose_reply_was_lost_is_learnt_by_the_next_call() {
    let redis = require!(Redis::start().await);
    let port = RedisPort::connect(options(&redis.url(), 1)).await.expect("connects");
    let queue = WorkQueue::new(Arc::new(port));
    queue.enqueue(group("g", 2)).await.expect("enqueue");
    let holder = holder("a");
    // Redis takes the call and is too late with its answer.
    redis.pause().expect("pauses");
    let lost = queue.lease(&holder, 2, LONG, Default::default()).await;
    assert!(lost.is_err_and(|error| error.is_retriable()));
    redis.resume().expect("resumes");
    let learnt = until("the queue to answer again", EVENT_LIMIT, || async {
        queue.lease(&holder, 2, LONG, Default::default()).await.ok()
    });
    assert_eq!(learnt.await.expect("answers").grants.len(), 2);
}

#[tokio::test]
async fn nothing_is_added_when_memory_is_short_and_what_is_there_goes_on() {
    let arguments = ["--maxmemory", "64mb", "--maxmemory-policy", "noeviction"];
    let redis = require!(Redis::options().arguments(&arguments).start().await);
    let port = RedisPort::connect(options(&redis.url(), 1)).await.expect("connects");
    let queue = WorkQueue::new(Arc::new(port));
    let holder = holder("a");
    queue.enqueue(group("first", 2)).await.expect("enqueue");
    let held = queue.lease(&holder, 1, LONG, Default::default()).await.expect("lease").grants;
    // Something else fills the server to nine tenths.
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for part in 0..57 {
        let mut ballast = redis::cmd("SET");
        ballast.arg(format!("ballast{part}")).arg(vec![7_u8; (1 << 20) - 256]);
        ballast.query_async::<()>(&mut connection).await.unwrap();
    }
    let number = std::sync::atomic::AtomicU32::new(0);
    until("the queue to refuse more", EVENT_LIMIT, || async {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let reply = queue.enqueue(group(&format!("filler{number}"), 1)).await;
        (reply.expect("no error of the server") == WriteReply::Busy).then_some(())
    })
    .await
    .expect("refused");
    let fresh = queue.lease(&holder, 10, LONG, Default::default()).await.expect("lease").grants;
    assert!(fresh.is_empty(), "nothing fresh is begun");
    let write = |then| ebbtide_queue::command::UnitWrite {
        unit: held[0].unit.clone(),
        fencing_token: held[0].fencing_token,
        tail: vec![],
        then,
    };
    let cause = ebbtide_queue::command::HandBackCause::Notice;
    let tail = ebbtide_queue::command::UnitWrite {
        tail: vec![tokens(0, 3, 0)],
        ..write(ebbtide_queue::command::Then::HandBack(cause.into()))
    };
    assert_eq!(queue.write(&holder, vec![tail]).await.remove(0).unwrap(), WriteReply::Ok);
    let resumed = queue.lease(&holder, 10, LONG, Default::default()).await.expect("lease").grants;
    assert_eq!(resumed.len(), 1, "what was begun is finished");
}
