//! An engine's pod, as far as capacity is concerned.

use std::collections::BTreeSet;

use ebbtide_core::ids::NodeName;
use ebbtide_core::observation::{InstanceId, InstanceState, InstanceView};
use ebbtide_core::time::UnixMillis;
use k8s_openapi::api::core::v1::{Pod, PodCondition};

/// The annotation by which a ReplicaSet chooses whom to delete, the lowest first.
pub(in crate::capacity) const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The label with the name of a pod's LeaderWorkerSet.
pub(in crate::capacity) const SET_NAME: &str = "leaderworkerset.sigs.k8s.io/name";

const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// A pod that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capacity) struct SeenPod {
    pub name: String,
    pub uid: String,
    /// Its node; a pod without one holds nothing.
    pub node: Option<NodeName>,
    /// Whether it is on its way out.
    pub is_going: bool,
    /// Whether its containers have begun.
    pub is_running: bool,
    pub is_ready: bool,
    /// The number at the end of its name, as StatefulSets give it.
    pub ordinal: Option<u32>,
    /// Its LeaderWorkerSet.
    pub set: Option<String>,
    /// The group within its LeaderWorkerSet.
    pub group_index: Option<u32>,
    /// Whether it leads that group: the engine answers there.
    pub leads: bool,
    /// The UID of the object that makes it.
    pub owner: Option<String>,
    pub deletion_cost: i32,
    /// Since when no node can take it, on the API server's clock, and what the scheduler says.
    pub unschedulable: Option<(UnixMillis, String)>,
}

impl SeenPod {
    /// `None` for a pod that has ended, or whose node's name is none.
    pub fn read(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let (name, uid) = (metadata.name.clone()?, metadata.uid.clone()?);
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return None;
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let node = node.filter(|name| !name.is_empty()).map(str::parse).transpose().ok()?;
        let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key));
        let cost = metadata.annotations.as_ref().and_then(|notes| notes.get(DELETION_COST));
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        let ready = condition(pod, "Ready");
        Some(Self {
            node,
            is_going: metadata.deletion_timestamp.is_some(),
            is_running: phase == "Running",
            is_ready: ready.is_some_and(|ready| ready.status == "True"),
            ordinal: name.rsplit('-').next().and_then(|end| end.parse().ok()),
            set: label(SET_NAME).cloned(),
            leads: label(WORKER_INDEX).is_some_and(|index| index == "0"),
            group_index: label(GROUP_INDEX).and_then(|index| index.parse().ok()),
            owner: owner.map(|owner| owner.uid.clone()),
            deletion_cost: cost.and_then(|cost| cost.parse().ok()).unwrap_or(0),
            unschedulable: unschedulable(pod),
            name,
            uid,
        })
    }

    /// Its name, and the UID that tells it from a successor of that name.
    pub fn id(&self) -> InstanceId {
        InstanceId(format!("{}/{}", self.name, self.uid))
    }

    /// Whether it may hold something: it has a node and stays.
    pub fn counts(&self) -> bool {
        self.node.is_some() && !self.is_going
    }

    /// The pod as an instance; `None` while it has no node.
    pub fn instance(&self, goes: bool) -> Option<InstanceView> {
        self.node.as_ref()?;
        let state = match (goes || self.is_going, self.is_running) {
            (true, _) => InstanceState::Terminating,
            (false, true) => InstanceState::InService,
            (false, false) => InstanceState::Pending,
        };
        Some(InstanceView { node: self.node.clone(), ..InstanceView::new(self.id(), state) })
    }
}

/// The name of the pod that an instance is, whoever bears it now.
pub(in crate::capacity) fn pod_name(id: &InstanceId) -> &str {
    id.0.split_once('/').map_or(id.0.as_str(), |(name, _)| name)
}

/// The pod of a group because of which it may not go: the one that leads it, unless that is named;
/// where none leads, any that is not named. Pods without a node are in nobody's way.
pub(in crate::capacity) fn in_the_way<'a>(
    group: &[&'a SeenPod],
    named: &BTreeSet<&str>,
) -> Option<&'a SeenPod> {
    let counted = || group.iter().filter(|pod| pod.counts()).copied();
    let is_unnamed = |pod: &&SeenPod| !named.contains(pod.uid.as_str());
    match counted().find(|pod| pod.leads) {
        Some(leader) => Some(leader).filter(is_unnamed),
        None => counted().find(is_unnamed),
    }
}

fn condition<'a>(pod: &'a Pod, name: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == name)
}

fn unschedulable(pod: &Pod) -> Option<(UnixMillis, String)> {
    let scheduled = condition(pod, "PodScheduled")?;
    let is_refused = scheduled.status == "False"
        && scheduled.reason.as_deref() == Some("Unschedulable")
        && pod.metadata.deletion_timestamp.is_none();
    let since = scheduled.last_transition_time.as_ref()?.0.as_millisecond();
    let since = u64::try_from(since).ok().filter(|_| is_refused)?;
    Some((UnixMillis(since), scheduled.message.clone().unwrap_or_default()))
}
