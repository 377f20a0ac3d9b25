//! Documents whose keys contradict each other, as tables: the tests here read them, and a test on a
//! real API server asks whether it refuses them, too.

/// The shortest policy there is; everything else is a default.
pub const SHORTEST: &str = "\
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata:
  name: demo
spec:
  trainer:
    groupsPerStep: 32
    groupSize: 8
  rollout:
    maxReplicas: 6
    pools: [here]
  pools:
    - name: here
      provider: local
      market: spot
      maxNodes: 6
";

/// Two more pools, for roles of their own.
pub const POOLS: &str = "    - name: fixed
      provider: local
      market: onDemand
      maxNodes: 4
      dollarsPerNodeHour: 60
    - name: cheap
      provider: local
      market: spot
      maxNodes: 3
";

/// What is added to the policy, and what is said about it.
pub const CONTRADICTIONS: &[(&str, &str)] = &[
    (
        "  queue: { lease: 10s, renewEvery: 6s }",
        "spec.queue.renewEvery must be at most 5s, half of spec.queue.lease, so that one lost \
         renewal loses no lease, got 6s (p.yaml:26:36)",
    ),
    (
        "  queue: { lease: 2m, progressLimit: 60s }",
        "spec.queue.progressLimit must be at least spec.queue.lease (2m), got 1m \
             (p.yaml:26:38)",
    ),
    (
        "  queue: { maxLeased: 10s }",
        "spec.queue.maxLeased must be at least spec.queue.lease (15s), got 10s (p.yaml:26:23)",
    ),
    (
        "  queue: { stages: [reward] }",
        "spec.queue.stages must be [generate] or [generate, reward] (p.yaml:26:20)",
    ),
    (
        "  queue: { stages: [generate, reward] }",
        "spec.queue.stages has reward, which needs a spec.reward section (p.yaml:26:20)",
    ),
    (
        "  reward: { maxReplicas: 2, pools: [cheap], itemsPerReplica: 8 }",
        "spec.reward needs the stage: spec.queue.stages must be [generate, reward]; or a signal \
         (p.yaml:26:3)",
    ),
    (
        "  environment: { maxReplicas: 2, pools: [cheap], itemsPerReplica: 8,
    signal: { redisList: { key: a }, sqs: { queueUrl: 'http://sqs/1/a' } } }",
        "spec.environment.signal.sqs is one source too many beside redisList (p.yaml:27:38)",
    ),
    (
        "  environment: { maxReplicas: 2, pools: [cheap], itemsPerReplica: 8,
    signal: {} }",
        "spec.environment.signal.redisList is required, or redisStream, sqs or prometheus \
         (p.yaml:27:5)",
    ),
    (
        "  queue: { onDeadSlot: shrink }",
        "spec.queue.minSamples is required with onDeadSlot: shrink (p.yaml:26:3)",
    ),
    (
        "  queue: { minSamples: 4 }",
        "spec.queue.minSamples is for onDeadSlot: shrink only, got fail (p.yaml:26:24)",
    ),
    (
        "  queue: { onDeadSlot: shrink, minSamples: 9 }",
        "spec.queue.minSamples must be at most spec.trainer.groupSize (8), got 9 \
         (p.yaml:26:44)",
    ),
    (
        "  drain: { reserve: 4s, grace: 5s }",
        "spec.drain.grace must be at most spec.drain.reserve (4s), got 5s (p.yaml:26:32)",
    ),
    (
        "  drain: { requestDeadline: 9s }",
        "spec.drain.requestDeadline must be more than spec.drain.reserve (10s), got 9s \
         (p.yaml:26:29)",
    ),
    (
        "  environment: { minReplicas: 3, maxReplicas: 2, pools: [cheap], itemsPerReplica: 1 }",
        "spec.environment.minReplicas must be at most spec.environment.maxReplicas (2), got 3 \
         (p.yaml:26:31)",
    ),
    (
        "  environment: { maxReplicas: 4, pools: [cheap], itemsPerReplica: 1 }",
        "spec.environment.maxReplicas must be at most 3, which is what its pools hold, got 4 \
         (p.yaml:26:31)",
    ),
    (
        "  buffer: { pool: cheap }",
        "spec.buffer.pool must name a pool of market onDemand, got \"cheap\" on Spot: the \
         buffer holds work that is finished and paid for, and losing its node loses all of it \
         (p.yaml:26:19)",
    ),
    (
        "  buffer: { market: spot }",
        "spec.buffer.market must be onDemand, got spot: the buffer holds work that is finished \
         and paid for, and losing its node loses all of it (p.yaml:26:21)",
    ),
    (
        "  buffer: { pool: fixd }",
        "spec.buffer.pool names a pool that spec.pools does not define, got \"fixd\"; did you \
         mean fixed? (p.yaml:26:19)",
    ),
    (
        "  environment: { maxReplicas: 1, pools: [here], itemsPerReplica: 1 }",
        "spec.environment.pools[0] must name a pool of its own, got \"here\" as in \
         spec.rollout.pools[0] (p.yaml:26:42)",
    ),
    (
        "    - { name: block, provider: local, market: spot, maxNodes: 2,
        reservation: { id: cr-0a, endsAt: 2026-12-24T18:00:00Z } }",
        "spec.pools[3].reservation is for market: onDemand only, got spot (p.yaml:27:9)",
    ),
    (
        "    - { name: block, provider: local, market: onDemand, maxNodes: 2,
        reservation: { id: cr-0a, startsAt: 2026-12-24T17:30:00Z, endsAt: 2026-12-24T18:00:00Z } }",
        "spec.pools[3].reservation.endsAt must leave time to work in after startsAt \
         (2026-12-24T17:30:00Z) (p.yaml:27:75)",
    ),
    (
        "    - { name: block, provider: local, market: onDemand, maxNodes: 2,
        reservation: { id: block, endsAt: 2026-12-24T18:00:00Z } }",
        "spec.pools[3].reservation.id must match cr-[0-9a-f]{1,32}, got \"block\" (p.yaml:27:28)",
    ),
    (
        "  budget: { dollarsPerHour: 10 }",
        "spec.budget.dollarsPerHour needs the dollarsPerNodeHour of every pool in use, \
         missing: here (p.yaml:26:29)",
    ),
];

