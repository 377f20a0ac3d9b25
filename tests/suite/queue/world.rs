//! A run on a real Redis with units in every state, its raw keys, and the command beside it.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::fabric::FabricVerdict;
use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion};
use ebbtide_core::sample::{Chunk, Finish, FinishReason, Origin};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::PromptGroup;
use ebbtide_harness::Redis;
use ebbtide_queue::client::{LeaseTerms, WorkQueue};
use ebbtide_queue::command::{HandBackCause, Stage, Then, UnitWrite};
use ebbtide_queue::memory::DEFAULT_DEDUP_WINDOW;
use ebbtide_queue::redis::{Durability, Layout, RedisOptions, RedisPort};
use ebbtide_queue::reply::{Grant, WriteReply};
use ebbtide_queue::status::ShardStatus;
use redis::aio::MultiplexedConnection;
use serde_json::Value;

use crate::programs::EBBTIDE;

/// Long enough never to run out within a test.
pub const LONG: Duration = Duration::from_secs(600);
/// Tokens of every finished response.
pub const WHOLE: u32 = 12;

/// A run, and every way to it.
pub struct Run {
    pub name: String,
    pub url: String,
    pub queue: WorkQueue,
    pub raw: MultiplexedConnection,
}

pub fn holder(node: &str) -> Holder {
    format!("{node}/boot-1/agent-{node}").parse().unwrap()
}

/// A group of three samples.
pub fn group(name: &str) -> PromptGroup {
    let mut group = PromptGroup::new(name.parse().unwrap(), 3, vec![1, 2, 3]);
    group.max_lag = 4;
    group.sampling.max_tokens = 100;
    group
}

/// Tokens whose ids tell their place in the response.
pub fn tokens(from: u32, to: u32) -> Chunk {
    Chunk {
        offset: from,
        weight_version: PolicyVersion(0),
        token_ids: (from..to).map(|id| i32::try_from(id).unwrap()).collect(),
        logprobs: (from..to).map(|_| -0.5).collect(),
        origin: Origin {
            holder: holder("a"),
            fencing_token: FencingToken(1),
            engine: "vllm/0.32.0".to_owned(),
            fabric: FabricVerdict::Passed,
            started_at: UnixMillis(1_764_000_000_000),
            ended_at: UnixMillis(1_764_000_002_100),
        },
    }
}

pub fn complete() -> Then {
    Then::Complete(Finish { reason: FinishReason::Stop, stop_reason: None })
}

impl Run {
    /// A new run of its own on `redis`.
    pub async fn begin(redis: &Redis, name: &str, shard_count: u16) -> Self {
        Self::begin_with(redis, name, shard_count, 1).await
    }

    /// The same; its units are scored when `stage_count` is 2.
    pub async fn begin_with(redis: &Redis, name: &str, shard_count: u16, stage_count: u8) -> Self {
        let layout = Layout { shard_count, stage_count, dedup_window: DEFAULT_DEDUP_WINDOW };
        let options = RedisOptions {
            url: redis.url(),
            run: name.parse().unwrap(),
            layout: Some(layout),
            durability: Durability::Fast,
        };
        let port = RedisPort::connect(options).await.expect("redis is there");
        let client = redis::Client::open(redis.url()).unwrap();
        Self {
            name: name.to_owned(),
            url: redis.url(),
            queue: WorkQueue::new(Arc::new(port)),
            raw: client.get_multiplexed_async_connection().await.unwrap(),
        }
    }

    /// `ebbtide queue …`: exit code and what it said.
    pub fn command(&self, arguments: &[&str]) -> (i32, String) {
        let output = Command::new(EBBTIDE)
            .arg("queue")
            .args(arguments)
            .args(["--redis", &self.url, "--run", &self.name])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    }

