//! Custom workers on nodes of an EP group that run no engine: the group is drained when they are.

use std::time::Duration;

use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_queue::control::{
    ControlView, DrainOutcome, DrainReason, DrainRequest, DrainState, NodeNames, NodeState,
};
use serde_json::Value;

use crate::api::{Api, SocketFolder, tokens};
use crate::world::{Node, World, group, until};

/// A group whose leader works on eight long units, and whose other node has a custom worker that
/// holds one more.
struct Group {
    world: World,
    leader: Node,
    other: Node,
    api: Api,
    grant: Value,
    _folder: SocketFolder,
}

impl Group {
    async fn start() -> Self {
        let (world, folder) = (World::new(), SocketFolder::new());
        world.enqueue([group("a", 8, 100_000)]).await;
        let leader = world.node("n0").of_replica("ep-0", true);
        let leader = leader.with_engine(|engine| engine.context_length = 200_000).start();
        leader.wait_until_busy(8).await;
        let other = world.node("n1").for_workers(&folder.socket()).of_replica("ep-0", false);
        let other = other.start();
        // The leader has no room left.
        world.enqueue([group("b", 1, 100_000)]).await;
        let api = folder.api().await;
        let grant = api.lease_all("env", 1).await.remove(0);
        until(|| async {
            let view = world.queue.view().await.unwrap();
            view.nodes.iter().any(|node| node.node == other.name && node.in_flight == 1)
        })
        .await;
        Self { world, leader, other, api, grant, _folder: folder }
    }

    async fn view(&self) -> ControlView {
        self.world.queue.view().await.unwrap()
    }

    /// The keys as they are when the drain is first seen to be drained, and the units leased then.
    async fn drained(&self) -> (ControlView, u64) {
        until(|| async { is_drained(&self.view().await) }).await;
        let leased = self.world.status().await.leased;
        (self.view().await, leased)
    }
}

fn is_drained(view: &ControlView) -> bool {
    view.drains.first().is_some_and(|drain| drain.state == DrainState::Drained)
}

#[tokio::test(flavor = "multi_thread")]
async fn group_whose_leader_goes_is_drained_once_the_worker_of_another_node_has_handed_back() {
    let group = Group::start().await;
    group.leader.announce(60);
    let (_, leased) = group.drained().await;
    assert_eq!(leased, 0, "the worker's unit as well");
    assert_eq!(group.world.status().await.ready, 9);
    until(|| async { !group.world.queue.reports(8).await.unwrap().is_empty() }).await;
    let reports = group.world.queue.reports(8).await.unwrap();
    assert_eq!(reports.len(), 1, "one report for the group");
    let report = &reports[0];
    assert_eq!((report.outcome, &report.node), (DrainOutcome::Drained, &group.leader.name));
    assert_eq!(report.last_hand_back_ms, Some(report.duration_ms), "the worker's was the last");
}

#[tokio::test(flavor = "multi_thread")]
async fn group_whose_worker_goes_is_drained_once_it_has_handed_back() {
    let group = Group::start().await;
    group.other.announce(60);
    // The leader's own node is done long before.
    group.leader.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let (_, leased) = group.drained().await;
    assert_eq!(leased, 0, "the worker's unit as well");
    let other = group.other.agent.report().drains.remove(0);
    assert_eq!((other.units_held, other.units_handed_back), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn group_is_drained_at_the_word_of_its_last_worker() {
    let group = Group::start().await;
    let mut notices = group.api.listen("env").await;
    group.leader.announce(60);
    notices.wait_for("release").await;
    group.leader.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let view = group.view().await;
    assert!(!is_drained(&view), "a worker still has two seconds: {view:?}");
    let tail = vec![tokens(&group.grant, 0, 3)];
    assert_eq!(group.api.call("/v1/hand-back", "env", tail).await, ["OK"]);
    let (view, leased) = group.drained().await;
    assert_eq!(leased, 0);
    let request = Some(view.drains[0].request_id.clone());
    assert!(view.nodes.iter().all(|node| node.drained_for == request), "{view:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_node_of_a_group_holds_its_drain_up_until_its_leases_have_expired() {
    let mut group = Group::start().await;
    let name: NodeName = group.other.name.clone();
    let idle = group.world.node("n2").without_engine().of_replica("ep-1", true).start();
    let dead = std::mem::replace(&mut group.other, idle);
    dead.kill().await;
    group.leader.announce(60);
    let (view, leased) = group.drained().await;
    let dead = view.nodes.iter().find(|node| node.node == name).unwrap();
    let silence = view.now.since(dead.heartbeat);
    assert!(silence >= Duration::from_secs(2), "its lease lasts two seconds: {silence:?}");
    assert!(silence < Duration::from_secs(15), "and the deadline is far away: {silence:?}");
    assert_eq!(leased, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rehearsal_of_a_group_ends_once_its_workers_have_handed_back() {
    let group = Group::start().await;
    let replica: ReplicaId = "ep-0".parse().unwrap();
    let request = DrainRequest {
        replica,
        request_id: "drill-1".to_owned(),
        generation: 0,
        reason: DrainReason::Drill,
        remaining: Duration::from_secs(60),
        lost: NodeNames::default(),
    };
    group.world.queue.request_drain(request).await.unwrap();
    until(|| async { !group.world.queue.reports(8).await.unwrap().is_empty() }).await;
    let report = group.world.queue.reports(8).await.unwrap().remove(0);
    assert_eq!(report.outcome, DrainOutcome::Drained);
    // Two seconds for a worker that does not answer.
    assert!(report.last_hand_back_ms.is_some_and(|ms| ms >= 1_500), "{report:?}");
    group.leader.wait_until(|agent| agent.is_gate_open()).await;
    until(|| async {
        let view = group.view().await;
        view.nodes.iter().all(|node| node.drained_for.is_none())
    })
    .await;
}
