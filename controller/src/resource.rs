//! The fleet policy as a custom resource: read every few seconds, answered in its status.
//!
//! It is read by name and not watched: one small read needs no right to see other policies, and no
//! stream that may stand still unnoticed. The status is written by the leader alone, and only when
//! something in it changes; `lastTransitionTime` moves only with a condition's status.

mod report;

use std::fmt;
use std::time::Duration;

use ebbtide_core::policy::{FleetPolicy, GROUP, KIND, PLURAL, VERSION};
use ebbtide_core::time::UnixMillis;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) use self::report::report_while_leading;
use self::report::{Reporter, Standing};
use crate::policy_source::{PolicyText, parse};
use crate::server::Shown;
use crate::status::Snapshot;

/// Longest time of one call.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Time between two looks while there is no valid policy to begin with.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Who writes events.
const COMPONENT: &str = "ebbtide-controller";

/// One `FleetPolicy` of a cluster.
#[derive(Clone)]
pub struct PolicyResource {
    policies: Api<DynamicObject>,
    events: Api<Event>,
    namespace: String,
    name: String,
}

impl fmt::Debug for PolicyResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicyResource({self})")
    }
}

impl fmt::Display for PolicyResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fleetpolicy {}/{}", self.namespace, self.name)
    }
}

/// An event about the resource.
struct Told {
    is_warning: bool,
    reason: String,
    message: String,
}

impl PolicyResource {
    /// The resource of this name. Nothing is asked yet.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        Self {
            policies: Api::namespaced_with(client.clone(), namespace, &resource),
            events: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The first valid policy of the resource, however long that takes; `None` when `stop` comes
    /// before. What is wrong until then stands in `shown` and in the status of the resource, unless
    /// a leader has judged the same text there.
    pub(crate) async fn first_policy(
        &self,
        shown: &Shown,
        now: fn() -> UnixMillis,
        stop: &CancellationToken,
    ) -> Option<FleetPolicy> {
        let mut reporter = Reporter::default();
        let mut last_problem = String::new();
        loop {
            shown.pulse.beat(LOOK_EVERY);
            let text = self.read().await;
            let generation = text.as_ref().ok().and_then(|text| text.generation);
            match text.and_then(|text| parse(&text)) {
                Ok(policy) => return Some(policy),
                Err(problem) => {
                    if problem != last_problem {
                        tracing::error!(%problem, "there is no valid policy yet");
                    }
                    let problems = vec![problem.clone()];
                    shown.status.replace(Snapshot { problems, ..Snapshot::default() });
                    if generation.is_some() {
                        let standing = Standing::refused(&problem, generation);
                        reporter.publish(self, &standing, now()).await;
                    }
                    last_problem = problem;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return None,
            }
        }
    }

    /// The document as it stands in the cluster, without what others keep in it.
    ///
    /// # Errors
    /// In words: there is none, or the API server cannot be asked.
    pub(crate) async fn read(&self) -> Result<PolicyText, String> {
        let Some(object) = self.get().await? else {
            return Err(format!(
                "{self} does not exist; `ebbtide crd` prints the definition of its kind"
            ));
        };
        let generation = object["metadata"]["generation"].as_i64();
        let document = json!({
            "apiVersion": object["apiVersion"],
            "kind": object["kind"],
            "metadata": { "name": object["metadata"]["name"] },
            "spec": object["spec"],
        });
        let text = format!("{document:#}");
        Ok(PolicyText { name: self.to_string(), text, generation })
    }

    async fn get(&self) -> Result<Option<Value>, String> {
        let object = self.call("read", self.policies.get_opt(&self.name)).await?;
        object.map(serde_json::to_value).transpose().map_err(|error| format!("{self}: {error}"))
    }

    /// Puts these fields into the status; those that are not named stay. Answers the version that
    /// the resource has then; `None` when it is at another one than `version`: somebody has
    /// written it since.
    async fn write_status(&self, status: &Value, version: &str) -> Result<Option<String>, String> {
        let metadata = json!({ "resourceVersion": version });
        let patch = Patch::Merge(json!({ "metadata": metadata, "status": status }));
        let parameters = PatchParams::default();
        let patched = async {
            match self.policies.patch_status(&self.name, &parameters, &patch).await {
                Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
                patched => patched.map(Some),
            }
        };
        let patched = self.call("write the status of", patched).await?;
        Ok(patched.map(|object| object.metadata.resource_version.unwrap_or_default()))
    }

    async fn tell(&self, told: Told, uid: Option<String>, now: UnixMillis) -> Result<(), String> {
        let now = i64::try_from(now.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let now = now.map(Time);
        let event = Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}.", self.name)),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(format!("{GROUP}/{VERSION}")),
                kind: Some(KIND.to_owned()),
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                uid,
                ..ObjectReference::default()
            },
            reason: Some(told.reason),
            message: Some(told.message),
            type_: Some(if told.is_warning { "Warning" } else { "Normal" }.to_owned()),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(COMPONENT.to_owned()),
            count: Some(1),
            first_timestamp: now.clone(),
            last_timestamp: now,
            ..Event::default()
        };
        let created = self.events.create(&PostParams::default(), &event).await;
        created.map(drop).map_err(|error| format!("cannot tell an event about {self}: {error}"))
    }

    async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, String> {
        match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(format!("cannot {what} {self}: {error}")),
            Err(_) => Err(format!("cannot {what} {self}: no answer within {CALL_LIMIT:?}")),
        }
    }
}
