//! Each key by itself: defaults, ranges, types, names.

use std::time::Duration;

use super::*;
use crate::policy::{
    BlockedEviction, Durability, JoinPoint, Market, Mode, Provider, RebalanceAction, Stage,
    UnknownInstances,
};
use crate::time::UnixMillis;
use crate::work::{OnDeadSlot, ResumePolicy};

#[test]
fn the_shortest_policy_has_the_documented_defaults() {
    let policy = parse(SHORTEST).expect("valid");
    let (queue, drain, rollout) = (&policy.queue, &policy.drain, &policy.rollout);
    let seconds = Duration::from_secs;

    assert_eq!(policy.run.as_str(), "demo");
    assert_eq!(policy.mode, Mode::Observe);
    assert_eq!(queue.stages, [Stage::Generate]);
    assert_eq!((queue.shards, queue.max_attempts, queue.max_infra_attempts), (4, 3, 0));
    assert_eq!((queue.lease, queue.renew_every), (seconds(15), seconds(5)));
    assert_eq!((queue.progress_limit, queue.pause_limit), (seconds(60), seconds(300)));
    assert_eq!((queue.environment_wait_limit, queue.max_leased), (seconds(600), None));
    assert_eq!((queue.on_dead_slot, queue.durability), (OnDeadSlot::Fail, Durability::Fast));
    assert_eq!(queue.dedup_window, seconds(24 * 3600));
    assert_eq!(policy.staleness.max_lag, 1);
    assert_eq!(policy.staleness.resume_policy, ResumePolicy::ContinueMixed);
    assert_eq!((drain.reserve, drain.grace), (seconds(10), seconds(5)));
    assert_eq!((drain.request_deadline, drain.asg_deadline), (seconds(600), seconds(120)));
    assert_eq!(drain.rebalance, RebalanceAction::StopLeases);
    assert_eq!((drain.rebalance_ttl, drain.maintenance_lead), (seconds(900), seconds(1800)));
    assert_eq!((drain.leave_degraded, drain.evict), (false, true));
    assert_eq!(drain.on_blocked_eviction, BlockedEviction::Delete);
    assert_eq!(drain.unknown_instances, UnknownInstances::Acknowledge);
    assert_eq!(drain.extra_taint, None);
    assert_eq!((rollout.nodes_per_replica, rollout.min_replicas), (1, 1));
    assert_eq!((rollout.concurrency_per_replica, rollout.max_changes_per_tick), (256, 4));
    assert_eq!((rollout.buffer_target_steps, rollout.buffer_max_steps), (1.0, 2.0));
    assert_eq!((rollout.startup_estimate, rollout.tick), (seconds(300), seconds(5)));
    assert_eq!(rollout.join_at, JoinPoint::AnyTime);
    assert_eq!(rollout.gang_timeout, seconds(600));
    assert_eq!(rollout.delete_wedged_engine_after, None);
    assert_eq!((rollout.stabilization_up, rollout.stabilization_down), (seconds(0), seconds(300)));
    assert_eq!(policy.buffer.memory_alarm_percent, 80);
    assert_eq!((&policy.reward, &policy.environment), (&None, &None));
    assert_eq!((policy.budget, policy.deadline), (None, None));
}

#[test]
fn defaults_follow_the_key_that_they_depend_on() {
    let more = "  queue: { lease: 3s }\n  drain: { reserve: 500ms }\n  staleness: { maxLag: 0 }\n";
    let policy = parse(&shortest_with(more, &[])).expect("valid");
    assert_eq!(policy.queue.renew_every, Duration::from_secs(1));
    assert_eq!(policy.drain.grace, Duration::from_millis(250));
    assert_eq!(policy.rollout.buffer_max_steps, 1.0);

    let policy = parse(&shortest_with("  queue: { lease: 2m }\n", &[])).expect("valid");
    assert_eq!(policy.queue.progress_limit, Duration::from_mins(2));
}

