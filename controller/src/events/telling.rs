//! How the flow of events tells what happens: log, metrics, status.

use ebbtide_core::event::Event;
use ebbtide_core::notice::NoticeError;
use ebbtide_core::observation::InstanceId;

use super::judge::Idle;
use super::queue::Message;
use super::{AttendError, EventFlow, Outcome};
use crate::aws::AwsError;
use crate::metrics::EventError;
use crate::nodes::NodeError;
use crate::status::Topic;

impl Outcome {
    /// The word in metrics and logs; a closed set.
    fn as_str(self) -> &'static str {
        match self {
            Self::DrainRequested => "drain_requested",
            Self::ActionRecorded => "action_recorded",
            Self::Idle(Idle::NothingToDo) => "nothing_to_do",
            Self::Idle(Idle::IgnoredByPolicy) => "ignored_by_policy",
            Self::Idle(Idle::LeftToAgent) => "left_to_agent",
            Self::Idle(Idle::OtherHook) => "other_hook",
            Self::Idle(Idle::Stale) => "stale",
            Self::Postponed(_) => "postponed",
            Self::Unknown { is_kept: false } => "unknown_acknowledged",
            Self::Unknown { is_kept: true } => "unknown_kept",
        }
    }
}

impl EventFlow {
    pub(super) fn tell_received(&self, received: &Result<Vec<Message>, AwsError>, failures: u32) {
        match received {
            Ok(_) => {
                if failures > 0 {
                    tracing::info!("queue of events answers again");
                }
                self.marker.status.clear_problem(Topic::EventQueue);
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(%error, "queue of events cannot be read, scaling goes on");
                }
                self.marker.metrics.error(EventError::Receive);
                self.marker.status.set_problem(Topic::EventQueue, error.to_string());
            }
        }
    }

    pub(super) fn tell_outcome(
        &self,
        event: &Event,
        instance: Option<&InstanceId>,
        outcome: Outcome,
    ) {
        let (kind, outcome_word) = (event.kind().as_str(), outcome.as_str());
        self.marker.metrics.count(kind, outcome_word);
        if matches!(outcome, Outcome::Unknown { .. }) {
            self.marker.metrics.unknown_instance();
        }
        let (instance, event) = (instance.map(|id| id.0.as_str()), event.id.as_str());
        if outcome == Outcome::DrainRequested {
            tracing::warn!(kind, outcome = outcome_word, instance, event, "event handled");
        } else {
            tracing::debug!(kind, outcome = outcome_word, instance, event, "event handled");
        }
    }

    pub(super) fn tell_failure(&self, event: &Event, instance: &InstanceId, error: &AttendError) {
        let kind = event.kind().as_str();
        self.marker.metrics.count(kind, "failed");
        match error {
            AttendError::Queue(_) => self.marker.metrics.error(EventError::Redis),
            AttendError::Nodes(NodeError::Unavailable { .. }) => {
                self.marker.metrics.error(EventError::Kubernetes);
            }
            AttendError::Nodes(NodeError::Refused { .. }) => {
                self.marker.metrics.error(EventError::Refused);
            }
            AttendError::NotLeading => {}
        }
        let (instance, event) = (instance.0.as_str(), event.id.as_str());
        tracing::error!(%error, kind, instance, event, "event not handled, its message is kept");
    }

    pub(super) fn tell_unreadable(&self, error: &NoticeError) {
        self.marker.metrics.count("unreadable", "unreadable_kept");
        tracing::error!(%error, "message not understood, it is kept");
    }

    pub(super) fn tell_overtime(&self) {
        self.marker.metrics.error(EventError::TimeLimit);
        tracing::error!("event not handled in time, its message is kept");
    }

    pub(super) fn tell_unsettled(&self, what: &'static str, error: &AwsError) {
        self.marker.metrics.error(EventError::Settle);
        tracing::warn!(%error, what, "message not settled, it comes again");
    }
}
