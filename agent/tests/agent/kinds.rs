//! What each kind of notice comes to on a node.

use std::time::Duration;

use ebbtide_agent::emulator::imds::SpotAction;
use ebbtide_core::notice::NoticeKind;
use ebbtide_core::policy::RebalanceAction;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::{DrainReason, DrainState, NodeState};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::world::{Node, World, group, timestamp_now, until, within};

fn seconds_ahead(seconds: i64) -> Timestamp {
    timestamp_now().checked_add(SignedDuration::from_secs(seconds)).expect("in range")
}

/// A maintenance as the service writes it.
fn maintenance(code: &str, begins: Timestamp, state: &str) -> serde_json::Value {
    let begins = begins.strftime("%-d %b %Y %H:%M:%S GMT").to_string();
    json!([{ "Code": code, "EventId": "instance-event-1", "NotBefore": begins, "State": state }])
}

async fn in_service(node: &Node) {
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
}

/// Case 13. What is running could finish before any of these times.
#[tokio::test(flavor = "multi_thread")]
async fn stop_is_handled_as_terminate_is_and_hibernate_waits_for_nothing() {
    for (action, finished, mark) in [
        (SpotAction::Terminate, 8, "spot_terminate"),
        (SpotAction::Stop, 8, "spot_stop"),
        (SpotAction::Hibernate, 0, "spot_hibernate"),
    ] {
        let world = World::new();
        world.enqueue([group("a", 8, 600)]).await;
        let node = world.node("n1").start();
        // The speed of a stream is known once it was measured.
        node.wait_until(|agent| agent.counts().tokens_stored > 8 * 100).await;
        node.imds().announce_spot(action, seconds_ahead(110));
        node.wait_until(|agent| agent.state() == NodeState::Drained).await;
        let counts = node.agent.counts();
        assert_eq!(counts.units_completed, finished, "{action:?}: {counts:?}");
        let handed_back = counts.units_handed_back.get(&HandBackCause::Notice);
        assert_eq!(handed_back.copied().unwrap_or(0), 8 - finished, "{action:?}");
        within(world.marks.wait_for(&node.name, |it| it.taint.as_deref() == Some(mark))).await;
        assert!(world.marks.node(&node.name).is_cordoned, "{action:?}");
        assert!(!node.agent.is_gate_open(), "{action:?}");
    }
}

/// Case 16.
#[tokio::test(flavor = "multi_thread")]
async fn time_that_moves_with_every_read_is_one_drain_with_the_first_deadline() {
    use ebbtide_agent::emulator::imds::path;
    let world = World::new();
    let node = world.node("n1").start();
    in_service(&node).await;
    node.imds().announce_moving_spot(SpotAction::Terminate, Duration::from_secs(120));
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    let first = world.queue.view().await.unwrap().drains[0].clone();
    let looks = node.imds().requests(path::SPOT_ACTION);
    within(node.imds().await_requests(path::SPOT_ACTION, looks + 25)).await;
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.drains.len(), 1);
    let last = view.drains[0].clone();
    let told = |drain: &ebbtide_queue::control::DrainRecord| {
        (drain.request_id.clone(), drain.generation, drain.deadline)
    };
    assert_eq!(told(&last), told(&first));
    assert_eq!(node.agent.report().drains.len(), 1);
    let is_notice = |event: &&ebbtide_agent::marks::NodeEvent| event.message.contains("spot");
    let events = world.marks.node(&node.name).events;
    assert!(events.iter().filter(is_notice).count() <= 1, "{events:?}");
}

/// Case 20, where the policy has a recommendation drain the node.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_drained_for_a_recommendation_returns_by_itself_when_nothing_follows() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let node = world.node("n1").with_engine(|engine| engine.context_length = 200_000);
    let node = node.with(|config| {
        config.drain.rebalance = RebalanceAction::Drain;
        config.drain.rebalance_ttl = Duration::from_secs(3);
        config.drain.request_deadline = Duration::from_secs(30);
    });
    let node = node.start();
    node.wait_until_busy(8).await;
    node.imds().recommend_rebalance(timestamp_now());
    within(world.marks.wait_for(&node.name, |marked| marked.is_cordoned)).await;
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    assert_eq!(world.queue.view().await.unwrap().drains[0].reason, DrainReason::Rebalance);
    // The service goes on recommending it; nothing is taken back there.
    within(world.marks.wait_for(&node.name, |it| !it.is_cordoned && it.taint.is_none())).await;
    node.wait_until_busy(8).await;
    let drain = world.queue.view().await.unwrap().drains[0].clone();
    assert_eq!(drain.state, DrainState::Cancelled);
}

