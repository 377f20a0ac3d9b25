//! What a unit's history tells of a node that went: a preemption does not look like a crash.

use std::time::Duration;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::wall_clock_now;
use ebbtide_queue::command::DrainBehind;
use ebbtide_queue::control::{DrainReason, DrainRequest, NodeNames, NodeState};
use ebbtide_queue::state::{SlotState, UnitEvent};
use serde_json::json;

use crate::api::{SocketFolder, tokens};
use crate::world::{World, group, until};

/// Moments may lie so far apart that are the same on two clocks.
const SLACK_MS: u64 = 1_500;

/// What befell the units of group `a`.
async fn events(world: &World) -> Vec<UnitEvent> {
    let trace = world.queue.trace(&"a".parse().unwrap()).await.unwrap();
    trace.units.into_iter().flat_map(|unit| unit.history).collect()
}

#[track_caller]
fn assert_tells(event: &UnitEvent, cause: &str, reason: &str, deadline: UnixMillis) {
    assert_eq!(event.what, "handed_back");
    let (told_cause, drain) = DrainBehind::of_detail(&event.detail);
    let drain = drain.unwrap_or_else(|| panic!("no drain behind {:?}", event.detail));
    assert_eq!((told_cause, drain.reason), (cause, reason));
    assert!(drain.deadline.0.abs_diff(deadline.0) < SLACK_MS, "{drain:?}, not {deadline:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unit_reclaimed_after_a_notice_tells_the_notice_and_its_deadline() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    let node = world.node("n1").start();
    node.wait_until_busy(8).await;
    let deadline = wall_clock_now().plus(Duration::from_secs(8));
    node.announce(8);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let events = events(&world).await;
    assert_eq!(events.len(), 8);
    events.iter().for_each(|event| assert_tells(event, "notice", "spot_terminate", deadline));
}

#[tokio::test(flavor = "multi_thread")]
async fn unit_reclaimed_for_any_drain_tells_its_reason_and_deadline() {
    use DrainReason::{Drill, Foreign, Lifecycle, Maintenance, Operator, Rebalance, ScaleIn, Swap};
    for reason in [Drill, Foreign, Lifecycle, Maintenance, Operator, Rebalance, ScaleIn, Swap] {
        let world = World::new();
        world.enqueue([group("a", 2, 4_000)]).await;
        let node = world.node("n1").start();
        node.wait_until_busy(2).await;
        let request = DrainRequest {
            replica: ReplicaId::from(&node.name),
            request_id: "asked".to_owned(),
            generation: 0,
            reason,
            remaining: Duration::from_secs(8),
            lost: NodeNames::default(),
        };
        let record = world.queue.request_drain(request).await.unwrap();
        until(|| async { events(&world).await.len() == 2 }).await;
        for event in events(&world).await {
            assert_tells(&event, "drain", reason.as_str(), record.deadline);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unit_of_a_custom_worker_tells_the_notice_whoever_gives_it_back() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 2, 4_000)]).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 2).await;
    let mut notices = api.listen("env").await;
    let deadline = wall_clock_now().plus(Duration::from_secs(60));
    node.announce(60);
    notices.wait_for("release").await;
    assert_eq!(api.call("/v1/hand-back", "env", vec![tokens(&grants[0], 0, 4)]).await, ["OK"]);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let events = events(&world).await;
    assert_eq!(events.len(), 2);
    events.iter().for_each(|event| assert_tells(event, "notice", "spot_terminate", deadline));
}

/// What a preemption must not be taken for.
#[tokio::test(flavor = "multi_thread")]
async fn unit_of_a_killed_agent_tells_no_drain_nor_does_one_given_back_without_a_drain() {
    let world = World::new();
    world.enqueue([group("a", 1, 4_000)]).await;
    let node = world.node("n1").start();
    node.wait_until_busy(1).await;
    node.kill().await;
    until(|| async {
        world.queue.reap(10).await.unwrap();
        world.queue.scan().await.unwrap()[0].state == SlotState::Enqueued
    })
    .await;
    let folder = SocketFolder::new();
    let node = world.node("n2").for_workers(&folder.socket()).start();
    let api = folder.api().await;
    let grants = api.lease_all("env", 1).await;
    let back = json!({"unit": grants[0]["unit"], "fencing_token": grants[0]["fencing_token"]});
    assert_eq!(api.call("/v1/hand-back", "env", vec![back]).await, ["OK"]);
    node.stop().await;
    let told: Vec<(String, String)> =
        events(&world).await.into_iter().map(|event| (event.what, event.detail)).collect();
    let expected = [("lease_expired", ""), ("handed_back", "engine")];
    assert_eq!(told, expected.map(|(what, detail)| (what.to_owned(), detail.to_owned())));
}
