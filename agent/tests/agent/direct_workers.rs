//! Workers that lease straight from the queue under their node's name: the node is not drained over
//! them, though its agent does not know them.

use std::time::Duration;

use ebbtide_agent::kubernetes::{SeenPod, Tier};
use ebbtide_core::ids::{Holder, NodeName, PolicyVersion};
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::{HandBackCause, ProgressLimits, Renewal, Then, UnitWrite, Waiting};
use ebbtide_queue::control::{DrainOutcome, DrainState, NodeState};
use ebbtide_queue::reply::{Grant, WriteReply};
use ebbtide_queue::state::SlotState;

use crate::api::SocketFolder;
use crate::outages::{free_port, status_of};
use crate::world::{World, group, until, within};

/// Longer than a test lasts.
const LONG: Duration = Duration::from_secs(60);

/// A process that leases by itself.
struct DirectWorker {
    queue: WorkQueue,
    holder: Holder,
    grants: Vec<Grant>,
}

impl DirectWorker {
    /// Leases so many units, which are there, for `ttl`.
    async fn start(world: &World, node: &str, units: usize, ttl: Duration) -> Self {
        let holder: Holder = format!("{node}/boot-1/worker-1").parse().unwrap();
        let queue = world.queue.clone();
        let leased = queue.lease(&holder, units, ttl, PolicyVersion(0)).await.unwrap();
        assert_eq!(leased.grants.len(), units);
        Self { queue, holder, grants: leased.grants }
    }

    async fn hand_back(&mut self, units: usize) {
        let write = |grant: Grant| UnitWrite {
            unit: grant.unit,
            fencing_token: grant.fencing_token,
            tail: Vec::new(),
            then: Then::HandBack(HandBackCause::Notice.into()),
        };
        let writes = self.grants.drain(..units).map(write).collect();
        for reply in self.queue.write(&self.holder, writes).await {
            assert_eq!(reply.unwrap(), WriteReply::Ok);
        }
    }

    /// Whether its first lease is alive; renews it.
    async fn renew(&self) -> bool {
        let renewal = Renewal {
            unit: self.grants[0].unit.clone(),
            fencing_token: self.grants[0].fencing_token,
            ttl: LONG,
            waiting: Waiting::Nothing,
        };
        let limits = ProgressLimits::default();
        self.queue.renew(&self.holder, vec![renewal], limits).await.unwrap().is_empty()
    }
}

/// What a node's record says of it.
async fn record(world: &World, node: &NodeName) -> (NodeState, u32) {
    let view = world.queue.view().await.unwrap();
    let record = view.nodes.iter().find(|record| record.node == *node);
    record.map_or((NodeState::Starting, 0), |record| (record.state, record.in_flight))
}

async fn until_record(world: &World, node: &NodeName, wanted: (NodeState, u32)) {
    until(|| async { record(world, node).await == wanted }).await;
}

/// How far the only drain is.
async fn drain_state(world: &World) -> Option<DrainState> {
    world.queue.view().await.unwrap().drains.first().map(|drain| drain.state)
}

