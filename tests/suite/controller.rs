//! The real `ebbtide controller` process against moto, Redis and a real API server.

use std::path::Path;
use std::time::Duration;

use ebbtide_core::ids::{Holder, NodeName, PolicyVersion, ReplicaId};
use ebbtide_core::sample::{Finish, FinishReason};
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{ControlPlane, Moto, Program, Redis, require, until};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{Then, UnitWrite};
use ebbtide_queue::control::{
    DrainProgress, DrainState, NodeRecord, NodeState, TrainerPhase, TrainerRecord,
};

use crate::aws::Group;
use crate::programs::*;

const RUN: &str = "run-controller";

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-controller}
spec:
  mode: act
  queue: {shards: 1}
  staleness: {maxLag: 2}
  trainer: {groupsPerStep: 4, groupSize: 1}
  rollout:
    minReplicas: 1
    maxReplicas: 5
    concurrencyPerReplica: 4
    pools: [spot-a]
    bufferTargetSteps: 1
    startupEstimate: 1s
    stabilizationDown: 1s
    maxChangesPerTick: 4
    tick: 500ms
  pools:
    - name: spot-a
      provider: asg
      autoScalingGroup: GROUP
      market: spot
      instanceType: p5en.48xlarge
      maxNodes: 5
";

struct Controllers<'a> {
    redis: &'a Redis,
    moto: &'a Moto,
    kubeconfig: &'a Path,
    namespace: &'a str,
    policy: &'a str,
}

impl Controllers<'_> {
    fn start(&self, identity: &str) -> (Program, String) {
        let port = Program::free_port().expect("a free port");
        let listen = format!("127.0.0.1:{port}");
        let program = Program::options("ebbtide-controller", EBBTIDE)
            .arguments(["controller", "--policy", self.policy, "--redis", &self.redis.url()])
            .arguments(["--namespace", self.namespace, "--identity", identity])
            .arguments(["--listen", &listen])
            .variable("KUBECONFIG", &self.kubeconfig.display().to_string())
            .variables(self.moto.variables())
            .variable("NO_COLOR", "1")
            .start()
            .expect("the controller starts");
        (program, format!("http://{listen}"))
    }
}

/// The node of an instance whose agent the test plays.
fn node_of(instance: &str) -> NodeName {
    format!("node-{instance}").parse().unwrap()
}

fn holder_of(instance: &str) -> Holder {
    format!("{}/boot/agent-{instance}", node_of(instance)).parse().unwrap()
}

async fn report_nodes(queue: &WorkQueue, instances: &[String], in_flight: impl Fn(&str) -> u32) {
    for instance in instances {
        let record = NodeRecord {
            instance_id: Some(instance.clone()),
            zone: Some("us-east-1a".to_owned()),
            in_flight: in_flight(instance),
            tokens_per_second: 100.0,
            weights_version: Some(PolicyVersion(1)),
            ..NodeRecord::new(holder_of(instance), NodeState::Ready)
        };
        queue.put_node(record).await.expect("reported");
    }
    let trainer = TrainerRecord {
        phase: TrainerPhase::Wait,
        step: 1,
        groups_per_step: 4,
        nodes: None,
        incarnation: None,
        heartbeat: UnixMillis(0),
    };
    queue.put_trainer(trainer).await.expect("reported");
}

/// Seals groups until the buffer is as full as it may be: nothing more is needed then.
pub(crate) async fn fill_buffer(queue: &WorkQueue, groups: i32) {
    let holder = "worker/boot/worker-1".parse().unwrap();
    for number in 100..100 + groups {
        queue.enqueue(group(number, 1, 10)).await.expect("enqueued");
    }
    let ttl = Duration::from_secs(60);
    let leased = queue.lease(&holder, 1000, ttl, PolicyVersion(1)).await.expect("leased");
    let finish = Finish { reason: FinishReason::Stop, stop_reason: None };
    let writes = leased.grants.iter().map(|grant| UnitWrite {
        unit: grant.unit.clone(),
        fencing_token: grant.fencing_token,
        tail: vec![],
        then: Then::Complete(finish.clone()),
    });
    for reply in queue.write(&holder, writes.collect()).await {
        reply.expect("completed");
    }
}