    /// The same with `--output json`.
    pub fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let (code, text) = self.command(&[arguments, &["--output", "json"]].concat());
        (code, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}")))
    }

    /// A key of shard 0.
    pub fn key(&self, name: &str) -> String {
        format!("{{{}:0}}:{name}", self.name)
    }

    pub async fn enqueue(&self, name: &str) {
        assert_eq!(self.queue.enqueue(group(name)).await.unwrap(), WriteReply::Ok);
    }

    pub async fn lease(&self, node: &str, limit: usize) -> Vec<Grant> {
        let (holder, worker_version) = (holder(node), PolicyVersion(9));
        let terms =
            LeaseTerms { stage: Stage::Generate, holder: &holder, ttl: LONG, worker_version };
        self.queue.lease_while(terms, limit, || true).await.unwrap().grants
    }

    pub async fn write(&self, node: &str, grant: &Grant, tail: Vec<Chunk>, then: Then) {
        let (unit, fencing_token) = (grant.unit.clone(), grant.fencing_token);
        let write = UnitWrite { unit, fencing_token, tail, then };
        let reply = self.queue.write(&holder(node), vec![write]).await.remove(0);
        assert_eq!(reply.unwrap(), WriteReply::Ok, "{grant:?}");
    }

    /// Groups in every state: `fresh` untouched; `mixed` with a unit at work (two chunks), one
    /// handed back (two chunks) and one fresh; `partly` with two complete and one at work without
    /// tokens; `sealed` in the buffer; `taken` by the trainer.
    pub async fn fill(&self) {
        for name in ["taken", "sealed"] {
            self.enqueue(name).await;
            for grant in self.lease("a", 3).await {
                self.write("a", &grant, vec![tokens(0, 5), tokens(5, WHOLE)], complete()).await;
            }
            if name == "taken" {
                assert_eq!(self.queue.take("trainer", 1).await.unwrap().len(), 1);
            }
        }
        self.enqueue("partly").await;
        let grants = self.lease("a", 3).await;
        for grant in &grants[..2] {
            self.write("a", grant, vec![tokens(0, WHOLE)], complete()).await;
        }
        self.enqueue("mixed").await;
        let grants = self.lease("b", 2).await;
        self.write("b", &grants[0], vec![tokens(0, 4), tokens(4, 7)], Then::Continue).await;
        let back = Then::HandBack(HandBackCause::Notice.into());
        self.write("b", &grants[1], vec![tokens(0, 4), tokens(4, 7)], back).await;
        self.enqueue("fresh").await;
    }

    /// Works on everything until nothing is left, and takes what is sealed; gives the groups that
    /// were delivered. Every sample is whole.
    pub async fn finish(&self) -> BTreeSet<String> {
        for node in ["a", "b"] {
            // As new processes of the nodes: what the old ones held goes back.
            let successor = format!("{node}/boot-2/agent-{node}").parse().unwrap();
            self.queue.reclaim(&successor).await.unwrap();
        }
        loop {
            let grants = self.lease("z", 100).await;
            if grants.is_empty() {
                break;
            }
            for grant in grants {
                let from = grant.partial.last().map_or(0, Chunk::end);
                self.write("z", &grant, vec![tokens(from, WHOLE)], complete()).await;
            }
        }
        let mut delivered = BTreeSet::new();
        for taken in self.queue.take("trainer", 100).await.unwrap() {
            let id = taken.group.group_id.clone();
            assert_eq!(taken.samples.len() + taken.missing_slots.len(), 3, "{id}");
            for sample in &taken.samples {
                let expected: Vec<i32> = (0..i32::try_from(WHOLE).unwrap()).collect();
                assert_eq!(sample.token_ids(), expected, "{}", sample.unit);
            }
            assert_eq!(
                self.queue.acknowledge("trainer", std::slice::from_ref(&id)).await.unwrap(),
                1
            );
            assert!(delivered.insert(id.to_string()), "{id} is delivered once");
        }
        delivered
    }

    pub async fn status(&self) -> ShardStatus {
        ShardStatus::sum(self.queue.status().await.complete().unwrap())
    }
}
