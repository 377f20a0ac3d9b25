//! An API server that is slow, throttles, or is away: hand-back takes as long as ever, and what
//! was not done is done when the server is back.

use std::time::Duration;

use ebbtide_harness::{ControlPlane, require, until};

use super::faulty::{Fault, Faulty};
use super::world::{OURS, Running, Space, client, has_taint};
use crate::programs::EVENT_LIMIT;

/// Hand-back with a healthy API server takes a few hundred milliseconds.
const HAND_BACK_LIMIT: Duration = Duration::from_secs(2);

// Case 35.
#[tokio::test]
async fn hand_back_takes_as_long_as_ever_with_an_api_server_that_answers_in_ten_seconds() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-slow").await;
    let (_faulty, _agent) = hand_back(&space, Fault::Slow(Duration::from_secs(10))).await;
    is_done_after_all(space).await;
}

// Case 35.
#[tokio::test]
async fn hand_back_takes_as_long_as_ever_with_an_api_server_that_throttles() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-throttled").await;
    let (faulty, agent) = hand_back(&space, Fault::Throttles).await;
    until("the failures to be counted", EVENT_LIMIT, || async {
        let marks = agent.metric("ebbtide_node_mark_failures_total").await;
        let watches = agent.metric("ebbtide_node_watch_failures_total").await;
        (marks >= 2.0 && watches >= 2.0).then_some(())
    })
    .await
    .unwrap();
    assert!(space.pod("web").await.is_some());
    faulty.set(Fault::None);
    is_done_after_all(space).await;
}

// Case 35.
#[tokio::test]
async fn hand_back_takes_as_long_as_ever_without_an_api_server() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-away").await;
    let (faulty, _agent) = hand_back(&space, Fault::Away).await;
    assert!(space.pod("web").await.is_some());
    faulty.set(Fault::None);
    is_done_after_all(space).await;
}

/// An agent with work is drained while this is wrong with its API server.
async fn hand_back(space: &Space<'_>, fault: Fault) -> (Faulty, Running) {
    space.run_pod("web", "web").await;
    let faulty = Faulty::start(client(space.cluster).await).await;
    faulty.set(fault);
    let agent = Running::start(&space.node, faulty.client(), |_| {}).await;
    agent.give_work().await;
    agent.drain(120).await;
    let took = agent.drained().await;
    assert!(took < HAND_BACK_LIMIT, "{fault:?}: {took:?}");
    (faulty, agent)
}

async fn is_done_after_all(space: Space<'_>) {
    space.node_becomes("to be marked", |node| has_taint(node, OURS)).await;
    space.pod_goes("web").await;
    space.close().await;
}

#[tokio::test]
async fn notice_is_taken_back_from_a_node_whose_marks_could_not_be_removed_at_once() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-late").await;
    let faulty = Faulty::start(client(&cluster).await).await;
    let agent = Running::start(&space.node, faulty.client(), |_| {}).await;
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(90);
    let action = ebbtide_agent::emulator::imds::SpotAction::Stop;
    agent.imds.handle().announce_spot(action, time);
    let is_marked = |node: &serde_json::Value| has_taint(node, OURS);
    space.node_becomes("to be marked", is_marked).await;
    faulty.set(Fault::Throttles);
    agent.imds.handle().withdraw_spot();
    agent.wait_until("in service again", |agent| agent.is_gate_open()).await;
    assert!(is_marked(&space.node_object(&space.node).await));
    faulty.set(Fault::None);
    space.node_becomes("to be free of our marks", |node| !is_marked(node)).await;
    space.close().await;
}
