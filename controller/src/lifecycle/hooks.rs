//! Lifecycle hooks of Auto Scaling groups, as the controller needs them.

use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::observation::InstanceId;
use ebbtide_queue::control::LifecycleRecord;

use crate::aws::AwsError;

/// What Auto Scaling said of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionAnswer {
    /// It did as it was asked.
    Accepted,
    /// It knows no such action: it was completed before, or its time is over.
    NotActive,
}

/// A hook that holds instances on their way out of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminateHook {
    /// Its name.
    pub name: String,
    /// How long an action waits after it began, or after its last heartbeat.
    pub timeout: Duration,
}

/// An instance that a hook holds on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldInstance {
    /// The instance.
    pub instance: InstanceId,
    /// Its group.
    pub group: String,
}

/// The part of Auto Scaling that knows lifecycle actions. Every call may be repeated.
#[async_trait]
pub trait LifecycleHooks: Send + Sync {
    /// Ends an action with `CONTINUE`.
    ///
    /// # Errors
    /// Auto Scaling did not answer, or refused.
    async fn complete(&self, action: &LifecycleRecord) -> Result<ActionAnswer, AwsError>;

    /// Lets the time limit of an action begin anew.
    ///
    /// # Errors
    /// As [`LifecycleHooks::complete`].
    async fn heartbeat(&self, action: &LifecycleRecord) -> Result<ActionAnswer, AwsError>;

    /// The hooks of a group that hold instances on their way out.
    ///
    /// # Errors
    /// As [`LifecycleHooks::complete`].
    async fn hooks_of(&self, group: &str) -> Result<Vec<TerminateHook>, AwsError>;

    /// Those of the instances that a hook holds now on their way out.
    ///
    /// # Errors
    /// As [`LifecycleHooks::complete`].
    async fn held(&self, instances: &[InstanceId]) -> Result<Vec<HeldInstance>, AwsError>;
}

/// For controllers without AWS: there are no groups.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

#[async_trait]
impl LifecycleHooks for NoHooks {
    async fn complete(&self, _action: &LifecycleRecord) -> Result<ActionAnswer, AwsError> {
        Ok(ActionAnswer::NotActive)
    }

    async fn heartbeat(&self, _action: &LifecycleRecord) -> Result<ActionAnswer, AwsError> {
        Ok(ActionAnswer::NotActive)
    }

    async fn hooks_of(&self, _group: &str) -> Result<Vec<TerminateHook>, AwsError> {
        Ok(Vec::new())
    }

    async fn held(&self, _instances: &[InstanceId]) -> Result<Vec<HeldInstance>, AwsError> {
        Ok(Vec::new())
    }
}
