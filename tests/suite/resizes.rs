//! The trainer's resize, on a real Redis and moto's Auto Scaling group: the real controller is
//! killed between the trainer's word and what follows from it. The test plays trainer and agents.

use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{Moto, Program, Redis, require, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{
    HoldRecord, NodeNames, NodeRecord, NodeRole, NodeState, ResizeConfirmation, ResizeRecord,
    TrainerPhase, TrainerRecord,
};
use serde_json::Value;

use crate::aws::{Group, node_names};
use crate::programs::{EBBTIDE, EVENT_LIMIT, policy_file, publish_version, queue};

const RUN: &str = "run-resizes";

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-resizes}
spec:
  mode: act
  queue: {shards: 1}
  staleness: {maxLag: 2}
  trainer: {groupsPerStep: 4, groupSize: 1, pool: trainer, legalSizes: [2, 4], resizeAfter: 2s}
  rollout:
    minReplicas: 0
    maxReplicas: 4
    concurrencyPerReplica: 4
    pools: [spot-a]
    tick: 200ms
  pools:
    - name: spot-a
      provider: asg
      autoScalingGroup: rollout-resizes
      market: spot
      instanceType: p5en.48xlarge
      maxNodes: 4
    - name: trainer
      provider: asg
      autoScalingGroup: trainer-resizes
      market: onDemand
      instanceType: p5en.48xlarge
      maxNodes: 4
";

/// A run with a trainer, its group, and a controller.
struct World<'a> {
    redis: &'a Redis,
    moto: &'a Moto,
    group: Group<'a>,
    queue: WorkQueue,
    policy: String,
    trainer: TrainerRecord,
    _folder: tempfile::TempDir,
}

impl<'a> World<'a> {
    /// Whose trainer runs on 2 nodes of its group.
    async fn new(redis: &'a Redis, moto: &'a Moto, group: u32) -> Self {
        Group::create(moto, "rollout-resizes", 0, 4).await;
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(redis, RUN, 1).await;
        publish_version(&queue, 1).await;
        let trainer = TrainerRecord {
            phase: TrainerPhase::Wait,
            step: 1,
            groups_per_step: 4,
            nodes: Some(2),
            incarnation: Some("first".parse().unwrap()),
            heartbeat: UnixMillis(0),
        };
        Self {
            redis,
            moto,
            group: Group::create(moto, "trainer-resizes", group, 4).await,
            queue,
            policy: policy_file(folder.path(), POLICY),
            trainer,
            _folder: folder,
        }
    }

    async fn controller(&self) -> (Program, String) {
        let listen = format!("127.0.0.1:{}", Program::free_port().unwrap());
        let mut controller = Program::options("ebbtide-controller", EBBTIDE)
            .arguments(["controller", "--no-kubernetes", "--policy", &self.policy])
            .arguments(["--redis", &self.redis.url(), "--listen", &listen])
            .variables(self.moto.variables())
            .variable("NO_COLOR", "1")
            .start()
            .unwrap();
        controller.ready(&format!("http://{listen}/readyz"), EVENT_LIMIT).await.unwrap();
        (controller, format!("http://{listen}"))
    }

    /// The trainer and the agents of its nodes report.
    async fn report(&self) {
        self.queue.put_trainer(self.trainer.clone()).await.unwrap();
        let instances = self.group.instances().await;
        for (node, instance) in node_names(self.moto, &instances).await.iter().zip(&instances) {
            let holder = format!("{node}/boot/agent-{instance}").parse().unwrap();
            let record = NodeRecord {
                role: NodeRole::Trainer,
                instance_id: Some(instance.clone()),
                ..NodeRecord::new(holder, NodeState::Ready)
            };
            self.queue.put_node(record).await.unwrap();
        }
    }

    async fn resize(&self) -> ResizeRecord {
        self.queue.view().await.unwrap().resize
    }

    async fn asked_for(&self, size: u32) -> ResizeRecord {
        until("the trainer to be asked", EVENT_LIMIT, || async {
            self.report().await;
            Some(self.resize().await).filter(|resize| resize.size == Some(size))
        })
        .await
        .unwrap()
    }

    /// How the request that stands ends.
    async fn ended(&self) -> String {
        until("the request to be over", EVENT_LIMIT, || async {
            self.report().await;
            self.resize().await.end
        })
        .await
        .unwrap()
    }

