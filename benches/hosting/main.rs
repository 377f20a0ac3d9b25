//! What hosting an engine costs, and how well it is kept busy: see `README.md` beside this file.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark stops at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod bare_client;
mod gap;
mod streams;
mod world;

use std::path::Path;

use anyhow::ensure;
use clap::{Parser, Subcommand, ValueEnum};
use ebbtide_harness::{FigureRow, Figures};

/// The words, the key, the goal where there is one.
const ROWS: [FigureRow; 13] = [
    ("agent with 512 streams: CPU, % of one core", "cpuPercent512Streams", Some(30.0)),
    ("... resident memory, MiB", "rssMiB512Streams", Some(150.0)),
    ("... tokens stored per second", "tokensPerSecond", None),
    ("bare client with the same streams: CPU, % of one core", "bareClientCpuPercent", None),
    ("... tokens read per second", "bareClientTokensPerSecond", None),
    ("CPU of the agent by that of the bare client, per token", "cpuRatioToBareClient", Some(2.0)),
    ("... smallest of the rounds", "cpuRatioToBareClientMin", None),
    ("... largest of the rounds", "cpuRatioToBareClientMax", None),
    ("empty place of the engine with work waiting, median, ms", "idleGapP50Ms", Some(5.0)),
    ("... 99th percentile", "idleGapP99Ms", None),
    ("... sequences that ended", "idleGapEnds", None),
    ("... of them replaced by one that waited in the engine, %", "idleGapNonePercent", None),
    ("... places in use, mean, %", "placesInUsePercent", None),
];

/// Measures what hosting an engine costs
#[derive(Debug, Parser)]
#[command(name = "benches/hosting/run")]
struct Arguments {
    /// Measure only this; several with commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// A fifth of the time: does it work, and about how fast?
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
    /// CPU and memory with 512 streams, beside a bare client
    Streams,
    /// How long a place of the engine stands empty
    Gap,
}

/// What this program is when it starts itself.
#[derive(Debug, Subcommand)]
enum Role {
    /// Reads streams and does nothing with them
    #[command(hide = true)]
    BareClient {
        #[arg(long)]
        engine: String,
        #[arg(long)]
        streams: usize,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Role::BareClient { engine, streams }) = &arguments.role {
        // As the agent: on one thread.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return runtime.block_on(bare_client::run(engine, *streams));
    }
    tokio::runtime::Runtime::new()?.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let mut figures = Figures::new("hosting", &ROWS);
    let mut failed = Vec::new();
    for part in Part::value_variants() {
        if !arguments.only.is_empty() && !arguments.only.contains(part) {
            continue;
        }
        let measured = match part {
            Part::Streams => streams::measure(arguments.quick, &mut figures).await,
            Part::Gap => gap::measure(arguments.quick, &mut figures).await,
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
