//! The fleet policy: the document an operator writes, read once into types that hold its rules.
//!
//! The same document is a file in `policies/` and the custom resource in the cluster.
//! [`FleetPolicy::parse`] reports all mistakes at once, each with its line and column:
//!
//! 1. `located` turns the text into a tree that knows where everything stands;
//! 2. `section`, `kinds` and `numbers` read it key by key; `queue`, `drain`, `worker_group`,
//!    `pool`, `reservation` and `goal` say which keys there are, with unit, default and range;
//! 3. `rules` and `pool_rules` compare keys with each other.
//!
//! Where two keys depend on each other (`renewEvery` on `lease`, `grace` on `reserve`), the default
//! of one follows the other, so that a policy may set either alone.

mod drain;
pub mod duration;
mod explain;
mod goal;
mod kinds;
mod located;
mod near;
mod numbers;
mod outline;
mod pool;
mod pool_rules;
mod queue;
mod report;
mod reservation;
mod resource;
mod rules;
mod section;
mod signal;
mod support;
mod taint;
#[cfg(test)]
mod tests;
mod worker_group;

use std::ops::Deref;

pub use self::drain::{BlockedEviction, DrainPolicy, RebalanceAction, UnknownInstances};
pub use self::goal::{Budget, Mode, UpdateDeadline};
pub use self::located::Position;
pub use self::near::nearest;
pub use self::pool::{
    AutoScalingGroupName, FleetLaunch, InstanceType, LaunchTemplateName, LifecycleHookName, Market,
    NameError, NamespaceName, ObjectName, POOLS_LIMIT, Pool, PoolName, Provider, ProviderKind,
    ReservationId, ScaleTarget, ScaledKind, SubnetId, TemplateVersion, WorkersTemplate, Zone,
};
pub use self::queue::{Durability, QueuePolicy, Stage, StalenessPolicy};
pub use self::report::{PolicyError, PolicyErrors};
pub use self::reservation::{Reservation, ReservationKind};
pub use self::resource::{CRD_NAME, GROUP, KIND, PLURAL, VERSION, resource_definition};
pub use self::signal::{
    HttpUrl, PromQuery, PrometheusQueries, QueueUrl, RedisKey, RedisList, RedisStream, RedisUrl,
    ServiceSignal,
};
pub use self::taint::{ExtraTaint, TaintError};
pub use self::worker_group::{
    BufferPolicy, JoinPoint, REPLICAS_LIMIT, RolloutPolicy, ServicePolicy, TrainerPolicy,
};

use self::kinds::{Pattern, choice, exactly, text};
use self::report::Report;
use self::section::{Section, read_section};
use crate::ids::RunId;
use crate::scale::Role;

/// Keys of Kubernetes metadata beside the name, which a policy may have and Ebbtide does not read.
const FOREIGN_METADATA: [&str; 14] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// A fleet policy that keeps every rule. There is no other way to one than [`Self::parse`], and
/// none to change it.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetPolicy(FleetSpec);

/// What a fleet policy says, defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetSpec {
    /// `metadata.name`: the run.
    pub run: RunId,
    /// `spec.mode`: `observe` (default) or `act`.
    pub mode: Mode,
    /// `spec.queue`.
    pub queue: QueuePolicy,
    /// `spec.staleness`.
    pub staleness: StalenessPolicy,
    /// `spec.drain`.
    pub drain: DrainPolicy,
    /// `spec.trainer`, required.
    pub trainer: TrainerPolicy,
    /// `spec.rollout`, required.
    pub rollout: RolloutPolicy,
    /// `spec.reward`, there when the stages have `reward`; without that stage, with a signal.
    pub reward: Option<ServicePolicy>,
    /// `spec.environment`.
    pub environment: Option<ServicePolicy>,
    /// `spec.buffer`.
    pub buffer: BufferPolicy,
    /// `spec.pools`, required.
    pub pools: Vec<Pool>,
    /// `spec.budget`; none is no limit.
    pub budget: Option<Budget>,
    /// `spec.deadline`; none is no hurry.
    pub deadline: Option<UpdateDeadline>,
}

impl Deref for FleetPolicy {
    type Target = FleetSpec;

    fn deref(&self) -> &FleetSpec {
        &self.0
    }
}

impl FleetPolicy {
    /// Reads a policy; `file_name` is what messages call the text.
    ///
    /// # Errors
    /// All mistakes of the text. When it is not YAML, only the first mistake can be found.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, PolicyErrors> {
        let (tree, faults) = located::locate(text);
        let mut report = Report::default();
        for fault in faults {
            report.complain_about_text(fault.at, fault.message);
        }
        let spec = tree.map(|tree| {
            let place = (String::new(), tree.at);
            read_section(Some(&tree), place, &mut report, read_document)
        });
        if let Some(spec) = &spec {
            rules::check(spec, &mut report);
        }
        report.close(file_name)?;
        let spec = spec.expect("a text without a tree has a fault");
        Ok(Self(spec))
    }
}

