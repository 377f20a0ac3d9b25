//! What a drain came to is told, and truly, however it began.

use std::time::Duration;

use ebbtide_agent::kubernetes::{SeenPod, Termination, Tier};
use ebbtide_core::ids::{Holder, PolicyVersion};
use ebbtide_queue::client::wall_clock_now;
use ebbtide_queue::control::{
    DrainOutcome, DrainReason, DrainRequest, DrainState, NodeNames, NodeState,
};

use crate::outages::{body_of, free_port};
use crate::world::{World, group, until};

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

/// A pod that is deleted by force leaves no time, when nothing drains and while what may finish is
/// let finish.
#[tokio::test(flavor = "multi_thread")]
async fn drain_without_time_hands_back_and_says_so() {
    for is_draining in [false, true] {
        let world = World::new();
        world.enqueue([group("a", 8, 4_000)]).await;
        let pod = SeenPod { tier: Tier::Engine, ..SeenPod::ordinary("rl", "e1", "e1") };
        world.pods.bind(&"n1".parse().unwrap(), pod);
        let node = world.node("n1").start();
        node.wait_until(|agent| agent.counts().tokens_stored > 8 * 100).await;
        if is_draining {
            world.queue.request_drain(request(DrainReason::Operator, 600)).await.unwrap();
            // Longer than a drain without time may take.
            until(|| async {
                let view = world.queue.view().await.unwrap();
                view.now.since(view.drains[0].requested_at) > Duration::from_secs(3)
            })
            .await;
            assert_eq!(node.agent.held(), 8);
        }
        let grace = Duration::ZERO;
        world.pods.terminate("e1", Termination { by: wall_clock_now(), grace });
        node.wait_until(|agent| !agent.report().drains.is_empty()).await;
        let report = node.agent.report().drains.remove(0);
        assert!(is_draining || report.lead == Duration::ZERO, "{report:?}");
        let figures = (report.units_held, report.units_handed_back, report.units_left);
        assert_eq!((report.outcome, figures), (DrainOutcome::Drained, (8, 8, 0)));
        let status = world.status().await;
        assert_eq!((status.ready, status.hand_backs["drain"]), (8, 8));
    }
}

/// The deadline of a rehearsal, or of what an operator asked for, ends no node.
#[tokio::test(flavor = "multi_thread")]
async fn units_are_lost_only_where_the_node_goes_at_its_deadline() {
    for (reason, lost) in
        [(DrainReason::Drill, 0), (DrainReason::Operator, 0), (DrainReason::Notice, 2)]
    {
        let world = World::new();
        world.enqueue([group("a", 2, 1_000)]).await;
        let address = ([127, 0, 0, 1], free_port()).into();
        let node = world.node("n1").without_engine().with(|config| config.listen = Some(address));
        let node = node.start();
        node.wait_until(|agent| agent.state() == NodeState::Ready).await;
        let worker: Holder = "n1/boot-1/worker-1".parse().unwrap();
        let ttl = Duration::from_secs(60);
        world.queue.lease(&worker, 2, ttl, PolicyVersion(0)).await.unwrap();
        world.queue.request_drain(request(reason, 1)).await.unwrap();
        node.wait_until(|agent| !agent.report().drains.is_empty()).await;
        let report = node.agent.report().drains.remove(0);
        assert_eq!((report.outcome, report.units_left), (DrainOutcome::Overdue, 2), "{reason:?}");
        let metrics = body_of(address, "/metrics").await;
        let is_there = |line: &str| metrics.lines().any(|it| it == line);
        assert!(is_there(&format!("ebbtide_units_lost_total {lost}")), "{reason:?}: {metrics}");
        assert!(is_there("ebbtide_drain_duration_seconds_count 1"), "{reason:?}: {metrics}");
    }
}
