//! Why a real part could not be had. The caller branches on one question: is the part missing (then
//! the test may be skipped), or is it there and does not work (then the test has failed)?

use std::{fmt, io, path::PathBuf, time::Duration};

/// A part that is not on this machine, and how to get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The part's name in [`crate::PARTS`].
    pub part: &'static str,
    /// What was looked for, and what to do about it.
    pub how: String,
    /// Nobody asked for it: an option of `tests/run` does.
    pub is_unasked: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} is missing: {}", self.part, self.how)
    }
}

/// What went wrong with a real part.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The part is not on this machine.
    #[error("{0}")]
    Missing(Missing),
    /// The process was started and ended by itself.
    #[error("{service} ended ({status}) before {waited_for}\n{log}")]
    Ended {
        /// Name of the service.
        service: &'static str,
        /// How it ended.
        status: String,
        /// What was waited for.
        waited_for: String,
        /// Path of its log and the log's last lines.
        log: String,
    },
    /// The event did not come within the bound.
    #[error("waited {limit:?} in vain for {waited_for}{log}")]
    Elapsed {
        /// What was waited for.
        waited_for: String,
        /// The bound.
        limit: Duration,
        /// Path of the log and its last lines, where a service was waited for; else empty.
        log: String,
    },
    /// A command ended with an error.
    #[error("`{command}` ended with {status}: {stderr}")]
    Command {
        /// Program and arguments.
        command: String,
        /// How it ended.
        status: String,
        /// What it wrote to its standard error.
        stderr: String,
    },
    /// A file or a process could not be handled.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// An answer could not be understood.
    #[error("{0}")]
    Unexpected(String),
}

impl Error {
    pub(crate) fn missing(part: &'static str, how: impl Into<String>) -> Self {
        Self::Missing(Missing { part, how: how.into(), is_unasked: false })
    }

    pub(crate) fn unasked(part: &'static str, how: impl Into<String>) -> Self {
        Self::Missing(Missing { part, how: how.into(), is_unasked: true })
    }

    /// For `map_err`: names the action and the path of an I/O error.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
