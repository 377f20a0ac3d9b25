//! Lifecycle actions in the whole controller.

use std::sync::atomic::Ordering;

use ebbtide_core::ids::NodeName;
use ebbtide_core::policy::Market;
use ebbtide_queue::control::{DrainProgress, DrainState};

use super::*;
use crate::capacity::local::LocalNode;
use crate::controller::EventParts;
use crate::controller::tests::world::{DirectWorker, Told, World, policy_with};
use crate::events::memory::MemoryEventQueue;
use crate::events::tests::bodies;
use crate::nodes::MemoryNodes;

const GROUP: &str = "rollout-a";

/// A world with four nodes that work; the first one's instance is held by a hook.
struct Scene {
    world: World,
    inbox: MemoryEventQueue,
    hooks: MemoryHooks,
    cluster: MemoryNodes,
    leaving: LocalNode,
}

impl Scene {
    async fn start(mode: &str, drain: &str) -> Self {
        let (inbox, hooks) = (MemoryEventQueue::default(), MemoryHooks::default());
        let cluster = MemoryNodes::default();
        let parts = EventParts {
            inbox: Some(Arc::new(inbox.clone())),
            nodes: Arc::new(cluster.clone()),
            hooks: Arc::new(hooks.clone()),
        };
        let world = World::start_with(policy_with(mode, drain), parts).await;
        if mode == "act" {
            world.enqueue_groups(0..40).await;
            world.until("four nodes work", async || world.ready_nodes().await == 4).await;
        }
        let leaving = world.provider.nodes().first().cloned();
        let unknown = InstanceId("i-0123456789abcdef0".to_owned());
        let leaving = leaving.unwrap_or(LocalNode {
            node: "nowhere".parse().expect("valid"),
            instance: unknown,
            pool: "spot".parse().expect("valid"),
            zone: None,
            market: Market::Spot,
        });
        hooks.add_hook(GROUP, hook("drain", 60));
        hooks.hold(leaving.instance.clone(), GROUP);
        Self { world, inbox, hooks, cluster, leaving }
    }

    fn send(&self) {
        self.inbox.send(bodies::lifecycle(&self.leaving.instance, GROUP, "token-1"));
    }

    fn send_of(&self, hook: &str) {
        let body = bodies::lifecycle(&self.leaving.instance, GROUP, "token-1");
        self.inbox.send(body.replace("\"drain\"", &format!("\"{hook}\"")));
    }

    async fn until_completed(&self) {
        let is_done = async || !self.hooks.completed().is_empty();
        self.world.until("it is completed", is_done).await;
    }

    async fn records(&self) -> usize {
        self.world.queue.view().await.expect("memory").lifecycles.len()
    }

    async fn until_forgotten(&self) {
        let is_gone = async || self.records().await == 0;
        self.world.until("its record is gone", is_gone).await;
    }
}

fn hook(name: &str, seconds: u64) -> TerminateHook {
    TerminateHook { name: name.to_owned(), timeout: Duration::from_secs(seconds) }
}

/// Case 28.
#[tokio::test(start_paused = true)]
async fn action_is_completed_once_after_the_drain_with_its_token() {
    let scene = Scene::start("act", "").await;
    scene.world.agents.may_drain.store(false, Ordering::Relaxed);
    scene.send();
    let is_held = async || scene.records().await == 1;
    scene.world.until("it is recorded", is_held).await;
    let drain = async || scene.world.drain_of(&scene.leaving.node).await;
    scene.world.until("the drain is asked for", async || drain().await.is_some()).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(scene.hooks.completed().is_empty(), "not before it is drained");

    scene.world.agents.may_drain.store(true, Ordering::Relaxed);
    scene.until_completed().await;
    scene.until_forgotten().await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let completed = scene.hooks.completed();
    assert_eq!(completed.len(), 1, "{completed:?}");
    assert_eq!(completed[0].instance_id, scene.leaving.instance.0);
    assert_eq!(completed[0].token.as_deref(), Some("token-1"));
}

#[tokio::test(start_paused = true)]
async fn action_of_a_drained_node_waits_for_the_lease_of_a_worker_its_agent_does_not_know() {
    let scene = Scene::start("act", "asgDeadline: 10m").await;
    let worker = DirectWorker::start(&scene.world, &scene.leaving.node).await;
    scene.send();
    let is_drained = async || {
        let drain = scene.world.drain_of(&scene.leaving.node).await;
        drain.is_some_and(|drain| drain.state == DrainState::Drained)
    };
    scene.world.until("its agent says that it is drained", is_drained).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(worker.renew().await && scene.hooks.completed().is_empty(), "it still works");
    }
    worker.hand_back().await;
    scene.until_completed().await;
}

