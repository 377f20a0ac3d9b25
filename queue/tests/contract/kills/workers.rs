//! Workers that are killed, or stopped for longer than their leases, between any two calls.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use ebbtide_core::ids::UnitId;
use ebbtide_harness::{EVENT_LIMIT, Program, Redis, require, until};
use ebbtide_queue::command::Then;
use ebbtide_queue::redis::{Layout, RedisOptions};
use ebbtide_queue::reply::{TakenGroup, WriteReply};
use tokio::time::Instant;

use super::load::{WHOLE, stored};
use super::worker::{CALLS, LEASE, Orders, SCRIPT_TOKENS, score};
use crate::worlds::*;

/// The time beyond its lease that a dead worker's unit may wait.
const GRACE: Duration = Duration::from_secs(2);

/// A run, and a worker that has carried out so many calls of its script.
struct Story {
    world: World,
    worker: Program,
    go_on: PathBuf,
}

impl Story {
    async fn begin(url: String, calls: u32) -> Self {
        let options = RedisOptions {
            run: fresh_run(),
            layout: Some(Layout { stage_count: 2, ..layout(1) }),
            ..options(&url, 1)
        };
        let run = options.run.to_string();
        let world = World::connected(options, None).await;
        world.enqueue(&group("g", 2)).await;
        let file = format!("ebbtide-{}-{run}", std::process::id());
        let go_on = std::env::temp_dir().join(file);
        let (name, waits_before) = ("dead".to_owned(), Some(calls));
        let orders = Orders { url, run, name, waits_before, go_on: go_on.clone() };
        let mut worker = orders.start().expect("starts");
        let waits = format!("waits before call {calls};");
        worker.logged(&waits, EVENT_LIMIT).await.expect("comes to its boundary");
        Self { world, worker, go_on }
    }

    /// Another worker finishes everything; how long what was held had to wait.
    async fn others_finish(&self) -> Duration {
        let began = Instant::now();
        let other = holder("other");
        until("the group to be sealed", EVENT_LIMIT, || async {
            for grant in self.world.lease(&other, 2, LONG).await {
                let rest = SCRIPT_TOKENS - stored(&grant);
                let tail = vec![tokens(stored(&grant), rest, 0)];
                let tail = if rest > 0 { tail } else { vec![] };
                assert_eq!(self.world.complete(&other, &grant, tail).await, WriteReply::Ok);
            }
            let scoring = self.world.queue.lease_to_score(&other, 2, LONG).await.unwrap();
            for grant in scoring.grants {
                let reply = self.world.write_as(&other, &grant, vec![], Then::Score(score())).await;
                assert_eq!(reply, WriteReply::Ok);
            }
            (self.world.status().await.groups_sealed > 0).then_some(())
        })
        .await
        .expect("sealed");
        began.elapsed()
    }

    /// The group is published once, with exactly those tokens of the worker that it was told of.
    async fn is_published_once_without_late_tokens(&self) {
        let told = self.accepted();
        let taken = self.world.take("t").await;
        assert_eq!((taken.len(), taken[0].samples.len()), (1, 2));
        for sample in &taken[0].samples {
            assert!(is_whole(sample) && sample.len() == SCRIPT_TOKENS, "{sample:?}");
            let dead = holder("dead");
            let of_dead = sample.chunks.iter().filter(|chunk| chunk.origin.holder == dead);
            let made: u32 = of_dead.map(|chunk| chunk.len()).sum();
            assert_eq!(made, told.get(&sample.unit).copied().unwrap_or(0), "{sample:?}");
        }
        assert!(self.world.take("u").await.is_empty());
        assert_eq!(self.world.status().await.groups_sealed, 1);
        self.world.assert_conserved().await;
    }

    /// The tokens of each unit that the worker was told to be stored.
    fn accepted(&self) -> HashMap<UnitId, u32> {
        let log = self.worker.log();
        let accepted = log.lines().filter_map(|line| {
            let said = line.strip_prefix("Ok ")?.strip_suffix(';')?;
            let (unit, tokens) = said.split_once(' ')?;
            Some((unit.parse().unwrap(), tokens.parse().unwrap()))
        });
        accepted.collect()
    }
}

