//! Marks on a node of a real cluster.
//!
//! Every change is read, changed, and written under the resource version that was read: a change
//! by somebody else in between is a conflict, and the change is made again on what stands then.

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use ebbtide_core::policy::ExtraTaint;
use ebbtide_queue::client::wall_clock_now;
use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::plan::{plan_clear, plan_condition, plan_mark};
use super::{MarkError, NodeEvent, NodeMarks};
use crate::kubernetes::{RequestError, request};

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
    extra_taint: Option<ExtraTaint>,
}

impl KubeMarks {
    /// Marks nodes through this client.
    pub fn new(client: Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            events: Api::namespaced(client, EVENTS_NAMESPACE),
            extra_taint: None,
        }
    }

    /// The same, with a taint of the operator's beside ours.
    #[must_use]
    pub fn with_extra_taint(self, extra_taint: Option<ExtraTaint>) -> Self {
        Self { extra_taint, ..self }
    }

    /// Changes a node by the patch that `plan` makes of what stands, if it makes one.
    async fn change(
        &self,
        name: &NodeName,
        plan: impl Fn(&Node) -> Option<Value> + Send + Sync,
    ) -> Result<(), MarkError> {
        let failed = |error: RequestError| not_marked(name, error.to_string());
        for _ in 0..CONFLICTS_LIMIT {
            let node = request(self.nodes.get(name.as_str())).await.map_err(failed)?;
            let Some(mut patch) = plan(&node) else { return Ok(()) };
            patch["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
            match request(self.nodes.patch(name.as_str(), &parameters, &patch)).await {
                Ok(_) => return Ok(()),
                Err(RequestError::Refused(status)) if status.code == 409 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let problem = format!("{CONFLICTS_LIMIT} conflicts with other writers in a row");
        Err(not_marked(name, problem))
    }
}

#[async_trait]
impl NodeMarks for KubeMarks {
    async fn mark(&self, node: &NodeName, reason: &str) -> Result<(), MarkError> {
        self.change(node, |node| plan_mark(node, reason, self.extra_taint.as_ref())).await?;
        tracing::info!(reason, "node cordoned and tainted");
        Ok(())
    }

    async fn clear(&self, node: &NodeName) -> Result<(), MarkError> {
        self.change(node, plan_clear).await?;
        tracing::debug!("node is free of our marks");
        Ok(())
    }

    async fn show_condition(
        &self,
        node: &NodeName,
        interruption: Option<&str>,
    ) -> Result<(), MarkError> {
        let failed = |error: RequestError| not_marked(node, error.to_string());
        let standing = request(self.nodes.get(node.as_str())).await.map_err(failed)?;
        let now = now().map_or_else(String::new, |now| now.0.to_string());
        let Some(patch) = plan_condition(&standing, interruption, &now) else { return Ok(()) };
        // Conditions are merged by their type: those of others are not touched.
        let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let shown = request(self.nodes.patch_status(node.as_str(), &parameters, &patch)).await;
        shown.map(drop).map_err(failed)
    }

    async fn tell(&self, node: &NodeName, event: NodeEvent) -> Result<(), MarkError> {
        let event = describe(node, event);
        let created = request(self.events.create(&PostParams::default(), &event)).await;
        created.map(drop).map_err(|error| not_marked(node, error.to_string()))
    }
}

fn not_marked(node: &NodeName, problem: String) -> MarkError {
    MarkError { node: node.clone(), problem }
}

fn now() -> Option<Time> {
    let now = i64::try_from(wall_clock_now().0).ok();
    now.and_then(|ms| Timestamp::from_millisecond(ms).ok()).map(Time)
}

fn describe(node: &NodeName, event: NodeEvent) -> Event {
    let now = now();
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
