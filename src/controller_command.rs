//! `ebbtide controller`: the controller with the real outside world.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use ebbtide_controller::aws::{self, AwsSettings, SdkConfig};
use ebbtide_controller::capacity::asg::AsgCapacity;
use ebbtide_controller::capacity::fleet::FleetCapacity;
use ebbtide_controller::capacity::mixed::MixedCapacity;
use ebbtide_controller::capacity::scale::ScaleCapacity;
use ebbtide_controller::capacity::workers::WorkersCapacity;
use ebbtide_controller::controller::{self, ControllerConfig, EventParts, Outside, QueueSource};
use ebbtide_controller::events::queue::EventQueue;
use ebbtide_controller::events::sqs::SqsQueue;
use ebbtide_controller::image_rollout::{KubeGroups, NoGroups};
use ebbtide_controller::leader::{AlwaysLeader, KubernetesLease, LeaderLease};
use ebbtide_controller::lifecycle::AsgHooks;
use ebbtide_controller::metrics::Metrics;
use ebbtide_controller::nodes::{KubeNodes, NoNodes};
use ebbtide_controller::policy_source::PolicySource;
use ebbtide_controller::resource::PolicyResource;
use ebbtide_controller::signals::RealSources;
use ebbtide_controller::status::ControllerStatus;
use ebbtide_core::ids::RunId;
use ebbtide_core::policy::{FleetPolicy, ProviderKind};
use ebbtide_queue::client::wall_clock_now;
use tokio_util::sync::CancellationToken;

use crate::place::RedisArgs;
use crate::setup::{self, LogFormat};

const EXAMPLE: &str = "\
Example:
  ebbtide controller --policy policies/grpo-async.yaml --redis redis://10.0.0.5:6379

In mode observe it decides and writes nothing; mode act raises groups, and lowers them only by
draining replicas and then terminating exactly these instances. AWS is reached by the standard
variables (AWS_REGION, AWS_ENDPOINT_URL, ...) and credential sources; the instance metadata service
is not asked.";

/// What `ebbtide controller` is told; each flag has a variable beside it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct ControllerArgs {
    /// The fleet policy; read again when the file changes
    #[arg(
        long,
        env = "EBBTIDE_POLICY",
        value_name = "FILE",
        required_unless_present = "policy_resource"
    )]
    policy: Option<PathBuf>,
    /// The fleet policy as a custom resource of the cluster, instead of the file; read again when
    /// it changes, and answered in its status
    #[arg(
        long,
        env = "EBBTIDE_POLICY_RESOURCE",
        value_name = "NAMESPACE/NAME",
        value_parser = resource_place,
        conflicts_with = "no_kubernetes"
    )]
    policy_resource: Option<ResourcePlace>,
    #[command(flatten)]
    redis: RedisArgs,
    /// Where to serve /healthz, /readyz, /metrics and /status
    #[arg(long, env = "EBBTIDE_LISTEN", default_value = "0.0.0.0:9465")]
    listen: SocketAddr,
    /// Namespace of the leader lease, the rollout workers' pods and what scales them
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    namespace: String,
    /// Who this controller is in the leader lease [default: a random name]
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Run without Kubernetes: this controller always leads
    #[arg(long)]
    no_kubernetes: bool,
    /// Record every tick in this file, for `ebbtide policy replay`, instead of decisions in the
    /// log; 512 MiB at most, older parts in FILE.1 to FILE.7
    #[arg(long, env = "EBBTIDE_JOURNAL", value_name = "FILE")]
    journal: Option<PathBuf>,
    /// The SQS queue with events about instances; without it only agents learn of them
    #[arg(long, env = "EBBTIDE_EVENTS_QUEUE", value_name = "URL", value_parser = queue_url)]
    events_queue: Option<String>,
    /// How log lines look
    #[arg(long, env = "EBBTIDE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

