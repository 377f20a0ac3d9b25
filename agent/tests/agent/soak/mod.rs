//! The soak: three emulated engines of different kinds with 2,000 sequences in flight, their agents
//! on a real Redis, and everything that can fail failing, in a random order, for a minute (for ten
//! with `tests/run --long`).
//!
//! | file | what it holds |
//! |---|---|
//! | here | the story, and what is worked on |
//! | `fleet` | the nodes: agents and engines that come and go |
//! | `faults` | what befalls them |
//! | `books` | the sums, which must hold at every instant |
//! | `trainer` | who enqueues and takes, and what a whole sample is |
//! | `wire` | what passes between agents and Redis |
//!
//! Again and again all calls to the queue are stopped for a moment: what stands in Redis must agree
//! with its own counts, with what the agents say that they stored, and with what the engines say
//! that they made. In the end nothing is left, every sequence has come out once, in the very words
//! that an engine writes when nothing interrupts it, and whatever befell it is explained.

mod books;
mod faults;
mod fleet;
mod trainer;
mod wire;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::work::{PromptGroup, ResumePolicy, Sampling};
use ebbtide_harness::{EVENT_LIMIT, Redis, allow_open_files, is_long, require, seed, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::VersionRecord;
use ebbtide_queue::memory::DEFAULT_DEDUP_WINDOW;
use ebbtide_queue::redis::{Durability, Layout, RedisOptions, RedisPort};
use ebbtide_queue::status::ShardStatus;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::books::{Auditor, Books};
use self::faults::EVERY;
use self::fleet::Fleet;
use self::trainer::Trainer;
use self::wire::{Tap, Wire};
use crate::flaky::FlakyPort;
use crate::world::World;

/// Sequences in flight while nothing is broken: a little less than there are places.
const IN_FLIGHT: u64 = 2_000;

/// Both ends of every stream, and as many again that are being closed: 4 × 3 × 680.
const OPEN_FILES: u64 = 8_192;

/// The weights at the beginning: there are lower ones.
const FIRST_VERSION: u64 = 3;

/// Samples of a prompt, and tokens of the longest ones.
const GROUP_SIZE: u16 = 4;
const LONGEST: u32 = 40;

/// Looks at the books in each minute: half of those that are due, as the queue is away at times.
const LOOKS_PER_MINUTE: u64 = 7;

/// How long things fail.
fn minutes() -> u32 {
    if is_long() { 10 } else { 1 }
}

/// What everybody shares.
struct Site {
    world: World,
    options: RedisOptions,
    tap: Arc<Tap>,
    /// Looks at the queue while all others are stopped.
    onlooker: WorkQueue,
    books: Books,
    /// Nothing is enqueued any more.
    is_over: CancellationToken,
}

impl Site {
    async fn on(redis: &Redis) -> Self {
        let shards = Layout { shard_count: 4, stage_count: 1, dedup_window: DEFAULT_DEDUP_WINDOW };
        let options = RedisOptions {
            url: redis.url(),
            run: "soak".parse().unwrap(),
            layout: Some(shards),
            durability: Durability::Fast,
        };
        let (tap, onlooker) = (Arc::default(), RedisPort::connect(options.clone()).await.unwrap());
        let site = Self {
            world: World::on(wire(&options, &tap).await),
            options,
            tap,
            onlooker: WorkQueue::new(Arc::new(onlooker)),
            books: Books::default(),
            is_over: CancellationToken::new(),
        };
        site.publish(FIRST_VERSION).await;
        site
    }

    /// A way to the queue with a connection of its own, as every agent has one.
    async fn own_way(&self) -> Arc<FlakyPort> {
        wire(&self.options, &self.tap).await
    }

    /// As a trainer does: again and again, since the queue may be away.
    async fn publish(&self, version: u64) {
        let version = PolicyVersion(version);
        let publish = || async {
            let record = VersionRecord { version, ..VersionRecord::default() };
            self.world.queue.set_version(record).await.ok()
        };
        until("the version to be published", EVENT_LIMIT, publish).await.expect("reachable");
    }

    /// None while the queue is away.
    async fn status(&self) -> Option<ShardStatus> {
        Some(ShardStatus::sum(self.world.queue.status().await.complete().ok()?))
    }

    /// Waits until the counts of the queue are as wanted.
    async fn queue_becomes(&self, what: &str, is_wanted: impl Fn(&ShardStatus) -> bool) {
        let looked = until(what, EVENT_LIMIT, || async {
            self.status().await.filter(|status| is_wanted(status)).map(drop)
        });
        if let Err(error) = looked.await {
            panic!("{error}: {:?}", self.status().await);
        }
    }
}

async fn wire(options: &RedisOptions, tap: &Arc<Tap>) -> Arc<FlakyPort> {
    let connect = || async { RedisPort::connect(options.clone()).await.ok() };
    let port = until("a connection to Redis", EVENT_LIMIT, connect).await.expect("reachable");
    FlakyPort::to(Arc::new(Wire { port, tap: tap.clone() }))
}

fn is_empty(status: &ShardStatus) -> bool {
    status.in_system() + status.sealed_waiting + status.sealed_taken == 0
}

/// What the groups are, in turn. Most of them nothing may cost a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Begins again when the weights rise.
    Restarts,
    /// Goes on with its old tokens masked.
    Masks,
    /// May become too old.
    Ages,
    /// May run out of attempts.
    Breaks,
}

