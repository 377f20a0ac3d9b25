//! What stands on a node, and the patches that it calls for.

use k8s_openapi::api::core::v1::{NodeCondition, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;

const NOW: &str = "2026-03-01T12:00:00Z";

fn node(unschedulable: Option<bool>, taints: &[(&str, &str)], is_ours: bool) -> Node {
    let taint = |(key, value): &(&str, &str)| Taint {
        key: (*key).to_owned(),
        value: Some((*value).to_owned()),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let annotation = (CORDON_ANNOTATION.to_owned(), "true".to_owned());
    Node {
        metadata: ObjectMeta {
            annotations: is_ours.then(|| [annotation].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            unschedulable,
            taints: Some(taints.iter().map(taint).collect()),
            ..NodeSpec::default()
        }),
        ..Node::default()
    }
}

fn extra() -> ExtraTaint {
    "going=soon:NoSchedule".parse().expect("valid")
}

fn with_extra_of_ours(mut node: Node) -> Node {
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(EXTRA_TAINT_ANNOTATION.to_owned(), extra().to_string());
    node
}

fn keys(patch: &Value) -> Vec<&str> {
    let taints = patch["spec"]["taints"].as_array().expect("a list");
    taints.iter().map(|taint| taint["key"].as_str().expect("a key")).collect()
}

#[test]
fn mark_keeps_taints_of_others_and_remembers_its_cordon() {
    let patch =
        plan_mark(&node(None, &[("gpu", "yes")], false), "spot_stop", None).expect("a change");
    assert_eq!(keys(&patch), ["gpu", INTERRUPTION_TAINT]);
    assert_eq!(patch["spec"]["taints"][1]["value"], "spot_stop");
    assert_eq!(patch["spec"]["unschedulable"], true);
    assert_eq!(patch["metadata"]["annotations"][CORDON_ANNOTATION], "true");
}

#[test]
fn marked_node_needs_no_change() {
    let marked = node(Some(true), &[(INTERRUPTION_TAINT, "spot_stop")], true);
    assert_eq!(plan_mark(&marked, "spot_stop", None), None);
    let taints = [(INTERRUPTION_TAINT, "spot_stop"), ("going", "soon")];
    let marked = with_extra_of_ours(node(Some(true), &taints, true));
    assert_eq!(plan_mark(&marked, "spot_stop", Some(&extra())), None);
    assert_eq!(plan_clear(&node(Some(true), &[("gpu", "yes")], false)), None);
}

// Case 26.
#[test]
fn cordon_of_an_administrator_is_not_taken_over_and_not_removed() {
    let patch = plan_mark(&node(Some(true), &[], false), "spot_stop", None).expect("a change");
    assert_eq!(patch["metadata"].get("annotations"), None);
    let tainted = node(Some(true), &[(INTERRUPTION_TAINT, "spot_stop"), ("gpu", "yes")], false);
    let patch = plan_clear(&tainted).expect("a change");
    assert_eq!(patch["spec"].get("unschedulable"), None);
    assert_eq!(keys(&patch), ["gpu"]);
}

#[test]
fn own_cordon_is_removed() {
    let marked = node(Some(true), &[(INTERRUPTION_TAINT, "spot_stop")], true);
    let patch = plan_clear(&marked).expect("a change");
    assert_eq!(patch["spec"]["unschedulable"], Value::Null);
    assert_eq!(patch["spec"]["taints"], Value::Null);
    assert_eq!(patch["metadata"]["annotations"][CORDON_ANNOTATION], Value::Null);
}

#[test]
fn extra_taint_comes_and_goes_with_ours() {
    let patch = plan_mark(&node(None, &[], false), "swap", Some(&extra())).expect("a change");
    assert_eq!(keys(&patch), [INTERRUPTION_TAINT, "going"]);
    let annotation = &patch["metadata"]["annotations"][EXTRA_TAINT_ANNOTATION];
    assert_eq!(annotation, "going=soon:NoSchedule");
    let taints = [(INTERRUPTION_TAINT, "swap"), ("going", "soon"), ("gpu", "yes")];
    let marked = with_extra_of_ours(node(Some(true), &taints, true));
    let patch = plan_clear(&marked).expect("a change");
    assert_eq!(keys(&patch), ["gpu"]);
    assert_eq!(patch["metadata"]["annotations"][EXTRA_TAINT_ANNOTATION], Value::Null);
}

#[test]
fn extra_taint_that_somebody_else_has_put_there_stays() {
    for value in ["soon", "later"] {
        let before = node(None, &[("going", value)], false);
        let patch = plan_mark(&before, "swap", Some(&extra())).expect("a change");
        assert_eq!(keys(&patch), ["going", INTERRUPTION_TAINT]);
        let annotations = &patch["metadata"]["annotations"];
        assert_eq!(annotations.get(EXTRA_TAINT_ANNOTATION), None, "{annotations}");
        let taints = [("going", value), (INTERRUPTION_TAINT, "swap")];
        let patch = plan_clear(&node(Some(true), &taints, true)).expect("a change");
        assert_eq!(keys(&patch), ["going"]);
    }
}

fn with_condition(status: &str, reason: &str) -> Node {
    let condition = NodeCondition {
        type_: INTERRUPTION_CONDITION.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        ..NodeCondition::default()
    };
    let status = NodeStatus { conditions: Some(vec![condition]), ..NodeStatus::default() };
    Node { status: Some(status), ..Node::default() }
}

#[test]
fn condition_says_what_happens_and_that_it_is_over() {
    let patch = plan_condition(&Node::default(), Some("spot_terminate"), NOW).expect("a change");
    let condition = &patch["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("EbbtideInterruption"), &json!("True"),)
    );
    assert_eq!(condition["reason"], "SpotTerminate");
    let shown = with_condition("True", "SpotTerminate");
    assert_eq!(plan_condition(&shown, Some("spot_terminate"), NOW), None);
    let patch = plan_condition(&shown, None, NOW).expect("a change");
    assert_eq!(patch["status"]["conditions"][0]["status"], "False");
    assert_eq!(plan_condition(&with_condition("False", "NoInterruption"), None, NOW), None);
}

#[test]
fn node_that_never_was_interrupted_gets_no_condition() {
    assert_eq!(plan_condition(&Node::default(), None, NOW), None);
}
