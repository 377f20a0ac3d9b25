//! Keys that contradict each other.

use super::contradictions::*;
use super::*;

#[test]
fn a_contradiction_is_one_error_at_the_key_that_the_text_has() {
    let text = |more| format!("{SHORTEST}{POOLS}{more}\n");
    assert_each_has_one(CONTRADICTIONS.iter().map(|(more, expected)| (text(more), *expected)));
}

#[test]
fn sizes_fit_where_they_are_to_go() {
    let text = |from, to| shortest_with(POOLS, &[(from, to)]);
    assert_each_has_one(SIZES.iter().map(|(from, to, expected)| (text(from, to), *expected)));
}

#[test]
fn a_pool_is_defined_once_with_what_its_provider_needs() {
    let text = |pool| format!("{SHORTEST}    - {{ {pool} }}\n");
    assert_each_has_one(SECOND_POOLS.iter().map(|(pool, expected)| (text(pool), *expected)));
}

#[test]
fn a_fleet_needs_a_launch_template_and_takes_nothing_that_is_none() {
    let pool = "name: b, provider: fleet, market: spot, maxNodes: 6, instanceType: p5.48xlarge, \
                zone: us-east-2a";
    let table = [
        ("", "spec.pools[1].fleet is required with this provider (p.yaml:17:7)"),
        (
            ", fleet: { launchTemplate: lt, version: two }",
            "spec.pools[1].fleet.launchTemplate must match [A-Za-z0-9()./_-]{3,128}, got \"lt\" \
             (p.yaml:17:132)\nspec.pools[1].fleet.version must be a number, $Default or $Latest, \
             got \"two\" (p.yaml:17:145)",
        ),
        (
            ", fleet: { launchTemplate: rollout, subnet: subnet-1 }",
            "spec.pools[1].fleet.subnet must match subnet-[0-9a-f]{8,17}, got \"subnet-1\" \
             (p.yaml:17:149)",
        ),
    ];
    let text = |more| format!("{SHORTEST}    - {{ {pool}{more} }}\n");
    for (more, expected) in table {
        let errors = parse(&text(more)).expect_err("it has a mistake").to_string();
        assert_eq!(errors, expected);
    }
    let more = ", fleet: { launchTemplate: rollout, version: $Latest, subnet: subnet-0123abcd }";
    parse(&text(more)).expect("valid");
}

#[test]
fn an_object_is_scaled_for_one_pool() {
    let twice: String = ["b", "c"].iter().fold(String::new(), |text, name| {
        text + &format!("    - {{ name: {name}, provider: scale, market: spot, maxNodes: 6, ")
            + "scale: { kind: StatefulSet, name: ep } }\n"
    });
    let expected = "spec.pools[2].scale.name must be an object of its own, got \"StatefulSet ep\" \
                    as in spec.pools[1] (p.yaml:18:96)";
    assert_each_has_one([(format!("{SHORTEST}{twice}"), expected)]);
}

#[test]
fn replicas_of_several_nodes_need_a_provider_that_adds_them_whole() {
    let refused = |pool: &str| {
        let pools = format!("    - {{ name: b, market: spot, maxNodes: 12, {pool} }}\n");
        let edits =
            [("pools: [here]", "pools: [b]"), ("  rollout:", "  rollout:\n    nodesPerReplica: 2")];
        let policy = parse(&shortest_with(&pools, &edits)).expect("valid");
        policy.unsupported_sizing().join("; ")
    };
    let asg = "provider: asg, autoScalingGroup: g, instanceType: p5.48xlarge";
    let expected = "pool b adds single nodes (provider asg), and spec.rollout.nodesPerReplica is \
                    2: take provider fleet, workers, or scale of a LeaderWorkerSet";
    assert_eq!(refused(asg), expected);
    let set = |kind| format!("provider: scale, scale: {{ kind: {kind}, name: ep }}");
    assert!(refused(&set("StatefulSet")).contains("a StatefulSet"));
    assert_eq!(refused(&set("LeaderWorkerSet")), "");
    assert_eq!(refused("provider: workers, workers: { template: ep }"), "");
    assert!(refused("provider: local").contains("must have provider asg"));
}

#[test]
fn an_auto_scaling_group_belongs_to_one_pool() {
    let twice: String = ["b", "c"].iter().fold(String::new(), |text, name| {
        text + &format!("    - {{ name: {name}, provider: asg, autoScalingGroup: g, market: spot, ")
            + "maxNodes: 6, instanceType: p5.48xlarge }\n"
    });
    let expected = "spec.pools[2].autoScalingGroup must be a group of its own, got \"g\" as in \
                    spec.pools[1] (p.yaml:18:51)";
    assert_each_has_one([(format!("{SHORTEST}{twice}"), expected)]);
}

#[test]
fn a_budget_covers_the_smallest_fleet() {
    let edits = [
        ("maxNodes: 6", "maxNodes: 6\n      dollarsPerNodeHour: 20"),
        ("groupSize: 8", "groupSize: 8\n    pool: fixed\n    legalSizes: [2, 4]"),
    ];
    let with = |dollars| {
        let budget = format!("  budget: {{ dollarsPerHour: {dollars} }}\n");
        complaints(&shortest_with(&format!("{POOLS}{budget}"), &edits))
    };
    assert_eq!(with("140"), Vec::<String>::new());
    let expected = "spec.budget.dollarsPerHour must be at least 140.00, the cost of the smallest \
                    fleet allowed, got 139.5 (p.yaml:29:29)";
    assert_eq!(with("139.5"), [expected]);
}
