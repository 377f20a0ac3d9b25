//! Nodes and pods as the API server sends them, read no further than they matter.
//!
//! Whole `Node` and `Pod` types would read every image and volume of a node at each of its
//! changes; these skip what is not looked at.

use std::time::Duration;

use ebbtide_core::time::UnixMillis;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::core::{ApiResource, NotUsed, Object};
use serde::Deserialize;

use super::engine_ports::{Container, engine_ports};
use super::pod::{GroupLabels, PodId, PodStart, SeenPod, StayReason, Termination, Tier};
use super::{COMPONENT_LABEL, ENGINE_LABEL, SeenNode, SeenTaint, WORKER_LABEL};

/// The API object of a static pod carries this annotation.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Priority from which a pod is critical: `system-cluster-critical` has exactly this.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// What a pod gets that asks for no grace (Kubernetes' own default).
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// Labels of a LeaderWorkerSet begin so.
const GROUP_LABELS: &str = "leaderworkerset.sigs.k8s.io/";

pub(super) type ApiPod = Object<PodSpec, PodStatus>;
pub(super) type ApiNode = Object<NodeSpec, NotUsed>;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    priority: Option<i32>,
    termination_grace_period_seconds: Option<i64>,
    pub(super) node_name: Option<String>,
    #[serde(default)]
    pub(super) containers: Vec<Container>,
    /// Those that run beside the others are among them.
    #[serde(default)]
    pub(super) init_containers: Vec<Container>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    #[serde(rename = "hostIP")]
    pub(super) host_ip: Option<String>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    #[serde(default)]
    conditions: Vec<PodCondition>,
    #[serde(default)]
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Time>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    #[serde(default)]
    restart_count: u32,
    state: Option<ContainerState>,
}

#[derive(Debug, Clone, Deserialize)]
struct ContainerState {
    running: Option<RunningContainer>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunningContainer {
    started_at: Option<Time>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct NodeSpec {
    #[serde(default)]
    taints: Vec<NodeTaint>,
}

#[derive(Debug, Clone, Deserialize)]
struct NodeTaint {
    key: String,
    #[serde(default)]
    value: String,
}

pub(super) fn pods() -> ApiResource {
    ApiResource::erase::<Pod>(&())
}

pub(super) fn nodes() -> ApiResource {
    ApiResource::erase::<Node>(&())
}

pub(super) fn read_node(node: &ApiNode) -> SeenNode {
    let taint =
        |taint: &NodeTaint| SeenTaint { key: taint.key.clone(), value: taint.value.clone() };
    SeenNode {
        taints: node.spec.taints.iter().map(taint).collect(),
        is_being_deleted: node.metadata.deletion_timestamp.is_some(),
    }
}

pub(super) fn read_pod(pod: &ApiPod) -> SeenPod {
    let metadata = &pod.metadata;
    let priority = pod.spec.priority.unwrap_or(0);
    let tier = tier_of(metadata, priority);
    let stays = stay_reason(pod);
    let answers = tier == Tier::Engine && stays != Some(StayReason::Finished);
    let grace = pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
    SeenPod {
        id: PodId {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        },
        tier,
        stays,
        priority,
        grace: seconds(grace),
        created: metadata.creation_timestamp.as_ref().map(unix_millis),
        start: pod.status.as_ref().map(start_of).unwrap_or_default(),
        termination: termination_of(metadata),
        group: group_of(metadata),
        engines: if answers { engine_ports(pod) } else { Vec::new() },
    }
}

fn tier_of(metadata: &ObjectMeta, priority: i32) -> Tier {
    if has_label(metadata, ENGINE_LABEL) {
        Tier::Engine
    } else if has_label(metadata, WORKER_LABEL) {
        Tier::Worker
    } else if priority >= CRITICAL_PRIORITY {
        Tier::Critical
    } else {
        Tier::Ordinary
    }
}

fn stay_reason(pod: &ApiPod) -> Option<StayReason> {
    let metadata = &pod.metadata;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let is_of = |kind: &str| {
        owners
            .iter()
            .any(|owner: &OwnerReference| owner.kind == kind && owner.controller == Some(true))
    };
    let annotations = metadata.annotations.as_ref();
    let is_mirror = annotations.is_some_and(|all| all.contains_key(MIRROR_ANNOTATION));
    if has_label(metadata, COMPONENT_LABEL) {
        Some(StayReason::Own)
    } else if is_mirror || is_of("Node") {
        Some(StayReason::Static)
    } else if is_of("DaemonSet") {
        Some(StayReason::DaemonSet)
    } else if matches!(phase, Some("Succeeded" | "Failed")) {
        Some(StayReason::Finished)
    } else {
        None
    }
}

fn start_of(status: &PodStatus) -> PodStart {
    let is_scheduled = |it: &&PodCondition| it.kind == "PodScheduled" && it.status == "True";
    let scheduled = status.conditions.iter().find(is_scheduled);
    let started = |container: &ContainerStatus| {
        container.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(unix_millis)
    };
    let containers = &status.container_statuses;
    let all_started: Option<Vec<UnixMillis>> = containers.iter().map(started).collect();
    PodStart {
        scheduled: scheduled.and_then(|it| it.last_transition_time.as_ref()).map(unix_millis),
        started: all_started.and_then(|moments| moments.into_iter().max()),
        is_restarted: containers.iter().any(|container| container.restart_count > 0),
    }
}

fn termination_of(metadata: &ObjectMeta) -> Option<Termination> {
    Some(Termination {
        by: unix_millis(metadata.deletion_timestamp.as_ref()?),
        grace: seconds(metadata.deletion_grace_period_seconds.unwrap_or(0)),
    })
}

fn group_of(metadata: &ObjectMeta) -> Option<GroupLabels> {
    let labels = metadata.labels.as_ref()?;
    let label = |part: &str| labels.get(&format!("{GROUP_LABELS}{part}"));
    Some(GroupLabels {
        name: label("name")?.clone(),
        group_index: label("group-index")?.parse().ok()?,
        worker_index: label("worker-index")?.parse().ok()?,
    })
}

fn has_label(metadata: &ObjectMeta, key: &str) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(key))
}

