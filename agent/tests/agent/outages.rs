//! The queue or the metadata service is away: nothing ends, nothing is lost, it recovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebbtide_agent::emulator::imds::{EVERY_PATH, Fault, path};
use ebbtide_agent::{Agent, AgentHandle, Connector, QueueAccess};
use ebbtide_harness::Program;
use ebbtide_queue::client::{QueueError, QueuePort};
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::{DrainOutcome, NodeState};
use tokio_util::sync::CancellationToken;

use crate::world::{World, group, until, within};

#[tokio::test(flavor = "multi_thread")]
async fn streams_go_on_while_the_queue_is_away() {
    let world = World::new();
    world.enqueue([group("a", 8, 300)]).await;
    let node = world.node("n1").with(|config| config.lease.ttl = Duration::from_secs(60)).start();
    node.wait_until_busy(8).await;
    world.set_queue_down(true);
    let engine = node.place.engine.handle();
    within(engine.wait_for(|counts| counts.finished_length == 8)).await;
    assert_eq!(node.agent.counts().units_completed, 0);
    world.set_queue_down(false);
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|sample| sample.len() == 300 && sample.hand_backs == 0));
    assert_eq!(node.agent.counts().tokens_dropped, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn notice_while_the_queue_is_away_hands_back_when_it_is_there_again() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    let node = world.node("n1").with(|config| config.lease.ttl = Duration::from_secs(60));
    let node = node.with_patience().start();
    node.wait_until_busy(8).await;
    world.set_queue_down(true);
    node.announce(30);
    node.wait_until(|agent| !agent.is_gate_open()).await;
    within(node.place.engine.handle().wait_for(|counts| counts.finished_abort == 8)).await;
    within(world.marks.wait_for(&node.name, |marked| marked.is_cordoned)).await;
    assert_eq!(node.agent.held(), 8);
    world.set_queue_down(false);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let counts = node.agent.counts();
    assert_eq!(counts.units_handed_back.get(&HandBackCause::Notice), Some(&8));
    assert_eq!(world.status().await.tokens.generated, counts.tokens_received);
}

/// The queue grants again what a call was granted whose answer got lost: by then an engine may have
/// less room.
#[tokio::test(flavor = "multi_thread")]
async fn grant_of_a_lost_answer_never_overfills_an_engine() {
    let world = World::new();
    for shard in 0..world.port.shard_count() {
        let name = |kind: &str| {
            let names = (0..).map(|number| format!("{kind}{number}"));
            let mut own = names.filter(|it| world.queue.shard_of(&it.parse().unwrap()) == shard);
            own.next().unwrap()
        };
        let (short, long) = (name("short"), name("long"));
        world.enqueue([group(&short, 1, 100), group(&long, 3, 4_000)]).await;
    }
    world.port.lose_leases(1);
    let node = world.node("n1").with(|config| {
        config.concurrency_per_engine = 4;
        config.lease.ttl = Duration::from_secs(60);
    });
    let node = node.start();
    node.wait_until(|agent| agent.counts().units_completed == 1).await;
    let handed_back =
        |agent: &AgentHandle| agent.counts().units_handed_back.get(&HandBackCause::Engine).copied();
    node.wait_until(|agent| handed_back(agent) == Some(3)).await;
    assert_eq!(node.agent.held(), 4);
    let status = world.status().await;
    assert_eq!((status.leased, status.ready), (4, 3));
}

