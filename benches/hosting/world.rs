//! Redis with work, and the agent's binary beside it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use ebbtide_agent::emulator::{ImdsEmulator, InstanceIdentity};
use ebbtide_core::ids::PolicyVersion;
use ebbtide_core::work::PromptGroup;
use ebbtide_harness::{Program, Redis};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::VersionRecord;
use ebbtide_queue::memory::DEFAULT_DEDUP_WINDOW;
use ebbtide_queue::redis::{Durability, Layout, RedisOptions, RedisPort};
use ebbtide_queue::reply::WriteReply;
use tempfile::TempDir;

/// Samples of a prompt.
pub const GROUP_SIZE: u16 = 8;

const RUN: &str = "hosting";
const VERSION: PolicyVersion = PolicyVersion(1);
const LIMIT: Duration = Duration::from_secs(60);

/// See the module. Everything ends with it.
pub struct World {
    pub queue: WorkQueue,
    pub agent: Program,
    _redis: Redis,
    _imds: ImdsEmulator,
    _folder: TempDir,
}

impl World {
    /// Begins a run with `groups` prompts of 512 tokens, and starts an agent that may have
    /// `concurrency` streams on the engine at `engine`.
    ///
    /// # Errors
    /// A part does not start.
    pub async fn start(
        groups: usize,
        max_tokens: u32,
        concurrency: usize,
        engine: &str,
    ) -> anyhow::Result<Self> {
        let redis = Redis::start().await?;
        let options = RedisOptions {
            url: redis.url(),
            run: RUN.parse()?,
            layout: Some(Layout {
                shard_count: 4,
                stage_count: 1,
                dedup_window: DEFAULT_DEDUP_WINDOW,
            }),
            durability: Durability::Fast,
        };
        let queue = WorkQueue::new(Arc::new(RedisPort::connect(options).await?));
        queue.set_version(VersionRecord { version: VERSION, ..VersionRecord::default() }).await?;
        for number in 0..groups {
            let id = format!("group-{number:06}").parse()?;
            let mut group = PromptGroup::new(id, GROUP_SIZE, (100..612).collect());
            group.sampling.max_tokens = max_tokens;
            group.sampling.seed = Some(7);
            group.max_lag = 4;
            let reply = queue.enqueue(group).await?;
            ensure!(reply == WriteReply::Ok, "a group was not enqueued: {reply:?}");
        }
        let folder = tempfile::tempdir()?;
        let policy = folder.path().join("policy.yaml");
        std::fs::write(&policy, policy_text(concurrency))?;
        let policy = policy.to_str().context("a path that is no text")?;
        let listen = format!("127.0.0.1:{}", Program::free_port()?);
        let url = redis.url();
        let imds = ImdsEmulator::start(InstanceIdentity::spot("i-0", "us-east-2b"))?;
        let imds_url = imds.base_url();
        let agent = Program::options("ebbtide-agent", env!("CARGO_BIN_EXE_ebbtide")).arguments([
            "agent",
            "--policy",
            policy,
            "--redis",
            &url,
            "--engine",
            engine,
            "--listen",
            &listen,
            "--node",
            "node-0",
            "--imds",
            &imds_url,
            "--no-kubernetes",
        ]);
        let mut agent = agent.start()?;
        agent.ready(&format!("http://{listen}/readyz"), LIMIT).await?;
        Ok(Self { queue, agent, _redis: redis, _imds: imds, _folder: folder })
    }
}

fn policy_text(concurrency: usize) -> String {
    format!(
        "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: {RUN}}}
spec:
  queue: {{shards: 4}}
  staleness: {{maxLag: 4}}
  trainer: {{groupsPerStep: 8, groupSize: {GROUP_SIZE}}}
  rollout: {{maxReplicas: 1, pools: [local], concurrencyPerReplica: {concurrency}}}
  pools: [{{name: local, provider: local, market: spot, maxNodes: 1}}]
"
    )
}
