//! The way out: whom to drain, when a drained replica may be terminated, what may be forgotten.
//!
//! A replica is terminated only when its agents reported `drained`, or when they are silent and
//! its leases are gone; never while it has an AWS notice, and never when its leases are unknown.
//! Services may work without leases: there silence must have lasted for as long as a drain may
//! take.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arrivals::Late;
use super::census::Census;
use super::plan::Action;
use super::reason::{CapacityReason, Reason};
use super::removal::{Removal, is_asked, is_free};
use super::terms::SizingTerms;
use crate::ids::{NodeName, ReplicaId};
use crate::observation::{
    DrainPurpose, DrainStage, DrainView, InstanceId, NodeView, Observation, PoolSize, ReplicaState,
    ReplicaView,
};
use crate::policy::{Market, PoolName};

/// A heartbeat older than this makes a node unknown (contract of agents and controller).
pub const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// Follows up the drains that sizing asked for.
pub(super) fn retire_drained(
    census: &Census<'_>,
    actions: &mut Vec<Action>,
    reasons: &mut Vec<Reason>,
) {
    let order = Removal::new(census, |replica| is_free(census, replica));
    for replica in in_turn(census, &order) {
        let Some(drain) = &replica.drain else { continue };
        let instances = census.counted_instances(replica);
        if drain.purpose != DrainPurpose::Sizing || instances.is_empty() {
            continue;
        }
        if replica.has_notice {
            reasons.push(Reason::LeftToAws { replica: replica.id.clone() });
            continue;
        }
        if !census.is_drained(replica) {
            if replica.silence() > SILENCE_LIMIT {
                let remaining = census.silence_limit.saturating_sub(replica.silence());
                reasons.push(Reason::WaitsForAgent { replica: replica.id.clone(), remaining });
            }
            continue;
        }
        if replica.leased.known() != Some(&0) {
            reasons.push(Reason::WaitsForLeases { replica: replica.id.clone() });
            continue;
        }
        if !order.may_go(replica) {
            reasons.push(Reason::WaitsForTurn { replica: replica.id.clone() });
            continue;
        }
        if let Some(pool) = &replica.pool {
            actions.push(Action::Retire {
                replica: replica.id.clone(),
                request_id: drain.request_id.clone(),
                pool: pool.clone(),
                instances,
            });
        }
    }
}

/// Terminates instances that never became nodes: nobody drains there, and nobody holds anything.
pub(super) fn discard_unjoined(
    terms: &SizingTerms,
    census: &Census<'_>,
    late: &BTreeMap<PoolName, Late>,
    actions: &mut Vec<Action>,
    reasons: &mut Vec<Reason>,
) {
    let mut left = at(terms.max_changes_per_tick);
    for pool in &census.pools {
        let Some(late) = late.get(&pool.terms.name).filter(|late| late.unjoined() > 0) else {
            continue;
        };
        let (pool_size, spare) = (pool.size, at(pool.spare_nodes));
        let pool = pool.terms.name.clone();
        let count = |ids: &[InstanceId]| u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if !late.strangers.is_empty() {
            let (pool, instances) = (pool.clone(), count(&late.strangers));
            reasons.push(CapacityReason::Strangers { pool, instances }.into());
        }
        if late.never_joined.is_empty() {
            continue;
        }
        let instances = count(&late.never_joined);
        reasons.push(CapacityReason::NeverJoined { pool: pool.clone(), instances }.into());
        let mut instances: Vec<InstanceId> = Vec::new();
        for change in changes(pool_size, &late.never_joined) {
            if left > 0 && instances.len() + change.len() <= spare {
                left -= 1;
                instances.extend(change);
            }
        }
        if !instances.is_empty() {
            actions.push(Action::Discard { pool, instances });
        }
    }
}

/// What of these instances can go in one change each: a single one, or a group of which no node
/// has joined. Where some have, that group is judged as a replica that lacks nodes.
fn changes(size: &PoolSize, unjoined: &[InstanceId]) -> Vec<Vec<InstanceId>> {
    let unjoined: BTreeSet<&InstanceId> = unjoined.iter().collect();
    let mut members = BTreeMap::<&str, Vec<InstanceId>>::new();
    let mut singles = Vec::new();
    for instance in size.counted() {
        match &instance.group {
            Some(group) => members.entry(group).or_default().push(instance.id.clone()),
            None if unjoined.contains(&instance.id) => singles.push(vec![instance.id.clone()]),
            None => {}
        }
    }
    let is_whole = |group: &Vec<InstanceId>| group.iter().all(|id| unjoined.contains(id));
    singles.into_iter().chain(members.into_values().filter(is_whole)).collect()
}

fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The replicas, those that go first in their pools before the others.
fn in_turn<'a>(census: &Census<'a>, order: &Removal<'a>) -> Vec<&'a ReplicaView> {
    let mut replicas: Vec<&ReplicaView> = census.replicas.iter().collect();
    replicas.sort_by_cached_key(|replica| order.lateness(replica));
    replicas
}

