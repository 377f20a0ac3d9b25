//! What sizing costs, and how soon it acts: see `README.md` beside this file.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark stops at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod cluster;
#[path = "../../tests/suite/lane/faulty.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod faulty;
mod fleet;
mod pass;
mod reaction;
#[path = "../../tests/suite/whole_loop/story/mod.rs"]
mod story;
mod tick;

use std::path::Path;

use anyhow::ensure;
use clap::{Parser, Subcommand, ValueEnum};
use ebbtide_harness::{FigureRow, Figures};

/// The words, the key, the goal where there is one.
const ROWS: [FigureRow; 21] = [
    ("one pass over 100 nodes in 20 replicas, median, ms", "pass100NodesMs", None),
    ("... 300 nodes", "pass300NodesMs", None),
    ("... 1,000 nodes", "pass1kNodesMs", None),
    ("... 3,000 nodes", "pass3kNodesMs", None),
    ("... 10,000 nodes in 2,000 replicas and 100 pools", "pass10kNodesMs", Some(50.0)),
    ("... the slowest pass over 10,000 nodes", "pass10kNodesMaxMs", None),
    ("growth from 1,000 to 10,000 nodes: exponent of n", "growthExponent", None),
    ("... of n log n over the same", "nLogNExponent", None),
    ("whole tick over 10,000 nodes, with its reads, median, ms", "tick10kNodesMs", None),
    ("memory of the controller with 10,000 nodes, MiB", "rssMiB", Some(150.0)),
    ("time between two ticks while reactions were measured, ms", "tickMs", None),
    (
        "change in the queue to the call that raises, 99th %, ms",
        "redisChangeToActuationP99Ms",
        None,
    ),
    ("... median", "redisChangeToActuationP50Ms", None),
    ("whole loop at 1,000 nodes: all as it should be", "cluster1000NodesLoopOk", None),
    ("... from nothing to 250 replicas of four nodes at work, s", "cluster1000NodesGrowthS", None),
    ("... Karpenter moves a node, all at work again, s", "cluster1000NodesMoveS", None),
    ("... from a full buffer to the last of 248 gone, s", "cluster1000NodesShrinkS", None),
    ("... and Karpenter has taken their nodes, s", "cluster1000NodesEmptiedS", None),
    ("... all of it, s", "cluster1000NodesLoopS", Some(1_200.0)),
    ("... memory of the controller meanwhile, MiB", "cluster1000NodesRssMiB", None),
    ("... cores that it takes, a tick every 5 s", "cluster1000NodesCores", None),
];

/// Measures what sizing costs, and how soon it acts
#[derive(Debug, Parser)]
#[command(name = "benches/autoscale/run")]
struct Arguments {
    /// Measure only this; several with commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// A tenth of the repetitions: does it work, and about how fast?
    #[arg(long)]
    quick: bool,
    /// What cargo tells every benchmark
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Observation and plan, without any I/O
    Pass,
    /// A controller beside a Redis with the records of 10,000 nodes
    Tick,
    /// From a change in the queue to the call that raises
    Reaction,
    /// The whole loop at 1,000 nodes, with every controller real; 20 minutes at most
    Cluster,
}

/// What this program is when it starts itself.
#[derive(Debug, Subcommand)]
enum Role {
    /// A controller on the queue of this Redis, which ends when its input does
    #[command(hide = true)]
    Controller {
        #[arg(long)]
        redis: String,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new()?;
    match &arguments.role {
        Some(Role::Controller { redis }) => runtime.block_on(tick::control(redis)),
        None => runtime.block_on(measure(&arguments)),
    }
}

async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let mut figures = Figures::new("autoscale", &ROWS);
    let mut failed = Vec::new();
    for part in Part::value_variants() {
        if !arguments.only.is_empty() && !arguments.only.contains(part) {
            continue;
        }
        let measured = match part {
            Part::Pass => pass::measure(arguments.quick, &mut figures),
            Part::Tick => tick::measure(arguments.quick, &mut figures).await,
            Part::Reaction => reaction::measure(arguments.quick, &mut figures).await,
            Part::Cluster => cluster::measure(arguments.quick, &mut figures).await,
        };
        if let Err(error) = measured {
            println!("{part:?} failed: {error:#}");
            failed.push(part);
        }
    }
    println!("{}", figures.table());
    figures.write(Path::new(env!("CARGO_MANIFEST_DIR")))?;
    ensure!(failed.is_empty(), "not measured: {failed:?}");
    Ok(())
}
