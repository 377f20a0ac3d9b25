//! What `ebbtide bench` is told.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use ebbtide_core::ids::RunId;
use ebbtide_core::policy::duration::parse_duration;

const EXAMPLES: &str = "\
Examples:
  ebbtide bench queue --redis redis://10.0.0.5:6379
  ebbtide bench queue --redis redis://10.0.0.5:6379 --units-in-flight 32000 \\
      --tokens-per-second 1200000
  ebbtide bench queue --only throughput --rounds 1 --output json

It works in runs of its own, named bench-…, and removes their keys at the end, also after Ctrl-C.
What it will do it says first, and what else this Redis is used for. The client has one core: where
that is what limits a figure, the table shows it.

Exit code: 0 when everything was measured, 1 when something failed or it was stopped, 2 for wrong
usage or a Redis out of reach.";

/// `ebbtide bench …`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure what a Redis can do for the work queue, and how many shards a fleet needs.
    #[command(after_help = EXAMPLES)]
    Queue(QueueBenchArgs),
    /// Lease units and hold them until killed: the victim of `bench queue`.
    #[command(hide = true)]
    Hold(HoldArgs),
}

/// `ebbtide bench queue …`.
#[derive(Debug, Args)]
pub struct QueueBenchArgs {
    /// The Redis to measure
    #[arg(
        long,
        env = "EBBTIDE_REDIS",
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379",
        hide_env_values = true
    )]
    pub redis: String,
    /// Shards of the runs that are measured
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: u16,
    /// Measure only this; several with commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<Part>,
    /// A tenth of the work: does it work, and about how fast?
    #[arg(long)]
    pub quick: bool,
    /// Rounds of the throughput measurements; of several the first is dropped [default: 6]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: Option<u16>,
    /// How to answer; JSON is one line, the last one on stdout
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// The smallest sizes, for tests
    #[arg(long, hide = true)]
    pub tiny: bool,
    #[command(flatten)]
    pub fleet: FleetArgs,
}

/// The fleet for which shards are counted.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The fleet that the shards are for")]
pub struct FleetArgs {
    /// Units that are generated at the same time, over all nodes
    #[arg(long, default_value_t = 8_000, value_name = "UNITS", value_parser = at_least_one())]
    pub units_in_flight: u64,
    /// Tokens that all nodes together generate each second
    #[arg(long, default_value_t = 320_000, value_name = "TOKENS", value_parser = at_least_one())]
    pub tokens_per_second: u64,
    /// Tokens of a mean response
    #[arg(long, default_value_t = 4_000, value_name = "TOKENS", value_parser = at_least_one())]
    pub response_tokens: u64,
    /// Time between two appends of a unit's tokens
    #[arg(long, default_value = "500ms", value_name = "TIME", value_parser = parse_interval)]
    pub checkpoint_interval: Duration,
}

fn at_least_one() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..)
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(interval) if interval.is_zero() => Err("must be longer than 0".to_owned()),
        Ok(interval) => Ok(interval),
        Err(error) => Err(error.to_string()),
    }
}

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Cycles per second, beside the floor
    Throughput,
    /// How long single calls take at half of the throughput
    Latency,
    /// What a cycle costs behind a long queue
    Depth,
    /// How long nodes take to hand their units back
    HandBack,
    /// How long the units of a killed node are away
    Recovery,
    /// Bytes of waiting units and of stored tokens
    Memory,
    /// How many shards the fleet needs
    Shards,
}

impl Part {
    /// Every part, in the order in which they are measured.
    pub const ALL: [Self; 7] = [
        Self::Throughput,
        Self::Latency,
        Self::Depth,
        Self::HandBack,
        Self::Recovery,
        Self::Memory,
        Self::Shards,
    ];
}

/// For whom the output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

/// `ebbtide bench hold …`.
#[derive(Debug, Args)]
pub struct HoldArgs {
    #[arg(long, env = "EBBTIDE_REDIS", hide_env_values = true)]
    pub redis: String,
    #[arg(long)]
    pub run: RunId,
    #[arg(long)]
    pub units: usize,
    #[arg(long, value_parser = parse_duration)]
    pub lease_ttl: Duration,
}

impl QueueBenchArgs {
    /// Whether a part is to be measured.
    pub fn includes(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}
