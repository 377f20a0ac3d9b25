//! A notice that is withdrawn: the node works again, whatever else cannot be read.

use ebbtide_agent::emulator::imds::{Fault, path};
use ebbtide_queue::control::{DrainState, NodeState};

use crate::world::{World, until, within};

/// What another source may say has nothing to do with it.
#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_notice_reopens_although_another_source_fails_for_good() {
    for is_restarted in [false, true] {
        let world = World::new();
        let plan = world.node("n1");
        let place = plan.place();
        place.imds.handle().fault(path::MAINTENANCE, Fault::Status(403));
        let mut node = plan.start_at(place);
        node.wait_until(|agent| agent.state() == NodeState::Ready).await;
        node.announce(60);
        node.wait_until(|agent| agent.state() == NodeState::Drained).await;
        let state = async || {
            let drains = world.queue.view().await.unwrap().drains;
            drains.first().map(|drain| drain.state)
        };
        until(|| async { state().await == Some(DrainState::Drained) }).await;
        if is_restarted {
            let place = node.kill().await;
            place.imds.handle().withdraw_spot();
            node = world.node("n1").start_at(place);
        } else {
            node.imds().withdraw_spot();
        }
        node.wait_until(|agent| agent.is_gate_open()).await;
        assert_eq!(state().await, Some(DrainState::Cancelled));
        within(world.marks.wait_for(&node.name, |marked| !marked.is_cordoned)).await;
    }
}

/// A successor knows of its predecessor's notice only from the key: until the source has answered
/// it keeps the drain.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_agent_keeps_its_drain_while_the_source_of_the_notice_does_not_answer() {
    let world = World::new();
    let node = world.node("n1").start();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    node.announce(60);
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    let place = node.kill().await;
    let imds = place.imds.handle();
    imds.fault(path::SPOT_ACTION, Fault::Status(403));
    let node = world.node("n1").start_at(place);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    for source in [path::REBALANCE, path::TARGET_LIFECYCLE, path::MAINTENANCE] {
        let looks = imds.requests(source);
        within(imds.await_requests(source, looks + 5)).await;
    }
    assert!(!node.agent.is_gate_open());
    assert_ne!(world.queue.view().await.unwrap().drains[0].state, DrainState::Cancelled);
    imds.withdraw_spot();
    imds.clear_faults();
    node.wait_until(|agent| agent.is_gate_open()).await;
}
