//! An instance leaves its Auto Scaling group by a lifecycle hook (case 28): the real programs,
//! Redis, a real API server, and moto with the two calls that it lacks ([`hooks`]).

mod hooks;

use std::path::Path;

use ebbtide_agent::emulator::engine::{EngineConfig, EngineEmulator, ResponseLengths};
use ebbtide_agent::emulator::{ImdsEmulator, InstanceIdentity};
use ebbtide_harness::{
    ControlPlane, Moto, NodeSpec, PATIENT_POD_ANNOTATION, Program, Redis, require, until,
};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{ControlView, DrainReason, NodeRecord, NodeState};
use ebbtide_queue::state::SlotState;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::hooks::{Fault, Hooks};
use crate::aws::{Group, Queue};
use crate::programs::*;

const RUN: &str = "run-lifecycle";
const GROUP: &str = "rollout-lifecycle";
const TOKEN: &str = "0befcbdb-6ecd-498a-9ff7-ae9b54447cd6";

/// Short, so that heartbeats come soon; AWS allows no less than 30 s.
const HOOK_SECONDS: u32 = 2;

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-lifecycle}
spec:
  mode: act
  queue: {shards: 1, lease: 5s, renewEvery: 1s}
  staleness: {maxLag: 4}
  trainer: {groupsPerStep: 2, groupSize: 4}
  drain: {asgDeadline: 90s}
  rollout: {minReplicas: 1, maxReplicas: 1, concurrencyPerReplica: 8, pools: [spot-a]}
  pools:
    - name: spot-a
      provider: asg
      autoScalingGroup: rollout-lifecycle
      market: spot
      instanceType: p5en.48xlarge
      maxNodes: 1
";

/// A node at work, and the controller of its run.
struct World<'a> {
    redis: &'a Redis,
    moto: &'a Moto,
    hooks: Hooks,
    events: Queue<'a>,
    queue: WorkQueue,
    instance: String,
    controller: Program,
    agent: Program,
    policy: String,
    _folder: TempDir,
    _engine: EngineEmulator,
    _imds: ImdsEmulator,
}

impl<'a> World<'a> {
    /// Starts everything, and waits until four units are under way that end in no test.
    async fn start(
        redis: &'a Redis,
        moto: &'a Moto,
        node: &str,
        kubeconfig: Option<&Path>,
    ) -> Self {
        let group_of_node = Group::create(moto, GROUP, 1, 1).await;
        group_of_node.add_hook("drain", HOOK_SECONDS).await;
        let instance = group_of_node.instances().await.remove(0);
        let (hooks, events) = (Hooks::start(moto).await, Queue::create(moto, "events").await);
        let folder = tempfile::tempdir().unwrap();
        let policy = policy_file(folder.path(), POLICY);
        let queue = queue(redis, RUN, 1).await;
        publish_version(&queue, 1).await;
        queue.enqueue(group(0, 4, 4_000)).await.expect("enqueued");
        let engine = EngineEmulator::start(EngineConfig {
            tokens_per_second: 10.0,
            lengths: ResponseLengths { mean: 4_000.0, spread: 0.1 },
            weights_label: "1".to_owned(),
            ..EngineConfig::default()
        })
        .expect("an engine");
        let imds = ImdsEmulator::start(InstanceIdentity::spot(&instance, "us-east-1a")).unwrap();
        let (agent, _) = AgentProgram {
            run: RUN,
            node,
            redis: &redis.url(),
            imds: &imds.base_url(),
            engine: &engine.base_url(),
            policy: &policy,
            kubeconfig,
        }
        .start();
        let world = Self {
            controller: start_controller(redis, moto, &hooks, &policy),
            redis,
            moto,
            hooks,
            events,
            queue,
            instance,
            agent,
            policy,
            _folder: folder,
            _engine: engine,
            _imds: imds,
        };
        world.work_begins().await;
        world
    }

