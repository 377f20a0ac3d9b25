//! Pods leave a node that goes, and the work in them leaves first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_agent::kubernetes::{
    Departed, Departure, EvictionError, MemoryPods, NodePods, NodeSight, PodId, SeenPod, Tier,
};
use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::policy::BlockedEviction;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{DrainReason, DrainRequest, NodeNames, NodeState};
use ebbtide_queue::state::{SlotState, UnitSnapshot};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::{SocketFolder, tokens};
use crate::world::{World, group, until, within};

fn pod(name: &str, tier: Tier) -> SeenPod {
    SeenPod { tier, ..SeenPod::ordinary("rl", name, name) }
}

fn names(departed: &[Departed]) -> Vec<&str> {
    departed.iter().map(|departed| departed.pod.name.as_str()).collect()
}

fn node(name: &str) -> NodeName {
    name.parse().expect("valid")
}

async fn request(world: &World, reason: DrainReason, seconds: u64) {
    let request = DrainRequest {
        replica: ReplicaId::from(&node("n1")),
        request_id: format!("{reason:?}"),
        generation: 0,
        reason,
        remaining: Duration::from_secs(seconds),
        lost: NodeNames::default(),
    };
    world.queue.request_drain(request).await.expect("reachable");
}

// Case 15, case 65: a pod that holds work is the last to get a SIGTERM.
#[tokio::test(flavor = "multi_thread")]
async fn engine_pod_is_evicted_last_and_only_when_its_work_is_handed_back() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    for (name, tier) in
        [("engine", Tier::Engine), ("critical", Tier::Critical), ("web", Tier::Ordinary)]
    {
        world.pods.bind(&node("n1"), pod(name, tier));
    }
    let n1 = world.node("n1").start();
    n1.wait_until_busy(8).await;
    n1.announce(60);
    within(world.pods.wait_for(|pods| pods.departed().len() == 3)).await;
    let departed = world.pods.departed();
    assert_eq!(names(&departed), ["web", "critical", "engine"]);
    assert!(departed.iter().all(|departed| !departed.is_deleted));
    assert_eq!(n1.agent.held(), 0);
    assert_eq!(departed[2].grace, Duration::from_secs(30));
    let marked = world.marks.node(&n1.name);
    assert_eq!(marked.condition.as_deref(), Some("spot_terminate"));
    n1.wait_until(|agent| agent.pods_left() == Some(0)).await;
}

/// A pod at the moment of its eviction, and what the queue had then.
type Sight = (String, Vec<UnitSnapshot>);

/// Evicts as the memory does, and looks first what the queue has of the node's work.
struct Witness {
    pods: MemoryPods,
    queue: WorkQueue,
    seen: Arc<Mutex<Vec<Sight>>>,
}

#[async_trait]
impl NodePods for Witness {
    async fn follow(&self, node: &NodeName, sights: &watch::Sender<NodeSight>) {
        self.pods.follow(node, sights).await;
    }
    async fn evict(&self, pod: &PodId, grace: Duration) -> Result<Departure, EvictionError> {
        let units = self.queue.scan().await.unwrap();
        self.seen.lock().unwrap().push((pod.name.clone(), units));
        self.pods.evict(pod, grace).await
    }
    async fn delete(&self, pod: &PodId, grace: Duration) -> Result<Departure, EvictionError> {
        self.pods.delete(pod, grace).await
    }
}

// Case 65: an eviction is a SIGTERM; by then the queue has every token, of engines and workers.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_engines_and_workers_are_in_the_queue_before_their_pods_get_a_sigterm() {
    let (world, folder) = (World::new(), SocketFolder::new());
    let pods = [("engine", Tier::Engine), ("worker", Tier::Worker), ("web", Tier::Ordinary)];
    pods.into_iter().for_each(|(name, tier)| world.pods.bind(&node("n1"), pod(name, tier)));
    let plan = world.node("n1").with(|config| config.socket = Some(folder.socket()));
    let plan = plan.with(|config| config.concurrency_per_engine = 4).with_patience();
    let place = plan.place();
    let mut outside = plan.outside(&place);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (pods, queue) = (world.pods.clone(), world.queue.clone());
    outside.pods = Arc::new(Witness { pods, queue, seen: seen.clone() });
    let agent = ebbtide_agent::Agent::new(plan.config, outside);
    let handle = agent.handle();
    let task = tokio::spawn(agent.run(CancellationToken::new()));
    world.enqueue([group("a", 4, 4_000)]).await;
    within(handle.wait_until(|agent| agent.held() == 4 && agent.counts().tokens_stored > 0)).await;
    world.enqueue([group("b", 1, 4_000)]).await;
    let api = folder.api().await;
    let grants = api.lease_all("env", 1).await;
    let mut notices = api.listen("env").await;
    request(&world, DrainReason::Operator, 8).await;
    notices.wait_for("release").await;
    within(world.pods.wait_for(|pods| pods.departed().len() == 1)).await;
    assert_eq!(names(&world.pods.departed()), ["web"], "the worker still has its tail to send");
    assert_eq!(api.call("/v1/hand-back", "env", vec![tokens(&grants[0], 0, 7)]).await, ["OK"]);
    within(world.pods.wait_for(|pods| pods.departed().len() == 3)).await;
    let received = handle.counts().tokens_received;
    let seen = seen.lock().unwrap().clone();
    let order: Vec<&str> = seen.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(order, ["web", "worker", "engine"]);
    let of_worker = seen[1].1.iter().find(|unit| unit.unit.group.as_str() == "b").unwrap();
    assert_eq!((of_worker.state, of_worker.tokens), (SlotState::Enqueued, 7));
    assert!(seen[2].1.iter().all(|unit| unit.state == SlotState::Enqueued), "{:?}", seen[2]);
    let stored: u32 = seen[2].1.iter().map(|unit| unit.tokens).sum();
    assert_eq!(u64::from(stored), received, "every token that the engine has made");
    task.abort();
}

