//! The two connections to a server that is there: one for calls, one for calls that wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::super::address::Endpoint;
use super::dial::{Dialer, Line};
use super::error::LinkError;

/// On which of a server's two connections a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Calls,
    /// Calls that end with a WAIT, which holds up everything behind it on its connection.
    Waits,
}

/// A server that is there.
pub(super) struct Connected {
    /// Which of the server's connections this is, in the order in which they were made.
    pub generation: u64,
    pub endpoint: Endpoint,
    calls: Arc<Line>,
    /// Made when it is first needed.
    waits: Mutex<Option<Arc<Line>>>,
}

impl Connected {
    pub fn new(generation: u64, endpoint: Endpoint, calls: Line) -> Self {
        Self { generation, endpoint, calls: Arc::new(calls), waits: Mutex::default() }
    }

    /// The connection of a lane.
    pub async fn line(&self, lane: Lane, dialer: &Dialer) -> Result<Arc<Line>, LinkError> {
        if lane == Lane::Calls {
            return Ok(self.calls.clone());
        }
        let mut waits = self.waits.lock().await;
        if let Some(line) = &*waits {
            return Ok(line.clone());
        }
        let line = Arc::new(dialer.dial(&self.endpoint).await?);
        *waits = Some(line.clone());
        Ok(line)
    }

    /// Closes a line whose calls are not answered in time: what waits on it must not be carried
    /// out long after its callers have given up.
    pub async fn give_up_waiting(&self, line: &Arc<Line>) {
        let mut waits = self.waits.lock().await;
        if waits.as_ref().is_some_and(|current| Arc::ptr_eq(current, line)) {
            *waits = None;
        }
    }

    /// Whether the server answers a PING within a time.
    pub async fn answers_within(&self, limit: Duration) -> bool {
        let mut connection = self.calls.connection.clone();
        let ping = redis::cmd("PING");
        let answer = timeout(limit, connection.send_packed_command(&ping)).await;
        matches!(answer, Ok(Ok(_)))
    }
}
