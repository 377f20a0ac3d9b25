//! What the providers that work through Kubernetes share: calls with a time limit, pods as
//! instances, nodes that are gone.
//!
//! An instance is an engine's pod on a node. A pod without a node is none yet: it is what the pool
//! lacks, and when it stays so for long its pool has no capacity.

pub(super) mod pod;
mod waiting;

use std::collections::BTreeSet;

use ebbtide_core::observation::InstanceId;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};

use super::{CALL_LIMIT, CapacityError};
use pod::SeenPod;
pub(super) use waiting::Waiting;

/// Items that one page of a list has.
const PAGE_ITEMS: u32 = 500;

/// Pages that one look reads at most: 50,000 items.
const PAGES_LIMIT: usize = 100;

/// Conflicts in a row that are answered by another try.
pub(super) const CONFLICTS_LIMIT: usize = 8;

/// A cluster, and the namespace of everything that names none.
#[derive(Clone)]
pub(super) struct Cluster {
    client: Client,
    namespace: String,
}

impl Cluster {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// Objects of a kind that is known by name.
    pub fn objects(&self, kind: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        let namespace = namespace.unwrap_or(&self.namespace);
        Api::namespaced_with(self.client.clone(), namespace, kind)
    }

    pub fn pods(&self, namespace: Option<&str>) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace.unwrap_or(&self.namespace))
    }

    /// The pods that a selector names, those that have ended left out.
    ///
    /// # Errors
    /// The API server refused or did not answer.
    pub async fn seen_pods(
        &self,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Vec<SeenPod>, CapacityError> {
        let pods = self.pods(namespace);
        let list = async |page: ListParams| pods.list(&page).await;
        let found = all_pages(ListParams::default().labels(selector), list);
        let found = within("list of pods", found).await?;
        Ok(found.iter().filter_map(SeenPod::read).collect())
    }

    /// Instances of which the cluster has no node any more.
    ///
    /// # Errors
    /// The API server refused or did not answer.
    pub async fn find_gone(
        &self,
        instances: &[InstanceId],
    ) -> Result<BTreeSet<InstanceId>, CapacityError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let list = async |page: ListParams| nodes.list(&page).await;
        let nodes = within("list of nodes", all_pages(ListParams::default(), list)).await?;
        let known: BTreeSet<&str> = nodes.iter().filter_map(instance_of).collect();
        let is_gone = |id: &&InstanceId| !known.contains(id.0.as_str());
        Ok(instances.iter().filter(is_gone).cloned().collect())
    }
}

/// The instance of a node is the end of its provider's id.
fn instance_of(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref()?.rsplit('/').next()
}

async fn all_pages<K: Clone, F>(
    first: ListParams,
    list: impl Fn(ListParams) -> F,
) -> Result<Vec<K>, kube::Error>
where
    F: Future<Output = Result<kube::core::ObjectList<K>, kube::Error>>,
{
    let mut found = Vec::new();
    let mut page = first.limit(PAGE_ITEMS);
    for _ in 0..PAGES_LIMIT {
        let part = list(page.clone()).await?;
        found.extend(part.items);
        match part.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    Ok(found)
}

/// One call, or one list with all its pages, within [`CALL_LIMIT`], its errors in our words.
pub(super) async fn within<T>(
    what: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CapacityError> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(outcome) => outcome.map_err(|error| explain(what, &error)),
        Err(_) => {
            let problem = format!("no answer within {CALL_LIMIT:?}");
            Err(CapacityError::Unavailable { what: what.to_owned(), problem })
        }
    }
}

/// Whether another writer was first, or the object is gone.
pub(super) fn is_conflict(error: &CapacityError) -> bool {
    matches!(error, CapacityError::Refused { code, .. } if code == "Conflict")
}

/// Whether there is no such object.
pub(super) fn is_absent(error: &CapacityError) -> bool {
    matches!(error, CapacityError::Refused { code, .. } if code == "NotFound")
}

/// Whether the name is taken.
pub(super) fn is_taken(error: &CapacityError) -> bool {
    matches!(error, CapacityError::Refused { code, .. } if code == "AlreadyExists")
}

/// How the API server calls LeaderWorkerSets.
pub(super) fn leader_worker_sets() -> ApiResource {
    let (group, version) = ("leaderworkerset.x-k8s.io".to_owned(), "v1".to_owned());
    ApiResource {
        api_version: format!("{group}/{version}"),
        group,
        version,
        kind: "LeaderWorkerSet".to_owned(),
        plural: "leaderworkersets".to_owned(),
    }
}

/// What the API server said. Too many requests are no refusal.
fn explain(what: &str, error: &kube::Error) -> CapacityError {
    let what = what.to_owned();
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => {
            let (code, message) = (status.reason.clone(), status.message.clone());
            CapacityError::Refused { what, code, message }
        }
        kube::Error::Api(status) => {
            let problem = format!("{} ({} {})", status.message, status.code, status.reason);
            CapacityError::Unavailable { what, problem }
        }
        other => CapacityError::Unavailable { what, problem: other.to_string() },
    }
}