// Case 15: an engine whose streams may still finish keeps them, and its pod.
#[tokio::test(flavor = "multi_thread")]
async fn engine_pod_stays_while_a_stream_may_still_finish() {
    let world = World::new();
    world.enqueue([group("a", 4, 600)]).await;
    world.pods.bind(&node("n1"), pod("engine", Tier::Engine));
    world.pods.bind(&node("n1"), pod("web", Tier::Ordinary));
    let n1 = world.node("n1").start();
    n1.wait_until(|agent| agent.counts().tokens_stored > 4 * 100).await;
    n1.announce(60);
    within(world.pods.wait_for(|pods| !pods.departed().is_empty())).await;
    assert_eq!(names(&world.pods.departed()), ["web"]);
    assert_eq!(n1.agent.held(), 4, "the others go at once, the engine goes on");
    within(world.pods.wait_for(|pods| pods.departed().len() == 2)).await;
    assert_eq!(n1.agent.counts().units_completed, 4);
}

// Case 36.
#[tokio::test(flavor = "multi_thread")]
async fn blocked_pod_is_deleted_at_deadline_minus_grace_and_an_event_names_it_and_its_budget() {
    let world = World::new();
    world.pods.bind(&node("n1"), pod("kept", Tier::Ordinary));
    world.pods.keep("kept");
    let n1 = world.node("n1").with(|config| config.drain.grace = Duration::from_secs(2)).start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    n1.announce(4);
    within(world.pods.wait_for(|pods| pods.departed().len() == 1)).await;
    let departed = world.pods.departed().remove(0);
    assert!(departed.is_deleted && world.pods.refusals() > 1, "{departed:?}");
    assert!(departed.grace <= Duration::from_secs(2), "{departed:?}");
    let has_told = |reason: &str, events: &[ebbtide_agent::marks::NodeEvent]| {
        events.iter().any(|event| {
            event.reason == reason
                && event.is_warning
                && event.message.contains("rl/kept")
                && event.message.contains("budget kept")
        })
    };
    let wait =
        world.marks.wait_for(&n1.name, |marked| has_told("EbbtideEvictionForced", &marked.events));
    within(wait).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_pod_is_left_when_the_policy_says_so() {
    let world = World::new();
    world.pods.bind(&node("n1"), pod("kept", Tier::Ordinary));
    world.pods.bind(&node("n1"), pod("engine", Tier::Engine));
    world.pods.keep("kept");
    let n1 = world.node("n1").with(|config| {
        config.drain.grace = Duration::from_secs(2);
        config.drain.on_blocked_eviction = BlockedEviction::Wait;
    });
    let n1 = n1.start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    n1.announce(4);
    let is_told = |marked: &ebbtide_agent::marks::MarkedNode| {
        marked.events.iter().any(|event| event.reason == "EbbtideEvictionBlocked")
    };
    within(world.marks.wait_for(&n1.name, is_told)).await;
    n1.wait_until(|agent| agent.pods_left() == Some(0)).await;
    assert_eq!(names(&world.pods.departed()), ["engine"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rehearsal_cordon_only_and_sizing_of_pods_evict_nothing() {
    for (reason, evict, takes_pods, mark) in [
        (DrainReason::Drill, true, false, None),
        (DrainReason::ScaleIn, false, false, Some("scale_in")),
        (DrainReason::ScaleIn, true, true, Some("scale_in")),
        (DrainReason::Swap, true, true, Some("swap")),
    ] {
        let world = World::new();
        world.pods.bind(&node("n1"), pod("web", Tier::Ordinary));
        let n1 = world.node("n1").with(|config| {
            config.drain.evict = evict;
            config.drain.sizing_takes_pods = takes_pods;
        });
        let n1 = n1.start();
        n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
        request(&world, reason, 2).await;
        n1.wait_until(|agent| agent.state() == NodeState::Drained).await;
        assert_eq!(n1.agent.pods_left(), Some(0), "nothing is to leave");
        if mark.is_some() {
            within(world.marks.wait_for(&n1.name, |marked| marked.taint.as_deref() == mark)).await;
        }
        // Until after the deadline: a late step would be wrong as well.
        until(|| async {
            let view = world.queue.view().await.unwrap();
            view.drains[0].deadline <= view.now
        })
        .await;
        assert!(world.pods.departed().is_empty(), "{reason:?}");
        assert_eq!(world.marks.node(&n1.name).taint.as_deref(), mark);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_whose_pods_sizing_takes_is_emptied_for_others_all_the_same() {
    let world = World::new();
    world.pods.bind(&node("n1"), pod("engine", Tier::Engine));
    let n1 = world.node("n1").with(|config| config.drain.sizing_takes_pods = true).start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    request(&world, DrainReason::Operator, 120).await;
    within(world.pods.wait_for(|pods| pods.departed().len() == 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn successor_of_a_killed_agent_goes_on_evicting() {
    let world = World::new();
    for name in ["kept", "web"] {
        world.pods.bind(&node("n1"), pod(name, Tier::Ordinary));
    }
    world.pods.bind(&node("n1"), pod("engine", Tier::Engine));
    world.pods.keep("kept");
    let n1 = world.node("n1").start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    request(&world, DrainReason::Operator, 120).await;
    within(world.pods.wait_for(|pods| pods.departed().len() == 1 && pods.refusals() > 0)).await;
    let place = n1.kill().await;
    world.pods.remove("kept");
    let successor = world.node("n1").start_at(place);
    within(world.pods.wait_for(|pods| pods.departed().len() == 2)).await;
    assert_eq!(names(&world.pods.departed()), ["web", "engine"]);
    successor.wait_until(|agent| agent.pods_left() == Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_drain_evicts_no_more() {
    let world = World::new();
    world.pods.bind(&node("n1"), pod("kept", Tier::Ordinary));
    world.pods.bind(&node("n1"), pod("engine", Tier::Engine));
    world.pods.keep("kept");
    let n1 = world.node("n1").start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    n1.announce(60);
    within(world.pods.wait_for(|pods| pods.refusals() > 1)).await;
    n1.imds().withdraw_spot();
    n1.wait_until(|agent| agent.is_gate_open()).await;
    within(
        world.marks.wait_for(&n1.name, |marked| !marked.is_cordoned && marked.condition.is_none()),
    )
    .await;
    assert_eq!(n1.agent.pods_left(), None);
    assert!(world.pods.departed().is_empty());
}

/// An API server that shows its pods and answers no eviction.
struct HangingPods;

#[async_trait]
impl NodePods for HangingPods {
    async fn follow(&self, _: &NodeName, sights: &watch::Sender<NodeSight>) {
        let pods = Some(Arc::new(vec![pod("web", Tier::Ordinary), pod("engine", Tier::Engine)]));
        sights.send_replace(NodeSight { pods, ..NodeSight::empty() });
        std::future::pending().await
    }
    async fn evict(&self, _: &PodId, _: Duration) -> Result<Departure, EvictionError> {
        std::future::pending().await
    }
    async fn delete(&self, _: &PodId, _: Duration) -> Result<Departure, EvictionError> {
        std::future::pending().await
    }
}

// Case 35.
#[tokio::test(flavor = "multi_thread")]
async fn hand_back_never_waits_for_an_eviction() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    let plan = world.node("n1");
    let place = plan.place();
    let mut outside = plan.outside(&place);
    outside.pods = Arc::new(HangingPods);
    let agent = ebbtide_agent::Agent::new(plan.config, outside);
    let handle = agent.handle();
    let task = tokio::spawn(agent.run(CancellationToken::new()));
    within(handle.wait_until(|agent| agent.counts().tokens_stored > 0)).await;
    request(&world, DrainReason::Operator, 5).await;
    within(handle.wait_until(|agent| agent.state() == NodeState::Drained)).await;
    let report = handle.report();
    assert!(report.drains[0].duration < Duration::from_secs(2), "{report:?}");
    task.abort();
}

// Case 41.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_nodes_noticed_together_are_all_marked_and_claim_nothing_of_each_others_work() {
    let world = World::new();
    world.enqueue((0..20).map(|n| group(&format!("g{n}"), 2, 4_000))).await;
    let names: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
    let small = |name: &String| world.node(name).with(|config| config.concurrency_per_engine = 2);
    let nodes: Vec<_> = names.iter().map(|name| small(name).start()).collect();
    for node in &nodes {
        node.wait_until_busy(2).await;
    }
    // None of it can finish in this time.
    nodes.iter().for_each(|node| node.announce(10));
    for node in &nodes {
        node.wait_until(|agent| agent.state() == NodeState::Drained).await;
        within(world.marks.wait_for(&node.name, |marked| marked.is_cordoned)).await;
        assert!(world.marks.node(&node.name).taint.is_some());
    }
    let status = world.status().await;
    assert_eq!((status.ready, status.hand_backs["notice"]), (40, 40), "each went back once");
}