/// What is replaced by what, and what is said about it.
pub const SIZES: &[(&str, &str, &str)] = &[
    (
        "maxReplicas: 6",
        "nodesPerReplica: 8\n    maxReplicas: 6",
        "spec.rollout.nodesPerReplica must be at most 6, the maxNodes of pool \"here\", got 8 \
         (p.yaml:10:22)",
    ),
    (
        "maxReplicas: 6",
        "nodesPerReplica: 4\n    maxReplicas: 2",
        "spec.rollout.maxReplicas must be at most 1, which is what its pools hold, got 2 \
         (p.yaml:11:18)",
    ),
    (
        "maxReplicas: 6",
        "minReplicas: 7\n    maxReplicas: 6",
        "spec.rollout.minReplicas must be at most spec.rollout.maxReplicas (6), got 7 \
         (p.yaml:10:18)",
    ),
    (
        "maxReplicas: 6",
        "bufferTargetSteps: 2.5\n    maxReplicas: 6",
        "spec.rollout.bufferTargetSteps must be at most 2, one more than \
         spec.staleness.maxLag: what stands behind that is too old when the trainer takes it, \
         got 2.5 (p.yaml:10:24)",
    ),
    (
        "maxReplicas: 6",
        "bufferMaxSteps: 0.5\n    maxReplicas: 6",
        "spec.rollout.bufferMaxSteps must be at least spec.rollout.bufferTargetSteps (1), got \
         0.5 (p.yaml:10:21)",
    ),
    (
        "pools: [here]",
        "pools: [here, here]",
        "spec.rollout.pools[1] must name a pool of its own, got \"here\" as in \
         spec.rollout.pools[0] (p.yaml:11:19)",
    ),
    (
        "groupSize: 8",
        "groupSize: 8\n    pool: cheap",
        "spec.trainer.pool must name a pool of market onDemand, got \"cheap\" on Spot: the \
         trainer is one synchronised gang, and losing one of its nodes stops every update \
         (p.yaml:9:11)",
    ),
    (
        "groupSize: 8",
        "groupSize: 8\n    market: spot",
        "spec.trainer.market must be onDemand, got spot: the trainer is one synchronised gang, \
         and losing one of its nodes stops every update (p.yaml:9:13)",
    ),
    (
        "groupSize: 8",
        "groupSize: 8\n    legalSizes: [2]",
        "spec.trainer.legalSizes needs spec.trainer.pool: without a pool nobody can resize the \
         trainer (p.yaml:9:17)",
    ),
    (
        "groupSize: 8",
        "groupSize: 8\n    pool: fixed\n    legalSizes: [2, 8]",
        "spec.trainer.legalSizes[1] must be at most 4, the maxNodes of pool \"fixed\", got 8 \
         (p.yaml:10:21)",
    ),
    (
        "groupSize: 8",
        "groupSize: 8\n    pool: fixed\n    legalSizes: [2, 4, 4]",
        "spec.trainer.legalSizes[2] must be more than the size before it (4), got 4 \
         (p.yaml:10:24)",
    ),
];

