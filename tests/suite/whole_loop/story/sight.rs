//! What the agents see of the cluster: nodes, and the groups of pods on them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use ebbtide_core::ids::{NodeName, ReplicaId};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};

use super::{NODES_PER_REPLICA, RUN};

const LABELS: &str = "leaderworkerset.sigs.k8s.io";

/// A pod of a group that has a node.
#[derive(Debug, Clone)]
pub struct Member {
    pub pod: String,
    pub uid: String,
    pub node: NodeName,
    pub leads: bool,
    pub runs: bool,
    /// Whether it is on its way out.
    pub is_going: bool,
}

/// The pods of one group.
#[derive(Debug, Clone, Default)]
pub struct Group {
    pub members: Vec<Member>,
}

impl Group {
    /// Whether every pod of it runs and stays.
    pub fn is_whole(&self) -> bool {
        let works = self.members.iter().filter(|member| member.runs && !member.is_going).count();
        works == NODES_PER_REPLICA as usize && self.members.len() == works
    }

    pub fn leader(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.leads)
    }

    pub fn is_going(&self) -> bool {
        self.members.iter().any(|member| member.is_going)
    }
}

/// The cluster at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sight {
    pub groups: BTreeMap<ReplicaId, Group>,
    /// All nodes that Karpenter has made, with their instance types.
    pub nodes: BTreeMap<NodeName, String>,
    /// The copies of each template.
    pub copies: BTreeMap<String, BTreeSet<String>>,
}

impl Sight {
    /// Looks.
    ///
    /// # Errors
    /// The API server did not answer.
    pub async fn take(client: &Client) -> anyhow::Result<Self> {
        let (pods, nodes) = (Api::<Pod>::namespaced(client.clone(), RUN), Api::all(client.clone()));
        // From the server's cache: any recent moment will do.
        let list = ListParams::default().match_any();
        let (pods, nodes, copies) = tokio::try_join!(
            async { pods.list(&list).await.context("list of pods") },
            async { nodes.list_metadata(&list).await.context("list of nodes") },
            copies(client)
        )?;
        let mut groups = BTreeMap::<ReplicaId, Group>::new();
        for (replica, member) in pods.items.iter().filter_map(member) {
            groups.entry(replica).or_default().members.push(member);
        }
        let kind = |node: &kube::core::PartialObjectMeta<Node>| {
            let labels = node.metadata.labels.as_ref()?;
            let kind = labels.get("node.kubernetes.io/instance-type")?.clone();
            Some((node.metadata.name.as_ref()?.parse().ok()?, kind))
        };
        Ok(Self { groups, nodes: nodes.items.iter().filter_map(kind).collect(), copies })
    }

    /// Copies of a template.
    pub fn copies_of(&self, template: &str) -> u32 {
        let copies = self.copies.get(template).map_or(0, BTreeSet::len);
        u32::try_from(copies).unwrap_or(u32::MAX)
    }

    /// Replicas of which every pod runs.
    pub fn whole(&self) -> u32 {
        let whole = self.groups.values().filter(|group| group.is_whole()).count();
        u32::try_from(whole).unwrap_or(u32::MAX)
    }
}

fn member(pod: &Pod) -> Option<(ReplicaId, Member)> {
    let (metadata, spec) = (&pod.metadata, pod.spec.as_ref()?);
    let label = |name: &str| metadata.labels.as_ref()?.get(&format!("{LABELS}/{name}"));
    let member = Member {
        pod: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
        node: spec.node_name.as_ref()?.parse().ok()?,
        leads: label("worker-index")? == "0",
        runs: pod.status.as_ref()?.phase.as_deref() == Some("Running"),
        is_going: metadata.deletion_timestamp.is_some(),
    };
    let replica = format!("{}-{}", label("name")?, label("group-index")?);
    Some((replica.parse().ok()?, member))
}

/// The copies of each template, those that are being deleted included.
async fn copies(client: &Client) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let (group, version) = ("leaderworkerset.x-k8s.io".to_owned(), "v1".to_owned());
    let kind = ApiResource {
        api_version: format!("{group}/{version}"),
        group,
        version,
        kind: "LeaderWorkerSet".to_owned(),
        plural: "leaderworkersets".to_owned(),
    };
    let sets = Api::<DynamicObject>::namespaced_with(client.clone(), RUN, &kind);
    let list = ListParams::default().labels("ebbtide.dev/template").match_any();
    let sets = sets.list_metadata(&list).await.context("list of LeaderWorkerSets")?;
    let mut copies = BTreeMap::<String, BTreeSet<String>>::new();
    for set in sets.items {
        let template = set.metadata.labels.unwrap_or_default().remove("ebbtide.dev/template");
        let (Some(template), Some(name)) = (template, set.metadata.name) else { continue };
        copies.entry(template).or_default().insert(name);
    }
    Ok(copies)
}
