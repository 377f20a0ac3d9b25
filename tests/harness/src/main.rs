//! `ebbtide-harness`: what `tests/run` calls, and a local world for a person to play with.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use ebbtide_harness::{closing, install, is_ci, playground};

#[derive(Parser)]
#[command(about = "Gets, starts and reports the real parts that Ebbtide's tests run against.")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Begin a test run: install or build the parts that are missing.
    Install {
        /// Only list what is missing.
        #[arg(long)]
        no_install: bool,
    },
    /// End a test run: print which parts took part, what was left out, and the counts.
    Close {
        /// What `cargo test` printed.
        #[arg(long)]
        cargo_output: PathBuf,
        /// The exit status of `cargo test`.
        #[arg(long)]
        cargo_status: i32,
    },
    /// Run the whole local cluster until Ctrl-C: control plane, Redis, moto, metadata mock.
    Cluster,
}

fn main() -> anyhow::Result<ExitCode> {
    match CommandLine::parse().command {
        Command::Install { no_install } => begin(no_install),
        Command::Close { cargo_output, cargo_status } => {
            let counts = closing::close(&cargo_output, cargo_status == 0)?;
            println!("\n{}", counts.line());
            Ok(ExitCode::from(u8::from(counts.failed > 0)))
        }
        Command::Cluster => {
            tokio::runtime::Runtime::new()?.block_on(playground::run())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn begin(no_install: bool) -> anyhow::Result<ExitCode> {
    closing::begin()?;
    let outcome = if no_install { install::list_missing() } else { install::install_missing() };
    for error in &outcome.missing {
        println!("left out: {error}");
    }
    let failed = is_ci() && !outcome.missing.is_empty();
    if failed {
        println!("with CI=true no real part may be missing");
    }
    Ok(ExitCode::from(u8::from(failed)))
}
