//! The queue of events, as the flow needs it: receive a few, delete one, hide one for a while.

use std::time::Duration;

use async_trait::async_trait;

use crate::aws::AwsError;

/// Longest time that one look waits for a message: the longest that SQS allows.
pub const POLL_WAIT: Duration = Duration::from_secs(20);

/// Messages that one look brings at most: the most that SQS allows.
pub const BATCH_LIMIT: usize = 10;

/// How long a received message is hidden from others, unless it is deleted or hidden for another
/// time: longer than its handling may take.
pub const VISIBILITY: Duration = Duration::from_secs(30);

/// A message, for as long as it is hidden from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What names this delivery of it.
    pub receipt: String,
    /// What it says.
    pub body: String,
    /// How often it was delivered, this time included.
    pub deliveries: u32,
}

/// A queue that delivers each message at least once, in no order.
#[async_trait]
pub trait EventQueue: Send + Sync {
    /// Waits up to [`POLL_WAIT`] for messages and hides them for [`VISIBILITY`]; none when none
    /// came.
    ///
    /// # Errors
    /// The queue did not answer, or refused.
    async fn receive(&self) -> Result<Vec<Message>, AwsError>;

    /// Deletes a message. Repeating it is harmless.
    ///
    /// # Errors
    /// As [`EventQueue::receive`]; the message may come again.
    async fn delete(&self, message: &Message) -> Result<(), AwsError>;

    /// Hides a message for this long from now on, at most 12 h from its delivery.
    ///
    /// # Errors
    /// As [`EventQueue::receive`]; the message comes again when its time is over.
    async fn hide(&self, message: &Message, time: Duration) -> Result<(), AwsError>;
}
