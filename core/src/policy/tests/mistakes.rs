//! Golden text: everything that is wrong with a policy, at once.

use super::*;

const FIVE_MISTAKES: &str = "\
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata:
  name: five
spec:
  queue:
    lease: 0s
    onDeadSlot: shrink
    minSamples: 9
  drain:
    reserv: 10s
  trainer:
    groupsPerStep: 32
    groupSize: 8
    market: spot
  rollout:
    minReplicas: 4
    maxReplicas: 2
    pools: [here]
  pools:
    - name: here
      provider: local
      market: spot
      maxNodes: 6
";

#[test]
fn five_mistakes_are_five_errors_with_line_and_column() {
    let expected = "\
spec.queue.lease must be at least 1s, got 0s (policies/five.yaml:7:12)
spec.queue.minSamples must be at most spec.trainer.groupSize (8), got 9 (policies/five.yaml:9:17)
spec.drain.reserv is not a known key; did you mean reserve? (policies/five.yaml:11:5)
spec.trainer.market must be onDemand, got spot: the trainer is one synchronised gang, and losing \
one of its nodes stops every update (policies/five.yaml:15:13)
spec.rollout.minReplicas must be at most spec.rollout.maxReplicas (2), got 4 \
(policies/five.yaml:17:18)";
    let errors = FleetPolicy::parse(FIVE_MISTAKES, "policies/five.yaml").expect_err("refused");
    assert_eq!(errors.to_string(), expected);
    assert_eq!(errors.errors().len(), 5);
}

#[test]
fn each_mistake_of_a_wholly_wrong_policy_is_reported_once() {
    let text = "\
apiVersion: v1
metadata: {}
spec:
  mode: fast
  queue: [lease]
  staleness:
    maxLag: two
    maxlag: 2
  trainer:
    groupsPerStep: 0
  rollout:
    maxReplicas: 3
    pools: [a, 'b c', d]
    startupEstimate: 90
  reward:
    pools: []
    itemsPerReplica: 8
  pools:
    - provider: asg
      market: spot
    - name: d
      provider: cloud
      market: spot
      maxNodes: 2
    - just text
";
    let expected = "\
kind is required (p.yaml:1:1)
apiVersion must be ebbtide.dev/v1alpha1, got v1 (p.yaml:1:13)
metadata.name is required (p.yaml:2:1)
spec.mode must be observe or act, got fast (p.yaml:4:9)
spec.queue must be a mapping of keys to values, got a list (p.yaml:5:10)
spec.staleness.maxLag must be a whole number, got two (p.yaml:7:13)
spec.staleness.maxlag is not a known key; did you mean maxLag? (p.yaml:8:5)
spec.trainer.groupSize is required (p.yaml:9:3)
spec.trainer.groupsPerStep must be at least 1, got 0 (p.yaml:10:20)
spec.rollout.pools[1] must match [A-Za-z0-9_-]{1,64}, got \"b c\" (p.yaml:13:16)
spec.rollout.startupEstimate must be a duration such as 90s or 1h30m, got 90; add a unit: ms, s, \
m or h (p.yaml:14:22)
spec.reward.maxReplicas is required (p.yaml:15:3)
spec.reward.pools must have 1 to 128 entries, got 0 (p.yaml:16:12)
spec.pools[0].autoScalingGroup is required with provider: asg (p.yaml:19:7)
spec.pools[0].instanceType is required with provider: asg (p.yaml:19:7)
spec.pools[0].maxNodes is required (p.yaml:19:7)
spec.pools[0].name is required (p.yaml:19:7)
spec.pools[1].provider must be asg, fleet, scale, workers or local, got cloud (p.yaml:22:17)
spec.pools[2] must be a mapping of keys to values, got just text (p.yaml:25:7)";
    assert_eq!(complaints(text).join("\n"), expected);
}