/// Case 21, at the node.
#[tokio::test(flavor = "multi_thread")]
async fn ignored_recommendation_is_not_even_told() {
    use ebbtide_agent::emulator::imds::path;
    let world = World::new();
    let node = world.node("n1").with(|config| config.drain.rebalance = RebalanceAction::Ignore);
    let node = node.start();
    node.imds().recommend_rebalance(timestamp_now());
    within(node.imds().await_requests(path::REBALANCE, 5)).await;
    world.enqueue([group("a", 8, 20)]).await;
    assert_eq!(world.take_samples(8).await.len(), 8);
    let view = world.queue.view().await.unwrap();
    assert_eq!((view.drains.len(), view.nodes[0].notice_kind.as_deref()), (0, None));
    assert_eq!(world.marks.node(&node.name), Default::default());
    assert!(node.agent.is_gate_open() && node.agent.report().drains.is_empty());
}

/// Case 25.
#[tokio::test(flavor = "multi_thread")]
async fn maintenance_in_three_weeks_is_told_and_the_node_goes_on_working() {
    let begins = seconds_ahead(21 * 86_400);
    for (code, kind) in [
        ("system-maintenance", NoticeKind::Maintenance),
        ("instance-retirement", NoticeKind::Retirement),
        ("instance-stop", NoticeKind::Retirement),
    ] {
        let world = World::new();
        let node = world.node("n1").start();
        in_service(&node).await;
        node.imds().set_maintenance(maintenance(code, begins, "active"));
        until(|| async {
            let view = world.queue.view().await.unwrap();
            let told = view.nodes[0].notice_deadline;
            let whole = begins.as_second() * 1000;
            let off = |told: u64| i64::try_from(told).unwrap().abs_diff(whole);
            view.nodes[0].notice_kind.as_deref() == Some(kind.as_str())
                && told.is_some_and(|told| off(told.0) < 5_000)
        })
        .await;
        world.enqueue([group("a", 8, 20)]).await;
        assert_eq!(world.take_samples(8).await.len(), 8, "{code}");
        assert!(world.queue.view().await.unwrap().drains.is_empty(), "{code}");
        assert!(!world.marks.node(&node.name).is_cordoned, "{code}");

        let early = world.node("n2").with(|config| config.drain.leave_degraded = true).start();
        in_service(&early).await;
        early.imds().set_maintenance(maintenance(code, begins, "active"));
        match kind {
            NoticeKind::Retirement => {
                early.wait_until(|agent| agent.state() == NodeState::Drained).await;
            }
            _ => {
                early.wait_until(|agent| agent.notice() == Some(kind)).await;
                assert!(early.agent.is_gate_open(), "{code}: only degraded hardware is left early");
            }
        }
    }
}

/// Case 26.
#[tokio::test(flavor = "multi_thread")]
async fn cordon_of_an_administrator_outlives_a_canceled_maintenance() {
    for is_cordoned_by_hand in [true, false] {
        let world = World::new();
        let plan = world.node("n1");
        if is_cordoned_by_hand {
            world.marks.cordon_by_hand(&"n1".parse().unwrap());
        }
        let node = plan.start();
        in_service(&node).await;
        let begins = seconds_ahead(600);
        node.imds().set_maintenance(maintenance("system-reboot", begins, "active"));
        let is_marked =
            |it: &ebbtide_agent::marks::MarkedNode| it.is_cordoned && it.taint.is_some();
        within(world.marks.wait_for(&node.name, is_marked)).await;
        node.imds().set_maintenance(maintenance("system-reboot", begins, "canceled"));
        within(world.marks.wait_for(&node.name, |marked| marked.taint.is_none())).await;
        node.wait_until(|agent| agent.is_gate_open()).await;
        let marked = world.marks.node(&node.name);
        assert_eq!((marked.is_cordoned, marked.is_cordon_ours), (is_cordoned_by_hand, false));
    }
}