impl Kind {
    fn of(number: u32) -> Self {
        match number % 8 {
            0 => Self::Restarts,
            1 => Self::Masks,
            2 => Self::Ages,
            3 => Self::Breaks,
            _ => Self::Plain,
        }
    }

    /// For what reasons its groups may fail.
    fn reasons(self) -> &'static [&'static str] {
        match self {
            Self::Ages => &["stale"],
            Self::Breaks => &["dead"],
            _ => &[],
        }
    }
}

/// The prompt of this number.
fn group_of(number: u32) -> PromptGroup {
    let kind = Kind::of(number);
    let name = format!("g{number:06}");
    let prompt = name.bytes().map(i32::from).collect();
    let mut group = PromptGroup::new(name.parse().unwrap(), GROUP_SIZE, prompt);
    group.sampling =
        Sampling { max_tokens: LONGEST, seed: Some(i64::from(number)), ..Sampling::default() };
    group.max_lag = if matches!(kind, Kind::Masks | Kind::Ages) { 1 } else { u16::MAX };
    group.resume_policy = match kind {
        Kind::Restarts => ResumePolicy::RestartIfNewer,
        Kind::Masks => ResumePolicy::MaskOld,
        _ => ResumePolicy::ContinueMixed,
    };
    if kind != Kind::Breaks {
        group.max_attempts = u16::MAX;
    }
    group.min_policy_version = PolicyVersion(FIRST_VERSION);
    group
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_no_sequence_is_lost_or_doubled_and_every_token_is_accounted_for() {
    allow_open_files(OPEN_FILES).unwrap();
    let seed = seed();
    let redis = require!(Redis::options().appendonly().start().await);
    let site = Site::on(&redis).await;
    let story = async {
        let mut fleet = Fleet::start(&site, redis, seed).await;
        let is_full = |it: &ShardStatus| it.leased >= IN_FLIGHT;
        site.queue_becomes("2,000 sequences in flight", is_full).await;
        let over_at = Instant::now() + Duration::from_secs(60) * minutes();
        while Instant::now() < over_at {
            fleet.strike().await;
        }
        fleet.mend();
        site.queue_becomes("2,000 sequences in flight again", is_full).await;
        fleet.hurry();
        site.is_over.cancel();
        site.queue_becomes("everything to end", is_empty).await;
        fleet.stop().await
    };
    let mut auditor = Auditor::of(&site);
    let trainer = Trainer::of(&site, seed);
    let ((_redis, struck), taken, ()) = tokio::select! {
        ended = async { tokio::join!(story, trainer.train(), trainer::enqueue(&site)) } => ended,
        never = auditor.watch() => match never {},
    };
    auditor.close(&taken).await;
    let tokens = &auditor.last.tokens;
    let made = site.books.tokens_made();
    let table = format!(
        "soak with EBBTIDE_TEST_SEED={seed}: the books were right {} times\n\
         tokens: {made} made, {} stored, {} of them accepted, {} preserved, wasted {:?}\n\
         faults: {struck:?}\n",
        auditor.looks, tokens.generated, tokens.accepted, tokens.preserved, tokens.wasted
    );
    // Past the capture, as this is worth reading where all is well.
    std::io::stderr().write_all(table.as_bytes()).unwrap();
    // A slow machine has not the time for all kinds in a minute.
    let kinds = if is_long() { EVERY.len() } else { EVERY.len() / 2 };
    assert!(struck.len() >= kinds, "{} of {} kinds of faults struck", struck.len(), EVERY.len());
    let looks = LOOKS_PER_MINUTE * u64::from(minutes());
    assert!(auditor.looks >= looks, "the books were right {} times only", auditor.looks);
}
