//! From raw reads to one [`Observation`].
//!
//! Reads happen side by side, each with its own time limit; one that fails makes its signals
//! unknown and leaves the others alone. What follows from the reads is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::observation::{
    InstanceId, NodeView, Observation, PoolView, ReplicaState, ReplicaView, Signal,
};
use ebbtide_core::policy::{FleetPolicy, Pool, PoolName};
use ebbtide_core::scale::{Role, SILENCE_LIMIT};
use ebbtide_core::time::{UnixMillis, whole_millis};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{self, ControlView, NodeRecord};
use ebbtide_queue::status::ShardStatus;
use tokio::time::Instant;

use crate::capacity::{Capacity, LOOK_LIMIT, unread};

mod others;
mod replicas;
pub(crate) mod services;
mod trainer;

pub(crate) use self::trainer::TRAINER_SILENCE_LIMIT;

/// Longest time that the reads of the queue may take together: twice the limit of one call.
const QUEUE_LIMIT: Duration = Duration::from_secs(4);

/// Longest time that the reads of all providers may take together, which look side by side.
const CAPACITY_LIMIT: Duration = LOOK_LIMIT.saturating_add(Duration::from_secs(1));

/// What was read at one tick.
pub struct Reads {
    /// For how long the records have been read without a failure: silence before that is not a
    /// node's, it may be the queue's or this controller's own.
    pub watched_for: Duration,
    /// Depths and counts of all shards, or why they are unknown.
    pub status: Result<ShardStatus, String>,
    /// The records of agents and trainer, or why they are unknown.
    pub view: Result<ControlView, String>,
    /// The pools of the rollout group as their providers show them.
    pub pools: Vec<PoolView>,
    /// Those of the services.
    pub service_pools: BTreeMap<Role, Vec<PoolView>>,
    /// The trainer's pool, where its size is ours to change.
    pub trainer_pool: Option<PoolView>,
    /// Instances that their provider says are gone, among those of silent nodes.
    pub gone: BTreeSet<InstanceId>,
    /// What could not be read, in words.
    pub problems: Vec<String>,
}

impl Reads {
    /// The pools of the services, each with the price of its nodes.
    pub(crate) fn priced_services(&self, policy: &FleetPolicy) -> Vec<(Option<f64>, &PoolView)> {
        let price = |view: &PoolView| policy.pool(&view.name)?.dollars_per_node_hour;
        self.service_pools.values().flatten().map(|view| (price(view), view)).collect()
    }

    /// The pools of one worker group.
    pub(crate) fn pools_of(&self, role: Role) -> &[PoolView] {
        match role {
            Role::Rollout => &self.pools,
            service => self.service_pools.get(&service).map_or(&[], Vec::as_slice),
        }
    }
}

/// Reads everything that a tick needs. `watched_since` is since when the records have been read
/// without a failure.
pub async fn read(
    queue: &WorkQueue,
    capacity: &dyn Capacity,
    policy: &FleetPolicy,
    watched_since: Instant,
) -> Reads {
    let trainer = policy.resized_trainer_pool();
    let used: Vec<&Pool> = policy.sized_pools().chain(trainer).collect();
    let (status, view, mut pools) =
        tokio::join!(read_status(queue), read_view(queue), read_pools(capacity, &used));
    let mut problems: Vec<String> =
        [status.as_ref().err(), view.as_ref().err()].into_iter().flatten().cloned().collect();
    for pool in &pools {
        if let Some(why) = pool.size.why_unknown() {
            problems.push(format!("pool {}: {why}", pool.name));
        }
    }
    problems.dedup();
    let suspects = view.as_ref().map(|view| suspects(view, &pools)).unwrap_or_default();
    let gone = find_gone(capacity, &used, &suspects, &mut problems).await;
    let mut service_pools = BTreeMap::new();
    for role in Role::SERVICES {
        let names: BTreeSet<&PoolName> = policy.pools_of(role).map(|pool| &pool.name).collect();
        let (own, others) = pools.into_iter().partition(|view| names.contains(&view.name));
        pools = others;
        service_pools.insert(role, own);
    }
    let place = pools.iter().position(|view| trainer.is_some_and(|pool| pool.name == view.name));
    let trainer_pool = place.map(|place| pools.remove(place));
    // In whole milliseconds, as the journal has it.
    let watched_for = Duration::from_millis(whole_millis(watched_since.elapsed()));
    Reads { watched_for, status, view, pools, service_pools, trainer_pool, gone, problems }
}

async fn read_status(queue: &WorkQueue) -> Result<ShardStatus, String> {
    let status = tokio::time::timeout(QUEUE_LIMIT, queue.status()).await;
    let gathered = status.map_err(|_| format!("queue gave no status within {QUEUE_LIMIT:?}"))?;
    // A sum that lacks a shard would be too small, which is worse than none.
    let shards = gathered.complete().map_err(|error| error.to_string())?;
    Ok(ShardStatus::sum(shards))
}

