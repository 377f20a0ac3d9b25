//! A queue of Amazon SQS. Its numbers are approximate, and settle within a minute.

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use ebbtide_core::policy::QueueUrl;

use super::{READ_LIMIT, Reading, SignalSource};
use crate::aws::{SdkConfig, call_within};
use crate::metrics::ApiCalls;

const WAITING: QueueAttributeName = QueueAttributeName::ApproximateNumberOfMessages;
const IN_FLIGHT: QueueAttributeName = QueueAttributeName::ApproximateNumberOfMessagesNotVisible;

/// A queue by its URL.
pub(super) struct SqsSource {
    client: Client,
    url: String,
    calls: ApiCalls,
}

impl SqsSource {
    pub fn new(config: &SdkConfig, url: &QueueUrl, calls: ApiCalls) -> Self {
        Self { client: Client::new(config), url: url.to_string(), calls }
    }
}

#[async_trait]
impl SignalSource for SqsSource {
    async fn read(&self) -> Result<Reading, String> {
        let reply = call_within(READ_LIMIT, "GetQueueAttributes", &self.calls, || {
            let request = self.client.get_queue_attributes().queue_url(&self.url);
            request.attribute_names(WAITING).attribute_names(IN_FLIGHT).send()
        });
        let attributes = reply.await.map_err(|error| error.to_string())?.attributes;
        let attributes = attributes.unwrap_or_default();
        let number = |name: &QueueAttributeName| {
            let text = attributes.get(name).map_or("nothing", String::as_str);
            let told = text.parse::<u64>();
            told.map_err(|_| format!("{} must be a count, got {text}", name.as_str()))
        };
        Ok(Reading { waiting: number(&WAITING)?, in_flight: Some(number(&IN_FLIGHT)?) })
    }
}