    async fn work_begins(&self) {
        let is_under_way = |unit: &ebbtide_queue::state::UnitSnapshot| unit.tokens > 4;
        let units = units_become(&self.queue, "tokens of all four units", |units| {
            units.len() == 4 && units.iter().all(is_under_way)
        });
        units.await.unwrap_or_else(|error| panic!("{error}\n{}", self.agent.log()));
        let is_known = |node: &NodeRecord| node.instance_id.as_ref() == Some(&self.instance);
        self.view_becomes("the instance to be known", |view| view.nodes.iter().any(is_known)).await;
    }

    /// The group takes the instance out, as EventBridge tells it.
    async fn take_out(&self) {
        let now = ebbtide_queue::client::wall_clock_now();
        let (instance, group) = (&self.instance, GROUP);
        let body = json!({
            "version": "0",
            "id": "782d5b4c-0f6f-1fd6-9d62-ecf6aed0a470",
            "detail-type": "EC2 Instance-terminate Lifecycle Action",
            "source": "aws.autoscaling",
            "account": "123456789012",
            "time": now.to_string(),
            "region": "us-east-1",
            "resources": [],
            "detail": {
                "LifecycleActionToken": TOKEN,
                "AutoScalingGroupName": group,
                "LifecycleHookName": "drain",
                "EC2InstanceId": instance,
                "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
            },
        });
        self.events.send(&body.to_string()).await;
    }

    async fn view_becomes(&self, what: &str, is_wanted: impl Fn(&ControlView) -> bool) {
        let seen = view_becomes(&self.queue, what, is_wanted).await;
        let logs = || format!("{}\n{}", self.controller.log(), self.agent.log());
        seen.unwrap_or_else(|error| panic!("{error}\n{}", logs()));
    }

    async fn hooks_become(&self, what: &str, is_wanted: impl Fn(&Hooks) -> bool) {
        let waited = tokio::time::timeout(EVENT_LIMIT, self.hooks.wait_until(is_wanted)).await;
        let logs = || format!("{}\n{}", self.controller.log(), self.agent.log());
        waited.unwrap_or_else(|_| panic!("{what} in vain\n{}", logs()));
    }

    /// The node holds nothing any more, and so many pods are still there, if that is known.
    async fn drained(&self, pods_left: Option<u32>) {
        self.view_becomes("the node to be drained", |view| {
            let node = view.nodes.first();
            node.is_some_and(|node| node.state == NodeState::Drained && node.pods_left == pods_left)
        })
        .await;
        let units = self.queue.scan().await.unwrap();
        for unit in units {
            let attempts = unit.attempts + unit.infra_attempts;
            assert_eq!((unit.state, unit.hand_backs, attempts), (SlotState::Enqueued, 1, 0));
        }
        let view = self.queue.view().await.unwrap();
        assert_eq!((view.drains.len(), view.drains[0].reason), (1, DrainReason::Lifecycle));
    }

    /// The action is done with: completed once, in the right words, and forgotten.
    async fn completed_once(&self) {
        self.hooks_become("completion", |hooks| !hooks.completed().is_empty()).await;
        self.view_becomes("the action to be forgotten", |view| view.lifecycles.is_empty()).await;
        let completed = self.hooks.completed();
        assert_eq!(completed.len(), 1, "{completed:?}");
        for (name, value) in [
            ("AutoScalingGroupName", GROUP),
            ("LifecycleHookName", "drain"),
            ("LifecycleActionToken", TOKEN),
            ("LifecycleActionResult", "CONTINUE"),
            ("InstanceId", &self.instance),
        ] {
            assert_eq!(completed[0].get(name).map(String::as_str), Some(value), "{completed:?}");
        }
    }

    /// The controller is killed, and another one begins.
    fn replace_controller(&mut self) {
        self.controller.kill();
        self.controller = start_controller(self.redis, self.moto, &self.hooks, &self.policy);
    }
}

fn start_controller(redis: &Redis, moto: &Moto, hooks: &Hooks, policy: &str) -> Program {
    let program = ControllerProgram::new(redis, moto, policy);
    ControllerProgram { aws: hooks.url.clone(), ..program }.start().0
}

