//! The real `ebbtide controller` process sizes EP groups on the real API server; the test plays
//! their agents.

use std::collections::BTreeMap;
use std::path::Path;

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{ControlPlane, LwsController, Program, Redis, require, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{
    DrainProgress, DrainState, NodeRecord, NodeState, TrainerPhase, TrainerRecord,
};
use serde_json::Value;

use super::world::{World, leader_worker_set};
use crate::controller::fill_buffer;
use crate::programs::{EBBTIDE, EVENT_LIMIT, group, policy_file, publish_version, queue};

const RUN: &str = "run-groups";

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-groups}
spec:
  mode: act
  queue: {shards: 1}
  staleness: {maxLag: 2}
  trainer: {groupsPerStep: 4, groupSize: 1}
  rollout:
    nodesPerReplica: 2
    minReplicas: 1
    maxReplicas: 3
    concurrencyPerReplica: 4
    pools: [groups]
    bufferTargetSteps: 1
    startupEstimate: 1s
    stabilizationDown: 1s
    maxChangesPerTick: 4
    tick: 500ms
  pools:
    - {name: groups, market: spot, maxNodes: 6, PROVIDER}
";

/// Agents of every node that has an engine's pod.
struct Agents<'a> {
    world: &'a World,
    queue: &'a WorkQueue,
}

impl Agents<'_> {
    /// Each reports, as its pod and its drain have it; answers the replica of each node.
    async fn report(&self) -> BTreeMap<NodeName, ReplicaId> {
        let drains = self.queue.view().await.unwrap().drains;
        let mut members = BTreeMap::new();
        for pod in self.world.list("pods").await {
            let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
            let label = |name: &str| {
                pod["metadata"]["labels"][format!("leaderworkerset.sigs.k8s.io/{name}")]
                    .as_str()
                    .unwrap()
                    .to_owned()
            };
            let replica: ReplicaId =
                format!("{}-{}", label("name"), label("group-index")).parse().unwrap();
            members.insert(node.parse().unwrap(), replica);
        }
        for (node, replica) in &members {
            let drain = drains.iter().find(|drain| drain.replica == *replica);
            let is_out = drain.is_some_and(|drain| {
                [DrainState::Drained, DrainState::Terminating].contains(&drain.state)
            });
            let state = if is_out { NodeState::Drained } else { NodeState::Ready };
            let record = NodeRecord {
                replica: replica.clone(),
                instance_id: Some(format!("i-{node}")),
                tokens_per_second: 100.0,
                ..NodeRecord::new(format!("{node}/boot/agent-{node}").parse().unwrap(), state)
            };
            self.queue.put_node(record).await.unwrap();
        }
        let trainer = TrainerRecord {
            phase: TrainerPhase::Wait,
            step: 1,
            groups_per_step: 4,
            nodes: None,
            incarnation: None,
            heartbeat: UnixMillis(0),
        };
        self.queue.put_trainer(trainer).await.unwrap();
        members
    }

    /// They report until there is one on each of the six nodes.
    async fn fill_all_nodes(&self) {
        until("three replicas on six nodes", EVENT_LIMIT, || async {
            (self.report().await.len() == 6).then_some(())
        })
        .await
        .unwrap();
    }
}

/// A queue with twelve groups of one sample, three replicas' work.
async fn queue_with_work(redis: &Redis) -> WorkQueue {
    let queue = queue(redis, RUN, 1).await;
    publish_version(&queue, 1).await;
    for number in 0..12 {
        queue.enqueue(group(number, 1, 10)).await.unwrap();
    }
    queue
}

/// A controller whose pool is of this provider, and where it answers; its policy lies in `folder`.
fn start(world: &World, redis: &Redis, folder: &Path, provider: &str) -> (Program, String) {
    let policy = policy_file(folder, &POLICY.replace("PROVIDER", provider));
    let listen = format!("127.0.0.1:{}", Program::free_port().unwrap());
    let program = Program::options("ebbtide-controller", EBBTIDE)
        .arguments(["controller", "--policy", &policy, "--redis", &redis.url()])
        .arguments(["--namespace", &world.space, "--identity", "only", "--listen", &listen])
        .variable("KUBECONFIG", &world.cluster.kubeconfig().display().to_string())
        .variable("AWS_REGION", "us-east-1")
        .variable("AWS_EC2_METADATA_DISABLED", "true")
        .variable("NO_COLOR", "1")
        .start()
        .unwrap();
    (program, format!("http://{listen}"))
}