#[tokio::test]
async fn empty_buffer_raises_and_full_buffer_drains_before_it_terminates() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let namespace = cluster.unique_name("controller");
    cluster.create_namespace(&namespace).await.expect("namespace");
    let pool = Group::create(&moto, "rollout-a", 1, 5).await;
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), &POLICY.replace("GROUP", "rollout-a"));
    let queue = queue(&redis, RUN, 1).await;
    publish_version(&queue, 1).await;
    let controllers = Controllers {
        redis: &redis,
        moto: &moto,
        kubeconfig: cluster.kubeconfig(),
        namespace: &namespace,
        policy: &policy,
    };
    for number in 0..12 {
        queue.enqueue(group(number, 1, 10)).await.expect("enqueued");
    }
    let (mut first, health) = controllers.start("first");
    first.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("ready");
    until("the group to be raised", EVENT_LIMIT, || async {
        report_nodes(&queue, &pool.instances().await, |_| 4).await;
        (pool.desired().await >= 3).then_some(())
    })
    .await
    .expect("raised");

    until("nobody but the controller to be able to end them", EVENT_LIMIT, || async {
        report_nodes(&queue, &pool.instances().await, |_| 4).await;
        (pool.protected().await == pool.instances().await.len()).then_some(())
    })
    .await
    .expect("protected");

    // Now everything is done and the buffer full: one replica is idle, the others are busy.
    let before = pool.instances().await;
    let idle = &before[0];
    let load = |instance: &str| if instance == idle { 0 } else { 4 };
    report_nodes(&queue, &before, load).await;
    for busy in &before[1..] {
        let (holder, ttl) = (holder_of(busy), Duration::from_secs(60));
        let leased = queue.lease(&holder, 1, ttl, PolicyVersion(1)).await.expect("leased");
        assert_eq!(leased.grants.len(), 1);
    }
    fill_buffer(&queue, 12).await;
    let idle_replica = ReplicaId::from(&node_of(idle));
    let victim = until("the idle one to be asked to drain", EVENT_LIMIT, || async {
        report_nodes(&queue, &before, load).await;
        queue.view().await.ok()?.active_drain(&idle_replica).cloned()
    })
    .await
    .expect("asked for");
    let drained = DrainProgress {
        replica: victim.replica.clone(),
        request_id: victim.request_id.clone(),
        generation: 0,
        state: DrainState::Drained,
    };
    assert!(pool.instances().await.contains(idle), "not before it is drained");
    queue.report_drain(drained).await.expect("reported");
    until("exactly the victim to be terminated", EVENT_LIMIT, || async {
        let now = pool.instances().await;
        report_nodes(&queue, &now, |_| 4).await;
        (!now.contains(idle)).then_some(())
    })
    .await
    .expect("terminated");
    // Others were asked as well, and are busy: they stay until they are drained.
    let left = pool.instances().await;
    assert!(left.iter().all(|instance| before.contains(instance)), "nothing else was launched");
    assert_eq!(left.len(), before.len() - 1);
    assert_eq!(pool.desired().await as usize, left.len(), "with decrement");
}

#[tokio::test]
async fn second_controller_is_passive_until_the_first_is_gone() {
    let redis = require!(Redis::start().await);
    let moto = require!(Moto::start().await);
    let cluster = require!(ControlPlane::shared().await);
    let namespace = cluster.unique_name("leaders");
    cluster.create_namespace(&namespace).await.expect("namespace");
    let pool = Group::create(&moto, "rollout-b", 0, 5).await;
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), &POLICY.replace("GROUP", "rollout-b"));
    let queue = queue(&redis, RUN, 1).await;
    let controllers = Controllers {
        redis: &redis,
        moto: &moto,
        kubeconfig: cluster.kubeconfig(),
        namespace: &namespace,
        policy: &policy,
    };
    let (mut first, first_health) = controllers.start("first");
    until("the first to lead", EVENT_LIMIT, || leads(&first_health)).await.expect("leads");
    until("the minimum", EVENT_LIMIT, || async { (pool.desired().await == 1).then_some(()) })
        .await
        .expect("raised to the minimum");
    let (mut second, second_health) = controllers.start("second");
    second.ready(&format!("{second_health}/readyz"), EVENT_LIMIT).await.expect("ready");
    assert!(leads(&second_health).await.is_none());

    for number in 0..12 {
        queue.enqueue(group(number, 1, 10)).await.expect("enqueued");
    }
    first.kill();
    until("the second to lead", EVENT_LIMIT, || leads(&second_health)).await.expect("leads");
    until("the second to act", EVENT_LIMIT, || async {
        report_nodes(&queue, &pool.instances().await, |_| 4).await;
        (pool.desired().await >= 3).then_some(())
    })
    .await
    .expect("acts");
}

async fn leads(health: &str) -> Option<()> {
    let metrics = reqwest::get(format!("{health}/metrics")).await.ok()?.text().await.ok()?;
    metrics
        .lines()
        .any(|line| line.starts_with("ebbtide_leader") && line.ends_with(" 1"))
        .then_some(())
}

#[tokio::test]
async fn controller_waits_for_what_is_away_and_recovers_by_itself() {
    let mut redis = require!(Redis::start().await);
    let mut moto = require!(Moto::start().await);
    let mut cluster = require!(ControlPlane::start().await);
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), &POLICY.replace("GROUP", "rollout-c"));
    let kubeconfig = cluster.kubeconfig().to_owned();
    cluster.stop_apiserver().await.expect("stops");
    redis.stop().await.expect("stops");
    moto.kill();
    let controllers = Controllers {
        redis: &redis,
        moto: &moto,
        kubeconfig: &kubeconfig,
        namespace: "default",
        policy: &policy,
    };
    let (mut controller, health) = controllers.start("only");
    controller.logged("is not reachable", EVENT_LIMIT).await.expect("says that redis is away");
    let ready = reqwest::get(format!("{health}/readyz")).await.expect("answers");
    assert_eq!(ready.status(), 503);
    redis.restart().await.expect("starts");
    moto.restart().await.expect("starts");
    cluster.start_apiserver().await.expect("starts");
    let pool = Group::create(&moto, "rollout-c", 0, 5).await;
    until("the minimum", EVENT_LIMIT, || async { (pool.desired().await == 1).then_some(()) })
        .await
        .expect("recovers and raises to the minimum");
    assert!(controller.is_running());
}
