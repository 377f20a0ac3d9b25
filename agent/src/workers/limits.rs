//! The limits of the agent API: everything that a worker can make grow has one.

use std::time::Duration;

/// Workers that may have a session at a time: 8 GPUs × 4 worker processes each.
pub(crate) const WORKERS_MAX: usize = 32;

/// Units that one worker may hold: twice what an engine works on at a time (64).
pub(crate) const UNITS_PER_WORKER: usize = 128;

/// Units that one call may name: all that a worker holds.
pub(crate) const CALL_UNITS_MAX: usize = UNITS_PER_WORKER;

/// Streams of notices that one worker may have open: one, and a few that the agent does not know
/// to be dead yet.
pub(crate) const STREAMS_PER_WORKER: usize = 4;

/// Connections at a time: for every worker its streams and four calls.
pub(crate) const CONNECTIONS_MAX: usize = WORKERS_MAX * (STREAMS_PER_WORKER + 4);

/// Bytes of one request.
pub(crate) const BODY_BYTES_MAX: usize = 4 << 20;

/// Tokens of one tail: 3.6 MB at nine bytes a token, below the 4 MiB of one call to the queue.
pub(crate) const TAIL_TOKENS_MAX: usize = 400_000;

/// Stored tokens that one answer to a lease carries, the first unit aside: 8 MiB of ids and
/// log-probabilities. Units beyond go back; they were granted because an earlier answer was lost.
pub(crate) const ANSWER_TOKENS_MAX: usize = 1 << 20;

/// Longest wait for work in one call: below the idle limits of common HTTP clients.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Time in which a worker may send the tail of a unit that has to go (contract, section 6).
pub(crate) const TAIL_LIMIT: Duration = Duration::from_secs(2);