async fn until_drained(world: &World) {
    until(|| async { drain_state(world).await == Some(DrainState::Drained) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_is_drained_once_its_direct_worker_has_handed_everything_back() {
    let world = World::new();
    world.enqueue([group("a", 3, 1_000)]).await;
    let address = ([127, 0, 0, 1], free_port()).into();
    let node = world.node("n1").without_engine().with(|config| config.listen = Some(address));
    let node = node.start();
    let mut worker = DirectWorker::start(&world, "n1", 3, LONG).await;
    until(|| async { status_of(address, "/drained").await == Some(200) }).await;
    node.announce(60);
    until_record(&world, &node.name, (NodeState::Draining, 3)).await;
    assert_eq!(status_of(address, "/drained").await, Some(503));
    worker.hand_back(2).await;
    until_record(&world, &node.name, (NodeState::Draining, 1)).await;
    until(|| async { drain_state(&world).await == Some(DrainState::Draining) }).await;
    worker.hand_back(1).await;
    until_drained(&world).await;
    until_record(&world, &node.name, (NodeState::Drained, 0)).await;
    assert_eq!(status_of(address, "/drained").await, Some(200));
    let report = node.agent.report().drains.remove(0);
    assert_eq!((report.outcome, report.units_left), (DrainOutcome::Drained, 0));
    assert_eq!(report.last_hand_back, Some(report.duration), "the worker's was the last");
    assert_eq!(world.status().await.lease_expiries, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_units_go_back_at_once_and_the_workers_pod_stays_until_its_own_have() {
    let world = World::new();
    for (name, tier) in
        [("engine", Tier::Engine), ("worker", Tier::Worker), ("web", Tier::Ordinary)]
    {
        let pod = SeenPod { tier, ..SeenPod::ordinary("rl", name, name) };
        world.pods.bind(&"n1".parse().unwrap(), pod);
    }
    world.enqueue([group("worker", 2, 1_000)]).await;
    let mut worker = DirectWorker::start(&world, "n1", 2, LONG).await;
    world.enqueue([group("engine", 8, 100_000)]).await;
    let node = world.node("n1").with_engine(|engine| engine.context_length = 200_000).start();
    node.wait_until_busy(8).await;
    until_record(&world, &node.name, (NodeState::Ready, 8)).await;
    node.announce(60);
    node.wait_until(|agent| agent.held() == 0).await;
    until_record(&world, &node.name, (NodeState::Draining, 2)).await;
    assert_eq!(world.status().await.leased, 2, "the engine's are back");
    node.wait_until(|agent| agent.pods_left() == Some(2)).await;
    let departed = || world.pods.departed().into_iter().map(|pod| pod.pod.name).collect::<Vec<_>>();
    assert_eq!(departed(), ["web"]);
    worker.hand_back(2).await;
    until_drained(&world).await;
    within(world.pods.wait_for(|pods| pods.departed().len() == 3)).await;
    assert_eq!(departed(), ["web", "worker", "engine"]);
    let report = node.agent.report().drains.remove(0);
    assert_eq!((report.units_held, report.units_handed_back), (8, 8), "those of the agent");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_direct_worker_keeps_past_the_deadline_counts_as_left() {
    let world = World::new();
    world.enqueue([group("a", 2, 1_000)]).await;
    let node = world.node("n1").without_engine().start();
    let worker = DirectWorker::start(&world, "n1", 2, LONG).await;
    node.announce(3);
    until_record(&world, &node.name, (NodeState::Draining, 2)).await;
    // Nothing but the end of its leases is left to wait for.
    until_drained(&world).await;
    let report = node.agent.report().drains.remove(0);
    assert_eq!((report.outcome, report.units_left), (DrainOutcome::Overdue, 2));
    assert!(report.duration >= report.lead, "{report:?}");
    assert!(worker.renew().await, "the agent takes nothing from it");
    until_record(&world, &node.name, (NodeState::Drained, 2)).await;
    let kept = async || world.queue.reports(8).await.unwrap();
    until(|| async { !kept().await.is_empty() }).await;
    assert_eq!((kept().await[0].outcome, kept().await[0].units_left), (DrainOutcome::Overdue, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_direct_worker_holds_the_drain_up_no_longer_than_its_lease() {
    let world = World::new();
    world.enqueue([group("a", 2, 1_000)]).await;
    let node = world.node("n1").without_engine().start();
    node.wait_until(|agent| agent.is_gate_open()).await;
    DirectWorker::start(&world, "n1", 2, Duration::from_secs(2)).await;
    node.announce(60);
    until_record(&world, &node.name, (NodeState::Draining, 2)).await;
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let report = node.agent.report().drains.remove(0);
    assert!(report.duration < Duration::from_secs(5), "the deadline is far away: {report:?}");
    let status = world.status().await;
    assert_eq!((status.lease_expiries, status.ready), (2, 2), "no controller was there");
}

#[tokio::test(flavor = "multi_thread")]
async fn group_is_drained_once_the_direct_worker_of_another_node_has_handed_back() {
    let world = World::new();
    world.enqueue([group("a", 1, 1_000)]).await;
    let mut worker = DirectWorker::start(&world, "n1", 1, LONG).await;
    let leader = world.node("n0").of_replica("ep-0", true).start();
    let other = world.node("n1").of_replica("ep-0", false).start();
    until(|| async { world.queue.view().await.unwrap().nodes.len() == 2 }).await;
    leader.announce(60);
    leader.wait_until(|agent| agent.state() == NodeState::Drained).await;
    until_record(&world, &other.name, (NodeState::Draining, 1)).await;
    until(|| async { drain_state(&world).await == Some(DrainState::Draining) }).await;
    worker.hand_back(1).await;
    until_drained(&world).await;
    assert_eq!(world.status().await.leased, 0);
    // It stays, idle: the leader's node alone goes.
    let view = world.queue.view().await.unwrap();
    let other = view.nodes.iter().find(|node| node.node == other.name).unwrap();
    assert!(other.idle_since.is_some(), "{other:?}");
    let report = leader.agent.report().drains.remove(0);
    assert_eq!(report.last_hand_back, Some(report.duration), "the worker's was the last");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_whose_notice_is_withdrawn_works_again_whatever_its_direct_worker_holds() {
    let world = World::new();
    world.enqueue([group("a", 1, 1_000)]).await;
    let worker = DirectWorker::start(&world, "n1", 1, LONG).await;
    let node = world.node("n1").without_engine().start();
    node.announce(60);
    until_record(&world, &node.name, (NodeState::Draining, 1)).await;
    node.imds().withdraw_spot();
    node.wait_until(|agent| agent.is_gate_open()).await;
    until_record(&world, &node.name, (NodeState::Ready, 0)).await;
    assert!(worker.renew().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_that_is_replaced_waits_for_no_direct_worker_and_leaves_its_units_alone() {
    let world = World::new();
    world.enqueue([group("a", 1, 1_000)]).await;
    let worker = DirectWorker::start(&world, "n1", 1, LONG).await;
    let node = world.node("n1").without_engine().start();
    node.announce(60);
    until_record(&world, &node.name, (NodeState::Draining, 1)).await;
    let (report, place) = node.stop().await;
    assert_eq!(report.drains, [], "the next one goes on with it");
    let next = world.node("n1").without_engine().start_at(place);
    until_record(&world, &next.name, (NodeState::Draining, 1)).await;
    assert!(worker.renew().await, "the same boot, and no agent's");
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_of_workers_on_the_socket_waits_for_those_beside_them() {
    let (world, folder) = (World::new(), SocketFolder::new());
    world.enqueue([group("a", 2, 1_000)]).await;
    let mut worker = DirectWorker::start(&world, "n1", 1, LONG).await;
    let node = world.node("n1").for_workers(&folder.socket()).start();
    folder.api().await.lease_all("env", 1).await;
    node.announce(60);
    // The one on the socket does not answer: its unit goes back after two seconds.
    until_record(&world, &node.name, (NodeState::Draining, 2)).await;
    until_record(&world, &node.name, (NodeState::Draining, 1)).await;
    assert_eq!(node.agent.held(), 0);
    worker.hand_back(1).await;
    until_drained(&world).await;
}

/// Contract, section 2: idle agents reap when the controller is silent, those without engines too.
#[tokio::test(flavor = "multi_thread")]
async fn agent_without_engines_reaps_when_no_controller_does() {
    let world = World::new();
    world.enqueue([group("a", 2, 1_000)]).await;
    DirectWorker::start(&world, "elsewhere", 2, Duration::from_millis(100)).await;
    let _trainer = world.node("t1").without_engine().start();
    until(|| async {
        let units = world.queue.scan().await.unwrap();
        units.iter().all(|unit| unit.state == SlotState::Enqueued && unit.infra_attempts == 1)
    })
    .await;
}
