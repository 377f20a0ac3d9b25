//! What the flow tells: a log line and a metric for each notice, the operator's webhook, and where
//! a drain stands. Nobody waits for any of it.

use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use super::drain::RunningDrain;
use super::notices::News;
use super::{Event, Flow};
use crate::shared::DrainStanding;

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

    /// What the other loops are shown of a drain.
    pub(super) fn standing_of(&self, drain: &RunningDrain, now: Instant) -> DrainStanding {
        DrainStanding {
            reason: drain.reason(),
            why: drain.why(),
            deadline: drain.deadline(),
            is_drained: drain.is_drained(),
            awaits_leader: self.key.awaits_leader(drain, now),
            idle_since: drain.idle_since(),
            pods_left: self.pods_left(drain),
            held_directly: self.direct.units(),
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
