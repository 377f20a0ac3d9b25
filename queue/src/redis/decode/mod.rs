//! From what a script answered to a [`Reply`].

mod chunks;
mod inspect;
mod work;

use std::vec::IntoIter;

pub(super) use chunks::ChunkFetch;
use ebbtide_core::ids::PolicyVersion;
use redis::{FromRedisValue, Value, from_redis_value};
use thiserror::Error;
pub(super) use work::{GRANT_VALUES, LEASE_HEAD, count_of_grants, specs};

use super::link::LinkError;
use super::together::Answer;
use crate::client::QueueError;
use crate::command::Command;
use crate::reply::{Reply, WriteReply};

/// Why an answer was not understood.
#[derive(Debug, Error)]
pub(super) enum DecodeError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0}")]
    Shape(String),
}

impl DecodeError {
    /// What to tell the caller of the queue at `redis`.
    pub fn to_queue_error(&self, redis: &str) -> QueueError {
        match self {
            Self::Link(error) => error.to_queue_error(),
            Self::Shape(problem) => QueueError::Protocol { problem: format!("{redis}: {problem}") },
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Link(error) if error.is_passing())
    }

    /// Whether there was no answer in time.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Link(error) if error.is_silence())
    }
}

fn shape(problem: impl ToString) -> DecodeError {
    DecodeError::Shape(problem.to_string())
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, DecodeError> {
    from_redis_value(value).map_err(shape)
}

/// Understands the answer to `command`.
pub(super) async fn reply(
    command: &Command,
    value: Value,
    fetch: &mut ChunkFetch,
) -> Result<Reply, DecodeError> {
    Ok(match command {
        Command::Enqueue(_)
        | Command::Retry { .. }
        | Command::Requeue { .. }
        | Command::FailGroup { .. } => Reply::Write(write_reply(&read::<String>(value)?)?),
        Command::Write { .. } | Command::Lease(_) | Command::Exchange { .. } => {
            return Err(shape("an exchange is divided first"));
        }
        Command::Renew { .. } => {
            let lost: Vec<String> = read(value)?;
            Reply::Lost(
                lost.iter().map(|unit| unit.parse().map_err(shape)).collect::<Result<_, _>>()?,
            )
        }
        Command::Reap { .. }
        | Command::Reclaim { .. }
        | Command::Acknowledge { .. }
        | Command::TakeOver { .. }
        | Command::RemoveConsumer { .. }
        | Command::Held { .. }
        | Command::DropFailure { .. } => Reply::Count(read(value)?),
        Command::CancelRun { .. } => {
            let (cursor, ended) = read(value)?;
            Reply::Cancelled(cursor, ended)
        }
        Command::SetVersion(_) => Reply::Version(PolicyVersion(read(value)?)),
        Command::Take { .. } => Reply::Taken(work::taken_groups(value, fetch).await?),
        Command::Status => Reply::Status(Box::new(inspect::status(value)?)),
        Command::Scan { .. } => Reply::Page(inspect::page(value)?),
        Command::Peek { .. } => Reply::Units(inspect::units(read(value)?)?),
        Command::Trace { .. } => Reply::Trace(Box::new(inspect::trace(value, fetch).await?)),
        Command::Failures { .. } => Reply::Failures(inspect::failures(value)?),
        Command::Audit { .. } => inspect::findings(value)?,
    })
}

/// Understands the answer to the part that `command` had in an exchange.
pub(super) async fn exchanged(
    command: &Command,
    answer: Answer,
    fetch: &mut ChunkFetch,
) -> Result<Reply, DecodeError> {
    let Answer { replies, lease, specs } = answer;
    let replies = replies
        .into_iter()
        .map(|value| write_reply(&read::<String>(value)?))
        .collect::<Result<Vec<_>, DecodeError>>()?;
    Ok(match command {
        Command::Write { .. } => Reply::Writes(replies),
        Command::Lease(_) => Reply::Lease(work::lease_reply(lease, &specs, fetch).await?),
        _ => Reply::Exchanged(replies, work::lease_reply(lease, &specs, fetch).await?),
    })
}

/// The values of a flat list.
pub(super) fn list(value: Value) -> Result<IntoIter<Value>, DecodeError> {
    Ok(value.into_sequence().map_err(|_| shape("not a list"))?.into_iter())
}

pub(super) fn too_short() -> DecodeError {
    shape("the answer ends too early")
}

/// The next value of a flat list.
fn next<T: FromRedisValue>(values: &mut IntoIter<Value>) -> Result<T, DecodeError> {
    read(values.next().ok_or_else(too_short)?)
}

fn write_reply(text: &str) -> Result<WriteReply, DecodeError> {
    Ok(match text {
        "OK" => WriteReply::Ok,
        "ALREADY_DONE" => WriteReply::AlreadyDone,
        "FENCED" => WriteReply::Fenced,
        "UNKNOWN" => WriteReply::Unknown,
        "BUSY" => WriteReply::Busy,
        "BAD_VERSION" => WriteReply::BadVersion,
        "WRONG_STAGE" => WriteReply::WrongStage,
        other => match other.strip_prefix("OFFSET ").and_then(|offset| offset.parse().ok()) {
            Some(offset) => WriteReply::Offset(offset),
            None => return Err(shape(format!("unknown reply {other:?}"))),
        },
    })
}