/// A pod on the node that takes a minute to end.
async fn run_patient_pod(cluster: &ControlPlane, node: &str) {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "default", "name": node, "annotations": { PATIENT_POD_ANNOTATION: "" },
        },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 60,
            "containers": [{ "name": "c", "image": "played" }],
        },
    });
    cluster.kubectl().create(&pod).await.unwrap();
    until("the pod to run", EVENT_LIMIT, || async {
        let pod: Value = cluster.kubectl().get(&["pod", node]).await.ok()?;
        (pod["status"]["phase"] == "Running").then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn action_is_completed_once_when_work_is_back_and_pods_are_gone() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let node = cluster.unique_name("lifecycle");
    cluster.add_nodes(&[NodeSpec::gpu(&node)]).await.unwrap();
    run_patient_pod(&cluster, &node).await;
    let world = World::start(&redis, &moto, &node, Some(cluster.kubeconfig())).await;

    world.take_out().await;
    world.drained(Some(1)).await;
    world.hooks_become("heartbeats", |hooks| hooks.heartbeats() >= 3).await;
    assert_eq!(world.hooks.tries(), 0, "its pod is still there");
    let end = ["delete", "pod", &node, "--grace-period=0", "--force"];
    cluster.kubectl().run(&end).await.unwrap();
    world.completed_once().await;

    // The same message once more: the action has ended, and nothing else happens.
    world.take_out().await;
    let is_told = || async { (world.events.left().await == 0).then_some(()) };
    until("no message to be left", EVENT_LIMIT, is_told).await.unwrap();
    world.completed_once().await;
    world.drained(Some(0)).await;
    cluster.remove_nodes(&[&node]).await.unwrap();
}

#[tokio::test]
async fn fault_of_aws_is_answered_by_another_try() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let world = World::start(&redis, &moto, "lifecycle-fault", None).await;
    world.hooks.set(Fault::Fails(2));
    world.take_out().await;
    world.completed_once().await;
    assert_eq!(world.hooks.tries(), 3);
    world.drained(Some(0)).await;
}

/// The controller is killed while it completes the action; its successor does it, once.
async fn successor_completes(fault: Fault, tries: usize) {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let mut world = World::start(&redis, &moto, "lifecycle-killed", None).await;
    world.hooks.set(fault);
    world.take_out().await;
    world.hooks_become("a try", |hooks| hooks.tries() == 1).await;
    world.drained(Some(0)).await;
    world.replace_controller();
    world.hooks.set(Fault::None);
    world.hooks_become("another try", |hooks| hooks.tries() == tries).await;
    world.completed_once().await;
    assert_eq!(world.hooks.tries(), tries);
}

#[tokio::test]
async fn controller_killed_before_its_completion_arrives_has_a_successor_that_completes() {
    successor_completes(Fault::Hangs, 2).await;
}

#[tokio::test]
async fn controller_killed_before_its_completion_is_answered_has_a_successor_that_sees_it() {
    successor_completes(Fault::LosesAnswers, 2).await;
}

/// What an agent has not seen it cannot have evicted.
#[tokio::test]
async fn action_waits_for_pods_that_nobody_could_see_yet() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let mut cluster = require!(ControlPlane::start().await);
    let node = "lifecycle-unseen";
    cluster.add_nodes(&[NodeSpec::gpu(node)]).await.unwrap();
    run_patient_pod(&cluster, node).await;
    cluster.stop_apiserver().await.unwrap();
    let kubeconfig = cluster.kubeconfig().to_owned();
    let world = World::start(&redis, &moto, node, Some(&kubeconfig)).await;

    world.take_out().await;
    world.drained(None).await;
    world.hooks_become("heartbeats", |hooks| hooks.heartbeats() >= 2).await;
    assert_eq!(world.hooks.tries(), 0, "nobody knows which pods are there");
    cluster.start_apiserver().await.unwrap();
    world.drained(Some(1)).await;
    let end = ["delete", "pod", node, "--grace-period=0", "--force"];
    cluster.kubectl().run(&end).await.unwrap();
    world.completed_once().await;
}
