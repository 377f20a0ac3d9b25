//! `ebbtide policy init`: a first policy from the capacity that is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use ebbtide_controller::aws::{self, AwsSettings};
use ebbtide_controller::metrics::Metrics;
use ebbtide_controller::survey::{Found, survey_groups, survey_node_pools};
use ebbtide_core::ids::RunId;
use ebbtide_core::policy::{FleetPolicy, Market, POOLS_LIMIT, REPLICAS_LIMIT};

use super::{VALID, say};
use crate::setup::{self, LogFormat};
use crate::yaml;

/// Names one pool of a policy may have, in characters.
const NAME_LIMIT: usize = 64;

const EXAMPLES: &str = "\
Examples:
  ebbtide policy init --from-asg grpo-spot-a grpo-spot-b grpo-on-demand > policy.yaml
  ebbtide policy init --from-nodepool gpu --name grpo-7b > policy.yaml
  ebbtide policy check policy.yaml

What is there is read and left as it is. What it does not tell is a line with `decide`: look for
these before the policy is used. AWS is reached by the standard variables (AWS_REGION, AWS_PROFILE,
...), the cluster by KUBECONFIG.

Exit code: 0 a policy was written; 2 wrong usage, or something that is not there.";

/// `ebbtide policy init …`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InitArgs {
    /// Auto Scaling groups of the rollout nodes, the preferred one first
    #[arg(
        long,
        value_name = "NAME",
        num_args = 1..,
        required_unless_present = "from_nodepool",
        conflicts_with = "from_nodepool"
    )]
    from_asg: Vec<String>,
    /// Karpenter's node pools of the rollout nodes
    #[arg(long, value_name = "NAME", num_args = 1..)]
    from_nodepool: Vec<String>,
    /// The run [default: `my-run`, with a line that says to decide]
    #[arg(long, value_name = "NAME")]
    name: Option<RunId>,
}

/// Who adds nodes to the pools.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Groups,
    NodePools,
}

/// Runs `ebbtide policy init`.
///
/// # Errors
/// AWS or the cluster does not answer, or has no such group or node pool.
pub async fn run(args: InitArgs) -> anyhow::Result<ExitCode> {
    setup::start_logging(LogFormat::Text, "off");
    let (groups, node_pools) = (each_once(&args.from_asg), each_once(&args.from_nodepool));
    let (source, found) = if node_pools.is_empty() {
        let config = aws::load_config(AwsSettings::default()).await;
        let metrics = Metrics::new()?;
        let found = survey_groups(&config, &metrics.api_calls, &groups).await?;
        (Source::Groups, found)
    } else {
        let client = setup::kube_client().await?;
        (Source::NodePools, survey_node_pools(client, &node_pools).await?)
    };
    let pools = found.len();
    anyhow::ensure!(
        pools <= POOLS_LIMIT,
        "these are {pools} pools, one for each market, instance type and zone, and a policy has at \
         most {POOLS_LIMIT}: name fewer, or let node pools require fewer zones and instance types"
    );
    let text = write_policy(args.name.as_ref(), source, &found);
    FleetPolicy::parse(&text, "the policy that was written")
        .context("this is a fault of `policy init`")?;
    Ok(say(VALID, text.trim_end()))
}

/// Names without those that were given before.
fn each_once(names: &[String]) -> Vec<String> {
    let mut once = Vec::<String>::new();
    for name in names {
        if !once.contains(name) {
            once.push(name.clone());
        }
    }
    once
}

/// As many replicas as a policy may have, and as all the sources hold: pools of one source share
/// its limit.
fn most_replicas(found: &[Found]) -> u32 {
    let mut by_source = BTreeMap::<&str, (u32, Option<u32>)>::new();
    for one in found {
        let (nodes, limit) = by_source.entry(&one.name).or_default();
        *nodes = nodes.saturating_add(max_nodes(one));
        *limit = one.max_nodes.filter(|most| *most > 0);
    }
    let held = by_source.values().map(|(nodes, limit)| limit.map_or(*nodes, |it| it.min(*nodes)));
    held.fold(0, u32::saturating_add).min(REPLICAS_LIMIT)
}

fn write_policy(run: Option<&RunId>, source: Source, found: &[Found]) -> String {
    let pools = Pools::of(found);
    let mut text = head(run, source);
    let most = most_replicas(found);
    let names: Vec<String> = pools.names.iter().map(|name| yaml::scalar(name)).collect();
    let names = names.join(", ");
    let _ = write!(
        text,
        "  rollout:
    # decide: fewest and most replicas. Here: as many as the pools hold together.
    minReplicas: 1
    maxReplicas: {most}
    # decide: from the order of a node to its first token, until that has been measured.
    # startupEstimate: 5m
    # In the order of preference.
    pools: [{names}]

  pools:
"
    );
    for (found, name) in found.iter().zip(&pools.names) {
        write_pool(&mut text, source, found, name);
    }
    text.push_str(TAIL);
    text
}