    async fn confirm(&self, asked: &ResizeRecord, released: &[NodeName]) {
        let said = ResizeConfirmation {
            size: asked.size.unwrap(),
            generation: asked.generation,
            released: NodeNames(released.iter().cloned().collect()),
            incarnation: self.trainer.incarnation.clone(),
        };
        assert!(self.queue.confirm_resize(said).await.unwrap());
    }

    async fn hold(&self) {
        let until = self.queue.view().await.unwrap().now.plus(Duration::from_secs(600));
        let (role, reason, who) = ("trainer".to_owned(), "test".to_owned(), "me".to_owned());
        self.queue.put_hold(HoldRecord { role, until, reason, who }).await.unwrap();
    }

    /// The trainer has left two of its group's four nodes, and the controller knows which, and may
    /// not act yet. Answers their names, and the instances that stay.
    async fn left_two(&self, health: &str) -> (Vec<NodeName>, Vec<String>) {
        let asked = self.asked_for(2).await;
        self.hold().await;
        let instances = self.group.instances().await;
        let nodes = node_names(self.moto, &instances).await;
        let goes = vec![nodes[0].clone(), nodes[2].clone()];
        self.confirm(&asked, &goes).await;
        let what = format!("{}, {}", instances[0], instances[2]);
        until("the controller to know what goes", EVENT_LIMIT, || async {
            self.report().await;
            let status = reqwest::get(format!("{health}/status")).await.ok()?;
            let status: Value = status.json().await.ok()?;
            let lines = status["trainer"].to_string();
            (lines.contains("terminate") && lines.contains(&what)).then_some(())
        })
        .await
        .unwrap();
        assert_eq!(self.group.instances().await, instances, "it is on hold");
        (goes, vec![instances[1].clone(), instances[3].clone()])
    }

    /// Waits for so many more decisions of a controller.
    async fn decisions(&self, health: &str, count: u64) {
        let ticks = || async {
            self.report().await;
            let status = reqwest::get(format!("{health}/status")).await.ok()?;
            status.json::<Value>().await.ok()?["ticks"].as_u64()
        };
        let before = until("a decision", EVENT_LIMIT, ticks).await.unwrap();
        until("more decisions", EVENT_LIMIT, || async {
            ticks().await.filter(|now| *now >= before + count)
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn trainer_grows_and_gives_up_exactly_what_it_left_across_a_killed_controller() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let mut world = World::new(&redis, &moto, 2).await;
    let (mut controller, health) = world.controller().await;

    // To grow: somebody who led before has asked for it.
    world.report().await;
    let asked = world.queue.request_resize(0, 4).await.unwrap();
    world.decisions(&health, 3).await;
    assert_eq!(world.group.desired().await, 2, "nothing comes before it has confirmed");
    world.confirm(&asked, &[]).await;
    until("its group to be raised", EVENT_LIMIT, || async {
        world.report().await;
        (world.group.desired().await == 4).then_some(())
    })
    .await
    .unwrap();
    world.trainer.nodes = Some(4);
    assert_eq!(world.ended().await, "done");

    // Later it runs on two of them.
    (world.trainer.nodes, world.trainer.step) = (Some(2), 20);
    world.decisions(&health, 3).await;
    world.trainer.step = 30;
    let (goes, stays) = world.left_two(&health).await;
    controller.kill();
    world.queue.remove_hold("trainer").await.unwrap();
    let (_controller, health) = world.controller().await;
    assert_eq!(world.ended().await, "done");
    assert_eq!(world.group.instances().await, stays);
    assert_eq!(world.group.desired().await, 2, "each was terminated once");
    world.decisions(&health, 5).await;
    assert_eq!((world.group.instances().await, world.group.desired().await), (stays, 2));
    let nodes = world.queue.view().await.unwrap().nodes;
    assert!(nodes.iter().all(|record| !goes.contains(&record.node)), "their records went");
}

#[tokio::test]
async fn trainer_that_is_started_again_on_what_it_had_left_keeps_it() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let mut world = World::new(&redis, &moto, 4).await;
    let (_controller, health) = world.controller().await;
    world.left_two(&health).await;
    let before = world.group.instances().await;
    // Killed after its word; its launcher takes two nodes that are there: those that it had left.
    world.trainer.incarnation = Some("second".parse().unwrap());
    world.report().await;
    world.queue.remove_hold("trainer").await.unwrap();
    assert_eq!(world.ended().await, "taken_back");
    world.decisions(&health, 5).await;
    assert_eq!((world.group.instances().await, world.group.desired().await), (before, 4));
    assert_eq!(world.resize().await.size, None, "and it is not asked again for a while");
}
