//! Every way to a Redis, end to end: the whole life of a group, and the hint that wakes others.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_harness::{
    EVENT_LIMIT, Redis, RedisAuthority, RedisCluster, RedisSentinels, require, until,
};
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::command::{HandBackCause, Then, UnitWrite};
use ebbtide_queue::redis::{Durability, RedisOptions, RedisPort, acl_rule};
use ebbtide_queue::reply::{Grant, WriteReply};

use super::worlds::*;

pub async fn connect(options: RedisOptions) -> Result<WorkQueue, QueueError> {
    Ok(WorkQueue::new(Arc::new(RedisPort::connect(options).await?)))
}

pub fn safe(options: RedisOptions) -> RedisOptions {
    RedisOptions { durability: Durability::Safe, ..options }
}

/// A group's life, with a hand-back in the middle of it, on four shards.
async fn group_lives(options: RedisOptions) {
    let queue = connect(options.clone()).await.expect("connects");
    let (a, b) = (holder("a"), holder("b"));
    let write = |grant: &Grant, tail, then| {
        let (unit, fencing_token) = (grant.unit.clone(), grant.fencing_token);
        vec![UnitWrite { unit, fencing_token, tail: vec![tail], then }]
    };
    for name in ["g", "h", "i", "j"] {
        assert_eq!(queue.enqueue(group(name, 1)).await.unwrap(), WriteReply::Ok);
        assert_eq!(queue.enqueue(group(name, 1)).await.unwrap(), WriteReply::AlreadyDone);
    }
    let grants = queue.lease(&a, 9, LONG, Default::default()).await.unwrap().grants;
    assert_eq!(grants.len(), 4);
    for grant in &grants {
        let append = write(grant, tokens(0, 2, 0), Then::Continue);
        assert_eq!(queue.write(&a, append).await.remove(0).unwrap(), WriteReply::Ok);
        let hand_back = write(grant, tokens(2, 1, 0), Then::HandBack(HandBackCause::Notice.into()));
        assert_eq!(queue.write(&a, hand_back).await.remove(0).unwrap(), WriteReply::Ok);
    }
    let grants = queue.lease(&b, 9, LONG, Default::default()).await.unwrap().grants;
    assert_eq!(grants.len(), 4);
    for grant in &grants {
        assert_eq!(grant.partial.iter().map(|chunk| chunk.len()).sum::<u32>(), 3);
        let complete = write(grant, tokens(3, 1, 0), Then::Complete(stop()));
        assert_eq!(queue.write(&b, complete).await.remove(0).unwrap(), WriteReply::Ok);
    }
    let taken = queue.take("t", 9).await.unwrap();
    assert!(taken.iter().all(|group| is_whole(&group.samples[0]) && group.samples[0].len() == 4));
    let groups: Vec<_> = taken.iter().map(|group| group.group.group_id.clone()).collect();
    assert_eq!(queue.acknowledge("t", &groups).await.unwrap(), 4);
    assert_eq!(queue.view().await.unwrap().nodes.len(), 0);
    hint_arrives(&queue, &connect(options).await.expect("connects")).await;
}

/// What one client does wakes another.
pub async fn hint_arrives(teller: &WorkQueue, listener: &WorkQueue) {
    until("a hint", EVENT_LIMIT, || async {
        let listening = tokio::time::timeout(
            Duration::from_millis(500),
            listener.woken(ebbtide_queue::client::Hint::Work),
        );
        let (heard, told) = tokio::join!(listening, teller.enqueue(group("hint", 1)));
        told.is_ok().then_some(())?;
        heard.ok()
    })
    .await
    .expect("a hint");
}

#[tokio::test]
async fn group_lives_on_a_single_server() {
    let redis = require!(Redis::start().await);
    group_lives(options(&redis.url(), 4)).await;
}

#[tokio::test]
async fn group_lives_on_valkey() {
    let valkey = require!(Redis::options().valkey().start().await);
    group_lives(options(&valkey.url().replace("redis", "valkey"), 4)).await;
}