async fn read_view(queue: &WorkQueue) -> Result<ControlView, String> {
    let view = tokio::time::timeout(QUEUE_LIMIT, queue.view()).await;
    let view = view.map_err(|_| format!("queue gave no records within {QUEUE_LIMIT:?}"))?;
    view.map_err(|error| error.to_string())
}

async fn read_pools(capacity: &dyn Capacity, pools: &[&Pool]) -> Vec<PoolView> {
    match tokio::time::timeout(CAPACITY_LIMIT, capacity.observe(pools)).await {
        Ok(views) => views,
        Err(_) => unread(pools, &format!("no answer within {CAPACITY_LIMIT:?}")),
    }
}

/// Instances of silent nodes that no pool shows.
fn suspects(view: &ControlView, pools: &[PoolView]) -> Vec<InstanceId> {
    let sizes = pools.iter().filter_map(|pool| pool.size.known());
    let shown: BTreeSet<&str> =
        sizes.flat_map(|size| &size.instances).map(|instance| instance.id.0.as_str()).collect();
    let silent = view.nodes.iter().filter(|node| view.now.since(node.heartbeat) > SILENCE_LIMIT);
    let instances = silent.filter_map(|node| node.instance_id.clone());
    instances.filter(|id| !shown.contains(id.as_str())).map(InstanceId).collect()
}

async fn find_gone(
    capacity: &dyn Capacity,
    used: &[&Pool],
    suspects: &[InstanceId],
    problems: &mut Vec<String>,
) -> BTreeSet<InstanceId> {
    if suspects.is_empty() {
        return BTreeSet::new();
    }
    match tokio::time::timeout(CAPACITY_LIMIT, capacity.find_gone(used, suspects)).await {
        Ok(Ok(gone)) => gone,
        Ok(Err(error)) => {
            problems.push(error.to_string());
            BTreeSet::new()
        }
        Err(_) => {
            problems.push(format!("provider did not say what is gone within {CAPACITY_LIMIT:?}"));
            BTreeSet::new()
        }
    }
}

/// Puts what was read together, as of `now` on the controller's clock.
pub fn build(reads: &Reads, nodes_per_replica: u16, now: UnixMillis) -> Observation {
    let of_status = |pick: fn(&ShardStatus) -> u64| match &reads.status {
        Ok(status) => Signal::fresh(pick(status)),
        Err(why) => Signal::unknown(why.clone()),
    };
    let oldest = match &reads.status {
        Ok(status) => {
            Signal::fresh(status.oldest_ready_at.map_or(Duration::ZERO, |at| status.now.since(at)))
        }
        Err(why) => Signal::unknown(why.clone()),
    };
    let environment = match &reads.view {
        Ok(view) => {
            let waiting = view.nodes.iter().filter_map(|node| node.environment_waiting);
            Signal::fresh(waiting.map(u64::from).sum())
        }
        Err(why) => Signal::unknown(why.clone()),
    };
    let (trainer, policy_version, replicas) = match &reads.view {
        Ok(view) => (
            trainer::signal(view),
            Signal::Known {
                value: view.version.version,
                age: view.now.since(view.version.published_at),
            },
            Signal::fresh(replicas::gather(view, reads, Role::Rollout, nodes_per_replica)),
        ),
        Err(why) => (
            Signal::unknown(why.clone()),
            Signal::unknown(why.clone()),
            Signal::unknown(why.clone()),
        ),
    };
    Observation {
        now,
        ready: of_status(|status| status.ready),
        in_flight: of_status(|status| status.leased),
        environment_waiting: environment,
        reward_ready: of_status(|status| status.reward_ready),
        reward_in_flight: of_status(|status| status.reward_leased),
        completed: of_status(|status| status.completed),
        buffer_groups: of_status(|status| status.sealed_waiting),
        buffer_taken: of_status(|status| status.sealed_taken),
        oldest_ready_age: oldest,
        trainer,
        trainer_resize: reads.view.as_ref().ok().and_then(trainer::resize),
        trainer_resize_ended: reads.view.as_ref().ok().and_then(trainer::ended),
        trainer_pool: reads.trainer_pool.clone(),
        policy_version,
        replicas,
        pools: reads.pools.clone(),
        others_at_work: others::gather(reads, Role::Rollout),
        gone: reads.gone.clone(),
        others_dollars_per_hour: None,
        is_cost_of_others_unknown: false,
        service: None,
    }
}

/// Replicas by state, in the words of metrics and journals; none while they are unknown.
pub(crate) fn by_state(
    observation: &Observation,
    nodes_per_replica: u16,
) -> BTreeMap<&'static str, u64> {
    let states = observation.replicas_by_state(nodes_per_replica);
    states.into_iter().flatten().map(|(state, count)| (state.as_str(), count)).collect()
}
