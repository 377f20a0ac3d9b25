//! What every long-running subcommand needs before it begins: logs, a runtime, a stop signal, the
//! policy, the queue.

use std::future::Future;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use ebbtide_core::policy::{FleetPolicy, QueuePolicy, Stage};
use ebbtide_queue::memory::ShardSettings;
use ebbtide_queue::redis::{Layout, RedisOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Runs an asynchronous subcommand on a new runtime.
pub fn run_async(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(work)
}

/// The same on this thread alone, for what shares a machine with others and mostly waits: handing a
/// task from one thread to another costs more than what the task then does.
pub fn run_on_one_thread(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work)
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends logs to stderr; `RUST_LOG` chooses among them, `default_level` without it.
pub fn start_logging(format: LogFormat, default_level: &str) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_level));
    let is_coloured = std::io::stderr().is_terminal() && !is_colour_refused();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_coloured);
    match format {
        LogFormat::Text => builder.with_target(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// Whether `NO_COLOR` asks for plain text (no-color.org: any value but the empty one).
#[allow(clippy::disallowed_methods, reason = "the edge, where the environment is read")]
pub fn is_colour_refused() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// A token that is cancelled by SIGTERM or Ctrl-C.
///
/// # Errors
/// When the process may not handle signals.
pub fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let cancelled = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to stop");
        cancelled.cancel();
    });
    Ok(stop)
}

/// Reads and checks a fleet policy.
///
/// # Errors
/// The file cannot be read, or everything that is wrong with it, one line each.
pub fn read_policy(path: &Path) -> anyhow::Result<FleetPolicy> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the fleet policy {}", path.display()))?;
    parse_policy(&text, &path.display().to_string())
}

/// Checks the text of a fleet policy.
///
/// # Errors
/// Everything that is wrong with it, one line each.
pub fn parse_policy(text: &str, name: &str) -> anyhow::Result<FleetPolicy> {
    FleetPolicy::parse(text, name).map_err(|errors| anyhow::anyhow!("{errors}"))
}

/// How to reach the queue of a policy's run.
pub fn redis_options(url: &str, policy: &FleetPolicy) -> RedisOptions {
    RedisOptions {
        url: url.to_owned(),
        run: policy.run.clone(),
        layout: Some(layout(&policy.queue)),
        durability: policy.queue.durability,
    }
}

fn layout(queue: &QueuePolicy) -> Layout {
    Layout {
        shard_count: queue.shards,
        stage_count: if queue.stages.contains(&Stage::Reward) { 2 } else { 1 },
        dedup_window: queue.dedup_window,
    }
}

/// The same for a queue in this process.
pub fn shard_settings(queue: &QueuePolicy) -> ShardSettings {
    ShardSettings {
        has_reward_stage: queue.stages.contains(&Stage::Reward),
        dedup_window: queue.dedup_window,
    }
}

/// A client of the cluster that this process runs in, or that KUBECONFIG names. The API server is
/// not asked yet, so that it may be away.
///
/// # Errors
/// There is no configuration.
pub async fn kube_client() -> anyhow::Result<kube::Client> {
    let mut config = kube::Config::infer().await.context(
        "no Kubernetes configuration: run inside a cluster, set KUBECONFIG, or pass \
         --no-kubernetes",
    )?;
    // Whoever calls decides what a refusal means: a client that repeats a call by itself, for
    // minutes, hides from an eviction that a disruption budget does not allow it.
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}
