//! Marks on a node of a real cluster.
//!
//! Every change is read, changed, and written under the resource version that was read: a change
//! by somebody else in between is a conflict, and the change is made again on what stands then.

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use ebbtide_queue::client::wall_clock_now;
use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{CORDON_ANNOTATION, INTERRUPTION_TAINT, MarkError, NodeEvent, NodeMarks};

/// Conflicts in a row that are answered by another try: each one means that somebody else's
/// change went through.
const CONFLICTS_LIMIT: usize = 8;

/// Where events on nodes live: nodes have no namespace, and the kubelet's are here too.
const EVENTS_NAMESPACE: &str = "default";

/// Who reports.
const COMPONENT: &str = "ebbtide-agent";

/// Marks nodes through the API server.
#[derive(Clone)]
pub struct KubeMarks {
    nodes: Api<Node>,
    events: Api<Event>,
}

impl KubeMarks {
    /// Marks nodes through this client.
    pub fn new(client: Client) -> Self {
        Self { nodes: Api::all(client.clone()), events: Api::namespaced(client, EVENTS_NAMESPACE) }
    }

    /// Changes a node by the patch that `plan` makes of what stands, if it makes one.
    async fn change(
        &self,
        name: &NodeName,
        plan: impl Fn(&Node) -> Option<Value> + Send + Sync,
    ) -> Result<(), MarkError> {
        let failed = |problem: String| MarkError { node: name.clone(), problem };
        for _ in 0..CONFLICTS_LIMIT {
            let node = self.nodes.get(name.as_str()).await.map_err(|e| failed(explain(&e)))?;
            let Some(mut patch) = plan(&node) else { return Ok(()) };
            patch["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
            let parameters = PatchParams::default();
            match self.nodes.patch(name.as_str(), &parameters, &Patch::Merge(patch)).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(failed(explain(&error))),
            }
        }
        Err(failed(format!("{CONFLICTS_LIMIT} conflicts with other writers in a row")))
    }
}

#[async_trait]
impl NodeMarks for KubeMarks {
    async fn mark(&self, node: &NodeName, reason: &str) -> Result<(), MarkError> {
        self.change(node, |node| plan_mark(node, reason)).await
    }

    async fn clear(&self, node: &NodeName) -> Result<(), MarkError> {
        self.change(node, plan_clear).await
    }

    async fn tell(&self, node: &NodeName, event: NodeEvent) -> Result<(), MarkError> {
        let event = describe(node, event);
        let created = self.events.create(&PostParams::default(), &event).await;
        created
            .map(|_| ())
            .map_err(|error| MarkError { node: node.clone(), problem: explain(&error) })
    }
}

/// What the API server said, without the debug form that `kube` adds to it.
fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            format!("{} ({} {})", status.message, status.code, status.reason)
        }
        other => other.to_string(),
    }
}

/// The change that marks a node; none when it is marked already.
fn plan_mark(node: &Node, reason: &str) -> Option<Value> {
    let is_cordoned = is_cordoned(node);
    let standing = taints_of(node);
    let is_tainted = standing
        .iter()
        .any(|taint| taint.key == INTERRUPTION_TAINT && taint.value.as_deref() == Some(reason));
    if is_cordoned && is_tainted {
        return None;
    }
    let mut taints = without_ours(standing);
    taints.push(Taint {
        key: INTERRUPTION_TAINT.to_owned(),
        value: Some(reason.to_owned()),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    });
    let mut patch = json!({ "metadata": {}, "spec": { "unschedulable": true, "taints": taints } });
    if !is_cordoned {
        patch["metadata"]["annotations"] = json!({ CORDON_ANNOTATION: "true" });
    }
    Some(patch)
}

/// The change that removes our marks; none when there are none.
fn plan_clear(node: &Node) -> Option<Value> {
    let is_cordon_ours = node
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(CORDON_ANNOTATION));
    let standing = taints_of(node);
    let is_tainted = standing.iter().any(|taint| taint.key == INTERRUPTION_TAINT);
    if !is_cordon_ours && !is_tainted {
        return None;
    }
    let taints = without_ours(standing);
    let taints = if taints.is_empty() { Value::Null } else { json!(taints) };
    let mut patch = json!({ "metadata": {}, "spec": { "taints": taints } });
    if is_cordon_ours {
        patch["metadata"]["annotations"] = json!({ CORDON_ANNOTATION: null });
        patch["spec"]["unschedulable"] = Value::Null;
    }
    Some(patch)
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

fn taints_of(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

fn without_ours(mut taints: Vec<Taint>) -> Vec<Taint> {
    // While a node is cordoned the API server's own taint comes and goes with the cordon.
    taints.retain(|taint| taint.key != INTERRUPTION_TAINT);
    taints
}

fn describe(node: &NodeName, event: NodeEvent) -> Event {
    let now = i64::try_from(wall_clock_now().0).ok();
    let now = now.and_then(|ms| Timestamp::from_millisecond(ms).ok()).map(Time);
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{node}.")),
            namespace: Some(EVENTS_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_string()),
            // As the kubelet has it, so that `kubectl describe node` shows the event.
            uid: Some(node.to_string()),
            ..ObjectReference::default()
        },
        reason: Some(event.reason.to_owned()),
        message: Some(event.message),
        type_: Some(if event.is_warning { "Warning" } else { "Normal" }.to_owned()),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node.to_string()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_string()),
        action: None,
        count: Some(1),
        first_timestamp: now.clone(),
        last_timestamp: now,
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeSpec;

    use super::*;

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

    #[test]
    fn mark_keeps_taints_of_others_and_remembers_its_cordon() {
        let patch =
            plan_mark(&node(None, &[("gpu", "yes")], false), "spot_stop").expect("a change");
        let taints = patch["spec"]["taints"].as_array().expect("a list");
        assert_eq!(taints.len(), 2);
        assert_eq!(taints[0]["key"], "gpu");
        assert_eq!(taints[1]["value"], "spot_stop");
        assert_eq!(patch["spec"]["unschedulable"], true);
        assert_eq!(patch["metadata"]["annotations"][CORDON_ANNOTATION], "true");
    }

    #[test]
    fn marked_node_needs_no_change() {
        let marked = node(Some(true), &[(INTERRUPTION_TAINT, "spot_stop")], true);
        assert_eq!(plan_mark(&marked, "spot_stop"), None);
        assert_eq!(plan_clear(&node(Some(true), &[("gpu", "yes")], false)), None);
    }

    #[test]
    fn cordon_of_an_administrator_is_not_taken_over_and_not_removed() {
        let patch = plan_mark(&node(Some(true), &[], false), "spot_stop").expect("a change");
        assert_eq!(patch["metadata"].get("annotations"), None);
        let tainted = node(Some(true), &[(INTERRUPTION_TAINT, "spot_stop"), ("gpu", "yes")], false);
        let patch = plan_clear(&tainted).expect("a change");
        assert_eq!(patch["spec"].get("unschedulable"), None);
        assert_eq!(patch["spec"]["taints"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn own_cordon_is_removed() {
        let marked = node(Some(true), &[(INTERRUPTION_TAINT, "spot_stop")], true);
        let patch = plan_clear(&marked).expect("a change");
        assert_eq!(patch["spec"]["unschedulable"], Value::Null);
        assert_eq!(patch["spec"]["taints"], Value::Null);
        assert_eq!(patch["metadata"]["annotations"][CORDON_ANNOTATION], Value::Null);
    }
}
