//! `ebbtide agent`: the node agent with the real outside world.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ebbtide_agent::engine::{DetectedEngine, Engine};
use ebbtide_agent::kubernetes::{KubePods, NoPods, NodePods};
use ebbtide_agent::marks::{KubeMarks, NoMarks, NodeMarks};
use ebbtide_agent::{AgentConfig, ImdsClient, Outside, QueueAccess, Webhook, agent_holder};
use ebbtide_core::ids::{NodeName, ReplicaId, RunId};
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::policy::duration::parse_duration;
use ebbtide_queue::control::NodeRole;

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
tokens, cordons and taints its node, and evicts its pods, those that hold work last. SIGTERM hands
everything back, marks nothing and evicts nothing.";

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
    /// An engine on this node, vLLM or SGLang; may be given several times
    #[arg(long = "engine", env = "EBBTIDE_ENGINES", value_name = "URL", value_delimiter = ',')]
    engines: Vec<String>,
    /// Also host the engines of the node's pods, as they come and go: pods with the label
    /// ebbtide.dev/engine and a port called `engine`
    #[arg(long, env = "EBBTIDE_FIND_ENGINES", conflicts_with = "no_kubernetes")]
    find_engines: bool,
    /// Where engines find the weights of a version before they ask the store: a path in their own
    /// containers, such as /weights/{sha256}; {version}, {sha256} and {run} are filled in
    #[arg(long, env = "EBBTIDE_WEIGHTS_CACHE", value_name = "PATH")]
    weights_cache: Option<String>,
    /// How long the trainer may take to push weights to an engine that is too old, until the agent
    /// has it load them
    #[arg(long, env = "EBBTIDE_WEIGHTS_GRACE", value_name = "TIME", default_value = "30s",
        value_parser = parse_duration)]
    weights_grace: Duration,
    /// Where to serve /healthz, /readyz, /drained and /metrics
    #[arg(long, env = "EBBTIDE_LISTEN", default_value = "0.0.0.0:9464")]
    listen: SocketAddr,
    /// A unix socket for custom workers: environments, tools, scorers [default: none]
    #[arg(long, env = "EBBTIDE_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The instance metadata service
    #[arg(
        long,
        env = "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        value_name = "URL",
        default_value = "http://169.254.169.254"
    )]
    imds: String,
    /// Tell this URL about every notice, as a JSON text, or as --webhook-template says
    #[arg(long, env = "EBBTIDE_WEBHOOK", value_name = "URL", hide_env_values = true)]
    webhook: Option<String>,
    /// A file of headers for the webhook, one `NAME: VALUE` a line
    #[arg(long, env = "EBBTIDE_WEBHOOK_HEADERS", value_name = "FILE", requires = "webhook")]
    webhook_headers: Option<PathBuf>,
    /// A file with the webhook's body, a Jinja template: node, run, replica, reason, units,
    /// remaining_seconds, instance_id, instance_type, zone
    #[arg(long, env = "EBBTIDE_WEBHOOK_TEMPLATE", value_name = "FILE", requires = "webhook")]
    webhook_template: Option<PathBuf>,
    /// What this node is for
    #[arg(long, env = "EBBTIDE_ROLE", default_value = "rollout")]
    role: Role,
    /// Run without Kubernetes: no cordon, taint, condition, events or evictions
    #[arg(long)]
    no_kubernetes: bool,
    /// How log lines look
    #[arg(long, env = "EBBTIDE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// What a node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// It generates
    Rollout,
    /// It runs the trainer: a notice asks for a checkpoint first
    Trainer,
    /// It scores: sized by spec.reward
    Reward,
    /// It runs environments or tools: sized by spec.environment
    Environment,
}

impl AgentArgs {
    fn role(&self) -> NodeRole {
        match self.role {
            Role::Rollout => NodeRole::Rollout,
            Role::Trainer => NodeRole::Trainer,
            Role::Reward => NodeRole::Reward,
            Role::Environment => NodeRole::Environment,
        }
    }
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
    config.role = args.role();
    let hosts = args.find_engines || !args.engines.is_empty();
    if config.role.is_service() && hosts {
        let role = config.role.as_str();
        anyhow::bail!("--role {role} hosts no engines: leave out --engine and --find-engines");
    }
    agent_terms::apply(&policy, &mut config);
    // The policy counts samples per replica.
    config.concurrency_per_node = Some(config.concurrency_per_engine);
    config.finds_engines = args.find_engines;
    config.listen = Some(args.listen);
    config.socket = args.socket.clone();
    config.weights.cache = args.weights_cache.clone();
    config.weights.grace = args.weights_grace;
    if let Some(replica) = args.replica.clone() {
        config = config.with_replica(replica);
        config.leads_replica |= args.leads_replica;
    }
    let engine = |url: &String| -> anyhow::Result<Arc<dyn Engine>> {
        Ok(Arc::new(DetectedEngine::new(url).with_context(|| format!("--engine {url}"))?))
    };
    let (marks, pods) = kubernetes(args.no_kubernetes, &policy).await?;
    let outside = Outside {
        imds: Some(ImdsClient::new(&args.imds).with_context(|| format!("--imds {}", args.imds))?),
        engines: args.engines.iter().map(engine).collect::<anyhow::Result<_>>()?,
        webhook: webhook(&args)?,
        marks,
        pods,
        ..Outside::new(QueueAccess::redis(setup::redis_options(&args.redis.url, &policy)))
    };
    ebbtide_agent::run(config, outside, setup::stop_on_signal()?).await?;
    Ok(ExitCode::SUCCESS)
}

async fn kubernetes(
    is_off: bool,
    policy: &FleetPolicy,
) -> anyhow::Result<(Arc<dyn NodeMarks>, Arc<dyn NodePods>)> {
    if is_off {
        return Ok((Arc::new(NoMarks), Arc::new(NoPods)));
    }
    let client = setup::kube_client().await?;
    let extra_taint = policy.drain.extra_taint.clone();
    let marks = KubeMarks::new(client.clone()).with_extra_taint(extra_taint);
    Ok((Arc::new(marks), Arc::new(KubePods::new(client))))
}

fn webhook(args: &AgentArgs) -> anyhow::Result<Option<Webhook>> {
    let Some(url) = &args.webhook else { return Ok(None) };
    let read = |file: &PathBuf| {
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
    };
    let headers = args.webhook_headers.as_ref().map(read).transpose()?.unwrap_or_default();
    let headers: Vec<String> =
        headers.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    let template = args.webhook_template.as_ref().map(read).transpose()?;
    Ok(Some(Webhook::new(url, &headers, template)?))
}

/// The boot id without its dashes' risk: it is a plain name already.
fn read_boot_id() -> anyhow::Result<String> {
    let text = std::fs::read_to_string(BOOT_ID_FILE)
        .with_context(|| format!("cannot read the boot id from {BOOT_ID_FILE}"))?;
    Ok(text.trim().to_owned())
}
