//! The services that the rollouts need, planned after them at the same tick: what they need follows
//! from what the rollouts are about to do. Whatever is unknown of one touches no other group.

use std::collections::BTreeMap;

use ebbtide_core::journal::Record;
use ebbtide_core::observation::{Observation, PoolView, ReplicaState};
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_core::scale::{Role, ScaleMemory, ScalePlan, SizingTerms, plan_scale};

use super::carrying::Carried;
use super::{Autoscaler, Past, Planned, Turn};
use crate::conditions::GroupFacts;
use crate::journal::summarize;
use crate::observe::by_state;
use crate::observe::services::{Costs, build};
use crate::pool_remarks;
use crate::status::ServiceSnapshot;

/// What one tick hands to the next.
#[derive(Default)]
pub(super) struct Services {
    groups: BTreeMap<Role, Group>,
    pub costs: Costs,
}

struct Group {
    memory: ScaleMemory,
    /// The last plan, without what it remembers.
    plan: ScalePlan,
    ready: Option<u64>,
    snapshot: ServiceSnapshot,
    pool_remarks: Vec<String>,
}

impl Services {
    /// What a service remembers.
    pub fn memory_mut(&mut self, role: Role) -> Option<&mut ScaleMemory> {
        self.groups.get_mut(&role).map(|group| &mut group.memory)
    }

    /// What the conditions follow from.
    pub fn facts(&self) -> impl Iterator<Item = GroupFacts<'_>> {
        let groups = self.groups.iter();
        groups.map(|(role, it)| GroupFacts { role: *role, plan: &it.plan, ready: it.ready })
    }

    /// What is shown of them.
    pub fn snapshots(&self) -> Vec<ServiceSnapshot> {
        self.groups.values().map(|group| group.snapshot.clone()).collect()
    }

    /// What their pools have to remark.
    pub fn pool_remarks(&self) -> impl Iterator<Item = &String> {
        self.groups.values().flat_map(|group| &group.pool_remarks)
    }

    /// While another controller leads, every size is its.
    pub fn forget_writes(&mut self) {
        self.groups.values_mut().for_each(|group| group.memory.forget_writes());
    }
}

impl Past {
    /// Takes note of what a worker group costs with what a plan asks for, and with what its pools
    /// have been asked for and have not answered.
    pub(super) fn note_cost(
        &mut self,
        policy: &FleetPolicy,
        role: Role,
        pools: &[PoolView],
        plan: Option<&ScalePlan>,
    ) {
        let acting = self.acting.get(&role);
        let under_way = |pool: &PoolName| acting.map_or(0, |acting| acting.raised_to(pool));
        let planned = |pool: &PoolName| plan.and_then(|plan| plan.raises(pool)).unwrap_or(0);
        let raised_to = |pool: &PoolName| under_way(pool).max(planned(pool));
        self.services.costs.note(policy, role, pools, raised_to);
    }
}

impl Autoscaler {
    /// Sizes every service that the policy has, beside rollouts of which this was seen and planned.
    pub(super) async fn size_services(
        &mut self,
        turn: &Turn<'_>,
        (rollouts, plan): (&Observation, &ScalePlan),
        past: &mut Past,
    ) {
        let policy = turn.policy;
        // What nobody orders does not come, and is not paid.
        let is_ordered = turn.why_held(Role::Rollout).is_none();
        let of_rollouts = SizingTerms::from(&**policy);
        past.note_cost(policy, Role::Rollout, &rollouts.pools, Some(plan).filter(|_| is_ordered));
        let readings = self.signals.readings();
        for role in Role::SERVICES {
            let Some(terms) = SizingTerms::of_role(policy, role) else {
                self.forget_service(role, past);
                continue;
            };
            let view = plan.outlook(rollouts, &of_rollouts, is_ordered, role);
            let mut seen = build(turn.reads, rollouts, role, readings.get(&role), view);
            past.services.costs.tell(policy, role, &mut seen);
            self.size_service(&terms, seen, turn, past).await;
        }
    }

    /// The policy has no such group any more. What it was asked for is still answered; all else is
    /// forgotten.
    fn forget_service(&self, role: Role, past: &mut Past) {
        past.services.groups.remove(&role);
        past.services.costs.forget(role);
        past.protection.remove(&role);
        self.metrics.forget(role);
        let Some(acting) = past.acting.get_mut(&role) else { return };
        for (order, result) in acting.take_answers().answered {
            past.retired.note(&order.action, result.is_ok());
        }
        if acting.is_idle() {
            past.acting.remove(&role);
        }
    }

    async fn size_service(
        &mut self,
        terms: &SizingTerms,
        observation: Observation,
        turn: &Turn<'_>,
        past: &mut Past,
    ) {
        let (role, policy) = (terms.role, turn.policy);
        let before = past.services.groups.remove(&role);
        let is_first = before.is_none();
        let memory = before.map(|group| group.memory).unwrap_or_default();
        let mut plan = plan_scale(terms, &observation, &memory);
        self.metrics.show(policy, terms, &observation, &plan);
        let states = by_state(&observation, terms.nodes_per_replica);
        let observed = summarize(&observation, &plan, &states);
        let held = turn.why_held(role);
        let ordered = Some(&plan).filter(|_| held.is_none());
        past.note_cost(policy, role, &observation.pools, ordered);
        let why_held = held.as_ref().map(|held| held.why.clone());
        let reasons: Vec<String> = plan.reasons.iter().map(ToString::to_string).collect();
        let group = Group {
            memory: std::mem::take(&mut plan.memory),
            ready: ready_replicas(&observation, terms.nodes_per_replica),
            snapshot: ServiceSnapshot {
                role,
                waiting: observation.ready.known().copied(),
                in_flight: observation.in_flight.known().copied(),
                running: plan.running,
                desired: plan.desired,
                replicas: states,
                actions: plan.actions.iter().map(ToString::to_string).collect(),
                reasons: reasons.clone(),
                held: why_held.clone(),
            },
            pool_remarks: pool_remarks::gather(&observation.pools),
            plan: plan.clone(),
        };
        past.services.groups.insert(role, group);
        let planned = Planned { role, plan: &plan, observation: &observation, held };
        let Carried { actions, answered } = self.carry_out(planned, turn, past).await;
        let record = Record {
            is_first,
            role,
            mode: policy.mode.as_str().to_owned(),
            generation: turn.generation(),
            running: plan.running,
            wish: plan.wish,
            desired: plan.desired,
            actions,
            answered,
            reasons,
            bottleneck: String::new(),
            held: why_held,
            trainer: None,
            observation,
        };
        self.journal.record(&record, &observed, &self.queue).await;
    }
}

/// Replicas that work; none while that is unknown.
pub(super) fn ready_replicas(observation: &Observation, nodes_per_replica: u16) -> Option<u64> {
    let states = observation.replicas_by_state(nodes_per_replica)?;
    Some(states.get(&ReplicaState::Ready).copied().unwrap_or(0))
}
