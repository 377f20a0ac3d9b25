//! The queue of events on Amazon SQS.

use std::time::Duration;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::MessageSystemAttributeName;

use super::queue::{BATCH_LIMIT, EventQueue, Message, POLL_WAIT, VISIBILITY};
use crate::aws::{AwsError, call, call_within};
use crate::metrics::ApiCalls;

/// Longest time for a look: it waits, and then the reply travels.
const RECEIVE_LIMIT: Duration = Duration::from_secs(POLL_WAIT.as_secs() + 5);

/// A queue by its URL.
pub struct SqsQueue {
    client: Client,
    url: String,
    calls: ApiCalls,
}

impl SqsQueue {
    /// The queue at this URL. Nothing is called yet, so that it may be away.
    pub fn new(config: &SdkConfig, url: String, calls: ApiCalls) -> Self {
        Self { client: Client::new(config), url, calls }
    }
}

#[async_trait]
impl EventQueue for SqsQueue {
    async fn receive(&self) -> Result<Vec<Message>, AwsError> {
        let count = MessageSystemAttributeName::ApproximateReceiveCount;
        let reply = call_within(RECEIVE_LIMIT, "ReceiveMessage", &self.calls, || {
            self.client
                .receive_message()
                .queue_url(&self.url)
                .max_number_of_messages(i32::try_from(BATCH_LIMIT).unwrap_or(i32::MAX))
                .wait_time_seconds(whole_seconds(POLL_WAIT))
                .visibility_timeout(whole_seconds(VISIBILITY))
                .message_system_attribute_names(count.clone())
                .send()
        })
        .await?;
        let messages = reply.messages.unwrap_or_default().into_iter().filter_map(|message| {
            let deliveries = message.attributes.as_ref().and_then(|all| all.get(&count));
            Some(Message {
                deliveries: deliveries.and_then(|count| count.parse().ok()).unwrap_or(1),
                receipt: message.receipt_handle?,
                body: message.body.unwrap_or_default(),
            })
        });
        Ok(messages.collect())
    }

    async fn delete(&self, message: &Message) -> Result<(), AwsError> {
        call("DeleteMessage", &self.calls, || {
            let request = self.client.delete_message().queue_url(&self.url);
            request.receipt_handle(&message.receipt).send()
        })
        .await?;
        Ok(())
    }

    async fn hide(&self, message: &Message, time: Duration) -> Result<(), AwsError> {
        call("ChangeMessageVisibility", &self.calls, || {
            let request = self.client.change_message_visibility().queue_url(&self.url);
            request.receipt_handle(&message.receipt).visibility_timeout(whole_seconds(time)).send()
        })
        .await?;
        Ok(())
    }
}

fn whole_seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}
