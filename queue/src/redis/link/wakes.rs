//! The wake channel: hints over PUBLISH and SUBSCRIBE. Losing one does no harm.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::timeout;

use super::super::address::Endpoint;
use super::{CALL_TIME_LIMIT, Link, LinkError, LinkErrorKind, RECONNECT_DELAY_MAX};
use super::{RECONNECT_DELAY_MIN, Server};
use crate::client::{Backoff, Hint, Hints};

/// How long a subscription may be silent before its server is asked whether it still stands.
const LISTENING_CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Link {
    /// Publishes a hint on the first server that takes it; a Cluster tells all its nodes.
    pub async fn publish(&self, channel: &str, body: &str) -> Result<(), LinkError> {
        let mut hint = redis::pipe();
        hint.cmd("PUBLISH").arg(channel).arg(body).ignore();
        let mut problem = None;
        for server in self.masters().iter().filter(|server| server.is_up()) {
            match server.query::<(u64,)>(&hint).await {
                Ok(_) => return Ok(()),
                Err(error) => problem = Some(error),
            }
        }
        let away = || LinkError::new(LinkErrorKind::Away, self.name(), "nobody to tell a hint to");
        Err(problem.unwrap_or_else(away))
    }

    /// Turns hints into notifications, for ever; moves on when its server dies or is replaced.
    pub async fn listen(self, channel: String, hints: Arc<Hints>) {
        let mut backoff = Backoff::new(RECONNECT_DELAY_MIN, RECONNECT_DELAY_MAX);
        for turn in 0_usize.. {
            let servers: Vec<Arc<Server>> =
                self.masters().into_iter().filter(|server| server.is_up()).collect();
            let at = servers.get(turn % servers.len().max(1)).and_then(|s| s.endpoint());
            if let Some(at) = at {
                match self.listen_at(&at, &channel, &hints).await {
                    Ok(()) => backoff.reset(),
                    Err(error) => tracing::debug!(%error, "no hints"),
                }
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }

    /// Listens until the subscription ends; `Ok` when there was one.
    async fn listen_at(
        &self,
        at: &Endpoint,
        channel: &str,
        hints: &Hints,
    ) -> Result<(), LinkError> {
        let subscription = self.shared.dialer.subscribe(at, channel).await?;
        let (mut questions, mut messages) = subscription.split();
        // What was said before was not heard.
        hints.wake(Hint::Control);
        loop {
            match timeout(LISTENING_CHECK_INTERVAL, messages.next()).await {
                Ok(Some(message)) => hints.wake(Hint::of_body(message.get_payload_bytes())),
                Ok(None) => return Ok(()),
                Err(_) => {
                    let answer = timeout(CALL_TIME_LIMIT, questions.ping::<()>()).await;
                    let is_master = self
                        .masters()
                        .iter()
                        .any(|server| server.is_up() && server.endpoint().as_ref() == Some(at));
                    if !matches!(answer, Ok(Ok(()))) || !is_master {
                        return Ok(());
                    }
                }
            }
        }
    }
}
