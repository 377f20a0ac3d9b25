//! The patches that mark a node, clear it, and show its condition: made of what stands.

use ebbtide_core::policy::ExtraTaint;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};

use super::{
    CORDON_ANNOTATION, EXTRA_TAINT_ANNOTATION, INTERRUPTION_CONDITION, INTERRUPTION_TAINT,
};

/// The reason of the condition when nothing is known to happen to the node.
const NO_INTERRUPTION: &str = "NoInterruption";

/// The change that marks a node; none when it is marked already.
pub(super) fn plan_mark(node: &Node, reason: &str, extra: Option<&ExtraTaint>) -> Option<Value> {
    let is_cordoned = is_cordoned(node);
    let standing = taints_of(node);
    let ours = annotated_taint(node);
    let has_extra = |extra: &ExtraTaint| standing.iter().any(|taint| is_same(taint, extra));
    let is_tainted = standing
        .iter()
        .any(|taint| taint.key == INTERRUPTION_TAINT && taint.value.as_deref() == Some(reason));
    let is_extra_right = extra.is_none_or(has_extra) && (ours.is_none() || ours.as_ref() == extra);
    if is_cordoned && is_tainted && is_extra_right {
        return None;
    }
    let mut taints = without_ours(standing, ours.as_ref());
    taints.push(Taint {
        key: INTERRUPTION_TAINT.to_owned(),
        value: Some(reason.to_owned()),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    });
    let mut patch = json!({ "metadata": {}, "spec": { "unschedulable": true } });
    if !is_cordoned {
        patch["metadata"]["annotations"][CORDON_ANNOTATION] = json!("true");
    }
    // One that somebody else has put there stays theirs.
    let is_foreign = |extra: &ExtraTaint| taints.iter().any(|taint| has_name_of(taint, extra));
    let added = extra.filter(|extra| !is_foreign(extra));
    if added != ours.as_ref() {
        patch["metadata"]["annotations"][EXTRA_TAINT_ANNOTATION] =
            added.map_or(Value::Null, |extra| json!(extra.to_string()));
    }
    taints.extend(added.map(taint_of));
    patch["spec"]["taints"] = json!(taints);
    Some(patch)
}

/// The change that removes our marks; none when there are none.
pub(super) fn plan_clear(node: &Node) -> Option<Value> {
    let is_cordon_ours = annotation(node, CORDON_ANNOTATION).is_some();
    let has_extra = annotation(node, EXTRA_TAINT_ANNOTATION).is_some();
    let standing = taints_of(node);
    let is_tainted = standing.iter().any(|taint| taint.key == INTERRUPTION_TAINT);
    if !is_cordon_ours && !is_tainted && !has_extra {
        return None;
    }
    let taints = without_ours(standing, annotated_taint(node).as_ref());
    let taints = if taints.is_empty() { Value::Null } else { json!(taints) };
    let mut patch = json!({ "metadata": {}, "spec": { "taints": taints } });
    if is_cordon_ours {
        patch["metadata"]["annotations"][CORDON_ANNOTATION] = Value::Null;
        patch["spec"]["unschedulable"] = Value::Null;
    }
    if has_extra {
        patch["metadata"]["annotations"][EXTRA_TAINT_ANNOTATION] = Value::Null;
    }
    Some(patch)
}

/// The change that shows on the node whether it is about to go; none when it shows that already.
/// A node that never had the condition gets none that says no.
///
/// `now`: RFC 3339.
pub(super) fn plan_condition(node: &Node, interruption: Option<&str>, now: &str) -> Option<Value> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let standing =
        conditions.unwrap_or_default().iter().find(|c| c.type_ == INTERRUPTION_CONDITION);
    let (status, reason, message) = match interruption {
        Some(word) => ("True", camel_case(word), format!("the node is being emptied: {word}")),
        None => ("False", NO_INTERRUPTION.to_owned(), "no interruption is known".to_owned()),
    };
    let is_shown = match standing {
        Some(standing) => standing.status == status && standing.reason.as_deref() == Some(&reason),
        None => interruption.is_none(),
    };
    if is_shown {
        return None;
    }
    let since = standing.filter(|standing| standing.status == status);
    let since = since.and_then(|standing| standing.last_transition_time.as_ref());
    let since = since.map_or_else(|| json!(now), |since| json!(since));
    Some(json!({ "status": { "conditions": [{
        "type": INTERRUPTION_CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since,
    }] } }))
}

/// `spot_terminate` as conditions have it: `SpotTerminate`.
fn camel_case(word: &str) -> String {
    let capital = |part: &str| {
        let mut characters = part.chars();
        let first = characters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(characters).collect::<String>()
    };
    word.split('_').map(capital).collect()
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

fn taints_of(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The extra taint that we have put on the node, as we remembered it there.
fn annotated_taint(node: &Node) -> Option<ExtraTaint> {
    annotation(node, EXTRA_TAINT_ANNOTATION)?.parse().ok()
}

fn taint_of(extra: &ExtraTaint) -> Taint {
    Taint {
        key: extra.key.clone(),
        value: (!extra.value.is_empty()).then(|| extra.value.clone()),
        effect: extra.effect.clone(),
        ..Taint::default()
    }
}

/// Key and effect name a taint: a node has no two with the same.
fn has_name_of(taint: &Taint, extra: &ExtraTaint) -> bool {
    taint.key == extra.key && taint.effect == extra.effect
}

fn is_same(taint: &Taint, extra: &ExtraTaint) -> bool {
    has_name_of(taint, extra) && taint.value.as_deref().unwrap_or_default() == extra.value
}

fn without_ours(mut taints: Vec<Taint>, extra: Option<&ExtraTaint>) -> Vec<Taint> {
    // While a node is cordoned the API server's own taint comes and goes with the cordon.
    taints.retain(|taint| {
        taint.key != INTERRUPTION_TAINT && !extra.is_some_and(|extra| is_same(taint, extra))
    });
    taints
}

#[cfg(test)]
mod tests;
