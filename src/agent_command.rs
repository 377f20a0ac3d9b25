//! `ebbtide agent`: the node agent with the real outside world.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use ebbtide_agent::engine::{Engine, VllmEngine};
use ebbtide_agent::marks::{KubeMarks, NoMarks, NodeMarks};
use ebbtide_agent::{AgentConfig, ImdsClient, Outside, QueueAccess, agent_holder};
use ebbtide_core::ids::{NodeName, ReplicaId, RunId};

use crate::agent_terms;
use crate::place::RedisArgs;
use crate::setup::{self, LogFormat};

/// Where the kernel tells which boot this is.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

const EXAMPLE: &str = "\
Example:
  ebbtide agent --policy policies/grpo-async.yaml --node $(hostname) \\
    --redis redis://10.0.0.5:6379 --engine http://127.0.0.1:8000

On a notice the agent stops leasing, lets finish what can, hands everything else back with its
tokens, and cordons and taints its node. SIGTERM hands everything back and marks nothing.";

/// What `ebbtide agent` is told; each flag has a variable beside it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct AgentArgs {
    /// The fleet policy of the run
    #[arg(long, env = "EBBTIDE_POLICY", value_name = "FILE")]
    policy: PathBuf,
    /// The run; must be the policy's. A guard against the wrong file
    #[arg(long, env = "EBBTIDE_RUN")]
    run: Option<RunId>,
    #[command(flatten)]
    redis: RedisArgs,
    /// This node, as Kubernetes calls it
    #[arg(long, env = "NODE_NAME")]
    node: NodeName,
    /// The replica that this node belongs to [default: the node itself]
    #[arg(long, env = "EBBTIDE_REPLICA")]
    replica: Option<ReplicaId>,
    /// This agent's node runs the replica's engine: it drains and reports for all its nodes
    #[arg(long, env = "EBBTIDE_LEADS_REPLICA", requires = "replica")]
    leads_replica: bool,
    /// An engine on this node; may be given several times
    #[arg(long = "engine", env = "EBBTIDE_ENGINES", value_name = "URL", value_delimiter = ',')]
    engines: Vec<String>,
    /// Where to serve /healthz, /readyz, /drained and /metrics
    #[arg(long, env = "EBBTIDE_LISTEN", default_value = "0.0.0.0:9464")]
    listen: SocketAddr,
    /// The instance metadata service
    #[arg(
        long,
        env = "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        value_name = "URL",
        default_value = "http://169.254.169.254"
    )]
    imds: String,
    /// Run without Kubernetes: no cordon, taint or events
    #[arg(long)]
    no_kubernetes: bool,
    /// How log lines look
    #[arg(long, env = "EBBTIDE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// Runs the agent until SIGTERM or Ctrl-C.
///
/// # Errors
/// Usage or configuration: nothing was started.
pub async fn run(args: AgentArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(args.log_format, "info");
    let policy = setup::read_policy(&args.policy)?;
    if let Some(run) = args.run.as_ref().filter(|run| **run != policy.run) {
        anyhow::bail!(
            "--run must be the run of {}, which is {}, got {run}",
            args.policy.display(),
            policy.run
        );
    }
    let mut config =
        AgentConfig::new(policy.run.clone(), agent_holder(&args.node, &read_boot_id()?)?);
    agent_terms::apply(&policy, &mut config);
    // The policy counts samples per replica, the agent per engine.
    let engines = args.engines.len().max(1);
    config.concurrency_per_engine = config.concurrency_per_engine.div_ceil(engines);
    config.listen = Some(args.listen);
    if let Some(replica) = args.replica {
        config = config.with_replica(replica);
        config.leads_replica |= args.leads_replica;
    }
    let engine = |url: &String| -> anyhow::Result<Arc<dyn Engine>> {
        Ok(Arc::new(VllmEngine::new(url).with_context(|| format!("--engine {url}"))?))
    };
    let outside = Outside {
        imds: Some(ImdsClient::new(&args.imds).with_context(|| format!("--imds {}", args.imds))?),
        engines: args.engines.iter().map(engine).collect::<anyhow::Result<_>>()?,
        marks: node_marks(args.no_kubernetes).await?,
        ..Outside::new(QueueAccess::redis(setup::redis_options(&args.redis.url, &policy)))
    };
    ebbtide_agent::run(config, outside, setup::stop_on_signal()?).await?;
    Ok(ExitCode::SUCCESS)
}

async fn node_marks(no_kubernetes: bool) -> anyhow::Result<Arc<dyn NodeMarks>> {
    if no_kubernetes {
        return Ok(Arc::new(NoMarks));
    }
    Ok(Arc::new(KubeMarks::new(setup::kube_client().await?)))
}

/// The boot id without its dashes' risk: it is a plain name already.
fn read_boot_id() -> anyhow::Result<String> {
    let text = std::fs::read_to_string(BOOT_ID_FILE)
        .with_context(|| format!("cannot read the boot id from {BOOT_ID_FILE}"))?;
    Ok(text.trim().to_owned())
}
