//! A queue of events in this process, for tests: messages come again unless they are deleted, and
//! the whole queue can be away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::queue::{BATCH_LIMIT, EventQueue, Message, POLL_WAIT, VISIBILITY};
use crate::aws::AwsError;

/// See the module; clones share their messages.
#[derive(Clone, Default)]
pub struct MemoryEventQueue {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    next_number: u64,
    messages: BTreeMap<u64, Stored>,
    is_away: bool,
}

struct Stored {
    body: String,
    visible_at: Instant,
    deliveries: u32,
}

impl MemoryEventQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message and answers its number.
    pub fn send(&self, body: impl Into<String>) -> u64 {
        let mut state = self.state();
        state.next_number += 1;
        let number = state.next_number;
        let stored = Stored { body: body.into(), visible_at: Instant::now(), deliveries: 0 };
        state.messages.insert(number, stored);
        drop(state);
        self.changed.notify_waiters();
        number
    }

    /// Numbers of the messages that nobody has deleted, with how often each was delivered.
    pub fn left(&self) -> BTreeMap<u64, u32> {
        self.state().messages.iter().map(|(number, m)| (*number, m.deliveries)).collect()
    }

    /// From now on every call fails, or no longer does.
    pub fn set_away(&self, is_away: bool) {
        self.state().is_away = is_away;
        self.changed.notify_waiters();
    }

    fn check(&self, what: &'static str) -> Result<(), AwsError> {
        if !self.state().is_away {
            return Ok(());
        }
        Err(AwsError::Unavailable { what, problem: "connection refused".to_owned() })
    }

    /// Takes what is visible; when nothing is, the moment at which something will be.
    fn take(&self, now: Instant) -> Result<Vec<Message>, Option<Instant>> {
        let mut state = self.state();
        let visible = state.messages.iter_mut().filter(|(_, stored)| stored.visible_at <= now);
        let taken: Vec<Message> = visible
            .take(BATCH_LIMIT)
            .map(|(number, stored)| {
                stored.visible_at = now + VISIBILITY;
                stored.deliveries += 1;
                let (receipt, body) = (number.to_string(), stored.body.clone());
                Message { receipt, body, deliveries: stored.deliveries }
            })
            .collect();
        if taken.is_empty() {
            return Err(state.messages.values().map(|stored| stored.visible_at).min());
        }
        Ok(taken)
    }
}

#[async_trait]
impl EventQueue for MemoryEventQueue {
    async fn receive(&self) -> Result<Vec<Message>, AwsError> {
        let until = Instant::now() + POLL_WAIT;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.check("ReceiveMessage")?;
            let now = Instant::now();
            let next = match self.take(now) {
                Ok(messages) => return Ok(messages),
                Err(_) if now >= until => return Ok(Vec::new()),
                Err(next) => next.unwrap_or(until).min(until),
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(next) => {}
            }
        }
    }

    async fn delete(&self, message: &Message) -> Result<(), AwsError> {
        self.check("DeleteMessage")?;
        let number: Option<u64> = message.receipt.parse().ok();
        self.state().messages.retain(|other, _| Some(*other) != number);
        Ok(())
    }

    async fn hide(&self, message: &Message, time: Duration) -> Result<(), AwsError> {
        self.check("ChangeMessageVisibility")?;
        let number: Option<u64> = message.receipt.parse().ok();
        let mut state = self.state();
        if let Some(stored) = number.and_then(|number| state.messages.get_mut(&number)) {
            stored.visible_at = Instant::now() + time;
        }
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }
}
