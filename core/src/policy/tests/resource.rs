//! The custom resource has the keys that are read, and none beside them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::policy::kinds::Pattern;
use crate::policy::{
    AutoScalingGroupName, ExtraTaint, InstanceType, LifecycleHookName, PoolName, Zone,
    resource_definition,
};

fn schema() -> Value {
    resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// The schema of what stands at a path such as `spec.pools[].name`.
fn at(path: &str) -> Value {
    path.split('.').fold(schema(), |place, part| match part.strip_suffix("[]") {
        Some(key) => place["properties"][key]["items"].clone(),
        None => place["properties"][part].clone(),
    })
}

/// Every mapping below `place`, with its path.
fn mappings(place: &Value, path: &str, found: &mut Vec<(String, BTreeSet<String>)>) {
    let Some(keys) = place["properties"].as_object() else { return };
    found.push((path.to_owned(), keys.keys().cloned().collect()));
    for (key, child) in keys {
        let path = format!("{path}.{key}");
        mappings(child, &path, found);
        mappings(&child["items"], &format!("{path}[0]"), found);
    }
}

/// The readers tell what they know when a key is none of it: that list is the schema's.
#[test]
fn every_mapping_has_the_keys_that_its_reader_knows() {
    let mut found = Vec::new();
    mappings(&at("spec"), "spec", &mut found);
    assert!(found.len() >= 10, "{found:?}");
    for (path, keys) in found {
        let document = path.split('.').rev().fold("{zzzz: 1}".to_owned(), |inner, part| match part
            .strip_suffix("[0]")
        {
            Some(key) => format!("{{{key}: [{inner}]}}"),
            None => format!("{{{part}: {inner}}}"),
        });
        let head = "{apiVersion: ebbtide.dev/v1alpha1, kind: FleetPolicy, metadata: {name: a},";
        let text = format!("{head}{}", &document[1..]);
        let said = complaints(&text).join("\n");
        let known = said.split_once("known here: ").map(|(_, rest)| rest);
        let known = known.and_then(|rest| rest.split(" (").next()).unwrap_or_default();
        let known: BTreeSet<String> = known.split(", ").map(str::to_owned).collect();
        assert_eq!(known, keys, "{path}: {said}\n{text}");
    }
}

#[test]
fn fixed_defaults_are_the_schemas_and_those_that_follow_a_key_are_not() {
    assert_eq!(at("spec.mode")["default"], "observe");
    assert_eq!(at("spec.queue.lease")["default"], "15s");
    assert_eq!(at("spec.queue.stages")["default"], serde_json::json!(["generate"]));
    assert_eq!(at("spec.drain.evict")["default"], true);
    assert_eq!(at("spec.rollout.bufferTargetSteps")["default"], 1.0);
    assert_eq!(at("spec.buffer")["default"], serde_json::json!({ "memoryAlarmPercent": 80 }));
    let following =
        ["queue.renewEvery", "queue.progressLimit", "drain.grace", "rollout.bufferMaxSteps"];
    for path in following.map(|path| format!("spec.{path}")) {
        assert!(at(&path)["type"].is_string(), "{path}");
        assert!(at(&path)["default"].is_null(), "{path}");
    }
    for path in ["spec.reward", "spec.environment", "spec.budget", "spec.trainer"] {
        assert!(at(path)["default"].is_null(), "{path}");
    }
    assert_eq!(at("spec")["required"], serde_json::json!(["trainer", "rollout", "pools"]));
}

#[test]
fn a_form_is_told_to_people_as_it_is_told_to_the_cluster() {
    let forms = [
        (PoolName::FORM, PoolName::REGEX),
        (InstanceType::FORM, InstanceType::REGEX),
        (LifecycleHookName::FORM, LifecycleHookName::REGEX),
        (Zone::FORM, Zone::REGEX),
        (crate::ids::RunId::FORM, crate::ids::RunId::REGEX),
    ];
    for (form, regex) in forms {
        let told = form.strip_prefix("match ").expect("a form that is a regular expression");
        assert_eq!(format!("^{told}$"), regex);
    }
    assert!(AutoScalingGroupName::REGEX.ends_with("{1,255}$"));
    assert!(ExtraTaint::REGEX.ends_with(":(NoSchedule|PreferNoSchedule|NoExecute)$"));
}
