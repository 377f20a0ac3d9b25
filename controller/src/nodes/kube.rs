//! Nodes of a real cluster.
//!
//! A change is read, made, and written under the resource version that was read: a change by
//! somebody else in between is a conflict, and the change is made again on what stands then.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use ebbtide_core::marks::{CORDON_ANNOTATION, INTERRUPTION_TAINT};
use ebbtide_core::observation::InstanceId;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{ClusterNodes, NodeError};

/// Conflicts in a row that are answered by another try.
const CONFLICTS_LIMIT: usize = 8;

/// Nodes that one page of a list has.
const PAGE_NODES: u32 = 500;

/// Pages that one look reads at most: clusters have up to 5,000 nodes, here up to 50,000.
const PAGES_LIMIT: usize = 100;

/// Least time between two lists of all nodes: a queue may carry the events of a whole account.
const LIST_EVERY: Duration = Duration::from_secs(5);

/// See the module.
pub struct KubeNodes {
    nodes: Api<Node>,
    /// One look at a time; who waits for it finds what it found.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_instance: BTreeMap<String, NodeName>,
    listed_at: Option<Instant>,
}

impl KubeNodes {
    /// Nodes behind this client. Nothing is asked yet.
    pub fn new(client: Client) -> Self {
        Self { nodes: Api::all(client), known: Mutex::default() }
    }

    async fn list(&self) -> Result<BTreeMap<String, NodeName>, NodeError> {
        let mut found = BTreeMap::new();
        let mut page = ListParams::default().limit(PAGE_NODES);
        for _ in 0..PAGES_LIMIT {
            let nodes = self.nodes.list(&page).await;
            let nodes = nodes.map_err(|error| explain("list of nodes".to_owned(), &error))?;
            found.extend(nodes.items.iter().filter_map(identify));
            match nodes.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl ClusterNodes for KubeNodes {
    async fn find(&self, instance: &InstanceId) -> Result<Option<NodeName>, NodeError> {
        let mut known = self.known.lock().await;
        let is_fresh = known.listed_at.is_some_and(|at| at.elapsed() < LIST_EVERY);
        if !known.by_instance.contains_key(&instance.0) && !is_fresh {
            known.by_instance = self.list().await?;
            known.listed_at = Some(Instant::now());
        }
        Ok(known.by_instance.get(&instance.0).cloned())
    }

    async fn mark(&self, name: &NodeName, reason: &str) -> Result<bool, NodeError> {
        let what = || format!("cordon of node {name}");
        for _ in 0..CONFLICTS_LIMIT {
            let node = self.nodes.get_opt(name.as_str()).await;
            let node = node.map_err(|error| explain(what(), &error))?;
            let Some(mut patch) = node.as_ref().and_then(|node| plan_mark(node, reason)) else {
                return Ok(false);
            };
            let version = node.and_then(|node| node.metadata.resource_version);
            patch["metadata"]["resourceVersion"] = json!(version);
            let parameters = PatchParams::default();
            match self.nodes.patch(name.as_str(), &parameters, &Patch::Merge(patch)).await {
                Ok(_) => return Ok(true),
                // Changed in between, or gone: both are seen at the next look.
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(explain(what(), &error)),
            }
        }
        let problem = format!("{CONFLICTS_LIMIT} conflicts with other writers in a row");
        Err(NodeError::Unavailable { what: what(), problem })
    }
}

/// The instance of a node, which is the end of its provider's id, and its name.
fn identify(node: &Node) -> Option<(String, NodeName)> {
    let provider_id = node.spec.as_ref()?.provider_id.as_deref()?;
    let instance = provider_id.rsplit('/').next().filter(|id| !id.is_empty())?;
    Some((instance.to_owned(), node.metadata.name.as_deref()?.parse().ok()?))
}

/// The change that marks a node; none when it has our taint and is cordoned already. The reason of
/// a mark that stands is left as it is: its agent may have set it.
fn plan_mark(node: &Node, reason: &str) -> Option<Value> {
    let spec = node.spec.as_ref();
    let is_cordoned = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
    let mut taints = spec.and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_tainted = taints.iter().any(|taint| taint.key == INTERRUPTION_TAINT);
    if is_cordoned && is_tainted {
        return None;
    }
    if !is_tainted {
        taints.push(Taint {
            key: INTERRUPTION_TAINT.to_owned(),
            value: Some(reason.to_owned()),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
    }
    let mut patch = json!({ "metadata": {}, "spec": { "unschedulable": true, "taints": taints } });
    if !is_cordoned {
        patch["metadata"]["annotations"] = json!({ CORDON_ANNOTATION: "true" });
    }
    Some(patch)
}

/// What the API server said, without the debug form that `kube` adds to it.
fn explain(what: String, error: &kube::Error) -> NodeError {
    let kube::Error::Api(status) = error else {
        return NodeError::Unavailable { what, problem: error.to_string() };
    };
    let problem = format!("{} ({} {})", status.message, status.code, status.reason);
    let is_refusal = (400..500).contains(&status.code) && status.code != 429;
    if is_refusal {
        NodeError::Refused { what, problem }
    } else {
        NodeError::Unavailable { what, problem }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn node(unschedulable: Option<bool>, taints: &[(&str, &str)]) -> Node {
        let taint = |(key, value): &(&str, &str)| Taint {
            key: (*key).to_owned(),
            value: Some((*value).to_owned()),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        Node {
            metadata: ObjectMeta { name: Some("ip-10-0-0-1".to_owned()), ..ObjectMeta::default() },
            spec: Some(NodeSpec {
                unschedulable,
                taints: Some(taints.iter().map(taint).collect()),
                provider_id: Some("aws:///us-east-1a/i-0abc".to_owned()),
                ..NodeSpec::default()
            }),
            ..Node::default()
        }
    }

    #[test]
    fn instance_is_the_end_of_the_provider_id() {
        let (instance, name) = identify(&node(None, &[])).expect("it has one");
        assert_eq!((instance.as_str(), name.as_str()), ("i-0abc", "ip-10-0-0-1"));
        let mut other = node(None, &[]);
        for provider_id in [None, Some(""), Some("aws:///us-east-1a/")] {
            other.spec.as_mut().expect("set").provider_id = provider_id.map(str::to_owned);
            assert_eq!(identify(&other), None, "{provider_id:?}");
        }
    }

    #[test]
    fn mark_keeps_taints_of_others_and_remembers_its_cordon() {
        let patch = plan_mark(&node(None, &[("gpu", "yes")]), "notice").expect("a change");
        let taints = patch["spec"]["taints"].as_array().expect("a list");
        assert_eq!((taints.len(), &taints[0]["key"]), (2, &json!("gpu")));
        assert_eq!(taints[1]["value"], "notice");
        assert_eq!(patch["spec"]["unschedulable"], true);
        assert_eq!(patch["metadata"]["annotations"][CORDON_ANNOTATION], "true");
    }

    #[test]
    fn cordon_of_an_administrator_is_not_taken_over() {
        let patch = plan_mark(&node(Some(true), &[]), "notice").expect("a change");
        assert_eq!(patch["metadata"].get("annotations"), None);
    }

    #[test]
    fn node_that_its_agent_marked_needs_no_change() {
        let marked = node(Some(true), &[(INTERRUPTION_TAINT, "spot_stop")]);
        assert_eq!(plan_mark(&marked, "notice"), None);
    }
}