#[test]
fn values_are_read_as_written() {
    let more = "  deadline: { updates: 500, by: 2026-12-24T18:00:00+01:00 }\n  \
                queue: { stages: [generate, reward], onDeadSlot: shrink, minSamples: 6 }\n  \
                reward: { maxReplicas: 2, pools: [scorers], itemsPerReplica: 32 }\n";
    let pool = "    - name: scorers\n      provider: asg\n      \
                autoScalingGroup: RL/scorers (1)\n      \
                market: onDemand\n      instanceType: g6e.xlarge\n      maxNodes: 2\n      \
                dollarsPerNodeHour: 1.5\n";
    let policy = parse(&format!("{SHORTEST}{pool}{more}")).expect("valid");
    assert!(policy.has_reward_stage());
    assert_eq!(policy.queue.on_dead_slot, OnDeadSlot::Shrink { min_samples: 6 });
    assert_eq!(policy.deadline.map(|d| d.by), Some(UnixMillis(1_798_131_600_000)));
    let scorers = &policy.pools[1];
    assert_eq!(scorers.market, Market::OnDemand);
    assert_eq!(scorers.dollars_per_node_hour, Some(1.5));
    assert!(matches!(&scorers.provider, Provider::Asg(g) if g.as_str() == "RL/scorers (1)"));
}

/// What is added to the policy, and what is said about it.
const WRONG_VALUES: &[(&str, &str)] = &[
    ("  queue: { lease: 0s }", "spec.queue.lease must be at least 1s, got 0s (p.yaml:17:19)"),
    ("  queue: { lease: 1h }", "spec.queue.lease must be at most 10m, got 1h (p.yaml:17:19)"),
    (
        "  queue: { lease: 15 }",
        "spec.queue.lease must be a duration such as 90s or 1h30m, got 15; add a unit: ms, s, \
         m or h (p.yaml:17:19)",
    ),
    (
        "  queue: { lease: [15s] }",
        "spec.queue.lease must be a duration such as 90s or 1h30m, got a list (p.yaml:17:19)",
    ),
    (
        "  queue: { shards: \"4\" }",
        "spec.queue.shards must be a whole number, got the text \"4\"; remove the quotes \
         (p.yaml:17:20)",
    ),
    ("  queue: { shards: 257 }", "spec.queue.shards must be at most 256, got 257 (p.yaml:17:20)"),
    ("  queue: { shards: -1 }", "spec.queue.shards must be at least 1, got -1 (p.yaml:17:20)"),
    (
        "  queue: { shards: 4.5 }",
        "spec.queue.shards must be a whole number, got 4.5 (p.yaml:17:20)",
    ),
    (
        "  queue: { shards: 99999999999999999999 }",
        "spec.queue.shards must be at most 256, got 99999999999999999999 (p.yaml:17:20)",
    ),
    (
        "  queue: { shards: 0x10 }",
        "spec.queue.shards must be a whole number, got 0x10 (p.yaml:17:20)",
    ),
    (
        "  queue: { shards: 04 }",
        "spec.queue.shards must be a whole number, got 04; write it with digits alone \
         (p.yaml:17:20)",
    ),
    ("  mode: on", "spec.mode must be observe or act, got on (p.yaml:17:9)"),
    ("  mode:", "spec.mode must be observe or act, got nothing (p.yaml:17:7)"),
    (
        "  drain: { rebalance: Drain }",
        "spec.drain.rebalance must be stopLeases, drain or ignore, got Drain (p.yaml:17:23)",
    ),
    (
        "  drain: { extraTaint: leaving }",
        "spec.drain.extraTaint must be key=value:Effect or key:Effect, got \"leaving\" \
         (p.yaml:17:24)",
    ),
    ("  drain: { evict: yes }", "spec.drain.evict must be true or false, got yes (p.yaml:17:19)"),
    ("  queue:", "spec.queue must be a mapping of keys to values, got nothing (p.yaml:17:8)"),
    (
        "  budget: { dollarsPerHour: $900 }",
        "spec.budget.dollarsPerHour must be a number of dollars, got $900 (p.yaml:17:29)",
    ),
    (
        "  budget: { dollarsPerHour: .nan }",
        "spec.budget.dollarsPerHour must be a number of dollars, got .nan (p.yaml:17:29)",
    ),
    (
        "  buffer: { memoryAlarmPercent: 85 }",
        "spec.buffer.memoryAlarmPercent must be at most 84, got 85 (p.yaml:17:33)",
    ),
    (
        "  deadline: { updates: 5, by: tomorrow }",
        "spec.deadline.by must be a moment such as 2026-12-24T18:00:00Z, got \"tomorrow\" \
         (p.yaml:17:31)",
    ),
];

#[test]
fn a_wrong_value_says_what_was_expected_and_what_came() {
    let text = |more| format!("{SHORTEST}{more}\n");
    assert_each_has_one(WRONG_VALUES.iter().map(|(more, expected)| (text(more), *expected)));
}

