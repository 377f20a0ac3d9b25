//! Lists and streams of others, on a real Redis.

use ebbtide_harness::{Redis, require};
use ebbtide_queue::redis::{GroupBacklog, RedisLengths};

/// A word to Redis as others have it.
struct Others(redis::aio::MultiplexedConnection);

impl Others {
    async fn of(redis: &Redis) -> Self {
        let client = redis::Client::open(redis.url()).unwrap();
        Self(client.get_multiplexed_async_connection().await.unwrap())
    }

    async fn say(&mut self, words: &str) -> redis::Value {
        let mut command = redis::Cmd::new();
        for word in words.split(' ') {
            command.arg(word);
        }
        command.query_async(&mut self.0).await.unwrap()
    }
}

#[tokio::test]
async fn list_that_is_not_there_is_empty_and_another_kind_of_key_is_an_error() {
    let redis = require!(Redis::start().await);
    let mut others = Others::of(&redis).await;
    let lengths = RedisLengths::connect(&redis.url()).await.unwrap();
    assert_eq!(lengths.list("todo").await.unwrap(), 0);
    others.say("RPUSH todo a b c").await;
    assert_eq!(lengths.list("todo").await.unwrap(), 3);
    others.say("SET odd 1").await;
    let error = lengths.list("odd").await.unwrap_err().to_string();
    assert!(error.contains("WRONGTYPE"), "{error}");
}

#[tokio::test]
async fn group_of_a_stream_tells_what_waits_and_what_is_in_work() {
    let redis = require!(Redis::start().await);
    let mut others = Others::of(&redis).await;
    let lengths = RedisLengths::connect(&redis.url()).await.unwrap();
    let error = lengths.group("jobs", "scorers").await.unwrap_err().to_string();
    assert!(error.contains("no such key"), "a stream that is gone is not empty: {error}");
    for number in 1..=5 {
        others.say(&format!("XADD jobs {number}-0 k v")).await;
    }
    others.say("XGROUP CREATE jobs others 0").await;
    let error = lengths.group("jobs", "scorers").await.unwrap_err().to_string();
    assert!(error.contains("stream jobs has no group scorers"), "{error}");
    others.say("XGROUP CREATE jobs scorers 0").await;
    let backlog = |waiting, pending| GroupBacklog { waiting, pending };
    assert_eq!(lengths.group("jobs", "scorers").await.unwrap(), backlog(Some(5), 0));
    others.say("XREADGROUP GROUP scorers s1 COUNT 2 STREAMS jobs >").await;
    assert_eq!(lengths.group("jobs", "scorers").await.unwrap(), backlog(Some(3), 2));
    others.say("XACK jobs scorers 1-0").await;
    assert_eq!(lengths.group("jobs", "scorers").await.unwrap(), backlog(Some(3), 1));
    // An entry that was deleted before it was read: Redis does not know the lag any more.
    others.say("XDEL jobs 4-0").await;
    assert_eq!(lengths.group("jobs", "scorers").await.unwrap(), backlog(None, 1));
}

#[tokio::test]
async fn redis_that_is_away_is_an_error_and_no_length() {
    let mut redis = require!(Redis::start().await);
    let lengths = RedisLengths::connect(&redis.url()).await.unwrap();
    assert_eq!(lengths.list("todo").await.unwrap(), 0);
    redis.kill();
    assert!(lengths.list("todo").await.is_err());
    assert!(RedisLengths::connect("http://a").await.is_err());
}
