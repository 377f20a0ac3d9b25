//! A namespace with nodes of its own, and pools of a policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use ebbtide_controller::capacity::Capacity;
use ebbtide_core::observation::{InstanceId, InstanceState, InstanceView, PoolSize, PoolView};
use ebbtide_core::policy::{FleetPolicy, Pool};
use ebbtide_harness::{NodeSpec, SharedControlPlane, until};
use serde_json::{Value, json};

use crate::lane::world::client;
use crate::programs::EVENT_LIMIT;

/// Only pods that ask for the space's nodes run there.
pub struct World {
    pub cluster: SharedControlPlane,
    pub space: String,
    pub client: kube::Client,
}

impl World {
    /// A namespace with so many GPU nodes, each of which one engine's pod fills.
    pub async fn new(cluster: SharedControlPlane, name: &str, nodes: usize) -> Self {
        let space = cluster.unique_name(name);
        cluster.create_namespace(&space).await.unwrap();
        let client = client(&cluster).await;
        let world = Self { cluster, space, client };
        world.add_nodes(0..nodes).await;
        world
    }

    pub async fn add_nodes(&self, numbers: std::ops::Range<usize>) {
        let role = ("ebbtide.dev/role", self.space.as_str());
        let node = |number| {
            let name = format!("{}-{number}", self.space);
            let id = format!("aws:///us-east-1a/i-{name}");
            NodeSpec::gpu(&name).label(role.0, role.1).provider_id(&id)
        };
        let nodes: Vec<NodeSpec> = numbers.map(node).collect();
        self.cluster.add_nodes(&nodes).await.unwrap();
    }

    /// Creates an object in the namespace.
    pub async fn create(&self, object: &Value) {
        let mut object = object.clone();
        object["metadata"]["namespace"] = json!(self.space);
        self.cluster.kubectl().create(&object).await.unwrap();
    }

    /// kubectl in the namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        let space = ["--namespace", &self.space];
        self.cluster.kubectl().run(&[arguments, &space].concat()).await.unwrap()
    }

    /// One object of the namespace.
    pub async fn get(&self, kind: &str, name: &str) -> Value {
        let get = [kind, name, "--namespace", &self.space];
        self.cluster.kubectl().get(&get).await.unwrap()
    }

    /// All objects of a kind in the namespace.
    pub async fn list(&self, kind: &str) -> Vec<Value> {
        let get = [kind, "--namespace", &self.space];
        let mut list = self.cluster.kubectl().get(&get).await.unwrap();
        list["items"].as_array_mut().map(std::mem::take).unwrap()
    }

    /// The template of a pod that fills a node of the space.
    pub fn pod(&self) -> Value {
        json!({
            "metadata": { "labels": { "app": "ep", "ebbtide.dev/engine": "vllm" } },
            "spec": {
                "nodeSelector": { "ebbtide.dev/role": self.space },
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "engine",
                    "image": "played",
                    "resources": { "limits": { "nvidia.com/gpu": "8" } },
                }],
            },
        })
    }
}

/// A LeaderWorkerSet of so many groups of two such pods.
pub fn leader_worker_set(replicas: u32, pod: &Value) -> Value {
    json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": { "name": "ep" },
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": { "size": 2, "workerTemplate": pod },
        },
    })
}

/// The one pool of a policy.
pub fn pool(provider: &str) -> Pool {
    let text = format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run}}
spec:
  trainer: {{groupsPerStep: 4, groupSize: 1}}
  rollout: {{maxReplicas: 4, pools: [one]}}
  pools: [{{name: one, market: spot, maxNodes: 9, {provider}}}]
"
    );
    let policy = FleetPolicy::parse(&text, "policy.yaml").unwrap();
    policy.rollout_pools().next().unwrap().clone()
}

pub async fn look(capacity: &Arc<dyn Capacity>, pool: &Pool) -> PoolView {
    capacity.observe(&[pool]).await.remove(0)
}

/// Waits until the pool looks as wanted.
pub async fn size_becomes(
    capacity: &Arc<dyn Capacity>,
    pool: &Pool,
    what: &str,
    is_wanted: impl Fn(&PoolSize) -> bool,
) -> PoolSize {
    until(what, EVENT_LIMIT, || async {
        look(capacity, pool).await.size.known().filter(|size| is_wanted(size)).cloned()
    })
    .await
    .unwrap()
}

/// Waits until so many nodes are in service, and no other is there.
pub async fn in_service(
    capacity: &Arc<dyn Capacity>,
    pool: &Pool,
    nodes: usize,
) -> Vec<InstanceView> {
    let all_serve = |size: &PoolSize| {
        let serves = |one: &InstanceView| one.state == InstanceState::InService;
        size.instances.len() == nodes && size.instances.iter().all(serves)
    };
    let mut size =
        size_becomes(capacity, pool, &format!("{nodes} nodes in service"), all_serve).await;
    size.instances.sort_by(|a, b| a.id.cmp(&b.id));
    size.instances
}

pub fn ids(instances: &[InstanceView]) -> BTreeSet<InstanceId> {
    instances.iter().map(|instance| instance.id.clone()).collect()
}
