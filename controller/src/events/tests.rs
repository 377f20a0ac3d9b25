//! The flow of events in the whole controller: a queue of events, nodes and hooks in memory.

pub(crate) mod bodies;
mod scene;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ebbtide_core::ids::NodeName;
use ebbtide_queue::control::{DrainReason, DrainState};

use self::bodies::{health, rebalance, spot, spot_at, state_change};
use self::scene::Scene;
use super::*;
use crate::capacity::local::LocalNode;
use crate::controller::tests::world::{paused_clock, policy};

#[tokio::test(start_paused = true)]
async fn spot_warning_drains_the_replica_and_is_deleted_once_that_is_durable() {
    let scene = Scene::start("").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    scene.inbox.send(spot(&instance));
    let is_asked = async || scene.drain_of(&node).await.is_some();
    scene.world.until("the drain is asked for", is_asked).await;
    let drain = scene.drain_of(&node).await.expect("asked for");
    assert_eq!((drain.reason, drain.lost.0.contains(&node)), (DrainReason::Notice, true));
    assert!(drain.deadline <= paused_clock().plus(Duration::from_secs(120)), "{drain:?}");
    assert!(drain.generation >= 1);
    scene.until_empty().await;
    assert_eq!(scene.cluster.mark_of(&node), None, "its agent lives and marks it by itself");
    let counted =
        r#"ebbtide_events_total{kind="spot_terminate",outcome="drain_requested",role="rollout"} 1"#;
    assert!(scene.counts(counted), "{}", scene.world.metrics.render());
}

#[tokio::test(start_paused = true)]
async fn repeated_message_is_the_same_request() {
    let scene = Scene::start("").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    let body = spot(&instance);
    scene.inbox.send(body.clone());
    scene.until_empty().await;
    let first = scene.drain_of(&node).await.expect("asked for");
    scene.inbox.send(body);
    scene.until_empty().await;
    let second = scene.drain_of(&node).await.expect("asked for");
    assert_eq!((first.request_id, first.deadline), (second.request_id, second.deadline));
}

#[tokio::test(start_paused = true)]
async fn node_of_a_silent_agent_is_cordoned_by_the_controller() {
    let scene = Scene::start("").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    scene.world.agents.kill(&node);
    let silent_at = Instant::now();
    scene.inbox.send(spot(&instance));
    let is_asked = async || scene.drain_of(&node).await.is_some();
    scene.world.until("the drain is asked for", is_asked).await;
    assert!(silent_at.elapsed() < Duration::from_secs(2), "it does not wait for the agent");
    assert_eq!(scene.cluster.mark_of(&node), None, "the agent has ten seconds");
    scene.until_empty().await;
    assert_eq!(scene.cluster.mark_of(&node).as_deref(), Some("notice"));
}

/// The agent takes the drain up and dies; its message is gone already.
#[tokio::test(start_paused = true)]
async fn agent_that_dies_while_it_drains_is_stood_in_for() {
    let scene = Scene::start("").await;
    scene.world.agents.may_drain.store(false, Ordering::Relaxed);
    let LocalNode { node, instance, .. } = scene.node(0);
    scene.inbox.send(spot(&instance));
    scene.until_empty().await;
    assert_eq!(scene.cluster.mark_of(&node), None);
    scene.world.agents.kill(&node);
    let is_marked = async || scene.cluster.mark_of(&node).is_some();
    scene.world.until("its node is marked", is_marked).await;
}

/// Case 33.
#[tokio::test(start_paused = true)]
async fn refused_cordon_keeps_the_message_while_the_work_comes_back() {
    let scene = Scene::start("").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    scene.world.agents.kill(&node);
    scene.cluster.refuse(&node, true);
    let number = scene.inbox.send(spot(&instance));
    let is_surfaced = async || !scene.world.snapshot().event_problems.is_empty();
    scene.world.until("it is surfaced", is_surfaced).await;
    let snapshot = scene.world.snapshot();
    assert!(snapshot.event_problems[0].contains("403"), "{snapshot:?}");
    assert!(snapshot.problems.is_empty(), "scaling is not hindered: {snapshot:?}");
    assert!(scene.drain_of(&node).await.is_some(), "the drain is asked for in any case");
    let comes_again = async || scene.inbox.left().get(&number).is_some_and(|times| *times >= 2);
    scene.world.until("the message comes again", comes_again).await;
    let failures = r#"ebbtide_event_errors_total{kind="refused",role="rollout"}"#;
    assert!(scene.world.metrics.render().contains(failures));

    scene.cluster.refuse(&node, false);
    scene.until_empty().await;
    assert_eq!(scene.cluster.mark_of(&node).as_deref(), Some("notice"));
    let is_well = async || scene.world.snapshot().event_problems.is_empty();
    scene.world.until("the problem is gone", is_well).await;
}

