//! The subcommands, and what their exit codes mean.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    agent_command, bench_command, controller_command, crd_command, demo, engine_emulator,
    operator_command, policy_command, queue_command, setup,
};

/// It ran, and the answer is bad.
pub const EXIT_BAD: u8 = 1;
/// Usage or configuration is wrong; nothing was started.
pub const EXIT_USAGE: u8 = 2;

/// Keeps reinforcement-learning post-training of large MoE models fed on Spot capacity.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// See a fleet lose nodes and no work: a local world in one process, with the real code.
    Demo(demo::DemoArgs),
    /// Run the node agent: watch for interruptions, host the node's engines, hand work back.
    Agent(agent_command::AgentArgs),
    /// Run the controller: size the worker groups against queue and buffer.
    Controller(controller_command::ControllerArgs),
    /// Empty a node: its work goes back with its tokens; list drains, show what they came to.
    Drain(operator_command::drain::DrainArgs),
    /// Rehearse a Spot notice on a node in service, and judge whether it makes it.
    Drill(operator_command::drill::DrillArgs),
    /// Keep the controller from changing a worker group for a time.
    Hold(operator_command::hold::HoldArgs),
    /// Look into a run's work queue and buffer, check them, mend them.
    Queue(queue_command::QueueArgs),
    /// Measure what a Redis can do for the work queue, and how many shards a fleet needs.
    Bench(bench_command::BenchArgs),
    /// Check and explain fleet policies; try them on what a controller recorded.
    Policy(policy_command::PolicyArgs),
    /// Print the custom resource definition of fleet policies, for `kubectl apply -f -`.
    Crd(crd_command::CrdArgs),
    /// Serve an emulated inference engine in the shape of vLLM or SGLang.
    EngineEmulator(engine_emulator::Arguments),
}

impl Cli {
    /// Runs the subcommand to its end.
    ///
    /// Exit code 0: done; 1: it ran and the answer is bad; 2: usage or configuration.
    pub fn run(self) -> ExitCode {
        let outcome = match self.command {
            Command::Demo(args) => setup::run_async(demo::run(args)),
            Command::Agent(args) => setup::run_on_one_thread(agent_command::run(args)),
            Command::Controller(args) => setup::run_async(controller_command::run(args)),
            Command::Drain(args) => setup::run_async(operator_command::drain::run(args)),
            Command::Drill(args) => setup::run_async(operator_command::drill::run(args)),
            Command::Hold(args) => setup::run_async(operator_command::hold::run(args)),
            Command::Queue(args) => setup::run_async(queue_command::run(args)),
            Command::Bench(args) => bench_command::run(args),
            Command::EngineEmulator(args) => setup::run_async(async {
                engine_emulator::run(args).await.map(|()| ExitCode::SUCCESS)
            }),
            Command::Policy(args) => policy_command::run(args),
            Command::Crd(args) => return crd_command::run(&args),
        };
        outcome.unwrap_or_else(|error| {
            eprintln!("ebbtide: {error:#}");
            ExitCode::from(EXIT_USAGE)
        })
    }
}
