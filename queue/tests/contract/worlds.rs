//! The worlds that a law is checked in, and words to tell its story with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{GroupId, Holder, PolicyVersion, RunId, UnitId};
use ebbtide_core::sample::{Chunk, Finish, FinishReason, Origin, Sample};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_harness::{Error, Redis, RedisCluster, RedisSentinels};
use ebbtide_queue::client::{MemoryPort, WorkQueue, wall_clock_now};
use ebbtide_queue::command::{
    DrainBehind, HandBack, HandBackCause, ProgressLimits, Renewal, Then, UnitWrite, Waiting,
};
use ebbtide_queue::control::VersionRecord;
use ebbtide_queue::memory::{DEFAULT_DEDUP_WINDOW, ShardSettings};
use ebbtide_queue::redis::{Durability, Layout, RedisOptions, RedisPort};
use ebbtide_queue::reply::{Grant, TakenGroup, WriteReply};
use ebbtide_queue::state::UnitSnapshot;
use ebbtide_queue::status::ShardStatus;

/// Long enough never to run out within a test.
pub const LONG: Duration = Duration::from_secs(3600);
/// Runs out at once.
pub const NONE: Duration = Duration::ZERO;

/// A queue, and what keeps it alive.
pub struct World {
    pub queue: WorkQueue,
    /// How to reach it; none in memory.
    options: Option<RedisOptions>,
    _redis: Option<Redis>,
}

/// Checks laws in every world that there is: in memory, on Redis alone, on a Cluster, and behind
/// Sentinels in durability safe.
macro_rules! laws {
    ($shards:literal; $($name:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::World::in_memory($shards)).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test]
            async fn $name() {
                let world = super::World::on_redis($shards).await;
                super::$name(ebbtide_harness::require!(world)).await;
            })*
        }
        mod on_cluster {
            $(#[tokio::test]
            async fn $name() {
                let world = super::World::on_cluster($shards).await;
                super::$name(ebbtide_harness::require!(world)).await;
            })*
        }
        mod on_sentinel {
            $(#[tokio::test]
            async fn $name() {
                let world = super::World::on_sentinel($shards).await;
                super::$name(ebbtide_harness::require!(world)).await;
            })*
        }
    };
}
pub(crate) use laws;

impl World {
    pub fn in_memory(shards: u16) -> Self {
        Self::in_memory_with(shards, ShardSettings::default())
    }

    pub fn in_memory_with(shards: u16, settings: ShardSettings) -> Self {
        let port = MemoryPort::new(shards, settings, wall_clock_now);
        Self { queue: WorkQueue::new(Arc::new(port)), options: None, _redis: None }
    }

    pub async fn connected(options: RedisOptions, redis: Option<Redis>) -> Self {
        let port = RedisPort::connect(options.clone()).await.expect("connects");
        Self { queue: WorkQueue::new(Arc::new(port)), options: Some(options), _redis: redis }
    }

    pub async fn on_redis(shards: u16) -> Result<Self, Error> {
        let redis = Redis::start().await?;
        Ok(Self::connected(options(&redis.url(), shards), Some(redis)).await)
    }

    /// On a Cluster that all tests of this process share, with a run of its own.
    pub async fn on_cluster(shards: u16) -> Result<Self, Error> {
        let cluster = RedisCluster::shared().await?;
        let options = RedisOptions { run: fresh_run(), ..options(&cluster.url(), shards) };
        Ok(Self::connected(options, None).await)
    }

    /// On a master with Sentinels that all tests of this process share, with a run of its own, in
    /// durability safe.
    pub async fn on_sentinel(shards: u16) -> Result<Self, Error> {
        let sentinels = RedisSentinels::shared().await?;
        let options = RedisOptions {
            run: fresh_run(),
            durability: Durability::Safe,
            ..options(&sentinels.url(), shards)
        };
        Ok(Self::connected(options, None).await)
    }

    /// Another run in the same place, whose samples are scored.
    pub async fn scored(self) -> Self {
        let Some(mut options) = self.options else {
            let settings = ShardSettings { has_reward_stage: true, ..ShardSettings::default() };
            return Self::in_memory_with(self.queue.shard_count(), settings);
        };
        options.run = fresh_run();
        options.layout = options.layout.map(|layout| Layout { stage_count: 2, ..layout });
        Self::connected(options, self._redis).await
    }

    pub async fn enqueue(&self, group: &PromptGroup) -> WriteReply {
        self.queue.enqueue(group.clone()).await.expect("enqueue")
    }

    pub async fn lease(&self, holder: &Holder, limit: usize, ttl: Duration) -> Vec<Grant> {
        self.lease_at(holder, limit, ttl, 0).await
    }

    pub async fn lease_at(
        &self,
        holder: &Holder,
        limit: usize,
        ttl: Duration,
        version: u64,
    ) -> Vec<Grant> {
        let leased = self.queue.lease(holder, limit, ttl, PolicyVersion(version)).await;
        leased.expect("lease").grants
    }

