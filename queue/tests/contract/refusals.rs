//! Every wrong setup is refused with words that say what to do.

use std::sync::Arc;

use ebbtide_harness::{Redis, RedisAuthority, RedisCluster, RedisSentinels, require};
use ebbtide_queue::client::QueueError;
use ebbtide_queue::redis::{RedisOptions, acl_rule};

use super::links::{connect, safe, user};
use super::worlds::*;

/// Connecting fails until an operator changes something; the message has these words.
async fn is_unsuitable(options: RedisOptions, words: &[&str]) {
    let url = options.url.clone();
    match connect(options).await {
        Err(QueueError::Unsuitable { problem }) => {
            let missing: Vec<_> = words.iter().filter(|word| !problem.contains(**word)).collect();
            assert!(missing.is_empty(), "{url}: {missing:?} are not in: {problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
        Err(other) => panic!("{url}: wanted an unsuitable redis, got {other:?}"),
        Ok(_) => panic!("{url}: wanted an unsuitable redis, got a connection"),
    }
}

#[tokio::test]
async fn malformed_address_is_refused_before_anything_is_asked() {
    is_unsuitable(options("redis://:secret@127.0.0.1:x", 1), &["port", "redis://"]).await;
}

#[tokio::test]
async fn scheme_must_fit_the_servers() {
    let redis = require!(Redis::start().await);
    let at = redis.address();
    let url = format!("redis+cluster://{at}");
    is_unsuitable(options(&url, 1), &["not in cluster mode", "redis://"]).await;
    let url = format!("redis+sentinel://{at}/main");
    is_unsuitable(options(&url, 1), &["no Sentinel", "26379", "redis://"]).await;
    let cluster = require!(RedisCluster::shared().await);
    let at = cluster.nodes[0].address();
    let form = format!("redis+cluster://{at}");
    is_unsuitable(options(&cluster.nodes[0].url(), 1), &["cluster mode", &form]).await;
    let sentinels = require!(RedisSentinels::shared().await);
    let url = sentinels.url();
    let one = url.split(['/', ',']).nth(2).unwrap();
    let url = format!("redis://{one}");
    is_unsuitable(options(&url, 1), &["is a Sentinel", "redis+sentinel://"]).await;
}

#[tokio::test]
async fn name_of_the_master_must_be_known_to_the_sentinels() {
    let sentinels = require!(RedisSentinels::shared().await);
    let url = sentinels.url().replace("/main", "/other");
    is_unsuitable(options(&url, 1), &["master other", "sentinel monitor"]).await;
}

#[tokio::test]
async fn sentinels_with_a_password_ask_for_their_own_login() {
    let server = Redis::options();
    let set = require!(RedisSentinels::start_with_password(1, server, "secret").await);
    is_unsuitable(options(&set.url(), 1), &["sentinel_password"]).await;
    let url = format!("{}?sentinel_password=secret", set.url());
    connect(options(&url, 1)).await.expect("connects");
}

#[tokio::test]
async fn tls_problems_say_what_to_change() {
    let authority = Arc::new(require!(RedisAuthority::create()));
    let other = require!(RedisAuthority::create());
    let redis = require!(Redis::options().tls(&authority).start().await);
    let (plain, port) = (redis.port(), redis.tls_port());
    let ca = authority.certificate().display().to_string();
    let other_ca = other.certificate().display().to_string();
    for (url, words) in [
        (format!("rediss://127.0.0.1:{port}?ca={other_ca}"), "?ca=/path.pem"),
        (format!("rediss://127.0.0.1:{port}?ca=/no/such.pem"), "ca /no/such.pem"),
        (format!("rediss://127.0.0.1:{port}?ca=/dev/null"), "no certificate in PEM"),
    ] {
        is_unsuitable(options(&url, 1), &[words]).await;
    }
    let error = connect(options(&format!("redis://127.0.0.1:{port}"), 1)).await.err().unwrap();
    assert!(error.to_string().contains("write rediss in place of redis"), "{error}");
    let url = format!("rediss://127.0.0.1:{plain}?ca={ca}");
    let error = connect(options(&url, 1)).await.err().unwrap();
    assert!(error.to_string().contains("redis in place of rediss"), "{error}");
}

#[tokio::test]
async fn certificate_for_another_name_is_refused() {
    let authority = Arc::new(require!(RedisAuthority::create()));
    let everywhere = ["--bind", "127.0.0.1 127.0.0.2"];
    let redis = Redis::options().tls(&authority).arguments(&everywhere).start().await;
    let redis = require!(redis);
    let ca = authority.certificate();
    let url = format!("rediss://127.0.0.2:{}?ca={}", redis.tls_port(), ca.display());
    is_unsuitable(options(&url, 1), &["another name"]).await;
}

#[tokio::test]
async fn login_problems_say_what_to_write() {
    let redis = require!(Redis::options().arguments(&["--requirepass", "secret"]).start().await);
    let at = redis.address();
    is_unsuitable(options(&redis.url(), 1), &["NOAUTH", "write user:password@"]).await;
    let wrong = format!("redis://:wrong@{at}");
    is_unsuitable(options(&wrong, 1), &["WRONGPASS", "right user:password@"]).await;
    let nobody = format!("redis://nobody:secret@{at}");
    is_unsuitable(options(&nobody, 1), &["WRONGPASS"]).await;
    let right = format!("redis://:secret@{at}");
    connect(options(&right, 1)).await.expect("connects");
    let database = format!("redis://:secret@{at}/99");
    is_unsuitable(options(&database, 1), &["no database 99"]).await;
}

#[tokio::test]
async fn password_for_a_server_without_one_is_refused() {
    let redis = require!(Redis::start().await);
    let url = format!("redis://:secret@{}", redis.address());
    is_unsuitable(options(&url, 1), &["no password", "leave user:password@ out"]).await;
}

#[tokio::test]
async fn missing_rights_are_named_with_the_rule_that_grants_them() {
    let (name, rules) = user(&["on", ">secret"]);
    let redis = require!(Redis::options().user(&name, &rules).start().await);
    let url = format!("redis://ebbtide:secret@{}", redis.address());
    for right in ["-info", "-fcall", "-ping", "-@write", "-time", "resetkeys"] {
        redis.talk(&["ACL", "SETUSER", "ebbtide", right]).await.unwrap();
        let refused = async {
            let queue = connect(options(&url, 1)).await?;
            queue.status().await.complete()?;
            queue.enqueue(group("g", 1)).await.map_err(|error| match error {
                ebbtide_queue::client::EnqueueError::Queue(error) => error,
                other => panic!("{other}"),
            })
        };
        match refused.await {
            Err(QueueError::Unsuitable { problem }) => {
                assert!(problem.contains("ACL SETUSER"), "{right}: {problem}");
            }
            other => panic!("{right}: wanted a refusal, got {other:?}"),
        }
        let mut restored = vec!["ACL", "SETUSER", "ebbtide", "reset"];
        restored.extend(&rules);
        redis.talk(&restored).await.unwrap();
    }
}

#[tokio::test]
async fn safe_mode_says_what_it_cannot_see_and_fast_mode_goes_on() {
    let rules = acl_rule(&"run-1".parse().unwrap());
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let rules = [&["on", ">secret"][..], &rules, &["-config"]].concat();
    let server = Redis::options().appendonly().arguments(&["--appendfsync", "always"]);
    let redis = require!(server.user("ebbtide", &rules).start().await);
    let url = format!("redis://ebbtide:secret@{}", redis.address());
    let words = ["appendfsync always", "CONFIG GET"];
    is_unsuitable(safe(options(&url, 1)), &words).await;
    connect(options(&url, 1)).await.expect("connects");
}

#[tokio::test]
async fn safe_mode_needs_masters_that_ask_for_a_replica() {
    let cluster = require!(RedisCluster::shared().await);
    let options = RedisOptions { run: fresh_run(), ..options(&cluster.url(), 1) };
    is_unsuitable(safe(options), &["min-replicas-to-write 1"]).await;
}

#[tokio::test]
async fn replica_is_no_place_for_a_queue_and_names_its_master() {
    let master = require!(Redis::start().await);
    let replica_of = format!("127.0.0.1 {}", master.port());
    let replica = require!(Redis::options().arguments(&["--replicaof", &replica_of]).start().await);
    let error = connect(options(&replica.url(), 1)).await.err().expect("a refusal");
    assert!(error.to_string().contains(&master.address()), "{error}");
}
