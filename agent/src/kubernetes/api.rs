//! Pods through a real API server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_core::ids::NodeName;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::objects::{ApiNode, ApiPod, nodes, pods, read_node, read_pod};
use super::pod::{PodId, SeenPod};
use super::refusal::{Refusal, read_refusal};
use super::request::{RequestError, request};
use super::watching::{Look, follow};
use super::{Departure, EvictionError, NodePods, NodeSight};

/// Follows and evicts through this client. It should not repeat calls by itself: a refusal is to be
/// known at once, and who evicts decides what becomes of it.
#[derive(Clone)]
pub struct KubePods {
    client: Client,
}

impl KubePods {
    /// Follows and evicts through this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn pods_of(&self, namespace: &str) -> Api<ApiPod> {
        Api::namespaced_with(self.client.clone(), namespace, &pods())
    }

    async fn follow_pods(&self, node: &NodeName, sights: &watch::Sender<NodeSight>) {
        let api: Api<ApiPod> = Api::all_with(self.client.clone(), &pods());
        let mut trouble = Trouble::about("pods");
        let fields = format!("spec.nodeName={node}");
        follow(&api, &fields, read_pod, |look| match look {
            Look::Seen(known) => {
                trouble.is_over();
                let pods: Arc<Vec<SeenPod>> = Arc::new(known.values().cloned().collect());
                sights.send_if_modified(|sight| sight.pods.replace(pods.clone()) != Some(pods));
            }
            Look::Failed(error) => trouble.note(error, sights),
        })
        .await;
    }

    async fn follow_node(&self, node: &NodeName, sights: &watch::Sender<NodeSight>) {
        let api: Api<ApiNode> = Api::all_with(self.client.clone(), &nodes());
        let mut trouble = Trouble::about("node");
        let fields = format!("metadata.name={node}");
        follow(&api, &fields, read_node, |look| match look {
            Look::Seen(known) => {
                trouble.is_over();
                // A node object that goes takes nothing back: its last sight stands.
                let Some(node) = known.values().next().cloned() else { return };
                sights.send_if_modified(|sight| {
                    sight.node.replace(node.clone()).as_ref() != Some(&node)
                });
            }
            Look::Failed(error) => trouble.note(error, sights),
        })
        .await;
    }
}

#[async_trait]
impl NodePods for KubePods {
    async fn follow(&self, node: &NodeName, sights: &watch::Sender<NodeSight>) {
        futures::join!(self.follow_node(node, sights), self.follow_pods(node, sights));
    }

    async fn evict(&self, pod: &PodId, grace: Duration) -> Result<Departure, EvictionError> {
        // Not `Api::evict`: it sends the options under a name that the server does not know.
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "namespace": pod.namespace, "name": pod.name },
            "deleteOptions": {
                "gracePeriodSeconds": grace.as_secs(),
                "preconditions": { "uid": pod.uid },
            },
        });
        let api = self.pods_of(&pod.namespace);
        let parameters = PostParams::default();
        let answer: Result<Value, RequestError> =
            request(api.create_subresource("eviction", &pod.name, &parameters, &eviction)).await;
        departure(answer.map(drop))
    }

    async fn delete(&self, pod: &PodId, grace: Duration) -> Result<Departure, EvictionError> {
        let parameters = DeleteParams {
            grace_period_seconds: Some(u32::try_from(grace.as_secs()).unwrap_or(u32::MAX)),
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let answer = request(self.pods_of(&pod.namespace).delete(&pod.name, &parameters)).await;
        departure(answer.map(drop))
    }
}

fn departure(answer: Result<(), RequestError>) -> Result<Departure, EvictionError> {
    let error = match answer {
        Ok(()) => return Ok(Departure::Begun),
        Err(error) => error,
    };
    let problem = error.to_string();
    let RequestError::Refused(status) = error else {
        return Err(EvictionError::Failed { problem });
    };
    match read_refusal(&status, problem) {
        Refusal::Gone => Ok(Departure::AlreadyGone),
        Refusal::Error(error) => Err(error),
    }
}

/// Tells of trouble when it begins and when it ends, not at every try.
struct Trouble {
    what: &'static str,
    is_told: bool,
}

impl Trouble {
    fn about(what: &'static str) -> Self {
        Self { what, is_told: false }
    }

    fn note(&mut self, error: &RequestError, sights: &watch::Sender<NodeSight>) {
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(what = self.what, %error, "not followed, the last sight stands");
        }
        sights.send_modify(|sight| sight.failures += 1);
    }

    fn is_over(&mut self) {
        if std::mem::replace(&mut self.is_told, false) {
            tracing::info!(what = self.what, "followed again");
        }
    }
}
