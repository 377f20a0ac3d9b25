//! What sizing takes from the fleet policy: plain numbers, so that tests and simulations can make
//! their own.

use std::time::Duration;

use super::leaving::SILENCE_LIMIT;
use super::role::Role;
use super::trainer::{TrainerTerms, asked_of};
use crate::observation::Observation;
use crate::policy::{
    FleetPolicy, InstanceType, JoinPoint, Market, Pool, PoolName, Reservation, UpdateDeadline,
};

/// How a worker group is to be sized.
#[derive(Debug, Clone, PartialEq)]
pub struct SizingTerms {
    /// Which group.
    pub role: Role,
    /// Prompt groups of one policy update, until the trainer reports its own number.
    pub groups_per_step: u32,
    /// Samples of one prompt group.
    pub group_size: u16,
    /// The staleness bound L, in policy versions.
    pub max_lag: u16,
    /// Nodes of one replica.
    pub nodes_per_replica: u16,
    /// Fewest replicas.
    pub min_replicas: u32,
    /// Most replicas.
    pub max_replicas: u32,
    /// Samples in flight on one replica, or items that a service takes at a time.
    pub concurrency_per_replica: u32,
    /// Sealed groups that should stand ready, in trainer steps.
    pub buffer_target_steps: f64,
    /// Sealed groups above which nothing more is needed, in trainer steps.
    pub buffer_max_steps: f64,
    /// From the order of a replica to its first token, until that has been measured.
    pub startup: Duration,
    /// Whether a new replica gets work only from the next update on.
    pub joins_at_step_end: bool,
    /// How long an EP group may lack a node before its others are released.
    pub gang_timeout: Duration,
    /// Longest time that a drain may take.
    pub drain_time: Duration,
    /// How long more must be needed before more is ordered.
    pub stabilization_up: Duration,
    /// How long less must be needed before a replica is drained.
    pub stabilization_down: Duration,
    /// Most replicas added or drained by one plan.
    pub max_changes_per_tick: u32,
    /// What the trainer costs in dollars per hour; `None` while its price or its size is unknown.
    pub trainer_dollars_per_hour: Option<f64>,
    /// What may be spent; `None` is no limit.
    pub budget: Option<BudgetTerms>,
    /// Policy updates until a moment; `None` is no hurry.
    pub deadline: Option<UpdateDeadline>,
    /// The trainer's nodes; `None` where somebody else sizes them.
    pub trainer: Option<TrainerTerms>,
    /// Where nodes come from, the preferred pool first.
    pub pools: Vec<PoolTerms>,
}

/// What all worker groups may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetTerms {
    /// Most that they may cost together.
    pub dollars_per_hour: f64,
    /// What the other worker groups cost; `None` while a price or a size is unknown.
    pub others_dollars_per_hour: Option<f64>,
}

/// One pool that the group may use.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolTerms {
    /// The pool.
    pub name: PoolName,
    /// How its nodes are bought.
    pub market: Market,
    /// What its nodes are, when the policy says so.
    pub instance_type: Option<InstanceType>,
    /// Most nodes that the policy allows in it.
    pub max_nodes: u32,
    /// What one node costs in dollars per hour; `None` is unknown, never free.
    pub dollars_per_node_hour: Option<f64>,
    /// For how long its nodes are reserved, if they are.
    pub reservation: Option<Reservation>,
}

impl PoolTerms {
    /// Whether two pools differ only in their zone, so that one is as good as the other.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let is_reserved = self.reservation.is_some() || other.reservation.is_some();
        let is_same = self.market == other.market && self.instance_type == other.instance_type;
        is_same && !is_reserved
    }
}

impl From<&Pool> for PoolTerms {
    fn from(pool: &Pool) -> Self {
        Self {
            name: pool.name.clone(),
            market: pool.market,
            instance_type: pool.instance_type.clone(),
            max_nodes: pool.max_nodes,
            dollars_per_node_hour: pool.dollars_per_node_hour,
            reservation: pool.reservation.clone(),
        }
    }
}

impl From<&FleetPolicy> for SizingTerms {
    fn from(policy: &FleetPolicy) -> Self {
        let rollout = &policy.rollout;
        Self {
            role: Role::Rollout,
            groups_per_step: policy.trainer.groups_per_step,
            group_size: policy.trainer.group_size,
            max_lag: policy.staleness.max_lag,
            nodes_per_replica: rollout.nodes_per_replica,
            min_replicas: rollout.min_replicas,
            max_replicas: rollout.max_replicas,
            concurrency_per_replica: rollout.concurrency_per_replica,
            buffer_target_steps: rollout.buffer_target_steps,
            buffer_max_steps: rollout.buffer_max_steps,
            startup: rollout.startup_estimate,
            joins_at_step_end: rollout.join_at == JoinPoint::StepEnd,
            gang_timeout: rollout.gang_timeout,
            drain_time: policy.drain.request_deadline,
            stabilization_up: rollout.stabilization_up,
            stabilization_down: rollout.stabilization_down,
            max_changes_per_tick: rollout.max_changes_per_tick,
            trainer_dollars_per_hour: trainer_dollars_per_hour(policy),
            budget: BudgetTerms::of(policy, Role::Rollout),
            deadline: policy.deadline,
            trainer: TrainerTerms::of(policy),
            pools: policy.pools_of(Role::Rollout).map(PoolTerms::from).collect(),
        }
    }
}

