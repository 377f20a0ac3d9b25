//! What `ebbtide demo` is told, and the run and policy that follow from it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ebbtide_core::ids::RunId;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::policy::duration::parse_duration;
use ebbtide_queue::client::wall_clock_now;

use crate::setup;

/// Most nodes: every one is an agent, an engine and an IMDS in this process.
const NODES_LIMIT: u32 = 64;
/// Most notices, and most kills: more than one each second of a long demo.
const DISRUPTIONS_LIMIT: u32 = 1000;

const EXAMPLE: &str = "\
Examples:
  ebbtide demo
  ebbtide demo --for 60s --nodes 12 --notices 8 --kills 4 --seed 11
  ebbtide demo --redis redis://127.0.0.1:6379 --output json
  ebbtide demo --redis redis://127.0.0.1:6379 --run mine --trainer external

With --trainer external the demo is only the fleet: it waits until somebody enqueues work for the
run, and leaves the run in Redis. A trainer of your own enqueues, pushes weights labels to the
engines, takes groups, sets versions, and scores where the policy has a reward stage.

Exit code: 0 when nothing was lost or doubled, 1 when something was, 2 for wrong usage.";

/// What `ebbtide demo` is told.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct DemoArgs {
    /// How long the world runs, from the first work on
    #[arg(long = "for", default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    pub run_for: Duration,
    /// Most rollout nodes at a time
    #[arg(long, default_value_t = 6, value_parser = count(1, NODES_LIMIT))]
    pub nodes: u32,
    /// Nodes that the demo's trainer runs on at first [default: the largest legal size]
    #[arg(long, value_parser = count(1, NODES_LIMIT))]
    pub trainer_nodes: Option<u32>,
    /// Spot interruption notices
    #[arg(long, default_value_t = 4, value_parser = count(0, DISRUPTIONS_LIMIT))]
    pub notices: u32,
    /// Nodes that vanish without notice
    #[arg(long, default_value_t = 2, value_parser = count(0, DISRUPTIONS_LIMIT))]
    pub kills: u32,
    /// Time between a notice and the loss of the node, at least
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = parse_duration)]
    pub notice_lead: Duration,
    /// Chooses prompts, response lengths, and which nodes are lost when
    #[arg(long, default_value_t = 7)]
    pub seed: u64,
    /// Use a real Redis instead of a queue in memory; the demo's own run is removed afterwards
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,
    /// Name of the run [default: one of its own]
    #[arg(long, value_name = "NAME")]
    pub run: Option<RunId>,
    /// Who trains: the demo, which keeps books, or another program by way of Redis
    #[arg(long, value_enum, default_value_t = TrainerKind::Builtin)]
    pub trainer: TrainerKind,
    /// A fleet policy of your own; its pools are played here, whatever their provider
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// How to report
    #[arg(long, default_value = "text")]
    pub output: Output,
}

/// Who enqueues, takes and sets versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrainerKind {
    Builtin,
    External,
}

/// For whom the report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

fn count(least: u32, most: u32) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

impl DemoArgs {
    /// Whether a program outside trains.
    pub fn is_external(&self) -> bool {
        self.trainer == TrainerKind::External
    }

    /// Checks that the flags go together.
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.redis.is_some() || !self.is_external(),
            "--trainer external needs --redis URL: nobody outside can reach a queue in memory"
        );
        Ok(())
    }

    /// The policy to play.
    ///
    /// # Errors
    /// It cannot be read, or is not valid.
    pub fn choose_policy(&self) -> anyhow::Result<FleetPolicy> {
        match &self.policy {
            Some(path) => {
                let policy = setup::read_policy(path)?;
                let nodes = policy.rollout.nodes_per_replica;
                anyhow::ensure!(
                    nodes == 1,
                    "{}: the demo plays replicas of one node, spec.rollout.nodesPerReplica is \
                     {nodes}",
                    path.display()
                );
                Ok(policy)
            }
            None => self.own_policy(),
        }
    }

    /// The run: on a Redis one of its own unless it is named, never that of a cluster that uses the
    /// same Redis and policy.
    pub fn choose_run(&self, policy: &FleetPolicy) -> RunId {
        match (&self.run, &self.redis) {
            (Some(run), _) => run.clone(),
            (None, Some(_)) => {
                let name = format!("demo-{:x}", wall_clock_now().0);
                name.parse().expect("letters, digits and a dash")
            }
            (None, None) => policy.run.clone(),
        }
    }

    fn own_policy(&self) -> anyhow::Result<FleetPolicy> {
        let fewest = (self.nodes / 3).max(1);
        let text = include_str!("policy.yaml")
            .replace("minReplicas: 2", &format!("minReplicas: {fewest}"))
            .replace("maxReplicas: 6", &format!("maxReplicas: {}", self.nodes));
        setup::parse_policy(&text, "the demo's policy")
    }
}