fn read_document(document: &mut Section<'_, '_>) -> FleetSpec {
    document.required("apiVersion", exactly(&[("ebbtide.dev/v1alpha1", ())]));
    document.required("kind", exactly(&[("FleetPolicy", ())]));
    document.ignore(&["status"]);
    let run = document.required_section("metadata", |metadata| {
        metadata.ignore(&FOREIGN_METADATA);
        metadata.required("name", text())
    });
    document.required_section("spec", |spec| read_spec(spec, run))
}

fn read_spec(spec: &mut Section<'_, '_>, run: RunId) -> FleetSpec {
    let staleness = spec.section("staleness", StalenessPolicy::read);
    FleetSpec {
        run,
        mode: spec.or("mode", choice(), Mode::default()),
        queue: spec.section("queue", QueuePolicy::read),
        drain: spec.section("drain", DrainPolicy::read),
        trainer: spec.required_section("trainer", TrainerPolicy::read),
        rollout: spec
            .required_section("rollout", |rollout| RolloutPolicy::read(rollout, staleness.max_lag)),
        reward: spec.optional_section("reward", ServicePolicy::read),
        environment: spec.optional_section("environment", ServicePolicy::read),
        buffer: spec.section("buffer", BufferPolicy::read),
        pools: spec.sections("pools", POOLS_LIMIT, Pool::read),
        budget: spec.optional_section("budget", Budget::read),
        deadline: spec.optional_section("deadline", UpdateDeadline::read),
        staleness,
    }
}

impl Pattern for RunId {
    const FORM: &'static str = "match [A-Za-z0-9_-]{1,64}";
    const EXAMPLE: &'static str = "grpo-async";
    const REGEX: &'static str = "^[A-Za-z0-9_-]{1,64}$";
    const LENGTH_LIMIT: usize = 64;
}

impl FleetSpec {
    /// Samples of one trainer step.
    pub fn samples_per_step(&self) -> u64 {
        u64::from(self.trainer.groups_per_step) * u64::from(self.trainer.group_size)
    }

    /// Sealed groups that should stand ready, rounded up.
    pub fn buffer_target_groups(&self) -> u64 {
        self.steps_in_groups(self.rollout.buffer_target_steps)
    }

    /// Sealed groups above which nothing more is needed, rounded up.
    pub fn buffer_max_groups(&self) -> u64 {
        self.steps_in_groups(self.rollout.buffer_max_steps)
    }

    /// Most groups that may be in work or in the buffer at a time without growing too old before
    /// the trainer takes them: `(L + 1) × groupsPerStep`.
    ///
    /// Source: the admission rule of AReaL, `(eta + v + 1) × b` less what v steps have used up.
    pub fn admission_ceiling_groups(&self) -> u64 {
        (u64::from(self.staleness.max_lag) + 1) * u64::from(self.trainer.groups_per_step)
    }

    /// Whether samples are scored before a group seals.
    pub fn has_reward_stage(&self) -> bool {
        self.queue.stages.contains(&Stage::Reward)
    }

    /// The pool of that name.
    pub fn pool(&self, name: &PoolName) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == *name)
    }

    /// The pools of the rollout group, the preferred one first.
    pub fn rollout_pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools_of(Role::Rollout)
    }

    /// The pools of a worker group, the preferred one first; none when there is no such group.
    pub fn pools_of(&self, role: Role) -> impl Iterator<Item = &Pool> {
        let names = match role {
            Role::Rollout => Some(&self.rollout.pools),
            Role::Reward | Role::Environment => self.service(role).map(|service| &service.pools),
        };
        names.into_iter().flatten().filter_map(|name| self.pool(name))
    }

    /// The pools of all worker groups that are sized, the rollouts' first.
    pub fn sized_pools(&self) -> impl Iterator<Item = &Pool> {
        Role::ALL.into_iter().flat_map(|role| self.pools_of(role))
    }

    /// The worker group that a pool is for; `None` when that is one that is not sized, or none.
    pub fn role_of(&self, pool: &PoolName) -> Option<Role> {
        Role::ALL.into_iter().find(|role| self.pools_of(*role).any(|own| own.name == *pool))
    }

    /// The section of a service; `None` when there is none, and for the rollouts.
    pub fn service(&self, role: Role) -> Option<&ServicePolicy> {
        match role {
            Role::Rollout => None,
            Role::Reward => self.reward.as_ref(),
            Role::Environment => self.environment.as_ref(),
        }
    }

    /// Nodes of one replica in the pool of that name.
    pub fn nodes_per_replica_in(&self, pool: &PoolName) -> u16 {
        if self.rollout.pools.contains(pool) { self.rollout.nodes_per_replica } else { 1 }
    }

    /// Whole rollout replicas that fit into a pool.
    pub fn replicas_in(&self, pool: &Pool) -> u32 {
        pool.max_nodes / u32::from(self.rollout.nodes_per_replica)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 1001 steps of 65536 groups, never negative"
    )]
    fn steps_in_groups(&self, steps: f64) -> u64 {
        (steps * f64::from(self.trainer.groups_per_step)).ceil() as u64
    }
}