/// Everything above the rollout group.
fn head(run: Option<&RunId>, source: Source) -> String {
    let from = match source {
        Source::Groups => "Auto Scaling groups",
        Source::NodePools => "Karpenter's node pools",
    };
    let name = match run {
        Some(run) => format!("  name: {}", yaml::scalar(run.as_str())),
        None => "  # decide: the name of the run.\n  name: my-run".to_owned(),
    };
    format!(
        "# A first fleet policy, from {from} as they are. Lines with `decide` hold
# what these do not tell; policies/ of Ebbtide explains every key.
#
# Check it:   ebbtide policy check FILE
# In words:   ebbtide policy explain FILE
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata:
{name}

spec:
  # observe: decide and show, change no capacity. act: carry the decisions out.
  mode: observe

  # decide: how old tokens may be, in policy updates.
  # staleness: {{maxLag: 1}}

  trainer:
    # decide: prompt groups of one policy update, and samples of one prompt.
    groupsPerStep: 128
    groupSize: 8
    # decide: the trainer's own pool, on demand, and its number of nodes: for the cost of an update.
    # pool: trainer
    # legalSizes: [2]

"
    )
}

/// What may follow at the end.
const TAIL: &str = "
  # decide: most dollars per hour for all worker groups; it needs a price for every pool.
  # budget: {dollarsPerHour: 500}
";

fn write_pool(text: &mut String, source: Source, found: &Found, name: &str) {
    let mut lines = vec![format!("- name: {}", yaml::scalar(name))];
    if let Some(desired) = found.desired {
        lines.push(format!("  # Now: {desired} nodes are asked for."));
    }
    lines.extend(found.remarks.iter().map(|remark| format!("  # decide: {remark}.")));
    match source {
        Source::Groups => {
            push(&mut lines, "  provider: asg");
            lines.push(format!("  autoScalingGroup: {}", yaml::scalar(&found.name)));
        }
        Source::NodePools => {
            lines.push(format!("  # From node pool {}.", found.name));
            push(&mut lines, "  # decide: workers (a LeaderWorkerSet for each replica) or scale.");
            push(&mut lines, "  provider: workers");
            push(
                &mut lines,
                "  # decide: the LeaderWorkerSet that a replica is a copy of; docs/sizing.md.",
            );
            lines.push(format!("  workers: {{template: {}}}", yaml::scalar(&object_name(name))));
        }
    }
    match found.market {
        Some(Market::Spot) => lines.push("  market: spot".to_owned()),
        Some(Market::OnDemand) => lines.push("  market: onDemand".to_owned()),
        None => {
            push(&mut lines, "  # decide: spot or onDemand; it does not say.");
            push(&mut lines, "  market: onDemand");
        }
    }
    match (&found.instance_type, source) {
        (Some(kind), _) => lines.push(format!("  instanceType: {}", yaml::scalar(kind))),
        (None, Source::Groups) => {
            push(&mut lines, "  # decide: its instance type; it does not say, or has several.");
            push(&mut lines, "  instanceType: p5en.48xlarge");
        }
        (None, Source::NodePools) => {
            push(&mut lines, "  # decide: its instance type; it allows several.");
            push(&mut lines, "  # instanceType: p5en.48xlarge");
        }
    }
    match &found.zone {
        Some(zone) => lines.push(format!("  zone: {}", yaml::scalar(zone))),
        None => {
            push(
                &mut lines,
                "  # decide: one zone for each pool, so that an empty one is left out.",
            );
            push(&mut lines, "  # zone: us-east-2a");
        }
    }
    if found.max_nodes.is_none_or(|most| most == 0) {
        push(&mut lines, "  # decide: most nodes; no limit is told.");
    }
    lines.push(format!("  maxNodes: {}", max_nodes(found)));
    push(
        &mut lines,
        "  # decide: the price of a node, for costs and the limit of on-demand nodes.",
    );
    push(&mut lines, "  # dollarsPerNodeHour: 25.0");
    for line in lines {
        let _ = writeln!(text, "    {line}");
    }
}

fn push(lines: &mut Vec<String>, line: &str) {
    lines.push(line.to_owned());
}

/// What a policy may say; what is not told is a small number that somebody decides about.
fn max_nodes(found: &Found) -> u32 {
    found.max_nodes.filter(|most| *most > 0).unwrap_or(8).min(10_000)
}

