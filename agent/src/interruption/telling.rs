//! What the flow tells: a log line and a metric for each notice, the operator's webhook, and the
//! words for all of that. Nobody waits for any of it.

use std::time::Duration;

use ebbtide_queue::control::DrainReason;
use futures::FutureExt;

use super::notices::News;
use super::{Event, Flow};

impl Flow {
    pub(super) fn tell_news(&self, news: News, lead: Option<Duration>) {
        match news {
            News::Nothing => {}
            News::Announced(kind) => {
                self.shared.metrics.notice(kind).inc();
                if let Some(lead) = lead {
                    self.shared.metrics.notice_lead.observe(lead.as_secs_f64());
                }
                self.call_webhook(kind.as_str(), lead);
                let lead_ms = lead.map(|lead| lead.as_millis() as u64);
                tracing::warn!(kind = kind.as_str(), lead_ms, "interruption notice");
            }
            News::Tightened(kind) => {
                tracing::warn!(kind = kind.as_str(), "interruption comes earlier");
            }
            News::Withdrawn(kind) => {
                tracing::info!(kind = kind.as_str(), "interruption notice withdrawn");
            }
        }
    }

    /// Tells the operator's webhook, if there is one.
    pub(super) fn call_webhook(&self, reason: &'static str, remaining: Option<Duration>) {
        let Some(webhook) = self.shared.webhook.clone() else { return };
        let notice = self.shared.webhook_notice(reason, remaining);
        let shared = self.shared.clone();
        let call = async move {
            if let Err(error) = webhook.tell(&notice).await {
                shared.metrics.webhook_failures.inc();
                tracing::warn!(%error, reason, "webhook not told");
            }
            Event::Told
        };
        self.lanes.push(call.boxed());
    }
}

/// The word of a reason, in logs and on the node.
pub(crate) fn word_of(reason: DrainReason) -> &'static str {
    match reason {
        DrainReason::Notice => "notice",
        DrainReason::Rebalance => "rebalance",
        DrainReason::Maintenance => "maintenance",
        DrainReason::Lifecycle => "lifecycle",
        DrainReason::ScaleIn => "scale_in",
        DrainReason::Swap => "swap",
        DrainReason::Operator => "operator",
        DrainReason::Foreign => "foreign",
        DrainReason::Drill => "drill",
    }
}