/// Case 45.
#[tokio::test(start_paused = true)]
async fn message_that_fails_stays_and_the_other_nine_go() {
    let scene = Scene::start("").await;
    let failing = scene.node(3);
    scene.world.agents.kill(&failing.node);
    scene.cluster.refuse(&failing.node, true);
    let numbers: Vec<u64> = (1..=10)
        .map(|number| match number {
            7 => scene.inbox.send(spot(&failing.instance)),
            number => scene.inbox.send(spot(&scene.node(number % 3).instance)),
        })
        .collect();
    let only_one = async || scene.inbox.left().len() == 1;
    scene.world.until("nine are gone", only_one).await;
    let comes_again = async || scene.inbox.left().get(&numbers[6]).is_some_and(|n| *n >= 2);
    scene.world.until("the seventh comes again", comes_again).await;
}

/// Case 46.
#[tokio::test(start_paused = true)]
async fn unknown_instance_is_counted_and_acknowledged() {
    let scene = Scene::start("").await;
    scene.inbox.send(spot(&InstanceId("i-0123456789abcdef0".to_owned())));
    scene.until_empty().await;
    assert!(scene.counts(r#"ebbtide_events_unknown_instance_total{role="rollout"} 1"#));
    assert!(scene.world.drains().await.is_empty());
    assert!(scene.world.snapshot().event_problems.is_empty());
}

/// Case 46, where others read the queue as well.
#[tokio::test(start_paused = true)]
async fn unknown_instance_is_kept_when_the_policy_says_so() {
    let scene = Scene::start("unknownInstances: keep").await;
    let number = scene.inbox.send(spot(&InstanceId("i-0123456789abcdef0".to_owned())));
    let comes_again = async || scene.inbox.left().get(&number).is_some_and(|times| *times >= 3);
    scene.world.until("it comes again and again", comes_again).await;
}

/// Case 48.
#[tokio::test(start_paused = true)]
async fn node_that_is_stuck_delays_no_other() {
    let scene = Scene::start("").await;
    let (stuck, other) = (scene.node(0), scene.node(1));
    scene.world.agents.kill(&stuck.node);
    scene.cluster.hang(&stuck.node);
    for _ in 0..20 {
        scene.inbox.send(spot(&stuck.instance));
    }
    tokio::time::sleep(Duration::from_secs(15)).await;
    scene.inbox.send(spot(&other.instance));
    let sent_at = Instant::now();
    let is_asked = async || scene.drain_of(&other.node).await.is_some();
    scene.world.until("the other is drained", is_asked).await;
    assert!(sent_at.elapsed() < Duration::from_secs(2), "{:?}", sent_at.elapsed());
}

/// Case 50.
#[tokio::test(start_paused = true)]
async fn scaling_works_without_the_queue_of_events_and_events_when_it_comes_back() {
    let scene = Scene::start_away("", true).await;
    let snapshot = scene.world.snapshot();
    assert!(snapshot.event_problems[0].contains("ReceiveMessage"), "{snapshot:?}");
    assert!(snapshot.problems.is_empty(), "{snapshot:?}");
    let LocalNode { node, instance, .. } = scene.node(0);
    scene.inbox.send(spot(&instance));
    scene.inbox.set_away(false);
    scene.until_empty().await;
    assert!(scene.drain_of(&node).await.is_some());
    assert!(scene.world.snapshot().event_problems.is_empty());
}

/// Case 51.
#[tokio::test(start_paused = true)]
async fn every_affected_node_is_drained_once_whatever_pages_and_copies_come() {
    let scene = Scene::start("maintenanceLead: 30m").await;
    let nodes = [scene.node(0), scene.node(1), scene.node(2)];
    let starts_at = paused_clock().plus(Duration::from_secs(600));
    let page = |id, nodes: &[&LocalNode]| {
        let instances: Vec<&InstanceId> = nodes.iter().map(|node| &node.instance).collect();
        health(id, "c-1", starts_at, &instances)
    };
    scene.inbox.send(page("e-1", &[&nodes[0], &nodes[1]]));
    scene.inbox.send(page("e-2", &[&nodes[2]]));
    scene.inbox.send(page("e-3", &[&nodes[1], &nodes[2]]));
    scene.until_empty().await;
    let requests: BTreeSet<String> = join_all(nodes.iter().map(|node| scene.drain_of(&node.node)))
        .await
        .into_iter()
        .map(|drain| drain.map(|drain| (drain.reason, drain.request_id)).expect("drained"))
        .map(|(reason, id)| format!("{reason:?} {id}"))
        .collect();
    assert_eq!(requests, ["Maintenance event-health-123456789012-c-1".to_owned()].into());
    assert_eq!(scene.world.drains().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn maintenance_that_is_far_ahead_waits_in_the_queue() {
    let scene = Scene::start("maintenanceLead: 1m").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    let starts_at = paused_clock().plus(Duration::from_secs(240));
    scene.inbox.send(health("e-1", "c-1", starts_at, &[&instance]));
    tokio::time::sleep(Duration::from_secs(170)).await;
    assert_eq!((scene.drain_of(&node).await, scene.inbox.left().len()), (None, 1));
    scene.until_empty().await;
    let drain = scene.drain_of(&node).await.expect("asked for at its lead time");
    assert_eq!(drain.reason, DrainReason::Maintenance);
}

/// Case 21, the queue's part.
#[tokio::test(start_paused = true)]
async fn ignored_rebalance_is_acknowledged_and_nothing_happens() {
    for drain in ["rebalance: ignore", "rebalance: stopLeases"] {
        let scene = Scene::start(drain).await;
        scene.inbox.send(rebalance(&scene.node(0).instance));
        scene.until_empty().await;
        assert!(scene.world.drains().await.is_empty(), "{drain}");
    }
}

#[tokio::test(start_paused = true)]
async fn drain_for_a_rebalance_is_taken_back_when_nothing_follows() {
    let scene = Scene::start("rebalance: drain, rebalanceTtl: 60s").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    scene.inbox.send(rebalance(&instance));
    scene.until_empty().await;
    let drain = scene.drain_of(&node).await.expect("asked for");
    assert_eq!((drain.reason, drain.lost.is_empty()), (DrainReason::Rebalance, true));
    tokio::time::sleep(Duration::from_secs(55)).await;
    let drain = scene.drain_of(&node).await.expect("still there");
    assert_ne!(drain.state, DrainState::Cancelled);
    let is_back = async || {
        scene.drain_of(&node).await.is_some_and(|drain| drain.state == DrainState::Cancelled)
    };
    scene.world.until("it returns to work", is_back).await;
}

/// Case 30, the queue's part: no record names the instance, and the node is named otherwise.
#[tokio::test(start_paused = true)]
async fn node_is_found_by_its_instance_among_those_of_the_cluster() {
    let scene = Scene::start("").await;
    let node = scene.node(2).node;
    let instance = InstanceId("i-0abc".to_owned());
    scene.cluster.add(node.clone(), instance.clone());
    scene.world.agents.kill(&node);
    scene.inbox.send(spot(&instance));
    scene.until_empty().await;
    assert!(scene.drain_of(&node).await.is_some());
    assert!(scene.cluster.mark_of(&node).is_some());
    assert_eq!(scene.world.drains().await.len(), 1, "and no other");
}

#[tokio::test(start_paused = true)]
async fn node_of_the_cluster_that_never_reported_is_left_alone() {
    let scene = Scene::start("rebalance: drain").await;
    let node: NodeName = "of-others".parse().expect("valid");
    let instance = InstanceId("i-0abc".to_owned());
    scene.cluster.add(node.clone(), instance.clone());
    scene.inbox.send(spot(&instance));
    scene.inbox.send(rebalance(&instance));
    scene.until_empty().await;
    assert!(scene.cluster.mark_of(&node).is_none() && scene.world.drains().await.is_empty());
    assert!(scene.counts(r#"ebbtide_events_unknown_instance_total{role="rollout"} 2"#));
}

/// Case 55.
#[tokio::test(start_paused = true)]
async fn instance_with_a_notice_is_never_terminated_by_the_controller() {
    let scene = Scene::start("").await;
    scene.world.agents.may_drain.store(false, Ordering::Relaxed);
    scene.world.fill_buffer(4).await;
    let three = async || scene.world.drains().await.len() == 3;
    scene.world.until("three drains are asked for", three).await;
    let asked = scene.world.drains().await;
    let is_asked = |node: &LocalNode| asked.iter().any(|(id, _)| *id == node.node.to_string());
    let noticed = scene.world.provider.nodes().into_iter().find(is_asked).expect("one of them");
    scene.inbox.send(spot(&noticed.instance));
    scene.until_empty().await;
    scene.world.agents.may_drain.store(true, Ordering::Relaxed);
    let two_left = async || scene.world.provider.nodes().len() <= 2;
    scene.world.until("the two others are terminated", two_left).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    let left = scene.world.provider.nodes();
    assert!(left.iter().any(|node| node.instance == noticed.instance), "{left:?}");
}

/// Case 56: what marks the pool; what the mark does is tested with the plan.
#[tokio::test(start_paused = true)]
async fn pool_of_a_noticed_instance_is_marked() {
    let scene = Scene::start("").await;
    scene.inbox.send(spot(&scene.node(0).instance));
    let is_marked = async || {
        let reasons = scene.world.snapshot().reasons.join("; ");
        reasons.contains("AWS has just taken an instance of pool spot")
    };
    scene.world.until("the pool is marked", is_marked).await;
    let is_tried_again = async || !is_marked().await;
    scene.world.until("the mark ends", is_tried_again).await;
}

#[tokio::test(start_paused = true)]
async fn end_of_a_spot_node_without_a_notice_closes_its_replica_and_marks_its_pool() {
    let scene = Scene::start("").await;
    let (lost, drained) = (scene.node(0), scene.node(1));
    scene.inbox.send(state_change(&lost.instance, "running"));
    scene.until_empty().await;
    assert!(scene.world.drains().await.is_empty());
    scene.inbox.send(state_change(&lost.instance, "shutting-down"));
    scene.until_empty().await;
    let drain = scene.drain_of(&lost.node).await.expect("its replica is closed");
    assert_eq!(drain.reason, DrainReason::Notice);
    assert!(drain.deadline <= paused_clock());

    // One that is drained anyway is left as it is.
    scene.inbox.send(rebalance(&drained.instance));
    scene.inbox.send(state_change(&drained.instance, "terminated"));
    scene.until_empty().await;
}

#[tokio::test(start_paused = true)]
async fn message_that_nobody_understands_is_kept_and_delays_no_other() {
    let scene = Scene::start("").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    let strange = scene.inbox.send(r#"{"detail-type":"EC2 Something New"}"#);
    scene.inbox.send(r#"{"Event":"autoscaling:TEST_NOTIFICATION"}"#);
    scene.inbox.send(spot(&instance));
    let only_one = async || scene.inbox.left().len() == 1;
    scene.world.until("the others are gone", only_one).await;
    assert!(scene.inbox.left().contains_key(&strange));
    assert!(scene.drain_of(&node).await.is_some());
    let counted =
        r#"ebbtide_events_total{kind="unreadable",outcome="unreadable_kept",role="rollout"} 1"#;
    assert!(scene.counts(counted), "{}", scene.world.metrics.render());
}

#[tokio::test(start_paused = true)]
async fn redis_that_is_away_keeps_messages_until_it_is_back() {
    let scene = Scene::start("").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    scene.world.port.is_away.store(true, Ordering::Relaxed);
    let number = scene.inbox.send(spot(&instance));
    let comes_again = async || scene.inbox.left().get(&number).is_some_and(|times| *times >= 2);
    scene.world.until("it comes again", comes_again).await;
    scene.world.port.is_away.store(false, Ordering::Relaxed);
    scene.until_empty().await;
    assert!(scene.drain_of(&node).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn passive_controller_takes_no_message_until_it_leads() {
    let mut scene = Scene::start("").await;
    let LocalNode { node, instance, .. } = scene.node(0);
    let second = scene.world.add_controller(policy("act"));
    scene.world.end_first().await;
    scene.inbox.send(spot(&instance));
    scene.world.until("the second leads", async || second.snapshot().is_leader).await;
    scene.until_empty().await;
    let drain = scene.drain_of(&node).await.expect("asked for");
    assert_eq!(drain.generation, 2, "by the second leader");
}

#[tokio::test(start_paused = true)]
async fn notice_that_was_outlived_drains_nothing() {
    let scene = Scene::start("").await;
    let hour_ago = paused_clock().minus(Duration::from_secs(3600));
    scene.inbox.send(spot_at(&scene.node(0).instance, hour_ago));
    scene.until_empty().await;
    assert!(scene.world.drains().await.is_empty());
}
