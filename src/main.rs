//! The `ebbtide` command: one binary for the agent, the controller, the demo and the tools.

mod agent_command;
mod agent_terms;
mod bench_command;
mod cli;
mod controller_command;
mod crd_command;
mod demo;
mod engine_emulator;
mod operator_command;
mod place;
mod policy_command;
mod queue_command;
mod setup;
mod table;
mod words;
mod yaml;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
