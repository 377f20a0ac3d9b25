//! Which run a command is about, how it is reached, and how the answer is given.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ebbtide_core::ids::RunId;
use ebbtide_core::policy::Durability;
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::redis::{RedisOptions, RedisPort};
use serde_json::Value;

use crate::cli::EXIT_BAD;

/// Where the work queue is.
#[derive(Debug, Args)]
pub struct RedisArgs {
    /// The work queue
    #[arg(
        long = "redis",
        env = "EBBTIDE_REDIS",
        value_name = "URL",
        default_value = "redis://127.0.0.1:6379",
        hide_env_values = true
    )]
    pub url: String,
}

/// Which run, and how to answer.
#[derive(Debug, Args)]
pub struct Place {
    #[command(flatten)]
    pub redis: RedisArgs,
    /// The run: `metadata.name` of its fleet policy
    #[arg(long, env = "EBBTIDE_RUN", value_name = "NAME")]
    pub run: RunId,
    /// How to answer
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// For whom the output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

impl Place {
    /// The run's queue, as it is laid out already.
    ///
    /// # Errors
    /// The run is not reachable, or does not exist.
    pub async fn connect(&self) -> anyhow::Result<WorkQueue> {
        let options = RedisOptions {
            url: self.redis.url.clone(),
            run: self.run.clone(),
            layout: None,
            durability: Durability::Fast,
        };
        match RedisPort::connect(options).await {
            Ok(port) => Ok(WorkQueue::new(Arc::new(port))),
            Err(error @ QueueError::Unavailable { .. }) => {
                Err(error).context("nothing was done: check --redis (EBBTIDE_REDIS), then repeat")
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What a command has to say.
#[derive(Debug)]
pub struct Answer {
    /// Whether all is as it should be.
    pub is_good: bool,
    /// For people, without a line break at the end.
    pub text: String,
    /// For machines.
    pub json: Value,
}

impl Answer {
    /// Says it, and gives the exit code.
    pub fn tell(self, output: Output) -> ExitCode {
        let text = match output {
            Output::Text => self.text,
            Output::Json => format!("{:#}", self.json),
        };
        // A reader that has gone away, as in `| head`, changes nothing.
        let _ = writeln!(io::stdout(), "{text}");
        if self.is_good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BAD) }
    }
}