/// Removes the records of nodes that are gone: confirmed by the provider, silent, without leases.
/// Once all nodes that a drain was about are gone, it is over: the others of the replica may work
/// again, with whatever takes the place of the lost ones.
pub(super) fn forget_gone(
    census: &Census<'_>,
    observation: &Observation,
    actions: &mut Vec<Action>,
) {
    for replica in census.replicas {
        if replica.leased.known() != Some(&0) {
            continue;
        }
        let is_gone = |node: &&NodeView| {
            node.heartbeat_age > SILENCE_LIMIT
                && node.instance.as_ref().is_some_and(|id| observation.gone.contains(id))
        };
        let gone: Vec<_> = replica.nodes.iter().filter(is_gone).collect();
        if !gone.is_empty() {
            let is_left = |name: &NodeName| {
                let left = replica.nodes.iter().filter(|node| !gone.contains(node));
                left.into_iter().any(|node| node.name == *name)
            };
            let lost = replica.drain.as_ref().map_or(&[][..], |drain| &drain.lost);
            let ends_drain = !lost.is_empty() && !lost.iter().any(is_left);
            actions.push(Action::Forget {
                replica: replica.id.clone(),
                nodes: gone.iter().map(|node| node.name.clone()).collect(),
                ends_drain: ends_drain || gone.len() == replica.nodes.len(),
            });
        }
    }
}

/// Chooses up to `wanted` replicas to drain: idle ones first, then those that AWS advised to
/// leave, then the least loaded; among equals the earliest in their life, on-demand before Spot,
/// the least preferred pool first. Only those go that `may_go`, none before those that its provider
/// would take first, and no pool goes below its provider's own least size.
pub(super) fn choose_victims<'a>(
    terms: &SizingTerms,
    census: &Census<'a>,
    wanted: u32,
    may_go: impl Fn(&ReplicaView) -> bool,
) -> Vec<&'a ReplicaView> {
    let mut candidates: Vec<&ReplicaView> = census
        .replicas
        .iter()
        .filter(|replica| may_leave(census, replica) && may_go(replica))
        .collect();
    candidates.sort_by_cached_key(|replica| {
        let load = replica.leased.known().copied().unwrap_or(0).max(replica.in_flight.into());
        let market = market_of(terms, replica);
        let rank = std::cmp::Reverse(census.rank(replica.pool.as_ref()));
        let is_kept_market = market == Some(Market::Spot);
        (load > 0, !replica.is_advised, load, replica.state, is_kept_market, rank, &replica.id)
    });
    let mut spare: Vec<u32> = census.pools.iter().map(|pool| pool.spare).collect();
    let wanted = at(wanted);
    let mut order = Removal::new(census, is_asked);
    let mut victims = Vec::new();
    while victims.len() < wanted {
        let is_next = |replica: &&ReplicaView| {
            let spare = spare.get(census.rank(replica.pool.as_ref()));
            spare.is_some_and(|spare| *spare > 0) && order.may_go(replica)
        };
        let Some(next) = candidates.iter().position(is_next) else { break };
        let victim = candidates.remove(next);
        if let Some(spare) = spare.get_mut(census.rank(victim.pool.as_ref())) {
            *spare -= 1;
        }
        order.take(victim);
        victims.push(victim);
    }
    victims
}

fn market_of(terms: &SizingTerms, replica: &ReplicaView) -> Option<Market> {
    let pool = terms.pools.iter().find(|pool| Some(&pool.name) == replica.pool.as_ref());
    pool.map(|pool| pool.market).or(replica.market)
}

/// Whether sizing may ask the replica to drain. A silent one is not asked: it would not answer.
fn may_leave(census: &Census<'_>, replica: &ReplicaView) -> bool {
    let is_at_work = matches!(
        replica.state,
        ReplicaState::Starting
            | ReplicaState::Loading
            | ReplicaState::NotReady
            | ReplicaState::Ready
    );
    let is_free = is_at_work && replica.drain.is_none();
    let may_be_asked = is_free || passing_drain(replica).is_some();
    may_be_asked && !replica.has_notice && census.is_counted(replica)
}

/// The drain of a replica that AWS advised to leave and that would return to work by itself.
fn passing_drain(replica: &ReplicaView) -> Option<&DrainView> {
    let is_out = matches!(replica.state, ReplicaState::Draining | ReplicaState::Drained);
    let drain = replica.drain.as_ref()?;
    let passes = drain.purpose == DrainPurpose::Passing && drain.stage < DrainStage::Terminating;
    (replica.is_advised && is_out && passes).then_some(drain)
}

/// Takes back the passing drains of those that are asked to go for good: a drain that stands keeps
/// its reason.
pub(super) fn take_over_passing(census: &Census<'_>, actions: &mut Vec<Action>) {
    let asked = |id: &ReplicaId| {
        let replica = census.replicas.iter().find(|replica| replica.id == *id)?;
        Some(passing_drain(replica)?.request_id.clone())
    };
    let taken_over = std::mem::take(actions).into_iter().flat_map(|action| {
        let passing = match &action {
            Action::RequestDrain { replica, .. } => asked(replica)
                .map(|request_id| Action::CancelDrain { replica: replica.clone(), request_id }),
            _ => None,
        };
        passing.into_iter().chain([action])
    });
    actions.extend(taken_over);
}