/// Case 68: it tries to the last, nothing is acknowledged that was not stored, and the end of the
/// leases brings the work to others.
#[tokio::test(flavor = "multi_thread")]
async fn notice_without_a_queue_until_the_deadline_acknowledges_nothing_and_expiry_recovers_it() {
    let world = World::new();
    world.enqueue([group("a", 8, 1_500)]).await;
    let way = world.own_way();
    let doomed = world.node("n1").by(way.clone()).start();
    doomed.wait_until_busy(8).await;
    way.set_down(true);
    doomed.announce(4);
    doomed.wait_until(|agent| !agent.is_gate_open()).await;
    let tried = way.refused_writes();
    doomed.wait_until(|agent| !agent.report().drains.is_empty()).await;
    let more = way.refused_writes() - tried;
    assert!(more >= 2, "it tries again and again until the deadline, not {more} times");
    let report = doomed.agent.report().drains.remove(0);
    assert_eq!((report.outcome, report.units_left), (DrainOutcome::Overdue, 8));
    assert_eq!((report.units_handed_back, report.units_completed), (0, 0));
    let status = world.status().await;
    assert_eq!((status.completed, status.hand_backs.len()), (0, 0), "{status:?}");

    let heir = world.node("n2").start();
    heir.wait_until_busy(8).await;
    assert_eq!(heir.agent.counts().tokens_continued, status.tokens.generated);
    // Should the node live on, it is too late: what it writes by then changes nothing.
    way.set_down(false);
    doomed.wait_until(|agent| agent.counts().units_lost == 8).await;
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|s| (s.hand_backs, s.attempts, s.infra_attempts) == (0, 0, 1)));
    assert_eq!(world.status().await.tokens.accepted, 8 * 1_500);
}