/// What becomes of the story at each boundary of the script, all at the same time.
async fn at_each_boundary<T>(redis: &Redis, end: impl AsyncFn(u32, Story) -> T) -> Vec<T> {
    let stories =
        (0..=CALLS).map(async |calls| end(calls, Story::begin(redis.url(), calls).await).await);
    futures::future::join_all(stories).await
}

#[tokio::test]
async fn worker_killed_between_any_two_calls_loses_nothing_and_publishes_nothing_twice() {
    let redis = require!(Redis::start().await);
    let waited = at_each_boundary(&redis, async |calls, mut story| {
        story.worker.kill();
        let waited = story.others_finish().await;
        assert!(waited <= LEASE + GRACE, "after {calls} calls: {waited:?}");
        story.is_published_once_without_late_tokens().await;
        waited
    })
    .await;
    let longest = waited.iter().max().unwrap();
    println!("{} workers killed; the longest wait for a unit of theirs: {longest:?}", waited.len());
}

/// Cases 25 and 26 of rollouts, with a real SIGSTOP.
#[tokio::test]
async fn worker_stopped_between_any_two_calls_for_longer_than_its_lease_writes_nothing_more() {
    let redis = require!(Redis::start().await);
    let refused = at_each_boundary(&redis, async |calls, mut story| {
        story.worker.pause().expect("stops");
        story.others_finish().await;
        let before = story.accepted();
        std::fs::write(&story.go_on, "").expect("tells it to go on");
        story.worker.resume().expect("goes on");
        story.worker.logged("done;", EVENT_LIMIT).await.expect("tries the rest of its script");
        assert_eq!(story.accepted(), before, "a late write was accepted after {calls} calls");
        std::fs::remove_file(&story.go_on).expect("is there");
        story.is_published_once_without_late_tokens().await;
        story.worker.log().matches("Fenced").count() + story.worker.log().matches("Already").count()
    })
    .await;
    let refused: usize = refused.into_iter().sum();
    println!("{} workers stopped and continued; {refused} late writes refused", CALLS + 1);
    assert!(refused > 0);
}

const KILLS: usize = 15;
const PROCESSES: usize = 3;
/// Groups that are enqueued before each kill: more than are finished until then.
const GROUPS: usize = 20;

#[tokio::test]
async fn workers_killed_at_any_moment_lose_nothing_and_publish_nothing_twice() {
    let redis = require!(Redis::start().await);
    let world = World::connected(options(&redis.url(), 1), None).await;
    let start = |number: usize| {
        let (url, run, name) = (redis.url(), "run-1".to_owned(), format!("w{number}"));
        let orders = Orders { url, run, name, waits_before: None, go_on: PathBuf::new() };
        orders.start().expect("starts")
    };
    let mut processes: Vec<Program> = (0..PROCESSES).map(start).collect();
    for kill in 0..KILLS {
        let enough = world.status().await.completed + 20;
        for number in 0..GROUPS {
            world.enqueue(&group(&format!("g{kill}-{number}"), 4)).await;
        }
        until("work to go on", EVENT_LIMIT, || async {
            (world.status().await.completed >= enough).then_some(())
        })
        .await
        .expect("goes on");
        processes[kill % PROCESSES].kill();
        processes[kill % PROCESSES] = start(PROCESSES + kill);
    }
    let wanted = KILLS * GROUPS;
    until("every group to be sealed", EVENT_LIMIT, || async {
        (world.status().await.groups_sealed as usize == wanted).then_some(())
    })
    .await
    .expect("sealed");
    let taken = world.queue.take("t", 2 * wanted).await.unwrap();
    let is_good = |group: &TakenGroup| {
        group.samples.len() == 4 && group.samples.iter().all(|s| is_whole(s) && s.len() == WHOLE)
    };
    assert!(taken.len() == wanted && taken.iter().all(is_good));
    world.assert_conserved().await;
    let status = world.status().await;
    let (expired, preserved) = (status.lease_expiries, status.tokens.preserved);
    println!("{KILLS} kills: {expired} leases ran out, {preserved} tokens went on elsewhere");
    assert!(expired > 0, "no worker was killed with a unit in its hands");
}
