//! Lifecycle hooks on EC2 Auto Scaling.

use std::time::Duration;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_autoscaling::Client;
use ebbtide_core::observation::InstanceId;
use ebbtide_queue::control::LifecycleRecord;

use super::hooks::{ActionAnswer, HeldInstance, LifecycleHooks, TerminateHook};
use crate::aws::{AwsError, call};
use crate::metrics::ApiCalls;

/// What an action ends with: the instance goes either way, and this says that all is well.
const RESULT: &str = "CONTINUE";

/// The transition that a hook waits for on the way out.
const TERMINATING: &str = "autoscaling:EC2_INSTANCE_TERMINATING";

/// The state of an instance that such a hook holds.
const HELD: &str = "Terminating:Wait";

/// Time limit of an action whose hook does not say one: AWS's default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Instances that one DescribeAutoScalingInstances may name.
const INSTANCES_PER_CALL: usize = 50;

/// See the module.
pub struct AsgHooks {
    client: Client,
    calls: ApiCalls,
}

impl AsgHooks {
    /// Hooks of the account and region of this configuration. Nothing is called yet.
    pub fn new(config: &SdkConfig, calls: ApiCalls) -> Self {
        Self { client: Client::new(config), calls }
    }
}

#[async_trait]
impl LifecycleHooks for AsgHooks {
    async fn complete(&self, action: &LifecycleRecord) -> Result<ActionAnswer, AwsError> {
        let done = call("CompleteLifecycleAction", &self.calls, || {
            self.client
                .complete_lifecycle_action()
                .auto_scaling_group_name(&action.group)
                .lifecycle_hook_name(&action.hook)
                .instance_id(&action.instance_id)
                .set_lifecycle_action_token(action.token.clone())
                .lifecycle_action_result(RESULT)
                .send()
        });
        answer(done.await.map(drop))
    }

    async fn heartbeat(&self, action: &LifecycleRecord) -> Result<ActionAnswer, AwsError> {
        let done = call("RecordLifecycleActionHeartbeat", &self.calls, || {
            self.client
                .record_lifecycle_action_heartbeat()
                .auto_scaling_group_name(&action.group)
                .lifecycle_hook_name(&action.hook)
                .instance_id(&action.instance_id)
                .set_lifecycle_action_token(action.token.clone())
                .send()
        });
        answer(done.await.map(drop))
    }

    async fn hooks_of(&self, group: &str) -> Result<Vec<TerminateHook>, AwsError> {
        let reply = call("DescribeLifecycleHooks", &self.calls, || {
            self.client.describe_lifecycle_hooks().auto_scaling_group_name(group).send()
        })
        .await?;
        let hooks = reply.lifecycle_hooks.unwrap_or_default().into_iter();
        let outward = hooks.filter(|hook| hook.lifecycle_transition() == Some(TERMINATING));
        let hooks = outward.filter_map(|hook| {
            let seconds = hook.heartbeat_timeout().and_then(|s| u64::try_from(s).ok());
            let timeout = seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
            Some(TerminateHook { name: hook.lifecycle_hook_name?, timeout })
        });
        Ok(hooks.collect())
    }

    async fn held(&self, instances: &[InstanceId]) -> Result<Vec<HeldInstance>, AwsError> {
        let mut held = Vec::new();
        for instances in instances.chunks(INSTANCES_PER_CALL) {
            let ids: Vec<String> = instances.iter().map(|id| id.0.clone()).collect();
            let reply = call("DescribeAutoScalingInstances", &self.calls, || {
                let request = self.client.describe_auto_scaling_instances();
                request.set_instance_ids(Some(ids.clone())).send()
            })
            .await?;
            let found = reply.auto_scaling_instances.unwrap_or_default().into_iter();
            let waiting = found.filter(|found| found.lifecycle_state() == Some(HELD));
            held.extend(waiting.filter_map(|found| {
                let instance = InstanceId(found.instance_id?);
                Some(HeldInstance { instance, group: found.auto_scaling_group_name? })
            }));
        }
        Ok(held)
    }
}

/// An action that is not active any more is a `ValidationError`, as is one whose hook or group is
/// gone.
fn answer(done: Result<(), AwsError>) -> Result<ActionAnswer, AwsError> {
    match done {
        Ok(()) => Ok(ActionAnswer::Accepted),
        Err(AwsError::Refused { code, message, .. })
            if code == "ValidationError" && says_not_active(&message) =>
        {
            Ok(ActionAnswer::NotActive)
        }
        Err(error) => Err(error),
    }
}

fn says_not_active(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("no active lifecycle action") || message.contains("not found")
}

#[cfg(test)]
mod tests;
