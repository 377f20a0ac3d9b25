//! Replicas of one pool that go together: their provider is asked once, so that it reads what is
//! there once, however many go.

use ebbtide_core::observation::InstanceId;
use ebbtide_core::scale::Action;
use ebbtide_queue::control::DrainState;
use tokio::time::Instant;

use super::{ActuateError, Actuator};
use crate::capacity::CapacityError;

/// Instances that one call takes at most. 8 × 1 s, where a provider needs calls of its own for each
/// in a busy cluster, end within the limit of one.
const TOGETHER_LIMIT: usize = 8;

/// How many of these actions, from the first on, are carried out together.
pub(crate) fn count_together(actions: &[&Action]) -> usize {
    let mut left = TOGETHER_LIMIT;
    let retired = actions.iter().take_while(|action| match action {
        Action::Retire { instances, .. } => {
            let fits = instances.len() <= left;
            left = left.saturating_sub(instances.len());
            fits
        }
        _ => false,
    });
    retired.count().max(1)
}

impl Actuator<'_> {
    /// Carries out actions of one pool that go together, and says what became of each. Where they
    /// are refused together each is asked for by itself until `until`: one that may not go keeps no
    /// other.
    pub async fn carry_out_together(
        &self,
        actions: &[&Action],
        until: Instant,
    ) -> Vec<Result<(), ActuateError>> {
        if let [action] = actions {
            return vec![self.carry_out(action).await];
        }
        let mut results = Vec::new();
        for action in actions {
            results.push(self.mark(action).await);
        }
        let marked = || actions.iter().zip(&results).filter(|(_, result)| result.is_ok());
        let instances: Vec<InstanceId> =
            marked().flat_map(|(action, _)| instances_of(action)).cloned().collect();
        if instances.is_empty() {
            return results;
        }
        match self.terminate_of(actions[0], &instances).await {
            Ok(()) => results,
            Err(ActuateError::Capacity(error)) if is_refusal(&error) => {
                for (action, result) in actions.iter().zip(&mut results) {
                    if result.is_ok() && Instant::now() < until {
                        *result = self.terminate_of(action, instances_of(action)).await;
                    } else if result.is_ok() {
                        *result = Err(ActuateError::TurnEnded);
                    }
                }
                results
            }
            Err(error) => {
                let mut error = Some(error);
                let answer = |result| match result {
                    Ok(()) => Err(error.take().unwrap_or(ActuateError::Unanswered)),
                    earlier => earlier,
                };
                results.into_iter().map(answer).collect()
            }
        }
    }

    /// Marks a drained replica `terminating`.
    async fn mark(&self, action: &Action) -> Result<(), ActuateError> {
        match action {
            Action::Retire { replica, request_id, .. } => {
                self.report(replica, request_id, DrainState::Terminating).await
            }
            _ => Ok(()),
        }
    }

    async fn terminate_of(
        &self,
        action: &Action,
        instances: &[InstanceId],
    ) -> Result<(), ActuateError> {
        match action {
            Action::Retire { pool, .. } => self.terminate(pool, instances).await,
            _ => Ok(()),
        }
    }
}

fn instances_of(action: &Action) -> &[InstanceId] {
    match action {
        Action::Retire { instances, .. } => instances,
        _ => &[],
    }
}

/// Whether the provider has answered, and may answer otherwise for a part.
fn is_refusal(error: &CapacityError) -> bool {
    matches!(error, CapacityError::Refused { .. } | CapacityError::Moved { .. })
}