/// Runs the controller until SIGTERM or Ctrl-C.
///
/// # Errors
/// Usage or configuration: nothing was started.
pub async fn run(args: ControllerArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(args.log_format, "info");
    let metrics = Metrics::new()?;
    let cluster = if args.no_kubernetes { None } else { Some(setup::kube_client().await?) };
    let stop = setup::stop_on_signal()?;
    let status = ControllerStatus::default();
    let shown = (&metrics, &status);
    let first = first_policy(&args, cluster.clone(), shown, &stop).await?;
    let Some((policy, policy_source)) = first else { return Ok(ExitCode::SUCCESS) };
    let aws = aws::load_config(AwsSettings::default()).await;
    let outside = Outside {
        queue: QueueSource::Redis(setup::redis_options(&args.redis.url, &policy)),
        capacity: Arc::new(capacity(&args, &policy.run, &aws, cluster.clone(), &metrics)),
        events: event_parts(&args, &aws, cluster.clone(), &metrics),
        groups: match cluster.clone() {
            Some(client) => Arc::new(KubeGroups::new(client, &args.namespace, wall_clock_now)),
            None => Arc::new(NoGroups),
        },
        leader: leader_lease(&args, &policy, cluster),
        signals: Arc::new(RealSources::new(&args.redis.url, &aws, metrics.api_calls.clone())),
        metrics,
        status,
        now: wall_clock_now,
    };
    let config = ControllerConfig {
        policy,
        policy_source,
        listen: Some(args.listen),
        tick: None,
        journal: args.journal,
    };
    controller::run(config, outside, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// Every provider that a policy may name.
fn capacity(
    args: &ControllerArgs,
    run: &RunId,
    aws: &SdkConfig,
    cluster: Option<kube::Client>,
    metrics: &Metrics,
) -> MixedCapacity {
    let asg = AsgCapacity::new(aws, metrics.api_calls.clone());
    let fleet = FleetCapacity::new(aws, run.clone(), metrics.api_calls.clone(), wall_clock_now);
    let mixed =
        MixedCapacity::default().with(ProviderKind::Asg, asg).with(ProviderKind::Fleet, fleet);
    let Some(client) = cluster else { return mixed };
    let workers = WorkersCapacity::new(client.clone(), &args.namespace);
    mixed
        .with(ProviderKind::Scale, ScaleCapacity::new(client, &args.namespace))
        .with(ProviderKind::Workers, workers)
}

/// The policy to begin with and where its successors come from; `None` when it was told to stop
/// before there was one.
async fn first_policy(
    args: &ControllerArgs,
    cluster: Option<kube::Client>,
    shown: (&Metrics, &ControllerStatus),
    stop: &CancellationToken,
) -> anyhow::Result<Option<(FleetPolicy, PolicySource)>> {
    if let (Some((namespace, name)), Some(client)) = (&args.policy_resource, cluster) {
        let resource = PolicyResource::new(client, namespace, name);
        let policy =
            controller::first_policy(&resource, args.listen, shown, wall_clock_now, stop).await?;
        return Ok(policy.map(|policy| (policy, PolicySource::Resource(Box::new(resource)))));
    }
    let file = args.policy.clone().context("--policy or --policy-resource must be given")?;
    let policy = setup::read_policy(&file)?;
    let unsupported = policy.unsupported_sizing();
    anyhow::ensure!(unsupported.is_empty(), "{}: {}", file.display(), unsupported.join("; "));
    Ok(Some((policy, PolicySource::File(file))))
}

/// What interruptions are learned from, as the arguments say.
fn event_parts(
    args: &ControllerArgs,
    aws: &SdkConfig,
    cluster: Option<kube::Client>,
    metrics: &Metrics,
) -> EventParts {
    let calls = &metrics.api_calls;
    let queue = args.events_queue.clone().map(|url| SqsQueue::new(aws, url, calls.clone()));
    EventParts {
        inbox: queue.map(|queue| Arc::new(queue) as Arc<dyn EventQueue>),
        nodes: match cluster {
            Some(client) => Arc::new(KubeNodes::new(client)),
            None => Arc::new(NoNodes),
        },
        hooks: Arc::new(AsgHooks::new(aws, calls.clone())),
    }
}

fn leader_lease(
    args: &ControllerArgs,
    policy: &FleetPolicy,
    cluster: Option<kube::Client>,
) -> Arc<dyn LeaderLease> {
    let Some(client) = cluster else {
        return Arc::new(AlwaysLeader::new(wall_clock_now()));
    };
    let name = lease_name(&policy.run);
    let identity = args.identity.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    Arc::new(KubernetesLease::new(client, &args.namespace, &name, &identity, wall_clock_now))
}

/// The lease of a run. Names of objects have fewer letters than names of runs: one that had to be
/// changed gets a number, so that no other run comes to the same.
fn lease_name(run: &RunId) -> String {
    let exact = format!("ebbtide-{run}");
    let changed = exact.to_lowercase().replace('_', "-");
    if changed == exact && !changed.ends_with('-') {
        return exact;
    }
    let number = crc32fast::hash(run.as_str().as_bytes());
    format!("{}-{number:08x}", changed.trim_end_matches('-'))
}

/// Namespace and name of a policy in the cluster.
type ResourcePlace = (String, String);

fn resource_place(text: &str) -> Result<ResourcePlace, String> {
    match text.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("expected NAMESPACE/NAME".to_owned()),
    }
}

/// Whether a text may be the URL of a queue.
fn queue_url(text: &str) -> Result<String, String> {
    if text.starts_with("https://") || text.starts_with("http://") {
        return Ok(text.to_owned());
    }
    Err("expected the queue's URL, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_whose_names_differ_never_share_a_lease() {
        let name = |run: &str| lease_name(&run.parse().expect("valid"));
        assert_eq!(name("exp-1"), "ebbtide-exp-1");
        assert_eq!(name("Exp_1"), format!("ebbtide-exp-1-{:08x}", crc32fast::hash(b"Exp_1")));
        assert!(!name("exp_").contains("--") && name("exp_") != name("exp-"));
    }
}