impl BudgetTerms {
    fn of(policy: &FleetPolicy, role: Role) -> Option<Self> {
        let dollars_per_hour = policy.budget?.dollars_per_hour;
        let others_dollars_per_hour = policy.least_dollars_per_hour_beside(role);
        Some(Self { dollars_per_hour, others_dollars_per_hour })
    }
}

/// The price of the trainer's pool times its size, which is known when only one is legal.
fn trainer_dollars_per_hour(policy: &FleetPolicy) -> Option<f64> {
    let pool = policy.pool(policy.trainer.pool.as_ref()?)?;
    let [nodes] = policy.trainer.legal_sizes[..] else { return None };
    Some(pool.dollars_per_node_hour? * f64::from(nodes))
}

impl SizingTerms {
    /// How the group of this role is to be sized; `None` when the policy has no such group.
    pub fn of_role(policy: &FleetPolicy, role: Role) -> Option<Self> {
        let rollout = Self::from(policy);
        if role.is_rollout() {
            return Some(rollout);
        }
        let service = policy.service(role)?;
        Some(Self {
            role,
            nodes_per_replica: 1,
            min_replicas: service.min_replicas,
            max_replicas: service.max_replicas,
            concurrency_per_replica: service.items_per_replica,
            startup: service.startup_estimate,
            joins_at_step_end: false,
            stabilization_up: service.stabilization_up,
            stabilization_down: service.stabilization_down,
            trainer_dollars_per_hour: None,
            budget: BudgetTerms::of(policy, role),
            deadline: None,
            pools: policy.pools_of(role).map(PoolTerms::from).collect(),
            ..rollout
        })
    }

    /// How each group of the policy is to be sized, the rollouts first.
    pub fn of_all(policy: &FleetPolicy) -> Vec<Self> {
        Role::ALL.into_iter().filter_map(|role| Self::of_role(policy, role)).collect()
    }

    /// Nodes of one replica, at least one.
    pub(super) fn gang(&self) -> u32 {
        u32::from(self.nodes_per_replica).max(1)
    }

    /// The terms with what the other groups cost as they stand, the trainer with `nodes` or with as
    /// many as its pool is asked for.
    pub(super) fn beside(&self, observation: &Observation, nodes: Option<u32>) -> Self {
        let mut terms = self.clone();
        if let Some(budget) = &mut terms.budget {
            let seen = observation.others_dollars_per_hour;
            let least = budget.others_dollars_per_hour;
            let known = least.filter(|_| !observation.is_cost_of_others_unknown);
            budget.others_dollars_per_hour =
                known.map(|least| seen.map_or(least, |seen| seen.max(least)));
        }
        terms.at_trainer_size(nodes, asked_of(observation))
    }

    /// The terms at the size that the trainer has: `nodes` by its own word, `asked` what its pool
    /// is asked for, which is paid as if it ran.
    pub(super) fn at_trainer_size(&self, nodes: Option<u32>, asked: Option<u32>) -> Self {
        let Some(trainer) = &self.trainer else { return self.clone() };
        let price = trainer.dollars_per_node_hour;
        let dollars = nodes.and_then(|nodes| Some(price? * f64::from(nodes)));
        // The policy counts the smallest size.
        let counted = trainer.legal_sizes.first().copied().unwrap_or(0);
        let more = match nodes.max(asked).unwrap_or(0).saturating_sub(counted) {
            0 => Some(0.0),
            more => price.map(|price| price * f64::from(more)),
        };
        let at_size = |budget: BudgetTerms| {
            let others = budget.others_dollars_per_hour.zip(more);
            let others_dollars_per_hour = others.map(|(others, more)| others + more);
            BudgetTerms { others_dollars_per_hour, ..budget }
        };
        Self {
            trainer_dollars_per_hour: dollars
                .filter(|_| self.role.is_rollout())
                .or(self.trainer_dollars_per_hour),
            budget: self.budget.map(at_size),
            ..self.clone()
        }
    }

    /// Silence after which a replica that was asked to drain is taken to be drained, once it holds
    /// no leases. A service may work without leases, and only its agent knows: an agent that comes
    /// back within the time of a drain goes on with it.
    pub(super) fn silence_limit(&self) -> Duration {
        match self.role {
            Role::Rollout => SILENCE_LIMIT,
            Role::Reward | Role::Environment => SILENCE_LIMIT.max(self.drain_time),
        }
    }

    /// Brings a wish within minimum and maximum.
    pub(super) fn clamp(&self, replicas: u32) -> u32 {
        replicas.min(self.max_replicas).max(self.min_replicas.min(self.max_replicas))
    }
}