/// Case 28: a fault of AWS is answered by another try.
#[tokio::test(start_paused = true)]
async fn failed_completion_is_tried_again() {
    let scene = Scene::start("act", "").await;
    for _ in 0..3 {
        scene.hooks.fail_next(AwsError::Unavailable {
            what: "CompleteLifecycleAction",
            problem: "status 500: InternalFailure".to_owned(),
        });
    }
    scene.send();
    let is_said = async || !scene.world.snapshot().event_problems.is_empty();
    scene.world.until("it is said", is_said).await;
    scene.until_completed().await;
    scene.until_forgotten().await;
    assert_eq!(scene.hooks.completed().len(), 1);
    let is_well = async || scene.world.snapshot().event_problems.is_empty();
    scene.world.until("the problem is gone", is_well).await;
}

/// Case 28: a drain that outlasts the hook's time limit.
#[tokio::test(start_paused = true)]
async fn heartbeats_are_sent_in_time_while_the_drain_lasts() {
    let scene = Scene::start("act", "asgDeadline: 10m").await;
    scene.world.agents.may_drain.store(false, Ordering::Relaxed);
    scene.send();
    let five = async || scene.hooks.heartbeats().len() == 5;
    let begun = Instant::now();
    scene.world.until("five heartbeats", five).await;
    let took = begun.elapsed();
    assert!((90..150).contains(&took.as_secs()), "one at once, then every 30 s: {took:?}");
    scene.world.agents.may_drain.store(true, Ordering::Relaxed);
    scene.until_completed().await;
}