async fn status(health: &str) -> Option<Value> {
    reqwest::get(format!("{health}/status")).await.ok()?.json().await.ok()
}

#[tokio::test]
async fn groups_grow_by_their_scale_and_the_last_one_drains_first_and_its_nodes_stay() {
    let redis = require!(Redis::start().await);
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let world = World::new(cluster, "sizing-scale", 6).await;
    world.create(&leader_worker_set(1, &world.pod())).await;
    let folder = tempfile::tempdir().unwrap();
    let queue = queue_with_work(&redis).await;
    let agents = Agents { world: &world, queue: &queue };
    let provider = "provider: scale, scale: {kind: LeaderWorkerSet, name: ep}";
    let (_controller, health) = start(&world, &redis, folder.path(), provider);
    agents.fill_all_nodes().await;
    assert_eq!(world.get("leaderworkerset", "ep").await["spec"]["replicas"], 3);

    fill_buffer(&queue, 12).await;
    let last: ReplicaId = "ep-2".parse().unwrap();
    let drain = until("the last group to be asked to drain", EVENT_LIMIT, || async {
        agents.report().await;
        queue.view().await.ok()?.active_drain(&last).cloned()
    })
    .await
    .unwrap();
    let members = agents.report().await;
    let its_node = members.iter().find(|(_, replica)| **replica == last).unwrap().0.clone();
    let drained = DrainProgress {
        replica: last.clone(),
        request_id: drain.request_id.clone(),
        generation: 0,
        state: DrainState::Drained,
    };
    queue.report_drain(drained).await.unwrap();
    until("its pods to be gone and its drain to be over", EVENT_LIMIT, || async {
        let members = agents.report().await;
        let drains = queue.view().await.ok()?.drains;
        let its_own = drains.iter().find(|drain| drain.replica == last);
        let is_over = its_own.is_some_and(|drain| drain.state == DrainState::Cancelled);
        (is_over && !members.contains_key(&its_node)).then_some(())
    })
    .await
    .unwrap();
    let left = world.get("leaderworkerset", "ep").await["spec"]["replicas"].as_u64().unwrap();
    assert!(left == 2, "the next one goes only when it has drained, got {left}");

    // Somebody else sets the size, again and again.
    let told = until("somebody else to be told", EVENT_LIMIT, || async {
        world.kubectl(&["scale", "leaderworkerset", "ep", "--replicas=3"]).await;
        agents.report().await;
        let status = status(&health).await?;
        let reasons = status["reasons"].as_array()?.clone();
        reasons.into_iter().find(|reason| reason.as_str().unwrap().contains("somebody else"))
    })
    .await
    .unwrap();
    assert!(told.as_str().unwrap().contains("groups"), "{told}");
}

#[tokio::test]
async fn sets_are_made_for_replicas_and_deleted_after_they_have_drained() {
    let redis = require!(Redis::start().await);
    let cluster = require!(ControlPlane::shared().await);
    require!(LwsController::start(&cluster).await);
    let world = World::new(cluster, "sizing-workers", 6).await;
    world.create(&leader_worker_set(0, &world.pod())).await;
    let folder = tempfile::tempdir().unwrap();
    let queue = queue_with_work(&redis).await;
    let agents = Agents { world: &world, queue: &queue };
    let provider = "provider: workers, workers: {template: ep}";
    let (_controller, health) = start(&world, &redis, folder.path(), provider);
    agents.fill_all_nodes().await;
    fill_buffer(&queue, 12).await;
    // Whoever is asked drains at once.
    until("one set to be left", EVENT_LIMIT, || async {
        agents.report().await;
        for drain in queue.view().await.ok()?.drains {
            if drain.state == DrainState::Requested {
                let drained = DrainProgress {
                    replica: drain.replica,
                    request_id: drain.request_id,
                    generation: 0,
                    state: DrainState::Drained,
                };
                queue.report_drain(drained).await.ok()?;
            }
        }
        (world.list("leaderworkersets").await.len() == 2).then_some(())
    })
    .await
    .unwrap();
    let metrics = reqwest::get(format!("{health}/metrics")).await.unwrap().text().await.unwrap();
    let mut busy = metrics.lines().filter(|line| line.starts_with("ebbtide_busy_terminations"));
    assert!(busy.clone().next().is_some() && busy.all(|line| line.ends_with(" 0")), "{metrics}");
}
