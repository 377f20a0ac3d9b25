//! Engines that tests take in turn, the agents that host them, and their answers without an agent.

use std::path::PathBuf;
use std::time::Duration;

use ebbtide_core::sample::Sample;
use ebbtide_core::work::{PromptGroup, Sampling};
use ebbtide_harness::{Error, Program, Redis, TinyModels, Vllm, until};
use ebbtide_queue::client::WorkQueue;
use serde_json::{Value, json};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use crate::programs::*;

pub const RUN: &str = "run-vllm";

/// Nothing can finish within what the reserve leaves of two minutes' notice.
const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-vllm}
spec:
  queue: {shards: 2, lease: 5s, renewEvery: 1s}
  staleness: {maxLag: LAG}
  drain: {reserve: 105s}
  trainer: {groupsPerStep: 2, groupSize: 4}
  rollout: {maxReplicas: 4, pools: [local], concurrencyPerReplica: 16}
  pools: [{name: local, provider: local, market: spot, maxNodes: 4}]
";

/// What a test may wait for on a slow machine.
const SAMPLES_LIMIT: Duration = Duration::from_secs(180);

/// Engines that were started by the first test that asked.
static ENGINES: Mutex<Option<Engines>> = Mutex::const_new(None);

/// Two engines of the same mixture of experts.
pub struct Engines {
    pub first: Vllm,
    pub second: Vllm,
    pub models: TinyModels,
}

/// The engines, in the hands of one test.
pub type Lent = MappedMutexGuard<'static, Engines>;

impl Engines {
    /// Waits for its turn. Who has it may start engines of its own.
    pub async fn lend() -> Result<Lent, Error> {
        let mut lent = ENGINES.lock().await;
        if lent.is_none() {
            let models = TinyModels::make().await?;
            let start = || Vllm::start(models.experts());
            let (first, second) = tokio::try_join!(start(), start())?;
            *lent = Some(Self { first, second, models });
        }
        Ok(MutexGuard::map(lent, |lent| lent.as_mut().expect("it was just set")))
    }
}

/// A run on a Redis of its own, and the folder with its policy.
pub struct Site {
    pub queue: WorkQueue,
    redis: String,
    policy: String,
    _folder: tempfile::TempDir,
}

impl Site {
    /// A run at version 1 whose tokens may be one version old.
    pub async fn on(redis: &Redis, max_lag: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = POLICY.replace("LAG", &max_lag.to_string());
        let policy = policy_file(folder.path(), &text);
        let queue = queue(redis, RUN, 2).await;
        publish_version(&queue, 1).await;
        Self { queue, redis: redis.url(), policy, _folder: folder }
    }

    /// An agent that hosts the engine.
    pub fn agent(&self, node: &str, engine: &str, imds: &str) -> Program {
        self.agent_with(node, engine, imds, &[])
    }

    /// As [`Site::agent`], with more variables in its environment.
    pub fn agent_with(
        &self,
        node: &str,
        engine: &str,
        imds: &str,
        variables: &[(&str, &str)],
    ) -> Program {
        let (run, redis, policy) = (RUN, &*self.redis, &*self.policy);
        let agent = AgentProgram { run, node, redis, imds, engine, policy, kubeconfig: None };
        agent.start_with(variables).0
    }

    /// Takes that many samples as the trainer does.
    pub async fn samples(&self, count: usize) -> Vec<Sample> {
        let mut samples = Vec::new();
        while samples.len() < count {
            let taken = until("sealed groups", SAMPLES_LIMIT, || async {
                self.queue.take("trainer", 10).await.ok().filter(|taken| !taken.is_empty())
            });
            let taken = taken.await.expect("sealed");
            let groups: Vec<_> = taken.iter().map(|it| it.group.group_id.clone()).collect();
            self.queue.acknowledge("trainer", &groups).await.expect("redis is there");
            samples.extend(taken.into_iter().flat_map(|it| it.samples));
        }
        samples
    }
}

/// A group whose samples are all the same.
pub fn greedy(number: i32, size: u16, max_tokens: u32) -> PromptGroup {
    let mut group = group(number, size, max_tokens);
    let temperature = 0.0;
    group.sampling = Sampling { max_tokens, temperature, ignore_eos: true, ..Sampling::default() };
    group
}

/// What an engine answers to the prompt of a group, in one piece and without an agent.
pub async fn answer(engine: &str, group: &PromptGroup, max_tokens: u32) -> Vec<i32> {
    let body = json!({
        "token_ids": group.prompt_token_ids,
        "stream": false,
        "sampling_params": { "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true },
    });
    let answer = post(engine, "/inference/v1/generate", &body.to_string()).await;
    let ids = answer["choices"][0]["token_ids"].as_array().expect("token ids");
    ids.iter().map(|id| i32::try_from(id.as_i64().unwrap()).unwrap()).collect()
}

/// Sets what the engine calls its weights.
pub async fn say_version(engine: &str, version: &str) {
    let body = json!({ "new_version": version });
    post(engine, "/update_weight_version", &body.to_string()).await;
}

pub async fn post(engine: &str, path: &str, body: &str) -> Value {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(format!("{engine}{path}")).header("Content-Type", "application/json");
    let answer = request.body(body.to_owned()).send().await.expect("the engine answers");
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default()
}

/// Whether it works on nothing.
pub async fn is_idle(engine: &str) -> Option<()> {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let page = client.get(format!("{engine}/metrics")).send().await.ok()?.text().await.ok()?;
    let gauge = page.lines().find(|line| line.starts_with("vllm:num_requests_running{"))?;
    (gauge.rsplit(' ').next()?.parse::<f64>().ok()? == 0.0).then_some(())
}

/// Waits until tokens of so many units are stored.
pub async fn all_streaming(queue: &WorkQueue, units: usize) {
    units_become(queue, "tokens of all units", |all| {
        all.len() == units && all.iter().all(|unit| unit.tokens > 8)
    })
    .await
    .expect("all stream");
}

/// A place as a published version names it.
pub fn file_uri(place: PathBuf) -> String {
    format!("file://{}", place.display())
}
