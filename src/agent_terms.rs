//! From a fleet policy to the terms of an agent.

use ebbtide_agent::{AgentConfig, DrainTerms, LeaseTerms, NodePrice};
use ebbtide_core::policy::{FleetPolicy, Pool};
use ebbtide_queue::command::ProgressLimits;

/// Sets what the policy says about leases, drains and concurrency, for the role that `config` has.
pub fn apply(policy: &FleetPolicy, config: &mut AgentConfig) {
    let mut pools = config.role.sized().into_iter().flat_map(|role| policy.pools_of(role));
    config.lease = LeaseTerms {
        ttl: policy.queue.lease,
        renew_every: policy.queue.renew_every,
        progress: ProgressLimits {
            idle: policy.queue.progress_limit,
            environment: policy.queue.environment_wait_limit,
            engine_pause: policy.queue.pause_limit,
        },
    };
    config.drain = DrainTerms {
        reserve: policy.drain.reserve,
        request_deadline: policy.drain.request_deadline,
        asg_deadline: policy.drain.asg_deadline,
        rebalance: policy.drain.rebalance,
        rebalance_ttl: policy.drain.rebalance_ttl,
        maintenance_lead: policy.drain.maintenance_lead,
        leave_degraded: policy.drain.leave_degraded,
        grace: policy.drain.grace,
        evict: policy.drain.evict,
        sizing_takes_pods: pools.any(|pool| pool.provider.kind().takes_pods()),
        on_blocked_eviction: policy.drain.on_blocked_eviction,
    };
    config.delete_wedged_engine_after = policy.rollout.delete_wedged_engine_after;
    config.weights.max_lag = u64::from(policy.staleness.max_lag);
    let price = |pool: &Pool| {
        Some(NodePrice {
            instance_type: pool.instance_type.as_ref().map(ToString::to_string),
            zone: pool.zone.as_ref().map(ToString::to_string),
            market: pool.market,
            dollars_per_hour: pool.dollars_per_node_hour?,
        })
    };
    config.prices = policy.pools.iter().filter_map(price).collect();
    config.concurrency_per_engine = policy.rollout.concurrency_per_replica as usize;
}
