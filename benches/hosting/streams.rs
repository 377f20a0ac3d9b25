//! An agent with 512 streams at 20 tokens a second each, and a bare client with the same ones,
//! one after the other in each round, each as a process of its own beside an engine of its own.
//!
//! CPU is the run time of all threads of the process within the window, memory what is resident at
//! its end. Tokens of the agent are those that the queue has stored, those of the bare client what
//! the engine has made. The medians are those of all rounds but the first.

use std::time::Duration;

use anyhow::Context;
use ebbtide_agent::emulator::engine::ResponseLengths;
use ebbtide_agent::emulator::{EngineConfig, EngineEmulator};
use ebbtide_harness::{Figures, Program, cpu_time, resident_mib};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::status::ShardStatus;
use tokio::time::{Instant, sleep, timeout};

use super::world::{GROUP_SIZE, World};

const STREAMS: usize = 512;
const TOKENS_PER_SECOND: f64 = 20.0;
/// After the last stream has begun, before anything is measured.
const SETTLING: Duration = Duration::from_secs(5);
/// Until all streams have begun.
const LIMIT: Duration = Duration::from_secs(60);

/// What a process did in the window.
struct Window {
    cpu: Duration,
    took: Duration,
    tokens: u64,
    resident_mib: f64,
}

impl Window {
    fn cpu_percent(&self) -> f64 {
        self.cpu.as_secs_f64() / self.took.as_secs_f64() * 100.0
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.took.as_secs_f64()
    }

    fn cpu_per_token(&self) -> f64 {
        self.cpu.as_secs_f64() / self.tokens as f64
    }
}

/// See the module.
///
/// # Errors
/// A part does not start, or the streams do not begin.
pub async fn measure(quick: bool, figures: &mut Figures) -> anyhow::Result<()> {
    let (rounds, window) = if quick { (2, 4) } else { (6, 20) };
    let window = Duration::from_secs(window);
    let (mut agents, mut bare_clients) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let (agent, bare) = (watch_agent(window).await?, watch_bare_client(window).await?);
        println!(
            "streams: round {round} of {rounds}: agent {:.1} % and {:.0} tokens/s, bare client \
             {:.1} % and {:.0} tokens/s",
            agent.cpu_percent(),
            agent.tokens_per_second(),
            bare.cpu_percent(),
            bare.tokens_per_second(),
        );
        if round > 1 {
            agents.push(agent);
            bare_clients.push(bare);
        }
    }
    let of_agents = |value: fn(&Window) -> f64| median(agents.iter().map(value).collect());
    let of_bare = |value: fn(&Window) -> f64| median(bare_clients.iter().map(value).collect());
    figures.set("cpuPercent512Streams", of_agents(Window::cpu_percent));
    figures.set("rssMiB512Streams", of_agents(|window| window.resident_mib));
    figures.set("tokensPerSecond", of_agents(Window::tokens_per_second));
    figures.set("bareClientCpuPercent", of_bare(Window::cpu_percent));
    figures.set("bareClientTokensPerSecond", of_bare(Window::tokens_per_second));
    let pairs = agents.iter().zip(&bare_clients);
    let ratios: Vec<f64> =
        pairs.map(|(agent, bare)| agent.cpu_per_token() / bare.cpu_per_token()).collect();
    figures.set("cpuRatioToBareClient", median(ratios.clone()));
    figures.set("cpuRatioToBareClientMin", ratios.iter().copied().fold(f64::INFINITY, f64::min));
    figures.set("cpuRatioToBareClientMax", ratios.iter().copied().fold(0.0, f64::max));
    Ok(())
}

fn engine() -> anyhow::Result<EngineEmulator> {
    let config = EngineConfig {
        tokens_per_second: TOKENS_PER_SECOND,
        // One token an event, as an engine sends them.
        tick: Duration::from_secs(1).div_f64(TOKENS_PER_SECOND),
        max_running: STREAMS,
        context_length: 1 << 21,
        lengths: ResponseLengths { mean: 1_000_000.0, spread: 0.0 },
        weights_label: "1".to_owned(),
        ..EngineConfig::default()
    };
    EngineEmulator::start(config).context("engine")
}

async fn watch_agent(window: Duration) -> anyhow::Result<Window> {
    let engine = engine()?;
    let groups = STREAMS / usize::from(GROUP_SIZE);
    let world = World::start(groups, 1_000_000, STREAMS, &engine.base_url()).await?;
    let process = world.agent.process_id().context("the agent has ended")?;
    watch(&engine, process, window, || stored_tokens(&world.queue)).await
}

async fn watch_bare_client(window: Duration) -> anyhow::Result<Window> {
    let engine = engine()?;
    let (url, streams) = (engine.base_url(), STREAMS.to_string());
    let client = Program::options("bare-client", std::env::current_exe()?)
        .arguments(["bare-client", "--engine", &url, "--streams", &streams])
        .start()?;
    let process = client.process_id().context("the bare client has ended")?;
    let handle = engine.handle();
    watch(&engine, process, window, || async { Ok(handle.tokens_generated()) }).await
}

async fn watch<F>(
    engine: &EngineEmulator,
    process: u32,
    window: Duration,
    tokens: impl Fn() -> F,
) -> anyhow::Result<Window>
where
    F: Future<Output = anyhow::Result<u64>>,
{
    let handle = engine.handle();
    let all_run = handle.wait_for(|counts| counts.running == STREAMS);
    let all_run = timeout(LIMIT, all_run).await;
    all_run
        .with_context(|| format!("not all streams have begun: {:?}", engine.handle().counts()))?;
    sleep(SETTLING).await;
    let (begun, tokens_before, cpu_before) = (Instant::now(), tokens().await?, cpu_time(process)?);
    sleep(window).await;
    Ok(Window {
        cpu: cpu_time(process)? - cpu_before,
        took: begun.elapsed(),
        tokens: tokens().await? - tokens_before,
        resident_mib: resident_mib(process)?,
    })
}

async fn stored_tokens(queue: &WorkQueue) -> anyhow::Result<u64> {
    let gathered = queue.status().await;
    anyhow::ensure!(gathered.missing.is_empty(), "a shard gives no answer: {:?}", gathered.missing);
    Ok(ShardStatus::sum(gathered.answers).tokens.generated)
}

/// Of at least one value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
