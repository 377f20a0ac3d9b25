//! Finding out what no message told: actions of instances whose agents say that their groups take
//! them out, and the time limits of hooks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebbtide_core::notice::NoticeKind;
use ebbtide_core::observation::InstanceId;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{ControlView, LifecycleRecord};
use futures::future::join_all;
use tokio::time::Instant;

use super::hooks::{HeldInstance, LifecycleHooks, TerminateHook};
use super::{KeepError, LifecycleKeeper};

/// Time between two questions about the same instance, and after one that failed.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// Time between two questions about the hooks of a group.
const HOOKS_KEPT: Duration = Duration::from_mins(10);

/// What was asked, and what is known of hooks.
#[derive(Default)]
pub(super) struct Finder {
    asked: BTreeMap<InstanceId, Instant>,
    hooks: BTreeMap<String, KnownHooks>,
}

struct KnownHooks {
    hooks: Vec<TerminateHook>,
    asked_at: Instant,
    is_answered: bool,
}

impl Finder {
    /// Records the actions that no message told; answers what stands in the way, if anything.
    pub async fn find_untold(
        &mut self,
        keeper: &LifecycleKeeper,
        view: &ControlView,
    ) -> Option<String> {
        let untold = untold(view);
        self.asked.retain(|instance, _| untold.contains(instance));
        let now = Instant::now();
        let is_due = |instance: &&InstanceId| {
            self.asked
                .get(*instance)
                .is_none_or(|at| now.saturating_duration_since(*at) >= ASK_EVERY)
        };
        let due: Vec<InstanceId> = untold.iter().filter(is_due).cloned().collect();
        if due.is_empty() {
            return None;
        }
        self.asked.extend(due.iter().map(|instance| (instance.clone(), now)));
        let policy = keeper.policy.borrow().policy.clone();
        match self.record(keeper, &policy, &due).await {
            Ok(problem) => problem,
            Err(error) => {
                tracing::warn!(%error, "lifecycle actions of instances not found out");
                Some(error.to_string())
            }
        }
    }

    async fn record(
        &mut self,
        keeper: &LifecycleKeeper,
        policy: &FleetPolicy,
        instances: &[InstanceId],
    ) -> Result<Option<String>, KeepError> {
        let mut problem = None;
        for HeldInstance { instance, group } in keeper.hooks.held(instances).await? {
            let mut hooks = keeper.hooks.hooks_of(&group).await?;
            if let Some(name) = &policy.drain.lifecycle_hook {
                hooks.retain(|hook| hook.name == name.as_str());
            }
            match &hooks[..] {
                [hook] => {
                    tracing::info!(instance = instance.0, group, "lifecycle action found out");
                    let record = LifecycleRecord {
                        instance_id: instance.0,
                        group,
                        hook: hook.name.clone(),
                        token: None,
                        seen_at: UnixMillis::default(),
                    };
                    keeper.queue.put_lifecycle(keeper.generation()?, record).await?;
                }
                // Completing a hook of others would end their work.
                hooks => problem = Some(not_one(&group, hooks.len())),
            }
        }
        Ok(problem)
    }

    /// Asks for the hooks of the groups of these actions, now and then.
    pub async fn learn_timeouts(
        &mut self,
        hooks: &dyn LifecycleHooks,
        actions: &[LifecycleRecord],
    ) {
        self.hooks.retain(|group, _| actions.iter().any(|action| action.group == *group));
        let is_known = |group: &str| {
            self.hooks.get(group).is_some_and(|known| {
                let kept = if known.is_answered { HOOKS_KEPT } else { ASK_EVERY };
                known.asked_at.elapsed() < kept
            })
        };
        let groups: BTreeSet<&str> = actions.iter().map(|action| action.group.as_str()).collect();
        let asked = groups.into_iter().filter(|group| !is_known(group));
        let answers = join_all(asked.map(async |group| (group, hooks.hooks_of(group).await))).await;
        for (group, answer) in answers {
            if let Err(error) = &answer {
                tracing::warn!(%error, group, "time limit of hooks is not known");
            }
            let (is_answered, asked_at) = (answer.is_ok(), Instant::now());
            let hooks = answer.unwrap_or_default();
            self.hooks.insert(group.to_owned(), KnownHooks { hooks, asked_at, is_answered });
        }
    }

    /// What keeps an action from being completed: the policy names no hook, and its group has
    /// several.
    pub fn ambiguity(&self, action: &LifecycleRecord, policy: &FleetPolicy) -> Option<String> {
        let hooks = self.hooks.get(&action.group)?.hooks.len();
        let is_ambiguous = policy.drain.lifecycle_hook.is_none() && hooks > 1;
        is_ambiguous.then(|| not_one(&action.group, hooks))
    }

    /// The time limit of an action's hook, when it is known.
    pub fn timeout_of(&self, action: &LifecycleRecord) -> Option<Duration> {
        let known = self.hooks.get(&action.group)?;
        known.hooks.iter().find(|hook| hook.name == action.hook).map(|hook| hook.timeout)
    }
}

fn not_one(group: &str, hooks: usize) -> String {
    format!(
        "group {group} has {hooks} hooks for instances on their way out: say in \
         spec.drain.lifecycleHook which one is for Ebbtide"
    )
}

/// Instances whose agents say that their groups take them out, and of which no action is known.
fn untold(view: &ControlView) -> Vec<InstanceId> {
    let kind = Some(NoticeKind::AsgTermination.as_str());
    let leaving = view.nodes.iter().filter(|node| node.notice_kind.as_deref() == kind);
    let ids = leaving.filter_map(|node| node.instance_id.as_ref());
    let is_told = |id: &String| view.lifecycles.iter().any(|action| action.instance_id == *id);
    ids.filter(|id| !is_told(id)).map(|id| InstanceId(id.clone())).collect()
}
