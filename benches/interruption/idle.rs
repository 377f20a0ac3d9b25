//! What an agent costs that has nothing to do: the binary itself, on a real API server and Redis,
//! with an engine that no unit waits for, no notice, and a controller that is heard.
//!
//! Memory is what is resident at the end, CPU is the run time of all threads, requests are counted
//! by the metadata service.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use ebbtide_agent::emulator::imds::path;
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator, ImdsEmulator, InstanceIdentity};
use ebbtide_harness::{ControlPlane, Figures, NodeSpec, Program, Redis, cpu_time, resident_mib};
use ebbtide_queue::client::{QueueError, WorkQueue};

use super::arguments::Sizes;
use super::seed;

const NODE: &str = "node-0";
/// After the start, before anything is measured.
const SETTLING: Duration = Duration::from_secs(10);
/// The run of the policy.
const RUN: &str = "grpo-async";
const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/grpo-async.yaml");

/// See the module.
///
/// # Errors
/// A part does not start, or the kernel does not say what a process uses.
pub async fn measure(program: &Path, sizes: &Sizes, figures: &mut Figures) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let cluster = ControlPlane::start().await?;
    cluster.add_nodes(&[NodeSpec::gpu(NODE)]).await?;
    let imds = ImdsEmulator::start(InstanceIdentity::spot("i-0", "us-east-2b"))?;
    let engine = EngineConfig { weights_label: "0".to_owned(), ..EngineConfig::default() };
    let engine = EngineEmulator::start(engine)?;
    let listen = format!("127.0.0.1:{}", Program::free_port()?);
    let (redis_url, imds_url, engine_url) = (redis.url(), imds.base_url(), engine.base_url());
    let mut agent = Program::options("ebbtide-agent", program)
        .arguments([
            "agent",
            "--policy",
            POLICY,
            "--redis",
            &redis_url,
            "--imds",
            &imds_url,
            "--engine",
            &engine_url,
            "--listen",
            &listen,
            "--node",
            NODE,
        ])
        .variable("KUBECONFIG", &cluster.kubeconfig().display().to_string())
        .start()?;
    agent.ready(&format!("http://{listen}/readyz"), Duration::from_secs(60)).await?;
    tokio::time::sleep(SETTLING).await;
    let process = agent.process_id().context("the agent has ended")?;
    println!("idle: an agent is watched for {} s", sizes.idle.as_secs());
    let requests = |imds: &ImdsEmulator| -> u64 {
        let all = [
            path::TOKEN,
            path::SPOT_ACTION,
            path::SPOT_TERMINATION,
            path::REBALANCE,
            path::MAINTENANCE,
            path::TARGET_LIFECYCLE,
            path::LIFE_CYCLE,
            path::INSTANCE_ID,
            path::INSTANCE_TYPE,
            path::ZONE,
            path::REGION,
            path::IDENTITY,
        ];
        all.iter().map(|path| imds.handle().requests(path)).sum()
    };
    let (cpu_before, requests_before) = (cpu_time(process)?, requests(&imds));
    let queue = seed::queue(&redis, RUN).await?;
    let watched = tokio::time::timeout(sizes.idle, beat_as_a_controller(&queue)).await;
    if let Ok(failed) = watched {
        failed?;
    }
    let used = cpu_time(process)? - cpu_before;
    let asked = requests(&imds) - requests_before;
    figures.set("idleRssMiB", resident_mib(process)?);
    figures.set("idleCpuPercent", used.as_secs_f64() / sizes.idle.as_secs_f64() * 100.0);
    figures.set("imdsRequestsPerSecond", asked as f64 / sizes.idle.as_secs_f64());
    figures.set("idleSeconds", sizes.idle.as_secs_f64());
    Ok(())
}

/// A controller reaps each second; without its beat every idle agent would.
async fn beat_as_a_controller(queue: &WorkQueue) -> Result<(), QueueError> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        queue.beat_reaper().await?;
    }
}
