//! The fleet policy as a custom resource: the definition that a cluster checks it by.
//!
//! Keys, ranges and fixed defaults come from the readers of the policy, through `outline`; what
//! keys have to do with each other is said again for the cluster in `relations`, and a test asks a
//! real API server whether it refuses what `rules` refuses. What only this version cannot do
//! ([`FleetPolicy::unsupported_sizing`](super::FleetPolicy::unsupported_sizing)) is accepted, and
//! two pools that size the same object are: the controller answers these with a condition.

mod relations;
mod status;

use serde_json::{Map, Value, json};

use super::Position;
use super::report::Report;
use super::section::read_section;

/// The API group of the resource.
pub const GROUP: &str = "ebbtide.dev";

/// Its version.
pub const VERSION: &str = "v1alpha1";

/// Its kind.
pub const KIND: &str = "FleetPolicy";

/// Its name in paths and on the command line.
pub const PLURAL: &str = "fleetpolicies";

/// The name of its definition.
pub const CRD_NAME: &str = "fleetpolicies.ebbtide.dev";

/// The custom resource definition, for `apiextensions.k8s.io/v1`.
pub fn resource_definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": CRD_NAME },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": "FleetPolicyList",
                "plural": PLURAL,
                "singular": "fleetpolicy",
                "shortNames": ["fp"],
            },
            "scope": "Namespaced",
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": schema() },
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns(),
            }],
        },
    })
}

/// What `kubectl get fleetpolicies` shows.
fn columns() -> Value {
    let ready = ".status.conditions[?(@.type==\"Ready\")].status";
    json!([
        column("Mode", "string", ".spec.mode", "Whether decisions are carried out."),
        column("Ready", "string", ready, "Whether the policy is in force and everything is read."),
        column("Running", "integer", ".status.rollout.running", "Rollout replicas there are."),
        column("Desired", "integer", ".status.rollout.desired", "Rollout replicas to be."),
        column("Limit", "string", ".status.limitingStage", "What limits the policy iteration."),
        column("Age", "date", ".metadata.creationTimestamp", "Since when there is a policy."),
    ])
}

fn column(name: &str, kind: &str, path: &str, description: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path, "description": description })
}

fn schema() -> Map<String, Value> {
    let mut report = Report::of_outline();
    let place = (String::new(), Position::START);
    read_section(None, place, &mut report, super::read_document);
    let mut outline = report.into_outline();
    relations::add_to(&mut outline);
    // Who this is about is checked by the cluster itself, and of the metadata a schema may only
    // say what names there are.
    for path in ["apiVersion", "kind", "metadata"] {
        let known = outline.at(path);
        known.retain(|key, _| matches!(key.as_str(), "properties"));
        known
            .insert("type".to_owned(), json!(if path == "metadata" { "object" } else { "string" }));
    }
    outline.at("status").extend(status::schema());
    let document = outline.at("");
    document.insert("type".to_owned(), json!("object"));
    document.insert("required".to_owned(), json!(["spec"]));
    let description = "One run: how its work is leased, how nodes are emptied, and between which \
                       bounds its worker groups are sized.";
    document.insert("description".to_owned(), json!(description));
    outline.into_schema()
}
