//! What can go wrong between the agent and an engine.

use std::time::Duration;

use thiserror::Error;

/// Why a call or a stream failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EngineError {
    /// No connection: the engine never saw the call.
    #[error("engine {address} is not reachable: {problem}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// What went wrong.
        problem: String,
    },
    /// It was reached and did not answer in time: it is busy, or it hangs.
    #[error("engine {address} did not answer in time: {problem}")]
    Silent {
        /// Where it is.
        address: String,
        /// What went wrong.
        problem: String,
    },
    /// It lacks an ability; a person has to start it differently.
    #[error("engine {address}: {problem}")]
    Unable {
        /// Where it is.
        address: String,
        /// What is missing and what to do.
        problem: String,
    },
    /// It refused the call (HTTP 4xx); see [`EngineError::is_about_the_unit`].
    #[error("engine refused the call with status {status}: {problem}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What it said.
        problem: String,
    },
    /// It failed (HTTP 5xx, or an error event in a stream).
    #[error("engine failed with code {code}: {problem}")]
    Failed {
        /// HTTP status, or the code in the event.
        code: u16,
        /// What it said.
        problem: String,
    },
    /// The stream broke off without a finish.
    #[error("engine stream broke off: {problem}")]
    BrokenStream {
        /// What went wrong.
        problem: String,
    },
    /// No token and no end for too long.
    #[error("no token for {} s, limit {} s", waited.as_secs(), limit.as_secs())]
    Stalled {
        /// How long nothing came.
        waited: Duration,
        /// The limit.
        limit: Duration,
    },
    /// As [`Self::Stalled`], and its probes are not answered in time either: it is busy, or it
    /// hangs, as a whole.
    #[error(
        "no token for {} s, limit {} s, and no answer to probes",
        waited.as_secs(), limit.as_secs()
    )]
    Deaf {
        /// How long nothing came.
        waited: Duration,
        /// The limit.
        limit: Duration,
    },
    /// It holds all streams for too long.
    #[error("engine paused for {} s, limit {} s", waited.as_secs(), limit.as_secs())]
    LeftPaused {
        /// How long it held them.
        waited: Duration,
        /// The limit.
        limit: Duration,
    },
    /// It sent what the driver does not know.
    #[error("unexpected data from the engine: {problem}")]
    Malformed {
        /// What was expected and what came.
        problem: String,
    },
}

impl EngineError {
    /// Whether the engine itself is in doubt, so that nothing more is given to it until it was
    /// probed again.
    pub fn is_engine_in_doubt(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }

    /// Whether what was asked is at fault: the same call fails on every engine.
    pub fn is_about_the_unit(&self) -> bool {
        matches!(self, Self::Refused { status: 400 | 422, .. })
    }

    /// The problem alone, for where the engine is named already.
    pub(crate) fn problem(&self) -> String {
        match self {
            Self::Unreachable { problem, .. } => format!("not reachable: {problem}"),
            Self::Silent { problem, .. } => format!("no answer in time: {problem}"),
            Self::Unable { problem, .. } => problem.clone(),
            other => other.to_string(),
        }
    }

    /// What an engine says in a stream of a call that it did not carry out, as if it had been an
    /// HTTP status. A full queue (503) is no fault: it takes nothing now.
    pub(super) fn told(code: u16, problem: String) -> Self {
        match code {
            400..=499 | 503 => Self::Refused { status: code, problem },
            _ => Self::Failed { code, problem },
        }
    }

    pub(crate) fn malformed(expected: &str, got: &[u8]) -> Self {
        let got = String::from_utf8_lossy(&got[..got.len().min(SHOWN_BYTES)]);
        Self::Malformed { problem: format!("expected {expected}, got {got:?}") }
    }
}

/// Bytes of foreign data that an error repeats.
const SHOWN_BYTES: usize = 200;