#[test]
fn names_are_text_of_their_form() {
    let table = [
        (
            "name: demo",
            "name: de.mo",
            "metadata.name must match [A-Za-z0-9_-]{1,64}, got \"de.mo\" (p.yaml:4:9)",
        ),
        (
            "name: demo",
            "name: 12",
            "metadata.name must be text, got 12; put it in quotes (p.yaml:4:9)",
        ),
        (
            "name: demo",
            "name: ''",
            "metadata.name must match [A-Za-z0-9_-]{1,64}, got \"\" (p.yaml:4:9)",
        ),
        ("FleetPolicy", "Fleet", "kind must be FleetPolicy, got Fleet (p.yaml:2:7)"),
        (
            "v1alpha1",
            "v1",
            "apiVersion must be ebbtide.dev/v1alpha1, got ebbtide.dev/v1 (p.yaml:1:13)",
        ),
        (
            "market: spot",
            "market: on_demand",
            "spec.pools[0].market must be spot or onDemand, got on_demand (p.yaml:15:15)",
        ),
    ];
    let text = |from, to| shortest_with("", &[(from, to)]);
    assert_each_has_one(table.map(|(from, to, expected)| (text(from, to), expected)));
}

#[test]
fn an_unknown_key_is_one_mistake_with_advice() {
    let table = [
        (
            "    groupsPerStep: 32",
            "    groupPerStep: 32",
            "spec.trainer.groupPerStep is not a known key; did you mean groupsPerStep? \
             (p.yaml:7:5)",
        ),
        (
            "    maxReplicas: 6",
            "    max_replicas: 6",
            "spec.rollout.max_replicas is not a known key; did you mean maxReplicas? (p.yaml:10:5)",
        ),
        ("spec:", "spce:", "spce is not a known key; did you mean spec? (p.yaml:5:1)"),
        (
            "    groupSize: 8",
            "    groupSize: 8\n    colour: red",
            "spec.trainer.colour is not a known key; known here: market, \
             groupsPerStep, groupSize, pool, legalSizes, resizeAfter (p.yaml:9:5)",
        ),
    ];
    let text = |from, to| shortest_with("", &[(from, to)]);
    assert_each_has_one(table.map(|(from, to, expected)| (text(from, to), expected)));
    let more = "  queue: { onDeadSlot: shrink, minSample: 3 }\n";
    let expected =
        "spec.queue.minSample is not a known key; did you mean minSamples? (p.yaml:17:32)";
    assert_each_has_one([(shortest_with(more, &[]), expected)]);
}

#[test]
fn a_missing_key_is_reported_once_at_the_section_it_belongs_to() {
    let table = [
        ("    groupSize: 8\n", "spec.trainer.groupSize is required (p.yaml:6:3)"),
        ("metadata:\n  name: demo\n", "metadata is required (p.yaml:1:1)"),
        ("      market: spot\n", "spec.pools[0].market is required (p.yaml:13:7)"),
        (
            "  trainer:\n    groupsPerStep: 32\n    groupSize: 8\n",
            "spec.trainer is required (p.yaml:5:1)",
        ),
    ];
    let text = |gone| shortest_with("", &[(gone, "")]);
    assert_each_has_one(table.map(|(gone, expected)| (text(gone), expected)));
}

/// A policy is read by many, so that no login stands in it; that of Sentinels is a parameter.
#[test]
fn address_of_a_signal_has_no_login() {
    let table = [
        ("redis://10.0.0.7:6379", true),
        ("rediss+cluster://a:1,b:2", true),
        ("rediss://a?ca=/etc/ca.pem", true),
        ("redis+sentinel://a:26379,b/master/0", true),
        ("redis://user:hush@a", false),
        ("redis+sentinel://a/master?sentinel_password=hush", false),
        ("redis+sentinel://a/master?sentinel_user=u&sentinel_password=hush", false),
        ("rediss+sentinel://a/master?ca=/ca.pem&sentinel_password=hush", false),
        ("rediss://a?ca=", false),
        ("rediss://?ca=/ca.pem", false),
    ];
    for (url, is_valid) in table {
        let signal = format!("signal: {{ redisList: {{ key: a, url: '{url}' }} }}");
        let service = format!(
            "  environment: {{ maxReplicas: 2, pools: [cpus], itemsPerReplica: 1, {signal} }}\n"
        );
        let pools = "    - { name: cpus, provider: local, market: spot, maxNodes: 2 }\n";
        let found = complaints(&(shortest_with(pools, &[]) + &service));
        assert_eq!(found.is_empty(), is_valid, "{url}: {found:?}");
        assert!(is_valid || found[0].contains("without user and password"), "{found:?}");
    }
}