/// Cases 26 and 30, at the agent.
#[tokio::test(flavor = "multi_thread")]
async fn agent_whose_leases_were_lost_writes_nothing_and_ends_its_streams() {
    let world = World::new();
    world.enqueue([group("a", 8, 1_500)]).await;
    let way = world.own_way();
    let zombie = world.node("n1").by(way.clone()).start();
    zombie.wait_until_busy(8).await;
    // It is cut off until its leases have run out and another holds the units.
    way.set_down(true);
    let other = world.node("n2").start();
    other.wait_until_busy(8).await;
    assert!(zombie.agent.counts().tokens_waiting > 0);
    way.set_down(false);
    zombie.wait_until(|agent| agent.counts().units_lost == 8).await;
    within(zombie.place.engine.handle().wait_for(|counts| counts.is_idle())).await;
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|sample| sample.len() == 1_500 && sample.infra_attempts == 1));
    let (lost, kept) = (zombie.agent.counts(), other.agent.counts());
    assert_eq!(lost.tokens_received, lost.tokens_stored + lost.tokens_dropped);
    assert!(lost.tokens_dropped > 0);
    let status = world.status().await;
    assert_eq!(status.tokens.generated, lost.tokens_stored + kept.tokens_stored);
    assert_eq!((status.completed, status.tokens.accepted), (8, 8 * 1_500));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_reports_as_soon_as_the_queue_answers_and_not_an_interval_later() {
    let world = World::new();
    let way = world.own_way();
    way.set_down(true);
    let plan = world.node("n1").by(way.clone());
    let node = plan.with(|config| config.pace.meet_every = Duration::from_secs(600)).start();
    let looks = node.imds().requests(path::SPOT_ACTION);
    within(node.imds().await_requests(path::SPOT_ACTION, looks + 3)).await;
    way.set_down(false);
    node.wait_until(|agent| agent.is_gate_open()).await;
    until(|| async { world.queue.view().await.unwrap().nodes.len() == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_longer_than_the_lease_costs_tokens_and_no_sample() {
    let world = World::new();
    world.enqueue([group("a", 8, 600)]).await;
    let node = world.node("n1").with(|config| {
        config.concurrency_per_engine = 16;
        config.lease.ttl = Duration::from_millis(500);
        config.lease.renew_every = Duration::from_millis(100);
    });
    let node = node.start();
    node.wait_until_busy(8).await;
    world.set_queue_down(true);
    // Ten looks a second: the leases run out meanwhile.
    let looks = node.imds().requests(path::SPOT_ACTION);
    within(node.imds().await_requests(path::SPOT_ACTION, looks + 12)).await;
    world.set_queue_down(false);
    let samples = world.take_samples(8).await;
    assert!(samples.iter().all(|sample| sample.len() == 600), "{samples:?}");
    node.wait_until(|agent| agent.held() == 0).await;
    within(node.place.engine.handle().wait_for(|counts| counts.is_idle())).await;
    let counts = node.agent.counts();
    assert_eq!(counts.tokens_received, counts.tokens_stored + counts.tokens_dropped);
    assert_eq!((counts.tokens_waiting, counts.units_completed), (0, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_does_not_answer_is_named_with_its_error() {
    let world = World::new();
    let plan = world.node("n1").with(|config| {
        config.listen = Some(([127, 0, 0, 1], free_port()).into());
    });
    let address = plan.config.listen.unwrap();
    let place = plan.place();
    place.engine.kill();
    let _node = plan.start_at(place);
    until(|| async {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let answer = client.get(format!("http://{address}/readyz")).send().await;
        let Ok(answer) = answer else { return false };
        let body = answer.text().await.unwrap().to_lowercase();
        body.contains("connection refused")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_service_that_is_away_at_the_start_is_used_when_it_comes() {
    let world = World::new();
    let plan = world.node("n1");
    let place = plan.place();
    place.imds.handle().fault(EVERY_PATH, Fault::Status(503));
    let node = plan.start_at(place);
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    within(node.imds().await_requests(path::TOKEN, 3)).await;
    node.imds().clear_faults();
    until(|| async {
        world.queue.view().await.unwrap().nodes[0].instance_id.as_deref() == Some("i-n1")
    })
    .await;
    node.announce(60);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_metadata_is_no_notice_and_ends_nothing() {
    let world = World::new();
    let node = world.node("n1").start();
    for body in ["", "{}", "<html>", "{\"action\":\"terminate\"}", "\u{0}", "[1,2"] {
        let seen = node.imds().requests(path::SPOT_ACTION);
        node.imds().fault(path::SPOT_ACTION, Fault::Body(body.to_owned()));
        within(node.imds().await_requests(path::SPOT_ACTION, seen + 2)).await;
    }
    node.imds().clear_faults();
    world.enqueue([group("a", 2, 20)]).await;
    assert_eq!(world.take_samples(2).await.len(), 2);
    node.announce(60);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_that_is_away_at_the_start_is_connected_later() {
    let world = World::new();
    world.enqueue([group("a", 8, 40)]).await;
    let plan = world.node("n1").with(|config| {
        config.listen = Some(([127, 0, 0, 1], free_port()).into());
    });
    let address = plan.config.listen.unwrap();
    let place = plan.place();
    let is_there = Arc::new(AtomicBool::new(false));
    let mut outside = plan.outside(&place);
    outside.queue = QueueAccess::Connecting(connector(&world, is_there.clone()));
    let agent = Agent::new(plan.config, outside);
    let handle = agent.handle();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(agent.run(shutdown.clone()));

    until(|| async { status_of(address, "/healthz").await == Some(200) }).await;
    assert_eq!(status_of(address, "/readyz").await, Some(503));
    assert_eq!(status_of(address, "/drained").await, Some(200));
    is_there.store(true, Ordering::SeqCst);
    within(handle.wait_until(|agent| agent.counts().units_completed == 8)).await;
    assert_eq!(status_of(address, "/readyz").await, Some(200));
    let metrics = body_of(address, "/metrics").await;
    assert!(metrics.contains("ebbtide_units_completed_total 8"), "{metrics}");
    shutdown.cancel();
    assert_eq!(within(task).await.unwrap().unwrap().counts.units_completed, 8);
}

fn connector(world: &World, is_there: Arc<AtomicBool>) -> Connector {
    let port = world.port.clone();
    Box::new(move || {
        let (port, is_there) = (port.clone(), is_there.load(Ordering::SeqCst));
        Box::pin(async move {
            if !is_there {
                let (what, problem) = ("redis".to_owned(), "connection refused".to_owned());
                return Err(QueueError::Unavailable { what, problem });
            }
            Ok(port as Arc<dyn QueuePort>)
        })
    })
}

/// Never one of those that the system gives to outgoing connections.
pub fn free_port() -> u16 {
    Program::free_port().unwrap()
}

pub async fn status_of(address: std::net::SocketAddr, path: &str) -> Option<u16> {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let response = client.get(format!("http://{address}{path}")).send().await.ok()?;
    Some(response.status().as_u16())
}

pub async fn body_of(address: std::net::SocketAddr, path: &str) -> String {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.get(format!("http://{address}{path}")).send().await.unwrap().text().await.unwrap()
}