/// A second pool, and what is said about it.
pub const SECOND_POOLS: &[(&str, &str)] = &[
    (
        "name: here, provider: local, market: spot, maxNodes: 6",
        "spec.pools[1].name must be unique, got \"here\" as in spec.pools[0] (p.yaml:17:15)",
    ),
    (
        "name: b, provider: asg, market: spot, maxNodes: 6, instanceType: p5.48xlarge",
        "spec.pools[1].autoScalingGroup is required with provider: asg (p.yaml:17:7)",
    ),
    (
        "name: b, provider: asg, market: spot, maxNodes: 6, autoScalingGroup: g",
        "spec.pools[1].instanceType is required with provider: asg (p.yaml:17:7)",
    ),
    (
        "name: b, provider: local, market: spot, maxNodes: 6, autoScalingGroup: g",
        "spec.pools[1].autoScalingGroup is for provider: asg only, got local (p.yaml:17:80)",
    ),
    (
        "name: b, provider: fleet, market: spot, maxNodes: 6, instanceType: p5.48xlarge, \
         fleet: { launchTemplate: rollout }",
        "spec.pools[1].zone is required with provider: fleet, which buys in one zone \
         (p.yaml:17:7)",
    ),
    (
        "name: b, provider: scale, market: spot, maxNodes: 6",
        "spec.pools[1].scale is required with this provider (p.yaml:17:7)",
    ),
    (
        "name: b, provider: scale, market: spot, maxNodes: 6, scale: { kind: Pod, name: p }",
        "spec.pools[1].scale.kind must be StatefulSet, LeaderWorkerSet or Deployment, got Pod \
         (p.yaml:17:77)",
    ),
    (
        "name: b, provider: scale, market: spot, maxNodes: 6, \
         scale: { kind: Deployment, name: P_1 }",
        "spec.pools[1].scale.name must match [a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?, got \
         \"P_1\" (p.yaml:17:95)",
    ),
    (
        "name: b, provider: local, market: spot, maxNodes: 6, workers: { template: ep }",
        "spec.pools[1].workers is for provider: workers only, got local (p.yaml:17:62)",
    ),
    (
        "name: b, provider: workers, market: spot, maxNodes: 6, workers: {}",
        "spec.pools[1].workers.template is required (p.yaml:17:64)",
    ),
];
