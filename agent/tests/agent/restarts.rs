//! Ends and new beginnings of agent processes: SIGTERM, kill, restart.

use ebbtide_agent::emulator::imds::SpotAction;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::{DrainState, NodeState};
use std::time::Duration;

use crate::world::{World, group, until};

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_hands_everything_back_and_marks_nothing() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    let node = world.node("n1").start();
    node.wait_until_busy(8).await;
    let name = node.name.clone();
    let (report, _place) = node.stop().await;
    assert_eq!(report.counts.units_handed_back.get(&HandBackCause::AgentRestart), Some(&8));
    assert_eq!(report.counts.tokens_waiting, 0);
    let status = world.status().await;
    assert_eq!((status.ready, status.leased), (8, 0));
    assert_eq!(status.tokens.generated, report.counts.tokens_received);
    let marked = world.marks.node(&name);
    assert!(!marked.is_cordoned && marked.taint.is_none());
    let view = world.queue.view().await.unwrap();
    assert!(view.drains.is_empty());
    assert_eq!(view.nodes[0].state, NodeState::NotReady);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_agent_ends_at_once() {
    let world = World::new();
    let node = world.node("n1").start();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    let (report, _place) = node.stop().await;
    assert_eq!(report.counts.units_leased, 0);
}

/// Case 33.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_hands_back_what_its_predecessor_held() {
    let world = World::new();
    world.enqueue([group("a", 8, 400)]).await;
    // Leases that never run out within the test: only reclaiming can bring the units back.
    let lease =
        |config: &mut ebbtide_agent::AgentConfig| config.lease.ttl = Duration::from_secs(600);
    let first = world.node("n1").with(lease).start();
    first.wait_until_busy(8).await;
    let place = first.kill().await;
    assert_eq!(world.status().await.leased, 8);
    let second = world.node("n1").with(lease).start_at(place);
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|s| (s.hand_backs, s.attempts, s.infra_attempts) == (1, 0, 0)));
    assert_eq!(world.status().await.hand_backs["agent_restart"], 8);
    assert!(second.agent.counts().tokens_continued > 0);
}

/// Case 23.
#[tokio::test(flavor = "multi_thread")]
async fn killed_agents_units_come_back_when_their_leases_end() {
    let world = World::new();
    world.enqueue([group("a", 8, 400)]).await;
    let first = world.node("n1").start();
    first.wait_until_busy(8).await;
    let handle = first.agent.clone();
    let place = first.kill().await;
    drop(place);
    let counts = handle.counts();
    let stored = world.status().await.tokens.generated;
    assert_eq!(counts.tokens_received - counts.tokens_waiting, stored);
    let second = world.node("n2").start();
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|s| (s.hand_backs, s.attempts, s.infra_attempts) == (0, 0, 1)));
    assert_eq!(second.agent.counts().tokens_continued, stored);
    assert_eq!(handle.counts(), counts, "nothing of a killed agent goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_in_progress_is_resumed_by_the_next_agent() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    let first = world.node("n1").start();
    first.wait_until_busy(8).await;
    first.announce(60);
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    let place = first.kill().await;
    let calls = world.lease_calls();
    let second = world.node("n1").start_at(place);
    second.wait_until(|agent| agent.state() == NodeState::Drained).await;
    until(|| async { world.status().await.leased == 0 }).await;
    assert_eq!(second.agent.counts().units_leased, 0);
    assert!(world.lease_calls() >= calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_is_not_drained_before_what_its_earlier_agent_held_is_back() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    let lease =
        |config: &mut ebbtide_agent::AgentConfig| config.lease.ttl = Duration::from_secs(600);
    let first = world.node("n1").with(lease).start();
    first.wait_until_busy(8).await;
    let place = first.kill().await;
    place.imds.handle().announce_moving_spot(SpotAction::Terminate, Duration::from_secs(60));
    let way = world.own_way();
    way.keep_from_reclaiming(true);
    let second = world.node("n1").with(lease).by(way.clone()).start_at(place);
    second.wait_until(|agent| agent.notice().is_some()).await;
    until(|| async { way.refused_reclaims() >= 3 }).await;
    assert_eq!((second.agent.state(), world.status().await.leased), (NodeState::Draining, 8));
    way.keep_from_reclaiming(false);
    second.wait_until(|agent| agent.state() == NodeState::Drained).await;
    assert_eq!(world.status().await.leased, 0);
    until(|| async { world.queue.view().await.unwrap().drains[0].state == DrainState::Drained })
        .await;
}
