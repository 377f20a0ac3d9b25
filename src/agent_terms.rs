//! From a fleet policy to the terms of an agent.

use ebbtide_agent::{AgentConfig, DrainTerms, LeaseTerms};
use ebbtide_core::policy::FleetPolicy;
use ebbtide_queue::command::ProgressLimits;

/// Sets what the policy says about leases, drains and concurrency.
pub fn apply(policy: &FleetPolicy, config: &mut AgentConfig) {
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
    };
    config.concurrency_per_engine = policy.rollout.concurrency_per_replica as usize;
}
