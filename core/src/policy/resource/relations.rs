//! What `rules` and `pool_rules` say, in the language of the cluster (CEL).
//!
//! Optional keys without a fixed default are asked for first (`has`). Durations can be added there
//! and not divided, which is why half of a lease is written as twice the renewal. That two pools
//! size the same object is left to the controller: comparing what they name costs more than a
//! cluster allows.

use serde_json::{Value, json};

use crate::policy::outline::Outline;

/// Rules of a mapping: its path, and each rule with what is said when it is broken.
type Rules = (&'static str, &'static [(&'static str, &'static str)]);

/// Whether every pool in use has a price.
macro_rules! all_priced {
    () => {
        "self.pools.all(p, has(p.dollarsPerNodeHour) || \
         !(p.name in self.rollout.pools || \
         (has(self.reward) && p.name in self.reward.pools) || \
         (has(self.environment) && p.name in self.environment.pools) || \
         (has(self.trainer.pool) && p.name == self.trainer.pool) || \
         (has(self.buffer.pool) && p.name == self.buffer.pool)))"
    };
}

const RELATIONS: &[Rules] = &[
    (
        "spec.queue",
        &[
            (
                "!has(self.renewEvery) || \
                 duration(self.renewEvery) + duration(self.renewEvery) <= duration(self.lease)",
                "renewEvery must be at most half of lease",
            ),
            (
                "!has(self.renewEvery) || duration(self.renewEvery) >= duration('100ms')",
                "renewEvery must be at least 100ms",
            ),
            (
                "!has(self.progressLimit) || \
                 duration(self.progressLimit) >= duration(self.lease)",
                "progressLimit must be at least lease",
            ),
            (
                "!has(self.maxLeased) || duration(self.maxLeased) >= duration(self.lease)",
                "maxLeased must be at least lease",
            ),
            (
                "self.stages == ['generate'] || self.stages == ['generate', 'reward']",
                "stages must be [generate] or [generate, reward]",
            ),
            (
                "(has(self.onDeadSlot) && self.onDeadSlot == 'shrink') == has(self.minSamples)",
                "minSamples is required with onDeadSlot: shrink, and for that only",
            ),
        ],
    ),
    (
        "spec.drain",
        &[
            (
                "!has(self.grace) || duration(self.grace) <= duration(self.reserve)",
                "grace must be at most reserve",
            ),
            (
                "duration(self.requestDeadline) > duration(self.reserve)",
                "requestDeadline must be more than reserve",
            ),
            (
                "duration(self.asgDeadline) > duration(self.reserve)",
                "asgDeadline must be more than reserve",
            ),
        ],
    ),
    (
        "spec.trainer",
        &[
            (
                "!has(self.market) || self.market == 'onDemand'",
                "the trainer's market must be onDemand",
            ),
            ("!has(self.legalSizes) || has(self.pool)", "legalSizes needs pool"),
            (
                "!has(self.legalSizes) || self.legalSizes.isSorted()",
                "each of legalSizes must be more than the one before it",
            ),
        ],
    ),
    (
        "spec.buffer",
        &[(
            "!has(self.market) || self.market == 'onDemand'",
            "the buffer's market must be onDemand",
        )],
    ),
    (
        "spec.rollout",
        &[
            (MIN_TO_MAX, MIN_TO_MAX_SAID),
            (
                "!has(self.bufferMaxSteps) || self.bufferTargetSteps <= self.bufferMaxSteps",
                "bufferMaxSteps must be at least bufferTargetSteps",
            ),
        ],
    ),
    ("spec.reward", &[(MIN_TO_MAX, MIN_TO_MAX_SAID)]),
    ("spec.environment", &[(MIN_TO_MAX, MIN_TO_MAX_SAID)]),
    ("spec.reward.signal", &[(ONE_SOURCE, ONE_SOURCE_SAID)]),
    ("spec.environment.signal", &[(ONE_SOURCE, ONE_SOURCE_SAID)]),
    (
        "spec.pools[]",
        &[
            (
                "(self.provider == 'asg') == has(self.autoScalingGroup)",
                "autoScalingGroup is required with provider: asg, and for that only",
            ),
            (
                "!(self.provider in ['asg', 'fleet']) || has(self.instanceType)",
                "instanceType is required with provider: asg or fleet",
            ),
            ("self.provider != 'fleet' || has(self.zone)", "zone is required with provider: fleet"),
            (
                "(self.provider == 'fleet') == has(self.fleet)",
                "fleet is required with provider: fleet, and for that only",
            ),
            (
                "(self.provider == 'scale') == has(self.scale)",
                "scale is required with provider: scale, and for that only",
            ),
            (
                "(self.provider == 'workers') == has(self.workers)",
                "workers is required with provider: workers, and for that only",
            ),
            (
                "!has(self.reservation) || self.market == 'onDemand'",
                "reservation is for market: onDemand only",
            ),
            (
                "!has(self.reservation) || !has(self.reservation.startsAt) || \
                 timestamp(self.reservation.startsAt) + \
                 duration(self.reservation.kind == 'onDemand' ? '0s' : '30m') < \
                 timestamp(self.reservation.endsAt)",
                "reservation.endsAt must leave time to work in after startsAt",
            ),
        ],
    ),
    (
        "spec",
        &[
            (
                "has(self.reward) ? 'reward' in self.queue.stages || has(self.reward.signal) : \
                 !('reward' in self.queue.stages)",
                "reward needs the stage reward in queue.stages, or a signal, and the stage needs \
                 reward",
            ),
            (
                "!has(self.queue.minSamples) || self.queue.minSamples <= self.trainer.groupSize",
                "queue.minSamples must be at most trainer.groupSize",
            ),
            (
                "self.rollout.bufferTargetSteps <= double(self.staleness.maxLag) + 1.0",
                "rollout.bufferTargetSteps must be at most one more than staleness.maxLag",
            ),
            (
                "!has(self.rollout.bufferMaxSteps) || \
                 self.rollout.bufferMaxSteps <= double(self.staleness.maxLag) + 1.0",
                "rollout.bufferMaxSteps must be at most one more than staleness.maxLag",
            ),
            (
                "self.pools.all(p, !has(p.autoScalingGroup) || self.pools.exists_one(q, \
                 has(q.autoScalingGroup) && q.autoScalingGroup == p.autoScalingGroup))",
                "an Auto Scaling group must belong to one pool",
            ),
            (
                "self.rollout.pools.all(n, self.pools.exists(p, p.name == n))",
                "rollout.pools must name pools that pools defines",
            ),
            (
                "!has(self.reward) || \
                 self.reward.pools.all(n, self.pools.exists(p, p.name == n))",
                "reward.pools must name pools that pools defines",
            ),
            (
                "!has(self.environment) || \
                 self.environment.pools.all(n, self.pools.exists(p, p.name == n))",
                "environment.pools must name pools that pools defines",
            ),
            (
                "!has(self.trainer.pool) || self.pools.exists(p, \
                 p.name == self.trainer.pool && p.market == 'onDemand')",
                "trainer.pool must name a pool of market onDemand that pools defines",
            ),
            (
                "!has(self.buffer.pool) || self.pools.exists(p, \
                 p.name == self.buffer.pool && p.market == 'onDemand')",
                "buffer.pool must name a pool of market onDemand that pools defines",
            ),
            (
                "self.rollout.pools.all(n, \
                 !(has(self.reward) && n in self.reward.pools) && \
                 !(has(self.environment) && n in self.environment.pools) && \
                 !(has(self.trainer.pool) && n == self.trainer.pool) && \
                 !(has(self.buffer.pool) && n == self.buffer.pool))",
                "a pool of rollout.pools must be of no other worker group",
            ),
            (
                "!has(self.reward) || self.reward.pools.all(n, \
                 !(has(self.environment) && n in self.environment.pools) && \
                 !(has(self.trainer.pool) && n == self.trainer.pool) && \
                 !(has(self.buffer.pool) && n == self.buffer.pool))",
                "a pool of reward.pools must be of no other worker group",
            ),
            (
                "!has(self.environment) || self.environment.pools.all(n, \
                 !(has(self.trainer.pool) && n == self.trainer.pool) && \
                 !(has(self.buffer.pool) && n == self.buffer.pool))",
                "a pool of environment.pools must be of no other worker group",
            ),
            (
                "!has(self.trainer.pool) || !has(self.buffer.pool) || \
                 self.trainer.pool != self.buffer.pool",
                "trainer.pool and buffer.pool must differ",
            ),
            (
                "self.pools.all(p, !(p.name in self.rollout.pools) || \
                 self.rollout.nodesPerReplica <= p.maxNodes)",
                "rollout.nodesPerReplica must be at most the maxNodes of each of its pools",
            ),
            (
                "self.rollout.maxReplicas <= self.pools.filter(p, p.name in self.rollout.pools)\
                 .map(p, p.maxNodes / self.rollout.nodesPerReplica).sum()",
                "rollout.maxReplicas must be at most what its pools hold",
            ),
            (
                "!has(self.reward) || self.reward.maxReplicas <= \
                 self.pools.filter(p, p.name in self.reward.pools).map(p, p.maxNodes).sum()",
                "reward.maxReplicas must be at most what its pools hold",
            ),
            (
                "!has(self.environment) || self.environment.maxReplicas <= \
                 self.pools.filter(p, p.name in self.environment.pools).map(p, p.maxNodes).sum()",
                "environment.maxReplicas must be at most what its pools hold",
            ),
            (
                "!has(self.trainer.legalSizes) || !has(self.trainer.pool) || \
                 self.pools.all(p, p.name != self.trainer.pool || \
                 self.trainer.legalSizes.all(n, n <= p.maxNodes))",
                "each of trainer.legalSizes must be at most the maxNodes of its pool",
            ),
            (
                concat!("!has(self.budget) || ", all_priced!()),
                "budget needs the dollarsPerNodeHour of every pool in use",
            ),
            (
                BUDGET,
                "budget.dollarsPerHour must be at least the cost of the smallest fleet allowed",
            ),
        ],
    ),
];

