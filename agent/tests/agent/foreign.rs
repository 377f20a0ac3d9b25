//! Other handlers on the same node: hand-back comes first with them, too.

use std::time::Duration;

use ebbtide_agent::emulator::imds::{EVERY_PATH, Fault};
use ebbtide_agent::kubernetes::{GroupLabels, SeenPod, Termination, Tier};
use ebbtide_core::ids::NodeName;
use ebbtide_core::policy::RebalanceAction;
use ebbtide_queue::client::wall_clock_now;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::{DrainReason, DrainState, NodeState};

use crate::world::{World, group, until, within};

const KARPENTER: (&str, &str) = ("karpenter.sh/disrupted", "");
const HANDLER_SPOT: (&str, &str) = ("aws-node-termination-handler/spot-itn", "spot-itn-1f");
const HANDLER_REBALANCE: (&str, &str) =
    ("aws-node-termination-handler/rebalance-recommendation", "r-1f");

fn node() -> NodeName {
    "n1".parse().expect("valid")
}

fn engine(uid: &str) -> SeenPod {
    SeenPod { tier: Tier::Engine, ..SeenPod::ordinary("rl", uid, uid) }
}

#[tokio::test(flavor = "multi_thread")]
async fn taint_of_another_handler_empties_the_node_until_it_is_taken_back() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    world.pods.bind(&node(), SeenPod::ordinary("rl", "web", "web"));
    let n1 = world.node("n1").with_engine(|engine| engine.context_length = 200_000).start();
    n1.wait_until_busy(8).await;
    world.pods.taint(&node(), &[KARPENTER]);
    n1.wait_until(|agent| agent.state() == NodeState::Drained).await;
    assert_eq!(n1.agent.counts().units_handed_back.get(&HandBackCause::Drain), Some(&8));
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.drains[0].reason, DrainReason::Foreign);
    let left = view.drains[0].deadline.remaining(view.now).as_secs();
    assert!((590..=600).contains(&left), "drain.requestDeadline, got {left}");
    within(world.marks.wait_for(&node(), |marked| marked.taint.as_deref() == Some("foreign")))
        .await;
    assert!(world.pods.departed().is_empty(), "the other handler evicts, by its own rules");
    world.pods.taint(&node(), &[]);
    n1.wait_until(|agent| agent.is_gate_open()).await;
    n1.wait_until_busy(8).await;
    within(world.marks.wait_for(&node(), |marked| !marked.is_cordoned)).await;
    let drain = world.queue.view().await.unwrap().drains[0].clone();
    assert_eq!(drain.state, DrainState::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn spot_taint_of_another_handler_leaves_two_minutes_at_most() {
    let world = World::new();
    let n1 = world.node("n1").start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    world.pods.taint(&node(), &[KARPENTER, HANDLER_SPOT]);
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    let view = world.queue.view().await.unwrap();
    let left = view.drains[0].deadline.remaining(view.now);
    assert!(left <= Duration::from_secs(120), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_engine_pod_stops_leases_and_hands_back_but_marks_no_node() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    world.pods.bind(&node(), engine("e1"));
    world.pods.bind(&node(), SeenPod::ordinary("rl", "web", "web"));
    let n1 = world.node("n1").with_engine(|engine| engine.context_length = 200_000).start();
    n1.wait_until_busy(8).await;
    let grace = Duration::from_secs(40);
    world.pods.terminate("e1", Termination { by: wall_clock_now().plus(grace), grace });
    n1.wait_until(|agent| agent.state() == NodeState::Drained).await;
    assert_eq!(n1.agent.held(), 0);
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.drains[0].reason, DrainReason::Foreign);
    assert!(view.drains[0].deadline.remaining(view.now) <= grace);
    // The pod goes and another one comes: the node works again.
    world.pods.remove("e1");
    world.pods.bind(&node(), engine("e2"));
    n1.wait_until_busy(8).await;
    let marked = world.marks.node(&node());
    assert!(!marked.is_cordoned && marked.taint.is_none(), "{marked:?}");
    assert!(world.pods.departed().is_empty());
}

/// Where the metadata service cannot be read, a node must not stand idle for ever after its engine
/// was replaced.
#[tokio::test(flavor = "multi_thread")]
async fn node_without_metadata_works_again_after_its_engine_pod_was_replaced() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    world.pods.bind(&node(), engine("e1"));
    let plan = world.node("n1").with_engine(|engine| engine.context_length = 200_000);
    let place = plan.place();
    place.imds.handle().fault(EVERY_PATH, Fault::Status(503));
    let n1 = plan.start_at(place);
    n1.wait_until_busy(8).await;
    let grace = Duration::from_secs(40);
    world.pods.terminate("e1", Termination { by: wall_clock_now().plus(grace), grace });
    n1.wait_until(|agent| agent.state() == NodeState::Drained).await;
    world.pods.remove("e1");
    world.pods.bind(&node(), engine("e2"));
    n1.wait_until_busy(8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_pod_that_we_evicted_ourselves_tightens_nothing() {
    let world = World::new();
    world.pods.bind(&node(), engine("e1"));
    let n1 = world.node("n1").start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    n1.announce(60);
    within(world.pods.wait_for(|pods| pods.departed().len() == 1)).await;
    n1.wait_until(|agent| agent.pods_left() == Some(0)).await;
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.drains[0].reason, DrainReason::Notice);
    assert!(view.drains[0].deadline.remaining(view.now) > Duration::from_secs(40));
    assert_eq!(world.marks.node(&node()).taint.as_deref(), Some("spot_terminate"));
}

// Case 26 of the other side: it is not for us to judge an administrator's cordon.
#[tokio::test(flavor = "multi_thread")]
async fn bare_cordon_of_an_administrator_changes_nothing_for_running_work() {
    let world = World::new();
    world.marks.cordon_by_hand(&node());
    world.pods.taint(&node(), &[("node.kubernetes.io/unschedulable", ""), ("team", "rl")]);
    world.enqueue([group("a", 8, 60)]).await;
    let n1 = world.node("n1").start();
    assert_eq!(world.take_samples(8).await.len(), 8);
    assert!(n1.agent.is_gate_open());
    assert!(world.queue.view().await.unwrap().drains.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn rebalance_taint_of_another_handler_follows_the_policy_for_rebalance() {
    let world = World::new();
    let ttl = Duration::from_secs(2);
    let n1 = world.node("n1").with(|config| config.drain.rebalance_ttl = ttl).start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    world.pods.taint(&node(), &[HANDLER_REBALANCE]);
    n1.wait_until(|agent| !agent.is_gate_open()).await;
    assert!(!world.marks.node(&node()).is_cordoned);
    // The taint stays for days; what it says counts for its time.
    n1.wait_until(|agent| agent.is_gate_open()).await;

    let world = World::new();
    let n1 = world.node("n1").with(|config| config.drain.rebalance = RebalanceAction::Drain);
    let n1 = n1.start();
    world.pods.taint(&node(), &[HANDLER_REBALANCE]);
    n1.wait_until(|agent| agent.state() == NodeState::Drained).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_keeps_a_foreign_drain_while_the_mark_stands() {
    let world = World::new();
    world.pods.taint(&node(), &[KARPENTER]);
    let n1 = world.node("n1").start();
    n1.wait_until(|agent| agent.state() == NodeState::Drained).await;
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    let before = world.queue.view().await.unwrap().drains[0].clone();
    let place = n1.kill().await;
    let n1 = world.node("n1").start_at(place);
    n1.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let lease_calls = world.lease_calls();
    // Long enough for every source to have been looked at and found quiet.
    let looks = n1.imds().requests(ebbtide_agent::emulator::imds::path::REBALANCE);
    within(n1.imds().await_requests(ebbtide_agent::emulator::imds::path::REBALANCE, looks + 6))
        .await;
    let after = world.queue.view().await.unwrap().drains[0].clone();
    assert_eq!((after.request_id, after.deadline), (before.request_id, before.deadline));
    assert_ne!(after.state, DrainState::Cancelled);
    assert_eq!(world.lease_calls(), lease_calls);
    world.pods.taint(&node(), &[]);
    n1.wait_until(|agent| agent.is_gate_open()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn membership_follows_the_labels_of_the_engine_pod() {
    let world = World::new();
    let n1 = world.node("n1").start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    assert_eq!(n1.agent.membership(), None);
    let group = |index| GroupLabels { name: "ep".to_owned(), group_index: index, worker_index: 0 };
    for (uid, index) in [("a", 3), ("b", 4)] {
        world.pods.bind(&node(), SeenPod { group: Some(group(index)), ..engine(uid) });
        until(|| async {
            let membership = n1.agent.membership();
            membership.is_some_and(|m| m.replica.as_str() == format!("ep-{index}") && m.leads)
        })
        .await;
        world.pods.remove(uid);
        until(|| async { n1.agent.membership().is_none() }).await;
    }
}
