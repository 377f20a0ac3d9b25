//! Leaders' pods of a real cluster, in the namespace of the release.

use async_trait::async_trait;
use ebbtide_core::time::UnixMillis;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::{GroupError, GroupPods, LeaderPod, SPEED_GATE};

/// Engines' pods that lead a group.
const LEADERS: &str = "ebbtide.dev/engine,leaderworkerset.sigs.k8s.io/worker-index=0";

/// See the module.
pub struct KubeGroups {
    pods: Api<Pod>,
    now: fn() -> UnixMillis,
}

impl KubeGroups {
    /// Pods of this namespace behind this client; `now` is this machine's wall clock. Nothing is
    /// asked yet.
    pub fn new(client: Client, namespace: &str, now: fn() -> UnixMillis) -> Self {
        Self { pods: Api::namespaced(client, namespace), now }
    }
}

#[async_trait]
impl GroupPods for KubeGroups {
    async fn leaders(&self) -> Result<Vec<LeaderPod>, GroupError> {
        let pods = self.pods.list(&ListParams::default().labels(LEADERS)).await;
        let pods = pods.map_err(|error| failed("list of engine pods", &error))?;
        Ok(pods.items.iter().filter_map(read).collect())
    }

    async fn tell(
        &self,
        pod: &LeaderPod,
        is_open: bool,
        reason: &str,
        message: &str,
    ) -> Result<(), GroupError> {
        // Conditions are merged by their type. The UID keeps a successor of the name untouched.
        let patch = json!({
            "metadata": { "uid": pod.uid },
            "status": { "conditions": [{
                "type": SPEED_GATE,
                "status": if is_open { "True" } else { "False" },
                "reason": reason,
                "message": message,
                "lastTransitionTime": (self.now)().to_string(),
            }] },
        });
        let parameters = PatchParams::default();
        match self.pods.patch_status(&pod.name, &parameters, &Patch::Strategic(patch)).await {
            Ok(_) => Ok(()),
            // Gone, or another one of the same name.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            Err(error) => Err(failed("condition of an engine pod", &error)),
        }
    }
}

fn failed(what: &'static str, error: &kube::Error) -> GroupError {
    let problem = match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    };
    GroupError::Failed { what, problem }
}

/// None unless it has the gate and stays.
fn read(pod: &Pod) -> Option<LeaderPod> {
    let (metadata, spec) = (&pod.metadata, pod.spec.as_ref()?);
    let mut gates = spec.readiness_gates.iter().flatten();
    let has_gate = gates.any(|gate| gate.condition_type == SPEED_GATE);
    if !has_gate || metadata.deletion_timestamp.is_some() {
        return None;
    }
    let label = |name: &str| {
        metadata.labels.as_ref()?.get(&format!("leaderworkerset.sigs.k8s.io/{name}")).cloned()
    };
    let conditions = || pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let condition = |name: &str| conditions().find(|condition| condition.type_ == name);
    let is_true = |found: Option<&PodCondition>| found.is_some_and(|found| found.status == "True");
    let set = label("name")?;
    Some(LeaderPod {
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
        replica: format!("{set}-{}", label("group-index")?).parse().ok()?,
        set,
        revision: label("template-revision-hash")?,
        answers: is_true(condition("ContainersReady")),
        is_open: is_true(condition(SPEED_GATE)),
        told: condition(SPEED_GATE).and_then(|condition| condition.reason.clone()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "ep-1",
                "uid": "u",
                "labels": {
                    "leaderworkerset.sigs.k8s.io/name": "ep",
                    "leaderworkerset.sigs.k8s.io/group-index": "1",
                    "leaderworkerset.sigs.k8s.io/template-revision-hash": "abc",
                },
            },
            "spec": { "containers": [], "readinessGates": [{ "conditionType": SPEED_GATE }] },
            "status": { "conditions": [{ "type": "ContainersReady", "status": "True" }] },
        });
        change(&mut pod);
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn leader_is_read_with_its_group_and_its_gate() {
        let seen = read(&pod(|_| {})).expect("it has the gate");
        assert_eq!((seen.replica.as_str(), seen.set.as_str()), ("ep-1", "ep"));
        assert_eq!((seen.answers, seen.is_open, seen.told), (true, false, None));
        let told = read(&pod(|pod| {
            let gate = json!({ "type": SPEED_GATE, "status": "True", "reason": "AsFast" });
            pod["status"]["conditions"] = json!([gate]);
        }));
        let told = told.expect("it has the gate");
        assert_eq!((told.answers, told.is_open), (false, true));
        assert_eq!(told.told.as_deref(), Some("AsFast"));
    }

    #[test]
    fn pods_without_the_gate_and_those_that_go_are_left_alone() {
        assert_eq!(read(&pod(|pod| pod["spec"]["readinessGates"] = json!([]))), None);
        let going = json!("2026-01-01T00:00:00Z");
        assert_eq!(read(&pod(|pod| pod["metadata"]["deletionTimestamp"] = going)), None);
    }
}
