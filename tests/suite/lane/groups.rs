//! An EP group whose pods the real LeaderWorkerSet controller makes: one node goes, the group is
//! made anew on the others, and works again.

use std::sync::Arc;

use ebbtide_agent::emulator::imds::SpotAction;
use ebbtide_harness::{ControlPlane, LwsController, NodeSpec, require, until};
use ebbtide_queue::client::{MemoryPort, WorkQueue, wall_clock_now};
use ebbtide_queue::control::{DrainReason, DrainState, NodeRecord, NodeState};
use ebbtide_queue::memory::ShardSettings;
use serde_json::{Value, json};

use super::world::{Running, client, condition};
use crate::programs::{EVENT_LIMIT, group};

/// The replica that the group is. No node may have this name: then it would be the replica of that
/// node as well.
const REPLICA: &str = "ep-0";

/// One group of two pods, each of which fills a node of this space.
fn leader_worker_set(space: &str) -> Value {
    json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": { "name": "ep", "namespace": space },
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": 2,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": {
                    "metadata": { "labels": { "ebbtide.dev/engine": "vllm" } },
                    "spec": {
                        "nodeSelector": { "ebbtide.dev/role": space },
                        "containers": [{
                            "name": "engine",
                            "image": "played",
                            "resources": { "limits": { "nvidia.com/gpu": "8" } },
                        }],
                    },
                },
            },
        },
    })
}

/// Waits until the replica consists of two ready nodes, and names them.
async fn ready_pair(queue: &WorkQueue, is_wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
    until("a ready pair of nodes", EVENT_LIMIT, || async {
        let view = queue.view().await.unwrap();
        let members = view.nodes.iter().filter(|record| record.replica.as_str() == REPLICA);
        let members: Vec<&NodeRecord> = members.collect();
        let are_ready = members.iter().all(|record| record.state == NodeState::Ready);
        let names: Vec<String> = members.iter().map(|record| record.node.to_string()).collect();
        (names.len() == 2 && are_ready && is_wanted(&names)).then_some(names)
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn group_that_is_made_anew_works_while_the_lost_node_is_still_there() {
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let space = cluster.unique_name("lane-group");
    let nodes = NodeSpec::gpu_nodes(&space, 3, &[("ebbtide.dev/role", &space)]);
    cluster.add_nodes(&nodes).await.unwrap();
    cluster.create_namespace(&space).await.unwrap();
    let kubectl = cluster.kubectl();

    let queue = MemoryPort::new(2, ShardSettings::default(), wall_clock_now);
    let queue = WorkQueue::new(Arc::new(queue));
    let mut agents = Vec::new();
    for node in &nodes {
        let client = client(&cluster).await;
        agents.push(Running::join(node.name(), client, queue.clone(), |_| {}).await);
    }
    kubectl.create(&leader_worker_set(&space)).await.unwrap();
    let members = ready_pair(&queue, |_| true).await;
    let worker = ["pod", "ep-0-1", "--namespace", &space];
    let lost = kubectl.get(&worker).await.unwrap()["spec"]["nodeName"].take();
    let lost = lost.as_str().unwrap().to_owned();
    assert!(members.contains(&lost), "{members:?}");
    let place = nodes.iter().position(|node| node.name() == lost).unwrap();

    queue.enqueue(group(0, 4, 4_000)).await.unwrap();
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(90);
    agents[place].imds.handle().announce_spot(SpotAction::Terminate, soon);
    ready_pair(&queue, |names| !names.contains(&lost)).await;
    until("the lost node to drain by itself", EVENT_LIMIT, || async {
        let view = queue.view().await.unwrap();
        let drain = |replica: &str| {
            let drain = view.drains.iter().find(|drain| drain.replica.as_str() == replica)?;
            Some((drain.reason, drain.state))
        };
        let is_alone = drain(&lost) == Some((DrainReason::Notice, DrainState::Drained));
        (is_alone && drain(REPLICA)?.1 == DrainState::Cancelled).then_some(())
    })
    .await
    .unwrap();
    for node in &nodes {
        let object = kubectl.get(&["node", node.name()]).await.unwrap();
        let is_lost = node.name() == lost;
        assert_eq!(object["spec"]["unschedulable"] == true, is_lost, "{}", node.name());
        assert_eq!(condition(&object).is_some_and(|(status, _)| status == "True"), is_lost);
    }

    kubectl.run(&["delete", "namespace", &space, "--wait=false"]).await.unwrap();
    let names: Vec<&str> = nodes.iter().map(NodeSpec::name).collect();
    cluster.remove_nodes(&names).await.unwrap();
}