/// Names of pools: each once, in the letters allowed.
struct Pools {
    names: Vec<String>,
}

impl Pools {
    fn of(found: &[Found]) -> Self {
        let mut taken = BTreeSet::new();
        let names = found.iter().map(|one| {
            let is_alone = found.iter().filter(|other| other.name == one.name).count() == 1;
            let name = pool_name(one, is_alone);
            let numbered = (2..).map(|number| {
                let end = format!("-{number}");
                format!("{}{end}", &name[..name.len().min(NAME_LIMIT - end.len())])
            });
            let mut candidates = std::iter::once(name.clone()).chain(numbered);
            let free = candidates.find(|candidate| !taken.contains(candidate));
            let free = free.unwrap_or(name);
            taken.insert(free.clone());
            free
        });
        Self { names: names.collect() }
    }
}

/// The name of the group or node pool; with zone and market where it has several.
fn pool_name(found: &Found, is_alone: bool) -> String {
    let mut name = found.name.clone();
    if !is_alone {
        let market = match found.market {
            Some(Market::Spot) => Some("spot".to_owned()),
            Some(Market::OnDemand) => Some("on-demand".to_owned()),
            None => None,
        };
        for part in [market, found.instance_type.clone(), found.zone.clone()].into_iter().flatten()
        {
            name.push('-');
            name.push_str(&part);
        }
    }
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name: String = name.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect();
    name.chars().take(NAME_LIMIT).collect()
}

/// The name of a pool as that of a Kubernetes object.
fn object_name(pool: &str) -> String {
    let name = pool.to_ascii_lowercase().replace('_', "-");
    let name = name.trim_matches('-');
    if name.is_empty() { "rollout".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str) -> Found {
        Found { name: name.to_owned(), ..Found::default() }
    }

    fn policy(source: Source, found: &[Found]) -> (FleetPolicy, String) {
        let text = write_policy(None, source, found);
        let policy =
            FleetPolicy::parse(&text, "p").unwrap_or_else(|error| panic!("{error}\n{text}"));
        (policy, text)
    }

    #[test]
    fn whatever_is_known_makes_a_valid_policy_that_says_what_to_decide() {
        let whole = Found {
            market: Some(Market::Spot),
            instance_type: Some("p5en.48xlarge".to_owned()),
            zone: Some("us-east-2a".to_owned()),
            max_nodes: Some(16),
            desired: Some(3),
            ..found("grpo, spot/a")
        };
        let bare = Found { max_nodes: Some(0), remarks: vec!["it mixes".to_owned()], ..found("b") };
        for source in [Source::Groups, Source::NodePools] {
            let (policy, text) = policy(source, &[whole.clone(), bare.clone()]);
            assert_eq!(policy.rollout.max_replicas, 24);
            assert_eq!(policy.pools[0].name.as_str(), "grpo--spot-a");
            assert_eq!(policy.pools[0].market, Market::Spot);
            let decisions = text.matches("decide:").count();
            assert!(decisions > 8, "{decisions}\n{text}");
            assert!(!text.lines().any(|line| line.chars().count() > 100), "{text}");
        }
    }

    #[test]
    fn pools_of_one_source_share_its_limit_and_no_policy_has_too_many() {
        let zone = |name: &str, zone: &str, nodes| Found {
            zone: Some(zone.to_owned()),
            max_nodes: Some(nodes),
            ..found(name)
        };
        let shared = [zone("gpu", "a", 10), zone("gpu", "b", 10), zone("other", "a", 3)];
        assert_eq!(policy(Source::NodePools, &shared).0.rollout.max_replicas, 13);
        let large = [zone("a", "a", 6_000), zone("b", "a", 6_000)];
        assert_eq!(policy(Source::Groups, &large).0.rollout.max_replicas, 10_000);
        let twice = ["a", "b", "a"].map(str::to_owned);
        assert_eq!(each_once(&twice), ["a", "b"]);
    }

    #[test]
    fn pools_of_one_source_get_names_of_their_own() {
        let spot = Found { market: Some(Market::Spot), ..found("gpu") };
        let zone = |zone: &str| Found { zone: Some(zone.to_owned()), ..spot.clone() };
        let long = found(&"x".repeat(90));
        let all = [zone("a"), zone("b"), zone("b"), long.clone(), long];
        let names = Pools::of(&all).names;
        assert_eq!(names[..3], ["gpu-spot-a", "gpu-spot-b", "gpu-spot-b-2"]);
        assert!(names.iter().all(|name| name.len() <= NAME_LIMIT), "{names:?}");
        assert_ne!(names[3], names[4]);
    }
}