fn unix_millis(time: &Time) -> UnixMillis {
    UnixMillis(u64::try_from(time.0.as_millisecond()).unwrap_or(0))
}

/// A count of seconds that must not be negative, and that the API server does not let be.
fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: Value, spec: Value, phase: &str) -> SeenPod {
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "namespace": "rl", "name": "p", "uid": "u" },
            "spec": spec,
            "status": { "phase": phase },
        });
        for (key, value) in metadata.as_object().expect("a map") {
            object["metadata"][key] = value.clone();
        }
        read_pod(&serde_json::from_value(object).expect("a pod"))
    }

    fn labelled(label: &str, priority: i32) -> Tier {
        pod(json!({ "labels": { label: "" } }), json!({ "priority": priority }), "Running").tier
    }

    #[test]
    fn labels_and_priority_say_when_a_pod_leaves() {
        assert_eq!(labelled("app", 1_999_999_999), Tier::Ordinary);
        assert_eq!(labelled("app", 2_000_000_000), Tier::Critical);
        assert_eq!(labelled(WORKER_LABEL, 2_000_000_000), Tier::Worker);
        assert_eq!(labelled(ENGINE_LABEL, 2_000_001_000), Tier::Engine);
    }

    #[test]
    fn pods_that_would_come_back_are_own_or_have_ended_stay() {
        let owned = |kind: &str, is_controller: bool| {
            let owner = json!({
                "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o",
                "controller": is_controller,
            });
            pod(json!({ "ownerReferences": [owner] }), json!({}), "Running").stays
        };
        assert_eq!(owned("DaemonSet", true), Some(StayReason::DaemonSet));
        assert_eq!(owned("DaemonSet", false), None);
        assert_eq!(owned("Node", true), Some(StayReason::Static));
        assert_eq!(owned("ReplicaSet", true), None);
        let mirror = json!({ "annotations": { MIRROR_ANNOTATION: "hash" } });
        assert_eq!(pod(mirror, json!({}), "Running").stays, Some(StayReason::Static));
        let own = json!({ "labels": { COMPONENT_LABEL: "controller" } });
        assert_eq!(pod(own, json!({}), "Running").stays, Some(StayReason::Own));
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(pod(json!({}), json!({}), phase).stays, Some(StayReason::Finished));
        }
        assert_eq!(pod(json!({}), json!({}), "Pending").stays, None);
    }

    #[test]
    fn grace_creation_and_deletion_are_read() {
        let plain = pod(json!({}), json!({}), "Running");
        assert_eq!((plain.grace, plain.created), (Duration::from_secs(30), None));
        let spec = json!({ "terminationGracePeriodSeconds": 600, "containers": [{}] });
        let going = json!({
            "creationTimestamp": "1970-01-01T00:00:07Z",
            "deletionTimestamp": "1970-01-01T00:10:00Z", "deletionGracePeriodSeconds": 600,
        });
        let seen = pod(going, spec, "Running");
        let grace = Duration::from_secs(600);
        assert_eq!((seen.grace, seen.id.to_string()), (grace, "rl/p".to_owned()));
        assert_eq!(seen.created, Some(UnixMillis(7000)));
        assert_eq!(seen.termination, Some(Termination { by: UnixMillis(600_000), grace }));
    }

    #[test]
    fn start_is_read_once_all_containers_run() {
        let started = |containers: Value| {
            let object = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": {},
                "status": {
                    "conditions": [
                        { "type": "Ready", "status": "False", "lastTransitionTime": null },
                        { "type": "PodScheduled", "status": "True",
                          "lastTransitionTime": "1970-01-01T00:00:09Z" },
                    ],
                    "containerStatuses": containers,
                },
            });
            read_pod(&serde_json::from_value(object).expect("a pod")).start
        };
        let running = |at: &str, restarts: u32| {
            let state = json!({ "running": { "startedAt": at } });
            json!({ "name": "c", "restartCount": restarts, "state": state })
        };
        let waiting = json!({ "name": "w", "restartCount": 0, "state": { "waiting": {} } });
        let (first, last) = ("1970-01-01T00:00:20Z", "1970-01-01T00:00:30Z");
        let scheduled = Some(UnixMillis(9000));
        let start = |started, is_restarted| PodStart { scheduled, started, is_restarted };
        assert_eq!(started(json!([])), start(None, false));
        assert_eq!(started(json!([running(first, 0), waiting])), start(None, false));
        let both = json!([running(first, 0), running(last, 0)]);
        assert_eq!(started(both), start(Some(UnixMillis(30_000)), false));
        assert_eq!(started(json!([running(first, 2)])), start(Some(UnixMillis(20_000)), true));
    }

    #[test]
    fn group_is_read_only_when_its_labels_are_whole() {
        let labels = |index: &str| {
            json!({ "labels": {
                "leaderworkerset.sigs.k8s.io/name": "ep",
                "leaderworkerset.sigs.k8s.io/group-index": "3",
                "leaderworkerset.sigs.k8s.io/worker-index": index,
            } })
        };
        let group = GroupLabels { name: "ep".to_owned(), group_index: 3, worker_index: 1 };
        assert_eq!(pod(labels("1"), json!({}), "Running").group, Some(group));
        assert_eq!(pod(labels("one"), json!({}), "Running").group, None);
    }

    #[test]
    fn taints_are_read_with_or_without_a_value() {
        let node = json!({
            "metadata": { "name": "n" },
            "spec": { "taints": [
                { "key": "a", "effect": "NoSchedule" },
                { "key": "b", "value": "c", "effect": "NoExecute" },
            ] },
            "status": { "images": [{ "names": ["x"] }] },
        });
        let seen = read_node(&serde_json::from_value(node).expect("a node"));
        let taint = |key: &str, value: &str| SeenTaint { key: key.into(), value: value.into() };
        assert_eq!(seen.taints, [taint("a", ""), taint("b", "c")]);
        assert!(!seen.is_being_deleted);
        let plain = json!({ "metadata": { "name": "n" }, "spec": {} });
        assert!(read_node(&serde_json::from_value(plain).expect("a node")).taints.is_empty());
    }
}
