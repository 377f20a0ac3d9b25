//! Who works here: sessions by name. A name tells the units of one worker process from those of
//! another; to the queue all are held by the agent.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ebbtide_core::ids::{IdError, NAME_LIMIT};
use thiserror::Error;
use tokio::time::Instant;

use super::unit::LeaseKey;
use super::{STREAMS_PER_WORKER, UNITS_PER_WORKER, WORKERS_MAX, Workers};

/// A worker process, as it calls itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WorkerName(String);

impl FromStr for WorkerName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if (1..=NAME_LIMIT).contains(&text.len()) && text.chars().all(is_allowed) {
            return Ok(Self(text.to_owned()));
        }
        let text: String = text.chars().take(NAME_LIMIT).collect();
        Err(IdError::Invalid { what: "worker", pattern: "[A-Za-z0-9_-]{1,64}", text })
    }
}

impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One worker.
#[derive(Debug)]
pub(super) struct Session {
    /// Name and leases of the last call that was granted something, for its repetition.
    pub(super) last_lease: Option<(String, Vec<LeaseKey>)>,
    /// Streams of notices that are open.
    pub(super) streams: usize,
    /// When it was heard last.
    pub(super) heard_at: Instant,
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum TooMany {
    /// Sessions.
    #[error(
        "{WORKERS_MAX} workers have a session on this node, which is the limit: end one, or let \
         one process work on more units"
    )]
    Workers,
    /// Units of one worker.
    #[error(
        "this worker holds {UNITS_PER_WORKER} units, which is the limit: complete or hand back \
         some first"
    )]
    Units,
    /// Streams of one worker.
    #[error(
        "this worker has {STREAMS_PER_WORKER} streams of notices open, which is the limit: close \
         one"
    )]
    Streams,
}

impl Workers {
    /// Notes that the worker was heard; begins its session if it has none. A session without units
    /// and streams is forgotten after `forget_after`.
    pub(crate) fn hear(
        &mut self,
        worker: &WorkerName,
        forget_after: Duration,
        now: Instant,
    ) -> Result<(), TooMany> {
        if let Some(session) = self.sessions.get_mut(worker) {
            session.heard_at = now;
            return Ok(());
        }
        self.forget_idle(forget_after, now);
        if self.sessions.len() >= WORKERS_MAX {
            return Err(TooMany::Workers);
        }
        let session = Session { last_lease: None, streams: 0, heard_at: now };
        self.sessions.insert(worker.clone(), session);
        Ok(())
    }

    /// Notes that the worker was heard, if it has a session.
    pub(super) fn note_heard(&mut self, worker: &WorkerName, now: Instant) {
        if let Some(session) = self.sessions.get_mut(worker) {
            session.heard_at = now;
        }
    }

    fn forget_idle(&mut self, forget_after: Duration, now: Instant) {
        let units = &self.units;
        self.sessions.retain(|name, session| {
            session.streams > 0
                || now.saturating_duration_since(session.heard_at) < forget_after
                || units.values().any(|unit| unit.worker == *name)
        });
    }

    /// A stream of notices opens.
    pub(crate) fn open_stream(
        &mut self,
        worker: &WorkerName,
        forget_after: Duration,
        now: Instant,
    ) -> Result<(), TooMany> {
        self.hear(worker, forget_after, now)?;
        let Some(session) = self.sessions.get_mut(worker) else { return Err(TooMany::Workers) };
        if session.streams >= STREAMS_PER_WORKER {
            return Err(TooMany::Streams);
        }
        session.streams += 1;
        Ok(())
    }

    /// A stream of notices has ended.
    pub(crate) fn close_stream(&mut self, worker: &WorkerName) {
        if let Some(session) = self.sessions.get_mut(worker) {
            session.streams = session.streams.saturating_sub(1);
        }
    }
}
