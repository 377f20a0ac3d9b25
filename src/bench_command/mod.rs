//! `ebbtide bench`: what a Redis can do for the work queue.
//!
//! One file measures one thing and says at its head exactly what it counts. All of them work in
//! runs of their own, which are removed whatever happens. The client has one core: its runtime has
//! one thread.

mod advice;
mod arguments;
mod cycles;
mod depth;
mod fleet;
mod floor;
mod hand_back;
mod latency;
mod material;
mod memory;
mod meter;
mod queue;
mod recovery;
mod report;
mod server;
mod site;
mod sizes;
mod statistics;
mod throughput;

use std::process::ExitCode;

pub use arguments::BenchArgs;
use arguments::BenchCommand;

use crate::setup::{self, LogFormat};

/// Runs `ebbtide bench`.
///
/// # Errors
/// Redis is not reachable or not fit for a queue: nothing was done.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    // Each of many clients would warn of the same.
    setup::start_logging(LogFormat::Text, "error");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match args.command {
            BenchCommand::Queue(args) => queue::run(&args).await,
            BenchCommand::Hold(args) => recovery::run_child(&args).await,
        }
    })
}
