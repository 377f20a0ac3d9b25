//! `ebbtide queue`: what stands in a run's queue and buffer, and what an operator may do about it.
//!
//! Each subcommand reads or acts, then makes an [`Answer`] of what it learnt; the forms of it, text
//! and JSON, are pure functions. The layout is taken from the run, so no fleet policy is needed.

mod arguments;
mod cancel;
mod check;
mod dead;
pub mod examine;
mod failures;
#[cfg(test)]
mod golden;
mod lag;
mod life;
mod peek;
mod requeue;
mod status;
mod status_json;
mod status_view;
mod sums;
mod table;
mod tokens;
mod trace;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

pub use arguments::QueueArgs;
use arguments::{DeadCommand, Output, QueueCommand};
use ebbtide_core::ids::RunId;
use ebbtide_core::policy::Durability;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::redis::{RedisOptions, RedisPort};
use serde_json::Value;

use crate::cli::EXIT_BAD;
use crate::setup::{self, LogFormat};

/// What a subcommand has to say.
#[derive(Debug)]
struct Answer {
    /// Whether all is as it should be.
    is_good: bool,
    /// For people, without a line break at the end.
    text: String,
    /// For machines.
    json: Value,
}

/// Runs `ebbtide queue`.
///
/// # Errors
/// The run is not reachable, or does not exist: nothing was done.
pub async fn run(args: QueueArgs) -> anyhow::Result<ExitCode> {
    // The answer says it all; what a server should be set up like concerns those that depend on it.
    setup::start_logging(LogFormat::Text, "off");
    let place = args.command.place();
    let output = place.output;
    let queue = connect(&place.redis, &place.run).await?;
    let answer = args.command.carry_out(&queue).await?;
    let text = match output {
        Output::Text => answer.text,
        Output::Json => format!("{:#}", answer.json),
    };
    // A reader that has gone away, as in `| head`, changes nothing.
    let _ = writeln!(io::stdout(), "{text}");
    Ok(if answer.is_good { ExitCode::SUCCESS } else { ExitCode::from(EXIT_BAD) })
}

async fn connect(url: &str, run: &RunId) -> anyhow::Result<WorkQueue> {
    let options = RedisOptions {
        url: url.to_owned(),
        run: run.clone(),
        layout: None,
        durability: Durability::Fast,
    };
    Ok(WorkQueue::new(Arc::new(RedisPort::connect(options).await?)))
}

impl QueueCommand {
    async fn carry_out(self, queue: &WorkQueue) -> anyhow::Result<Answer> {
        match self {
            Self::Status { place, no_lag } => Ok(status::look(queue, &place.run, !no_lag).await),
            Self::Peek { stage, limit, .. } => {
                peek::look(queue, stage.into(), limit as usize).await
            }
            Self::Requeue { units, .. } => Ok(requeue::requeue(queue, &units).await),
            Self::Dead { command } => match command {
                DeadCommand::List { verbose, .. } => Ok(dead::list(queue, verbose).await),
                DeadCommand::Retry { choice, reason, .. } => {
                    Ok(dead::retry(queue, &choice, reason.as_deref()).await)
                }
                DeadCommand::Drop { choice, yes, .. } => dead::drop(queue, &choice, yes).await,
            },
            Self::Check { repair, .. } => Ok(check::check(queue, repair).await),
            Self::Trace { subject, .. } => trace::trace(queue, &subject).await,
            Self::Cancel { reason, yes, .. } => cancel::cancel(queue, &reason, yes).await,
        }
    }
}
