//! What a drain came to is told, and truly, however it began.

use std::time::Duration;

use ebbtide_queue::control::{
    DrainOutcome, DrainReason, DrainRequest, DrainState, NodeNames, NodeState,
};

use crate::world::{World, until};

fn request(reason: DrainReason, seconds: u64) -> DrainRequest {
    DrainRequest {
        replica: "n1".parse().unwrap(),
        request_id: format!("{reason:?}"),
        generation: 0,
        reason,
        remaining: Duration::from_secs(seconds),
        lost: NodeNames::from("n1".parse::<ebbtide_core::ids::NodeName>().unwrap()),
    }
}

/// It is drained at once, maybe before the key has its name.
#[tokio::test(flavor = "multi_thread")]
async fn idle_node_leaves_its_closing_report_once_the_drain_has_a_name() {
    let world = World::new();
    let way = world.own_way();
    let node = world.node("n1").by(way.clone()).start();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    // An earlier one, whose record stands.
    world.queue.request_drain(request(DrainReason::Drill, 60)).await.unwrap();
    until(|| async { !world.queue.reports(8).await.unwrap().is_empty() }).await;
    until(|| async {
        let drains = world.queue.view().await.unwrap().drains;
        drains.iter().all(|drain| drain.state == DrainState::Cancelled)
    })
    .await;
    node.wait_until(|agent| agent.is_gate_open()).await;
    way.keep_from_draining(true);
    node.announce(60);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    assert_eq!(world.queue.reports(8).await.unwrap().len(), 1);
    way.keep_from_draining(false);
    until(|| async { world.queue.reports(8).await.unwrap().len() == 2 }).await;
    let reports = world.queue.reports(8).await.unwrap();
    let drain = world.queue.view().await.unwrap().drains.remove(0);
    assert_eq!(reports[0].request_id, drain.request_id);
    assert_eq!((reports[0].outcome, reports[0].units_held), (DrainOutcome::Drained, 0));
    assert_eq!(reports[0].kind.as_deref(), Some("spot_terminate"));
}
