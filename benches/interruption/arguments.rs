//! What the benchmark is told, and how much is measured.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Measures how long a notice takes to empty a node, and what an idle agent costs.
#[derive(Debug, Parser)]
#[command(name = "benches/interruption/run")]
pub struct Arguments {
    /// Measure only this; several with commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// A tenth of the repetitions: does it work, and about how fast?
    #[arg(long)]
    quick: bool,
    /// The program whose idle agent is watched
    #[arg(
        long,
        value_name = "PATH",
        default_value = env!("CARGO_BIN_EXE_ebbtide"),
        value_parser = |path: &str| std::fs::canonicalize(path),
    )]
    pub program: PathBuf,
    /// What cargo tells every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// One node with 64 units: from its notice to the last unit handed back
    HandBack,
    /// 125 such nodes at once
    Fleet,
    /// An EP group of 8 nodes: from the first agent's write to the last closed gate
    Group,
    /// One node, with an API server that answers in 10 s, and with one that is away
    ApiServer,
    /// From a notice to the cordoned node
    Cordon,
    /// Memory, CPU and metadata requests of an agent with nothing to do
    Idle,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Nodes that are noticed independently of each other, and each one's notices.
    pub nodes: usize,
    pub notices_a_node: usize,
    /// Times that the whole fleet is noticed.
    pub fleet_notices: usize,
    /// Times that an EP group is noticed.
    pub group_notices: usize,
    /// Notices for each state of the API server.
    pub api_server_notices: usize,
    /// Times that a node is cordoned.
    pub cordons: usize,
    /// How long the idle agent is watched.
    pub idle: Duration,
}

impl Arguments {
    pub fn parts(&self) -> Vec<Part> {
        if self.only.is_empty() { Part::value_variants().to_vec() } else { self.only.clone() }
    }

    pub fn sizes(&self) -> Sizes {
        let all = Sizes {
            nodes: 4,
            notices_a_node: 50,
            fleet_notices: 5,
            group_notices: 100,
            api_server_notices: 40,
            cordons: 40,
            idle: Duration::from_secs(120),
        };
        let tenth = |count: usize| (count / 10).max(2);
        if !self.quick {
            return all;
        }
        Sizes {
            nodes: all.nodes,
            notices_a_node: tenth(all.notices_a_node),
            fleet_notices: tenth(all.fleet_notices),
            group_notices: tenth(all.group_notices),
            api_server_notices: tenth(all.api_server_notices),
            cordons: tenth(all.cordons),
            idle: all.idle / 10,
        }
    }
}
