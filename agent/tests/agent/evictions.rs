//! Pods leave a node that goes, and the work in them leaves first.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide_agent::kubernetes::{
    Departed, Departure, EvictionError, NodePods, NodeSight, PodId, SeenPod, Tier,
};
use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::policy::BlockedEviction;
use ebbtide_queue::control::{DrainReason, DrainRequest, NodeNames, NodeState};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

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
async fn rehearsal_and_cordon_only_evict_nothing() {
    for (reason, evict, mark) in
        [(DrainReason::Drill, true, None), (DrainReason::ScaleIn, false, Some("scale_in"))]
    {
        let world = World::new();
        world.pods.bind(&node("n1"), pod("web", Tier::Ordinary));
        let n1 = world.node("n1").with(|config| config.drain.evict = evict).start();
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
