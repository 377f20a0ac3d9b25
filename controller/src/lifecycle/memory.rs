//! Lifecycle hooks in this process, for tests: calls are counted, and can fail.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ebbtide_core::observation::InstanceId;
use ebbtide_queue::control::LifecycleRecord;

use super::hooks::{ActionAnswer, HeldInstance, LifecycleHooks, TerminateHook};
use crate::aws::AwsError;

/// See the module; clones share their state.
#[derive(Debug, Clone, Default)]
pub struct MemoryHooks {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    hooks: BTreeMap<String, Vec<TerminateHook>>,
    held: BTreeMap<InstanceId, String>,
    completed: Vec<LifecycleRecord>,
    heartbeats: Vec<LifecycleRecord>,
    /// What the next calls about actions answer, before all goes well.
    failures: VecDeque<AwsError>,
}

impl MemoryHooks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a group a hook.
    pub fn add_hook(&self, group: &str, hook: TerminateHook) {
        self.state().hooks.entry(group.to_owned()).or_default().push(hook);
    }

    /// From now on the hooks of a group hold the instance.
    pub fn hold(&self, instance: InstanceId, group: &str) {
        self.state().held.insert(instance, group.to_owned());
    }

    /// The next call about an action fails like this; a row of them one after the other.
    pub fn fail_next(&self, error: AwsError) {
        self.state().failures.push_back(error);
    }

    /// The actions that were completed, in order.
    pub fn completed(&self) -> Vec<LifecycleRecord> {
        self.state().completed.clone()
    }

    /// The actions that got a heartbeat, in order.
    pub fn heartbeats(&self) -> Vec<LifecycleRecord> {
        self.state().heartbeats.clone()
    }
}

#[async_trait]
impl LifecycleHooks for MemoryHooks {
    async fn complete(&self, action: &LifecycleRecord) -> Result<ActionAnswer, AwsError> {
        let mut state = self.state();
        if let Some(error) = state.failures.pop_front() {
            return Err(error);
        }
        let instance = InstanceId(action.instance_id.clone());
        if state.held.remove(&instance).is_none() {
            return Ok(ActionAnswer::NotActive);
        }
        state.completed.push(action.clone());
        Ok(ActionAnswer::Accepted)
    }

    async fn heartbeat(&self, action: &LifecycleRecord) -> Result<ActionAnswer, AwsError> {
        let mut state = self.state();
        if let Some(error) = state.failures.pop_front() {
            return Err(error);
        }
        if !state.held.contains_key(&InstanceId(action.instance_id.clone())) {
            return Ok(ActionAnswer::NotActive);
        }
        state.heartbeats.push(action.clone());
        Ok(ActionAnswer::Accepted)
    }

    async fn hooks_of(&self, group: &str) -> Result<Vec<TerminateHook>, AwsError> {
        Ok(self.state().hooks.get(group).cloned().unwrap_or_default())
    }

    async fn held(&self, instances: &[InstanceId]) -> Result<Vec<HeldInstance>, AwsError> {
        let state = self.state();
        let held = instances.iter().filter_map(|instance| {
            let group = state.held.get(instance)?.clone();
            Some(HeldInstance { instance: instance.clone(), group })
        });
        Ok(held.collect())
    }
}
