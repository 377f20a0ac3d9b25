//! The operator's webhook: told once of everything, and waited for by nobody.

use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::post;
use ebbtide_agent::{Agent, AgentHandle, Webhook};
use ebbtide_core::ids::NodeName;
use ebbtide_queue::control::{DrainReason, DrainRequest, DrainState, NodeNames, NodeState};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::world::{NodePlan, Place, World, group, until, within};

/// Where webhooks are called: under the address by the node's name; gives what each is told.
struct Receiver {
    url: String,
    told: mpsc::UnboundedReceiver<(String, String)>,
}

impl Receiver {
    async fn start() -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let answer = move |Path(node): Path<String>, body: String| {
            sender.send((node, body)).unwrap();
            std::future::ready(())
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/{node}", post(answer));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, told }
    }

    /// The next node that tells, and the reason.
    async fn next(&mut self) -> (String, String) {
        within(self.told.recv()).await.unwrap()
    }
}

/// An agent that tells its webhook the reason.
struct Told {
    name: NodeName,
    agent: AgentHandle,
    place: Place,
}

fn start(plan: NodePlan<'_>, url: &str) -> Told {
    let name = plan.config.node().clone();
    let place = plan.place();
    let mut outside = plan.outside(&place);
    let template = Some("{{ reason }}".to_owned());
    outside.webhook = Some(Webhook::new(&format!("{url}/{name}"), &[], template).unwrap());
    let agent = Agent::new(plan.config, outside);
    let handle = agent.handle();
    tokio::spawn(agent.run(CancellationToken::new()));
    Told { name, agent: handle, place }
}

/// Both nodes of a group, in service: the one that leads it, and the other.
async fn group_of_two(world: &World, receiver: &Receiver) -> (Told, Told) {
    let leader = start(world.node("n0").of_replica("ep-0", true), &receiver.url);
    let worker = start(world.node("n1").of_replica("ep-0", false), &receiver.url);
    for node in [&leader, &worker] {
        within(node.agent.wait_until(|agent| agent.is_gate_open())).await;
    }
    (leader, worker)
}

fn said(node: &str, reason: &str) -> (String, String) {
    (node.to_owned(), reason.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn notice_of_a_worker_of_a_group_is_told_by_its_node_alone() {
    let world = World::new();
    let mut receiver = Receiver::start().await;
    let (leader, worker) = group_of_two(&world, &receiver).await;
    worker.place.announce(60);
    assert_eq!(receiver.next().await, said("n1", "spot_terminate"));
    until(|| async {
        let drains = world.queue.view().await.unwrap().drains;
        drains.first().is_some_and(|drain| drain.state == DrainState::Drained)
    })
    .await;
    leader.place.announce(60);
    assert_eq!(receiver.next().await, said("n0", "spot_terminate"), "its first word");
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_that_others_ask_for_is_told_by_the_leader() {
    let world = World::new();
    let mut receiver = Receiver::start().await;
    let (_leader, worker) = group_of_two(&world, &receiver).await;
    // As the controller does for a node whose end nobody has announced to it.
    let request = DrainRequest {
        replica: "ep-0".parse().unwrap(),
        request_id: "event-1".to_owned(),
        generation: 0,
        reason: DrainReason::Notice,
        remaining: Duration::from_secs(60),
        lost: NodeNames::from(worker.name.clone()),
    };
    world.queue.request_drain(request).await.unwrap();
    assert_eq!(receiver.next().await, said("n0", "notice"));
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_back_never_waits_for_a_webhook_that_hangs() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    // It takes the connection, and answers nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let node = start(world.node("n1"), &url);
    within(node.agent.wait_until(|agent| agent.counts().tokens_stored > 0)).await;
    // Nothing of it can finish.
    node.place.announce(1);
    let (_connection, _) = within(listener.accept()).await.unwrap();
    within(node.agent.wait_until(|agent| agent.state() == NodeState::Drained)).await;
    let report = node.agent.report().drains.remove(0);
    assert_eq!(report.units_handed_back, 8);
    assert!(report.duration < Duration::from_secs(2), "{report:?}");
    until(|| async { world.marks.node(&node.name).is_cordoned }).await;
}
