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
mod tokens;
mod trace;

use std::process::ExitCode;

pub use arguments::QueueArgs;
use arguments::{DeadCommand, QueueCommand};
use ebbtide_queue::client::WorkQueue;

use crate::place::Answer;
use crate::setup::{self, LogFormat};

/// Runs `ebbtide queue`.
///
/// # Errors
/// The run is not reachable, or does not exist: nothing was done.
pub async fn run(args: QueueArgs) -> anyhow::Result<ExitCode> {
    // The answer says it all; what a server should be set up like concerns those that depend on it.
    setup::start_logging(LogFormat::Text, "off");
    let place = args.command.place();
    let output = place.output;
    let queue = place.connect().await?;
    Ok(args.command.carry_out(&queue).await?.tell(output))
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
