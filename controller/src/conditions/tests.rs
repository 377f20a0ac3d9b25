//! Laws of the conditions.

use ebbtide_core::bottleneck::{IterationPhases, judge_bottleneck};
use ebbtide_core::observation::FailureKind;
use ebbtide_core::scale::{ScaleMemory, SignalName};
use ebbtide_core::time::UnixMillis;
use std::time::Duration;

use super::*;

fn plan(desired: Option<u32>, reasons: Vec<Reason>) -> ScalePlan {
    ScalePlan {
        running: desired,
        wish: desired,
        desired,
        bottleneck: judge_bottleneck(&IterationPhases::default()),
        actions: Vec::new(),
        reasons,
        memory: ScaleMemory::default(),
    }
}

fn facts<'a>(plan: &'a ScalePlan, policy_problem: Option<&'a str>, ready: u64) -> Facts<'a> {
    let group = GroupFacts { role: Role::Rollout, plan, ready: Some(ready) };
    Facts { groups: vec![group], problems: &[], policy_problem }
}

/// The kinds that hold.
fn hold(plan: &ScalePlan, policy_problem: Option<&str>, ready: u64) -> Vec<ConditionKind> {
    let conditions = judge(&facts(plan, policy_problem, ready));
    assert_eq!(conditions.len(), 6, "each kind once");
    let holding = conditions.into_iter().filter(|condition| condition.holds == Some(true));
    holding.map(|condition| condition.kind).collect()
}

#[test]
fn each_condition_follows_from_what_is_the_matter() {
    let remaining = Duration::from_secs(60);
    let pool = || "spot-a".parse().expect("a name");
    let kind = FailureKind::ALL[0];
    let benched = || vec![Reason::PoolBenched { pool: pool(), kind, remaining }];
    let why = String::from("no trainer has reported");
    let stale = vec![Reason::SignalUnknown { signal: SignalName::Trainer, why }];
    let writer = vec![Reason::ConflictingWriter { pool: pool(), asked: 3, found: 1, remaining }];
    let infeasible = vec![Reason::Infeasible { nodes_per_replica: 8 }];
    use ConditionKind::{
        CapacityShort, ConflictingWriter, Infeasible, PolicyInvalid, Ready, SignalStale,
    };
    assert_eq!(hold(&plan(Some(3), vec![]), None, 3), [Ready]);
    assert_eq!(hold(&plan(Some(3), stale), None, 3), [SignalStale]);
    assert_eq!(hold(&plan(Some(3), benched()), None, 2), [Ready, CapacityShort]);
    assert_eq!(hold(&plan(Some(3), benched()), None, 3), [Ready], "nothing is missing");
    assert_eq!(hold(&plan(Some(3), writer), None, 3), [Ready, ConflictingWriter]);
    assert_eq!(hold(&plan(Some(3), vec![]), Some("p:1:1"), 3), [PolicyInvalid]);
    assert_eq!(hold(&plan(Some(3), infeasible), None, 0), [Infeasible]);
    let (by, allowed, possible) = (UnixMillis(0), Duration::ZERO, remaining);
    for part in [
        CapacityReason::PoolTooSmall { pool: pool(), nodes_per_replica: 8 },
        CapacityReason::DeadlineInfeasible { left: 3, by, allowed, possible },
        CapacityReason::DeadlinePassed { done: 1, updates: 4 },
    ] {
        let plan = plan(Some(3), vec![part.into()]);
        assert_eq!(hold(&plan, None, 3), [Ready, Infeasible], "the rest is as it should be");
    }
}

#[test]
fn unknown_size_is_no_lack_of_capacity() {
    let plan = plan(None, vec![]);
    let facts = facts(&plan, None, 1);
    let conditions = judge(&facts);
    let short = conditions.iter().find(|c| c.kind == ConditionKind::CapacityShort);
    assert_eq!(short.map(Condition::status), Some("Unknown"));
}

/// What stands still is not written again: a countdown must not be in a message.
#[test]
fn messages_do_not_count_down() {
    let pool = || "spot-a".parse().expect("a name");
    let kind = FailureKind::ALL[0];
    let at = |seconds| {
        let remaining = Duration::from_secs(seconds);
        let reasons = vec![
            Reason::PoolBenched { pool: pool(), kind, remaining },
            Reason::ConflictingWriter { pool: pool(), asked: 3, found: 1, remaining },
        ];
        let plan = plan(Some(3), reasons);
        judge(&facts(&plan, None, 1))
    };
    assert_eq!(at(60), at(55));
}

#[test]
fn trouble_of_a_service_is_told_with_its_name() {
    let why = String::from("redis: connection refused");
    let stale = plan(Some(2), vec![Reason::SignalUnknown { signal: SignalName::Ready, why }]);
    let calm = plan(Some(3), vec![]);
    let rollouts = GroupFacts { role: Role::Rollout, plan: &calm, ready: Some(3) };
    let scorers = GroupFacts { role: Role::Reward, plan: &stale, ready: Some(2) };
    let facts = Facts { groups: vec![rollouts, scorers], problems: &[], policy_problem: None };
    let found = judge(&facts).into_iter().find(|it| it.kind == ConditionKind::SignalStale);
    let found = found.expect("each kind once");
    assert_eq!((found.holds, found.message.as_str()), (Some(true), "reward: ready is unknown"));
}
