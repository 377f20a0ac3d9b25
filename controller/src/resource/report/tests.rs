//! Laws of the status that is written.

use super::*;
use crate::conditions::ConditionKind;

fn snapshot(problem: Option<&str>) -> Snapshot {
    let condition = |kind, holds, message: &str| Condition {
        kind,
        holds: Some(holds),
        reason: "Word",
        message: message.to_owned(),
    };
    Snapshot {
        is_leader: true,
        mode: "act",
        running: Some(2),
        desired: Some(3),
        replicas: [("ready", 2)].into(),
        conditions: vec![
            condition(ConditionKind::Ready, problem.is_none(), problem.unwrap_or_default()),
            condition(ConditionKind::PolicyInvalid, problem.is_some(), problem.unwrap_or_default()),
        ],
        policy_generation: Some(4),
        ..Snapshot::default()
    }
}

fn standing(snapshot: &Snapshot) -> Standing {
    let mut decision = Decision::default();
    decision.note(snapshot);
    Standing::of(snapshot, &decision)
}

const AT: UnixMillis = UnixMillis(1_700_000_000_500);
const LATER: UnixMillis = UnixMillis(1_700_000_060_000);

#[test]
fn unchanged_standing_is_no_change_and_keeps_its_moments() {
    let standing = standing(&snapshot(None));
    let first = merge(&Value::Null, &standing.to_patch(&Value::Null, AT));
    assert_eq!(first["conditions"][0]["lastTransitionTime"], "2023-11-14T22:13:20Z");
    assert_eq!(first["conditions"][0]["observedGeneration"], 4);
    assert_eq!(first["rollout"]["ready"], 2);
    assert!(first.get("limitingStage").is_none(), "unknown is no value");
    assert_eq!(merge(&first, &standing.to_patch(&first, LATER)), first);
}

#[test]
fn transition_moves_its_moment_and_no_other_and_is_told_once() {
    let before = standing(&snapshot(None)).to_patch(&Value::Null, AT);
    let invalid = standing(&snapshot(Some("spec is wrong")));
    let after = invalid.to_patch(&before, LATER);
    assert_eq!(after["conditions"][1]["status"], "True");
    assert_eq!(after["conditions"][1]["lastTransitionTime"], "2023-11-14T22:14:20Z");
    let reasons = |standing: &Standing, before: &Value| -> Vec<String> {
        standing.news(before).into_iter().map(|told| told.reason).collect()
    };
    assert_eq!(reasons(&invalid, &before), ["NotReady", "PolicyInvalid"]);
    assert!(reasons(&invalid, &after).is_empty(), "once");
    assert!(reasons(&standing(&snapshot(None)), &Value::Null).is_empty(), "well from the start");
    let healed = standing(&snapshot(None));
    assert_eq!(reasons(&healed, &after), ["Ready", "NotPolicyInvalid"]);
}

#[test]
fn quiet_tick_leaves_the_last_decision_as_it_was() {
    let mut decision = Decision::default();
    let acted = Snapshot {
        actions: vec!["raise pool a from 1 to 2".to_owned()],
        reasons: vec!["12 units of work".to_owned()],
        ..snapshot(None)
    };
    decision.note(&acted);
    let shown = decision.shown.clone();
    let quiet = Snapshot { reasons: vec!["11 units of work".to_owned()], ..snapshot(None) };
    decision.note(&quiet);
    assert_eq!(decision.shown, shown);
    decision.note(&Snapshot { desired: Some(4), ..quiet });
    assert_ne!(decision.shown, shown);
}

#[test]
fn merge_takes_away_what_is_null_and_leaves_what_is_not_named() {
    let merged = merge(&json!({"a": {"b": 1, "c": 2}, "d": 3}), &json!({"a": {"b": null}}));
    assert_eq!(merged, json!({"a": {"c": 2}, "d": 3}));
}

/// Case T35 of autoscaling: in the status of the resource.
#[test]
fn status_of_a_newer_leader_is_not_written_by_an_older_one() {
    let by = |generation| standing(&Snapshot { generation, ..snapshot(None) });
    let stands = merge(&Value::Null, &by(5).to_patch(&Value::Null, AT));
    assert_eq!(stands["leaderGeneration"], 5);
    assert!(by(4).is_outdated(&stands));
    assert!(!by(5).is_outdated(&stands) && !by(6).is_outdated(&stands));
    assert!(!by(4).is_outdated(&Value::Null), "nobody has written yet");
    assert_eq!(merge(&stands, &by(6).to_patch(&stands, LATER))["leaderGeneration"], 6);
    let refused = Standing::refused("spec is wrong", Some(1));
    assert!(!refused.is_outdated(&stands), "nobody leads yet, and somebody has to say it");
    let after = merge(&stands, &refused.to_patch(&stands, LATER));
    assert_eq!(after["leaderGeneration"], 5, "and takes nothing away");
}

/// A process that waits for a valid policy beside a leader who follows the last valid one.
#[test]
fn waiting_process_leaves_the_conditions_of_the_leader_alone() {
    let mut snapshot = Snapshot { generation: 5, ..snapshot(None) };
    let conflict = ConditionKind::ConflictingWriter;
    let condition = Condition { kind: conflict, ..snapshot.conditions[1].clone() };
    snapshot.conditions.push(Condition { holds: Some(true), ..condition });
    let stands = merge(&Value::Null, &standing(&snapshot).to_patch(&Value::Null, AT));
    let judged = Standing::refused("unknown key", snapshot.policy_generation);
    assert!(judged.is_outdated(&stands), "the leader has judged that text already");
    let newer = Standing::refused("unknown key", Some(5));
    assert!(!newer.is_outdated(&stands));
    let after = merge(&stands, &newer.to_patch(&stands, LATER));
    let kinds: Vec<&Value> =
        after["conditions"].as_array().expect("a list").iter().map(|it| &it["type"]).collect();
    assert_eq!(kinds, ["Ready", "PolicyInvalid", "ConflictingWriter"]);
    assert_eq!(after["conditions"][2], stands["conditions"][2]);
}