const ONE_SOURCE: &str = "[has(self.redisList), has(self.redisStream), has(self.sqs), \
    has(self.prometheus)].filter(is_given, is_given).size() == 1";
const ONE_SOURCE_SAID: &str = "signal must have one of redisList, redisStream, sqs, prometheus";

const MIN_TO_MAX: &str = "self.minReplicas <= self.maxReplicas";
const MIN_TO_MAX_SAID: &str = "minReplicas must be at most maxReplicas";

/// Every minimum in its cheapest pool, the smallest trainer, and all of the buffer. Where a price
/// is missing the rule before says so.
const BUDGET: &str = concat!(
    "!has(self.budget) || !(",
    all_priced!(),
    ") || \
    self.budget.dollarsPerHour >= \
    double(self.rollout.minReplicas * self.rollout.nodesPerReplica) * \
    self.pools.filter(p, p.name in self.rollout.pools).map(p, p.dollarsPerNodeHour).min() + \
    (has(self.reward) ? double(self.reward.minReplicas) * \
    self.pools.filter(p, p.name in self.reward.pools).map(p, p.dollarsPerNodeHour).min() : 0.0) + \
    (has(self.environment) ? double(self.environment.minReplicas) * \
    self.pools.filter(p, p.name in self.environment.pools).map(p, p.dollarsPerNodeHour).min() \
    : 0.0) + \
    (has(self.trainer.pool) && has(self.trainer.legalSizes) ? \
    double(self.trainer.legalSizes[0]) * self.pools.filter(p, p.name == self.trainer.pool)\
    .map(p, p.dollarsPerNodeHour).sum() : 0.0) + \
    (has(self.buffer.pool) ? self.pools.filter(p, p.name == self.buffer.pool)\
    .map(p, double(p.maxNodes) * p.dollarsPerNodeHour).sum() : 0.0)"
);

/// Adds the rules to what keys there are.
pub(super) fn add_to(outline: &mut Outline) {
    for (path, rules) in RELATIONS {
        let rules = rules.iter().map(|(rule, said)| json!({ "rule": rule, "message": said }));
        let rules: Vec<Value> = rules.collect();
        outline.at(path).insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
    }
    let pools = outline.at("spec.pools");
    pools.insert("x-kubernetes-list-type".to_owned(), json!("map"));
    pools.insert("x-kubernetes-list-map-keys".to_owned(), json!(["name"]));
}
