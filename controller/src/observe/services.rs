//! What there is to see of a service: its own queue, replicas and pools, and of the rollouts what
//! it has to know.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::observation::{Observation, PoolView, ServiceView, Signal};
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_core::scale::Role;
use ebbtide_core::time::whole_millis;

use super::{Reads, others, replicas};
use crate::signals::Reading;

/// A reading with its age, or why there is none.
type Read = Result<(Reading, Duration), String>;

/// Puts together what was read of a service, beside what was seen of the rollouts. `own` is the
/// answer of the source that the policy names, if it names one.
pub(crate) fn build(
    reads: &Reads,
    rollouts: &Observation,
    role: Role,
    own: Option<&Read>,
    view: ServiceView,
) -> Observation {
    let (ready, in_flight, tells_in_flight) = match own {
        Some(own) => of_source(own),
        None => of_run(rollouts, role),
    };
    let completed = match (role, own) {
        (Role::Reward, None) => rollouts.completed.clone(),
        _ => Signal::unknown("its source does not tell"),
    };
    let replicas = match &reads.view {
        Ok(view) => Signal::fresh(replicas::gather(view, reads, role, 1)),
        Err(why) => Signal::unknown(why.clone()),
    };
    Observation {
        now: rollouts.now,
        ready,
        in_flight,
        environment_waiting: rollouts.environment_waiting.clone(),
        reward_ready: rollouts.reward_ready.clone(),
        reward_in_flight: rollouts.reward_in_flight.clone(),
        completed,
        buffer_groups: rollouts.buffer_groups.clone(),
        buffer_taken: rollouts.buffer_taken.clone(),
        oldest_ready_age: rollouts.oldest_ready_age.clone(),
        trainer: rollouts.trainer.clone(),
        trainer_resize: None,
        trainer_resize_ended: None,
        trainer_pool: rollouts.trainer_pool.clone(),
        policy_version: rollouts.policy_version.clone(),
        replicas,
        pools: reads.pools_of(role).to_vec(),
        others_at_work: others::gather(reads, role),
        gone: reads.gone.clone(),
        others_dollars_per_hour: None,
        is_cost_of_others_unknown: false,
        service: Some(ServiceView { tells_in_flight, ..view }),
    }
}

/// What waits and what is worked on, by the source's word, and whether it tells the latter.
fn of_source(own: &Read) -> (Signal<u64>, Signal<u64>, bool) {
    match own {
        Ok((reading, age)) => {
            let age = Duration::from_millis(whole_millis(*age));
            let in_flight = match reading.in_flight {
                Some(value) => Signal::Known { value, age },
                None => Signal::unknown("its source does not tell"),
            };
            let ready = Signal::Known { value: reading.waiting, age };
            (ready, in_flight, reading.in_flight.is_some())
        }
        Err(why) => (Signal::unknown(why.clone()), Signal::unknown(why.clone()), true),
    }
}

/// The same where the run itself tells. Of units that wait for their environment nobody knows
/// whether it works on them: all of them are its work.
fn of_run(rollouts: &Observation, role: Role) -> (Signal<u64>, Signal<u64>, bool) {
    match role {
        Role::Reward => (rollouts.reward_ready.clone(), rollouts.reward_in_flight.clone(), true),
        _ => (Signal::fresh(0), rollouts.environment_waiting.clone(), true),
    }
}

/// What each worker group costs as it stands, in dollars per hour.
#[derive(Debug, Default)]
pub(crate) struct Costs(BTreeMap<Role, f64>);

impl Costs {
    /// Takes note of a group's pools, and of how many nodes each is being asked for. What is
    /// unknown is as it was.
    pub fn note(
        &mut self,
        policy: &FleetPolicy,
        role: Role,
        pools: &[PoolView],
        raised_to: impl Fn(&PoolName) -> u32,
    ) {
        let cost = |view: &PoolView| {
            let price = policy.pool(&view.name)?.dollars_per_node_hour?;
            let size = view.size.known()?;
            Some(price * f64::from(size.committed().max(raised_to(&view.name))))
        };
        if let Some(cost) = pools.iter().map(cost).sum::<Option<f64>>() {
            self.0.insert(role, cost);
        }
    }

    /// The group is no more.
    pub fn forget(&mut self, role: Role) {
        self.0.remove(&role);
    }

    /// Says what all groups beside this one cost, in whole cents, or that nobody knows; nothing
    /// where there is no budget.
    pub fn tell(&self, policy: &FleetPolicy, role: Role, seen: &mut Observation) {
        if policy.budget.is_none() {
            return;
        }
        let is_there = |other: &Role| *other != role && policy.pools_of(*other).next().is_some();
        let is_known = Role::ALL.iter().filter(|it| is_there(it)).all(|it| self.0.contains_key(it));
        let cost = |other| self.0.get(&other).copied().unwrap_or(0.0);
        let others = policy.dollars_per_hour_beside(role, cost);
        seen.others_dollars_per_hour = others.map(|others| (others * 100.0).ceil() / 100.0);
        seen.is_cost_of_others_unknown = !is_known;
    }
}