    pub async fn write_as(
        &self,
        holder: &Holder,
        grant: &Grant,
        tail: Vec<Chunk>,
        then: Then,
    ) -> WriteReply {
        let write =
            UnitWrite { unit: grant.unit.clone(), fencing_token: grant.fencing_token, tail, then };
        self.queue.write(holder, vec![write]).await.remove(0).expect("write")
    }

    pub async fn complete(&self, holder: &Holder, grant: &Grant, tail: Vec<Chunk>) -> WriteReply {
        self.write_as(holder, grant, tail, Then::Complete(stop())).await
    }

    pub async fn hand_back(&self, holder: &Holder, grant: &Grant, tail: Vec<Chunk>) -> WriteReply {
        self.write_as(holder, grant, tail, Then::HandBack(HandBackCause::Notice.into())).await
    }

    pub async fn renew(&self, holder: &Holder, grant: &Grant, limits: ProgressLimits) -> bool {
        let renewal = Renewal {
            unit: grant.unit.clone(),
            fencing_token: grant.fencing_token,
            ttl: LONG,
            waiting: Waiting::Nothing,
        };
        self.queue.renew(holder, vec![renewal], limits).await.expect("renew").is_empty()
    }

    pub async fn set_version(&self, version: u64) -> u64 {
        let record = VersionRecord { version: PolicyVersion(version), ..VersionRecord::default() };
        self.queue.set_version(record).await.expect("set version").0
    }

    pub async fn take(&self, consumer: &str) -> Vec<TakenGroup> {
        self.queue.take(consumer, 100).await.expect("take")
    }

    pub async fn status(&self) -> ShardStatus {
        ShardStatus::sum(self.queue.status().await.complete().expect("status"))
    }

    /// I8: every slot is counted once, at every instant.
    pub async fn assert_conserved(&self) {
        assert_sums_hold(&self.status().await, &self.queue.scan().await.expect("scan"));
        assert_eq!(self.queue.audit(false).await.expect("audit"), []);
    }
}

/// Every slot and every token of these units is counted once.
pub fn assert_sums_hold(status: &ShardStatus, units: &[UnitSnapshot]) {
    let in_system = units.iter().filter(|unit| !unit.state.is_final()).count() as u64;
    let ended = status.completed + status.dead + status.expired + status.cancelled;
    assert_eq!(status.enqueued, ended + in_system, "{status:?}");
    assert_eq!(status.in_system(), in_system, "{status:?}");
    let held: u64 = units.iter().filter(|u| !u.is_sealed).map(|u| u64::from(u.tokens)).sum();
    assert_eq!(status.tokens.in_system(), held, "{status:?}");
}

pub fn layout(shard_count: u16) -> Layout {
    Layout { shard_count, stage_count: 1, dedup_window: DEFAULT_DEDUP_WINDOW }
}

/// A run that nobody else in this process works on.
pub fn fresh_run() -> RunId {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    format!("run-{}-fresh", NUMBER.fetch_add(1, Ordering::Relaxed)).parse().unwrap()
}

pub fn options(url: &str, shards: u16) -> RedisOptions {
    RedisOptions {
        url: url.to_owned(),
        run: "run-1".parse().unwrap(),
        layout: Some(layout(shards)),
        durability: Durability::Fast,
    }
}

pub fn holder(name: &str) -> Holder {
    format!("{name}/boot-1/agent-{name}").parse().unwrap()
}

pub fn group_id(name: &str) -> GroupId {
    name.parse().unwrap()
}

pub fn group(name: &str, size: u16) -> PromptGroup {
    let mut group = PromptGroup::new(group_id(name), size, vec![1, 2, 3]);
    group.max_lag = 2;
    group
}

pub fn stop() -> Finish {
    Finish { reason: FinishReason::Stop, stop_reason: None }
}

/// A chunk of `count` tokens whose ids tell their place in the response.
pub fn tokens(offset: u32, count: u32, version: u64) -> Chunk {
    let ids = offset..offset + count;
    Chunk {
        offset,
        weight_version: PolicyVersion(version),
        token_ids: ids.clone().map(|id| i32::try_from(id).unwrap()).collect(),
        logprobs: ids.map(|_| -1.5).collect(),
        origin: Origin {
            holder: holder("a"),
            fencing_token: ebbtide_core::ids::FencingToken(1),
            engine: "vllm/0.32.0".to_owned(),
            fabric: FabricVerdict::Passed,
            started_at: UnixMillis(1),
            ended_at: UnixMillis(2),
        },
    }
}

pub fn unit(text: &str) -> UnitId {
    text.parse().unwrap()
}

pub fn is_whole(sample: &Sample) -> bool {
    let ids = sample.token_ids();
    ids.iter().zip(0..).all(|(id, place)| *id == place)
}

/// For a Spot notice.
pub fn preempted() -> HandBack {
    let drain = DrainBehind { reason: "spot_terminate", deadline: UnixMillis(4_102_444_800_000) };
    HandBack { cause: HandBackCause::Notice, drain: Some(drain) }
}
