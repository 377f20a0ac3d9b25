//! Golden text: a policy in words.

use super::*;

#[test]
fn the_shortest_policy_in_words() {
    let expected = "\
run demo, mode observe: decisions are made and shown, no capacity is changed

trainer
  a step takes 32 groups × 8 samples = 256 samples
  on demand; its nodes are sized by somebody else

rollout
  1 to 6 replicas of 1 node, pools here
  up to 256 in flight on a replica, 1536 in all
  buffer target = 1 step = 32 groups = 256 samples
  buffer limit = 2 steps = 64 groups = 512 samples
  decides every 5s, at most 4 replicas at a time; starts take 5m until measured
  when more is needed it grows at once, when less after 5m

buffer
  in no pool of this policy, never scaled; alarm at 80 % of its memory

staleness
  tokens may be 1 policy version old when taken
  partials go on under newer weights until they are too old
  so at most 64 groups = 512 samples are useful at a time

queue
  stages generate, 4 shards
  leases of 15s, renewed every 5s
  a lease may last as long as tokens come; without a token for 1m it ends
  a pause for weights may last 5m, a wait for the environment 10m
  a unit survives any number of lost holders and is dead after 3 faults of model or engine
  a dead or expired unit fails its group
  finished groups are remembered for 24h
  durability fast: a fail-over of Redis may lose the last writes

drain
  units that finish 10s before the deadline go on, the rest is handed back at once
  the engine is evicted 5s before the deadline at the latest
  deadlines: 10m without a notice, 2m for a lifecycle action, maintenance 30m ahead
  the only lifecycle hook of a group is completed, one of several never
  a node with a rebalance recommendation takes no work for 15m, running work goes on
  a node whose hardware is degraded is drained as for any maintenance
  a node that goes is cordoned and tainted, its pods are evicted, at the end against budgets
  messages about instances that no node has are acknowledged

pools
  here: spot, local world, at most 6 nodes, price unknown";
    assert_eq!(parse(SHORTEST).expect("valid").explain(), expected);
}

#[test]
fn every_choice_has_its_words() {
    let pools = "    - { name: fixed, provider: asg, autoScalingGroup: trainers, market: onDemand,
        maxNodes: 4, instanceType: p5.48xlarge, zone: us-east-2a, dollarsPerNodeHour: 55 }
    - { name: scorers, provider: scale, market: onDemand, maxNodes: 2, dollarsPerNodeHour: 1.5,
        scale: { kind: Deployment, name: scorer } }
    - { name: cpus, provider: workers, market: spot, maxNodes: 9, dollarsPerNodeHour: 1,
        workers: { template: sandbox, unschedulableTimeout: 20m } }
";
    let more = "  mode: act
  queue: { stages: [generate, reward], maxLeased: 2h, maxInfraAttempts: 1, onDeadSlot: shrink,
    minSamples: 6, durability: safe }
  staleness: { maxLag: 0, resumePolicy: maskOld }
  drain: { rebalance: ignore }
  reward: { maxReplicas: 2, pools: [scorers], itemsPerReplica: 32 }
  environment: { minReplicas: 0, maxReplicas: 9, pools: [cpus], itemsPerReplica: 1,
    signal: { prometheus: { url: 'http://prometheus:9090', waiting: 'sum(waiting)' } } }
  buffer: { memoryAlarmPercent: 70 }
  budget: { dollarsPerHour: 500 }
  deadline: { updates: 900, by: 2026-12-24T18:00:00Z }
";
    let edits = [
        ("groupSize: 8", "groupSize: 8\n    pool: fixed\n    legalSizes: [2, 4]"),
        ("maxNodes: 6", "maxNodes: 6\n      dollarsPerNodeHour: 0"),
        (
            "dollarsPerNodeHour: 55",
            "dollarsPerNodeHour: 55, reservation: { id: cr-0a,
        startsAt: 2026-12-24T17:00:00Z, endsAt: 2026-12-25T18:00:00Z }",
        ),
        ("  rollout:", "  rollout:\n    joinAt: stepEnd\n    deleteWedgedEngineAfter: 15m"),
    ];
    let text = shortest_with(pools, &edits) + more;
    let words = parse(&text).expect("valid").explain();
    let expected = [
        "run demo, mode act: decisions are carried out",
        "  on demand; nodes from pool fixed, one of these numbers: 2, 4",
        "  asked to run on the next of them once it has been too slow, or too fast, for 30m",
        "  buffer limit = 1 step = 32 groups = 256 samples",
        "  a new replica gets work from the next update on",
        "  the pod of an engine that hangs for 15m is deleted",
        "  1 to 2 replicas, pools scorers",
        "  what it has to do: responses that wait for their score or are being scored",
        "  what it has to do: Prometheus: sum(waiting); what is worked on is not told",
        "  32 items at a time on a replica; starts take 2m until measured",
        "  0 to 9 replicas, pools cpus",
        "  1 item at a time on a replica; starts take 2m until measured",
        "  strictly on-policy: only tokens of the current weights are trained on",
        "  partials go on, and what is too old gets no loss",
        "  stages generate → reward, 4 shards",
        "  a lease ends after 2h in any case; without a token for 1m it ends",
        "  a unit survives 1 lost holder and is dead after 3 faults of model or engine",
        "  a dead or expired unit is left out while 6 samples remain",
        "  durability safe: an acknowledged write survives a fail-over",
        "  a node with a rebalance recommendation carries on",
        "  fixed: onDemand p5.48xlarge in us-east-2a, Auto Scaling group trainers, \
         at most 4 nodes, 55 dollars per node and hour, Capacity Block cr-0a from \
         2026-12-24T17:00:00Z, empty by 2026-12-25T17:30:00Z",
        "  scorers: onDemand, Deployment scorer (failed when none of its pods finds a node for \
         5m), at most 2 nodes, 1.5 dollars per node and hour",
        "  cpus: spot, LeaderWorkerSets as sandbox (failed when none of its pods finds a node for \
         20m), at most 9 nodes, 1 dollars per node and hour",
        "  at most 500 dollars per hour for all worker groups",
        "  900 policy updates by 2026-12-24T18:00:00Z",
    ];
    let lines: Vec<&str> = words.lines().collect();
    for line in expected {
        assert!(lines.contains(&line), "{line:?} is missing in\n{words}");
    }
}

#[test]
fn pools_that_are_filled_evenly_stand_together() {
    let pool = |name: &str, market: &str, kind: &str, zone: &str| {
        format!(
            "    - {{ name: {name}, provider: asg, autoScalingGroup: {name}, market: {market},
        maxNodes: 4, instanceType: {kind}, zone: {zone} }}\n"
        )
    };
    let pools = [
        pool("a", "spot", "p5en.48xlarge", "us-east-2a"),
        pool("b", "spot", "p5en.48xlarge", "us-east-2b"),
        pool("c", "spot", "p5.48xlarge", "us-east-2a"),
        pool("d", "onDemand", "p5.48xlarge", "us-east-2a"),
    ];
    let groups = "pools: [a, b, c, d]\n    nodesPerReplica: 2";
    let text = shortest_with(&pools.concat(), &[("pools: [here]", groups)]);
    let words = parse(&text).expect("valid").explain();
    assert!(words.contains("1 to 6 replicas of 2 nodes, pools a = b > c > d\n"), "{words}");
    assert!(words.contains("\n  a replica that lacks a node is released after 10m\n"), "{words}");
}