#[tokio::test]
async fn group_lives_on_a_database_of_its_own() {
    let redis = require!(Redis::start().await);
    group_lives(options(&format!("{}/3", redis.url()), 4)).await;
    assert_eq!(redis.talk(&["DBSIZE"]).await.unwrap(), ["0"]);
}

#[tokio::test]
async fn group_lives_behind_sentinels_and_on_a_replica() {
    let sentinels = require!(RedisSentinels::shared().await);
    let options = RedisOptions { run: fresh_run(), ..options(&sentinels.url(), 4) };
    group_lives(safe(options)).await;
}

#[tokio::test]
async fn group_lives_on_a_cluster() {
    let cluster = require!(RedisCluster::shared().await);
    group_lives(RedisOptions { run: fresh_run(), ..options(&cluster.url(), 4) }).await;
}

#[tokio::test]
async fn worlds_that_share_servers_share_no_run() {
    for _ in 0..2 {
        let worlds = [require!(World::on_cluster(2).await), require!(World::on_sentinel(2).await)];
        for world in worlds {
            assert_eq!(world.enqueue(&group("g", 1)).await, WriteReply::Ok);
            assert_eq!(world.status().await.enqueued, 1);
        }
    }
}

#[tokio::test]
async fn group_lives_on_a_cluster_of_valkey_in_safe_mode() {
    let every_write = ["--min-replicas-to-write", "1"];
    let valkey = Redis::options().valkey().arguments(&every_write);
    let cluster = require!(RedisCluster::start(1, valkey).await);
    group_lives(safe(options(&cluster.url(), 4))).await;
}

#[tokio::test]
async fn group_lives_over_tls_by_name_and_by_address() {
    let authority = Arc::new(require!(RedisAuthority::create()));
    let redis = require!(Redis::options().tls(&authority).start().await);
    let ca = authority.certificate().display().to_string();
    for (host, run) in [("127.0.0.1", "run-1"), ("localhost", "run-2")] {
        let url = format!("rediss://{host}:{}?ca={ca}", redis.tls_port());
        group_lives(RedisOptions { run: run.parse().unwrap(), ..options(&url, 4) }).await;
    }
}

#[tokio::test]
async fn group_lives_on_a_cluster_over_tls_as_a_user_with_the_documented_rights() {
    let authority = Arc::new(require!(RedisAuthority::create()));
    let (name, rules) = user(&["on", ">pa:ss@word"]);
    let redis = Redis::options().tls(&authority).user(&name, &rules);
    let cluster = require!(RedisCluster::start(0, redis).await);
    let url = cluster.tls_url(&authority).replace("//", "//ebbtide:pa%3Ass%40word@");
    group_lives(options(&url, 4)).await;
}

#[tokio::test]
async fn user_with_exactly_the_documented_rights_can_do_everything() {
    let (name, rules) = user(&["on", ">secret"]);
    let options_of_server = Redis::options().user(&name, &rules).appendonly();
    let always = ["--appendfsync", "always"];
    let redis = require!(options_of_server.arguments(&always).start().await);
    let url = format!("redis://ebbtide:secret@127.0.0.1:{}", redis.port());
    group_lives(safe(options(&url, 4))).await;
    let port = RedisPort::connect(options(&url, 4)).await.expect("connects");
    port.remove_run().await.expect("removes");
    assert_eq!(redis.talk(&["DBSIZE"]).await.unwrap(), ["0"], "nothing of the run is left");
}

/// The user that the documentation describes, for the run of [`options`].
pub fn user<'a>(first: &[&'a str]) -> (String, Vec<&'a str>) {
    let rule = acl_rule(&"run-1".parse().unwrap());
    let rule = rule.into_iter().map(|word| &*Box::leak(word.into_boxed_str()));
    ("ebbtide".to_owned(), first.iter().copied().chain(rule).collect())
}