#[tokio::test(start_paused = true)]
async fn action_waits_until_the_pods_have_left() {
    let scene = Scene::start("act", "").await;
    let node = &scene.leaving.node;
    scene.world.agents.tell(node, Told { pods_left: Some(2), ..Told::default() });
    scene.send();
    let is_drained = async || scene.world.drain_of(node).await.is_some();
    scene.world.until("it is drained", is_drained).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(scene.hooks.completed().is_empty());
    scene.world.agents.tell(node, Told { pods_left: Some(0), ..Told::default() });
    scene.until_completed().await;
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_the_waiting() {
    let scene = Scene::start("act", "asgDeadline: 40s").await;
    scene.world.agents.may_drain.store(false, Ordering::Relaxed);
    scene.send();
    let begun = Instant::now();
    scene.until_completed().await;
    assert!((38..45).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn action_that_had_ended_is_done_with() {
    let scene = Scene::start("act", "").await;
    let other = InstanceId("i-0000".to_owned());
    scene.inbox.send(bodies::lifecycle(&other, GROUP, "token-2"));
    let is_held = async || scene.world.metrics.render().contains("not_active");
    scene.world.until("Auto Scaling does not know it", is_held).await;
    scene.until_forgotten().await;
    assert!(scene.hooks.completed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn instance_that_never_worked_is_let_go_and_one_of_others_is_left_alone() {
    let scene = Scene::start("act", "").await;
    let (young, foreign) = (InstanceId("i-0001".into()), InstanceId("i-0002".into()));
    scene.hooks.hold(young.clone(), GROUP);
    scene.hooks.hold(foreign.clone(), "others");
    // Of another run in the same cluster.
    let node: NodeName = "foreign".parse().expect("valid");
    scene.cluster.add(node.clone(), foreign.clone());
    scene.inbox.send(bodies::lifecycle(&young, GROUP, "token-3"));
    scene.inbox.send(bodies::lifecycle(&foreign, "others", "token-4"));
    scene.until_completed().await;
    scene.world.until("no message is left", async || scene.inbox.left().is_empty()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let completed: Vec<String> =
        scene.hooks.completed().into_iter().map(|action| action.instance_id).collect();
    assert_eq!(completed, [young.0]);
    assert!(scene.cluster.mark_of(&node).is_none() && scene.world.drains().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn action_that_no_message_told_is_found_and_completed_by_its_instance() {
    let scene = Scene::start("act", "").await;
    scene.world.agents.tell(
        &scene.leaving.node,
        Told {
            notice_kind: Some("asg_termination".to_owned()),
            pods_left: Some(0),
            ..Told::default()
        },
    );
    scene.until_completed().await;
    let completed = scene.hooks.completed();
    assert_eq!((completed[0].token.as_ref(), completed[0].hook.as_str()), (None, "drain"));
}

#[tokio::test(start_paused = true)]
async fn one_of_several_hooks_is_not_guessed() {
    let scene = Scene::start("act", "").await;
    scene.hooks.add_hook(GROUP, hook("logs", 300));
    scene.world.agents.tell(
        &scene.leaving.node,
        Told {
            notice_kind: Some("asg_termination".to_owned()),
            pods_left: Some(0),
            ..Told::default()
        },
    );
    let is_said =
        async || scene.world.snapshot().event_problems.iter().any(|text| text.contains("2 hooks"));
    scene.world.until("it is said", is_said).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(scene.hooks.completed().is_empty());
}

/// One event comes for each hook, and none says for whom it is.
#[tokio::test(start_paused = true)]
async fn only_the_hook_that_the_policy_names_is_completed() {
    let scene = Scene::start("act", "lifecycleHook: drain").await;
    scene.hooks.add_hook(GROUP, hook("logs", 300));
    scene.send_of("logs");
    scene.send_of("drain");
    scene.send_of("logs");
    scene.until_completed().await;
    scene.until_forgotten().await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let hooks: Vec<String> = scene.hooks.completed().into_iter().map(|it| it.hook).collect();
    assert_eq!(hooks, ["drain"]);
}

#[tokio::test(start_paused = true)]
async fn hook_of_several_is_not_completed_without_a_name() {
    let scene = Scene::start("act", "").await;
    scene.hooks.add_hook(GROUP, hook("logs", 300));
    scene.send_of("drain");
    scene.send_of("logs");
    let is_said = async || {
        let snapshot = scene.world.snapshot();
        snapshot.event_problems.iter().any(|text| text.contains("spec.drain.lifecycleHook"))
    };
    scene.world.until("it is said", is_said).await;
    let is_drained = async || scene.world.drain_of(&scene.leaving.node).await.is_some();
    scene.world.until("its node is drained all the same", is_drained).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(scene.hooks.completed().is_empty() && scene.hooks.heartbeats().is_empty());
}

#[tokio::test(start_paused = true)]
async fn observe_mode_recommends_and_calls_nothing() {
    let scene = Scene::start("observe", "").await;
    scene.send();
    let is_said = async || scene.world.metrics.render().contains("recommended");
    scene.world.until("it is recommended", is_said).await;
    scene.until_forgotten().await;
    assert!(scene.hooks.completed().is_empty() && scene.hooks.heartbeats().is_empty());
}

/// The action had joined a drain of somebody who takes it back, as an operator may.
#[tokio::test(start_paused = true)]
async fn drain_that_is_taken_back_under_an_action_is_asked_for_again() {
    let scene = Scene::start("act", "").await;
    scene.world.agents.may_drain.store(false, Ordering::Relaxed);
    scene.send();
    let drain = async || scene.world.drain_of(&scene.leaving.node).await;
    let goes_on = async |state| drain().await.is_some_and(|drain| drain.state == state);
    scene.world.until("it is drained", async || goes_on(DrainState::Draining).await).await;
    let first = drain().await.expect("there");
    let progress = DrainProgress {
        replica: first.replica.clone(),
        request_id: first.request_id.clone(),
        generation: 0,
        state: DrainState::Cancelled,
    };
    scene.world.queue.report_drain(progress).await.expect("memory");
    scene.world.until("it is drained again", async || goes_on(DrainState::Draining).await).await;
    let second = drain().await.expect("there");
    assert_ne!(second.request_id, first.request_id);
    assert!(second.deadline <= first.deadline.plus(Duration::from_secs(1)), "{second:?}");
    scene.world.agents.may_drain.store(true, Ordering::Relaxed);
    scene.until_completed().await;
    scene.until_forgotten().await;
    assert_eq!(scene.hooks.completed().len(), 1);
}

/// The next leader goes on with what stands in Redis.
#[tokio::test(start_paused = true)]
async fn next_leader_completes_what_the_first_has_begun() {
    let mut scene = Scene::start("act", "asgDeadline: 10m").await;
    scene.world.agents.may_drain.store(false, Ordering::Relaxed);
    scene.send();
    let is_held = async || !scene.hooks.heartbeats().is_empty();
    scene.world.until("it goes on", is_held).await;
    let second = scene.world.add_controller(policy_with("act", "asgDeadline: 10m"));
    scene.world.end_first().await;
    scene.world.until("the second leads", async || second.snapshot().is_leader).await;
    scene.world.agents.may_drain.store(true, Ordering::Relaxed);
    scene.until_completed().await;
    assert_eq!(scene.hooks.completed().len(), 1);
}
