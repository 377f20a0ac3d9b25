//! Notices and drain requests: work goes back in time, nothing is claimed any more.

use std::time::Duration;

use async_trait::async_trait;
use ebbtide_agent::Agent;
use ebbtide_agent::emulator::imds::path;
use ebbtide_agent::marks::{MarkError, NodeEvent, NodeMarks};
use ebbtide_core::ids::{NodeName, ReplicaId};
use ebbtide_core::policy::Market;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::wall_clock_now;
use ebbtide_queue::command::HandBackCause;
use ebbtide_queue::control::{
    DrainProgress, DrainReason, DrainRequest, DrainState, NodeNames, NodeState,
};
use tokio_util::sync::CancellationToken;

use crate::world::{World, group, timestamp_now, until, within};

#[tokio::test(flavor = "multi_thread")]
async fn noticed_work_goes_on_elsewhere_and_equals_the_unbroken_response() {
    let unbroken = World::new();
    unbroken.enqueue([group("a", 8, 400)]).await;
    let _node = unbroken.node("n").start();
    let expected = unbroken.take_samples(8).await;

    let world = World::new();
    world.enqueue([group("a", 8, 400)]).await;
    let first = world.node("n1").start();
    first.wait_until_busy(8).await;
    // One second is left, half of it reserve: none of these can finish.
    first.announce(1);
    first.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let counts = first.agent.counts();
    assert_eq!(counts.units_handed_back.get(&HandBackCause::Notice), Some(&8));
    assert_eq!((counts.units_completed, counts.tokens_waiting), (0, 0));
    let preserved = world.status().await.tokens.generated;
    assert!(preserved > 0);

    let second = world.node("n2").start();
    let samples = world.take_samples(8).await;
    for (sample, expected) in samples.iter().zip(&expected) {
        assert_eq!(sample.token_ids(), expected.token_ids(), "{}", sample.unit);
        assert_eq!((sample.hand_backs, sample.attempts, sample.infra_attempts), (1, 0, 0));
        let holders: Vec<_> = sample.chunks.iter().map(|c| c.origin.holder.node.as_str()).collect();
        assert!(holders.contains(&"n1") && holders.contains(&"n2"), "{holders:?}");
    }
    let status = world.status().await;
    assert_eq!(status.tokens.preserved, preserved, "no stored token was made twice");
    assert_eq!(status.tokens.wasted_total(), 0);
    assert_eq!(second.agent.counts().tokens_continued, preserved);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_finish_finishes_and_only_the_rest_goes_back() {
    let world = World::new();
    // At 200 tokens a second: one and a half seconds, and far more than the notice leaves.
    world.enqueue([group("short", 4, 300), group("long", 4, 4_000)]).await;
    let node = world.node("n1").start();
    node.wait_until_busy(8).await;
    // The speed of a stream is known once it was measured.
    node.wait_until(|agent| agent.counts().tokens_stored > 8 * 100).await;
    node.announce(5);
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let counts = node.agent.counts();
    assert_eq!(counts.units_completed, 4, "{counts:?}");
    assert_eq!(counts.units_handed_back.get(&HandBackCause::Notice), Some(&4));
    let samples = world.take_samples(4).await;
    assert!(samples.iter().all(|sample| sample.unit.group.as_str() == "short"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_claimed_once_the_gate_is_closed() {
    let world = World::new();
    world.enqueue((0..20).map(|n| group(&format!("g{n}"), 8, 40))).await;
    let node = world.node("n1").start();
    node.wait_until(|agent| agent.counts().units_completed > 8).await;
    node.announce(5);
    node.wait_until(|agent| !agent.is_gate_open()).await;
    let calls = world.lease_calls();
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    until(|| async { world.queue.view().await.unwrap().nodes[0].state == NodeState::Drained })
        .await;
    assert_eq!(world.lease_calls(), calls, "work was waiting all the time");
    assert!(world.status().await.ready > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn notice_is_told_to_the_queue_and_marked_on_the_node() {
    let world = World::new();
    let node = world.node("n1").start();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    node.announce(60);
    within(world.marks.wait_for(&node.name, |marked| marked.taint.is_some())).await;
    let marked = world.marks.node(&node.name);
    assert_eq!(marked.taint.as_deref(), Some("spot_terminate"));
    assert!(marked.is_cordoned && marked.is_cordon_ours);
    until(|| async {
        let view = world.queue.view().await.unwrap();
        let drain = view.drains.first().cloned();
        drain.is_some_and(|drain| drain.state == DrainState::Drained)
    })
    .await;
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.drains[0].reason, DrainReason::Notice);
    let remaining = view.drains[0].deadline.remaining(view.now);
    assert!((50..=60).contains(&remaining.as_secs()), "{remaining:?}");
    until(|| async { world.queue.view().await.unwrap().nodes[0].state == NodeState::Drained })
        .await;
    let record = world.queue.view().await.unwrap().nodes[0].clone();
    assert_eq!(record.notice_kind.as_deref(), Some("spot_terminate"));
    assert_eq!(record.instance_id.as_deref(), Some("i-n1"));
    assert_eq!((record.zone.as_deref(), record.market), (Some("us-east-2b"), Some(Market::Spot)));
    assert!(record.notice_deadline.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_notice_reopens_and_leaves_no_mark() {
    let world = World::new();
    let node = world.node("n1").start();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    node.announce(60);
    within(world.marks.wait_for(&node.name, |marked| marked.taint.is_some())).await;
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    node.imds().withdraw_spot();
    within(world.marks.wait_for(&node.name, |marked| !marked.is_cordoned)).await;
    node.wait_until(|agent| agent.is_gate_open()).await;
    let drain = world.queue.view().await.unwrap().drains[0].clone();
    assert_eq!(drain.state, DrainState::Cancelled);
    world.enqueue([group("a", 2, 20)]).await;
    assert_eq!(world.take_samples(2).await.len(), 2);
}

/// The instance metadata know no time of it: the policy's counts.
#[tokio::test(flavor = "multi_thread")]
async fn target_state_terminated_drains_the_node_until_it_is_taken_back() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let plan = world.node("n1").with_engine(|engine| engine.context_length = 200_000);
    let plan = plan.with(|config| config.drain.asg_deadline = Duration::from_secs(90));
    let place = plan.place();
    let imds = place.imds.handle();
    imds.set_target_lifecycle("InService");
    let node = plan.start_at(place);
    node.wait_until_busy(8).await;
    let looks = imds.requests(path::TARGET_LIFECYCLE);
    within(imds.await_requests(path::TARGET_LIFECYCLE, looks + 3)).await;
    assert!(node.agent.is_gate_open() && node.agent.held() == 8, "it is in service");
    imds.set_target_lifecycle("Terminated");
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    within(world.marks.wait_for(&node.name, |marked| marked.taint.is_some())).await;
    assert_eq!(world.marks.node(&node.name).taint.as_deref(), Some("asg_termination"));
    until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
    let drain = world.queue.view().await.unwrap().drains.remove(0);
    assert_eq!((drain.reason, drain.lost.to_string().as_str()), (DrainReason::Lifecycle, "n1"));
    let left = drain.deadline.since(drain.requested_at).as_secs();
    assert!((80..=90).contains(&left), "{drain:?}");
    imds.set_target_lifecycle("InService");
    node.wait_until_busy(8).await;
    within(world.marks.wait_for(&node.name, |marked| !marked.is_cordoned)).await;
}

fn scale_in(node: &NodeName, seconds: u64) -> DrainRequest {
    DrainRequest {
        replica: ReplicaId::from(node),
        request_id: "scale-in-1".to_owned(),
        generation: 7,
        reason: DrainReason::ScaleIn,
        remaining: Duration::from_secs(seconds),
        lost: NodeNames::default(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_request_empties_the_node_and_its_cancellation_brings_it_back() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let node = world.node("n1").with_engine(|engine| engine.context_length = 200_000).start();
    node.wait_until_busy(8).await;
    world.queue.request_drain(scale_in(&node.name, 30)).await.unwrap();
    node.wait_until(|agent| agent.state() == NodeState::Drained).await;
    let handed_back = node.agent.counts().units_handed_back;
    assert_eq!(handed_back.get(&HandBackCause::Drain), Some(&8));
    within(world.marks.wait_for(&node.name, |marked| marked.is_cordoned)).await;
    until(|| async { world.queue.view().await.unwrap().drains[0].state == DrainState::Drained })
        .await;
    let cancel = DrainProgress {
        replica: ReplicaId::from(&node.name),
        request_id: "scale-in-1".to_owned(),
        generation: 7,
        state: DrainState::Cancelled,
    };
    world.queue.report_drain(cancel).await.unwrap();
    node.wait_until_busy(8).await;
    within(world.marks.wait_for(&node.name, |marked| !marked.is_cordoned)).await;
}

/// Case 20.
#[tokio::test(flavor = "multi_thread")]
async fn rebalance_stops_leases_for_its_time_and_running_work_goes_on() {
    let world = World::new();
    world.enqueue([group("a", 8, 200), group("b", 8, 20)]).await;
    let node = world.node("n1").with(|config| config.drain.rebalance_ttl = Duration::from_secs(3));
    let node = node.start();
    node.wait_until_busy(8).await;
    node.imds().recommend_rebalance(timestamp_now());
    node.wait_until(|agent| !agent.is_gate_open()).await;
    node.wait_until(|agent| agent.counts().units_completed == 8).await;
    assert_eq!((node.agent.held(), world.status().await.ready), (0, 8));
    assert!(!world.marks.node(&node.name).is_cordoned);
    assert_eq!(world.take_samples(16).await.len(), 16, "the gate reopens by itself");
}

/// Case 18.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_clock_leaves_no_more_than_the_longest_notice() {
    fn fast() -> UnixMillis {
        wall_clock_now().plus(Duration::from_secs(90))
    }
    fn slow() -> UnixMillis {
        wall_clock_now().minus(Duration::from_secs(90))
    }
    for clock in [fast, slow] {
        let world = World::new();
        let node = world.node("n1").with_clock(clock).start();
        node.announce(100);
        until(|| async { !world.queue.view().await.unwrap().drains.is_empty() }).await;
        let view = world.queue.view().await.unwrap();
        let remaining = view.drains[0].deadline.remaining(view.now);
        assert!(remaining <= Duration::from_secs(120), "{remaining:?}");
    }
}

/// An API server that never answers.
struct HangingMarks;

#[async_trait]
impl NodeMarks for HangingMarks {
    async fn mark(&self, _: &NodeName, _: &str) -> Result<(), MarkError> {
        std::future::pending().await
    }
    async fn clear(&self, _: &NodeName) -> Result<(), MarkError> {
        std::future::pending().await
    }
    async fn show_condition(&self, _: &NodeName, _: Option<&str>) -> Result<(), MarkError> {
        std::future::pending().await
    }
    async fn tell(&self, _: &NodeName, _: NodeEvent) -> Result<(), MarkError> {
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_back_never_waits_for_kubernetes() {
    let world = World::new();
    world.enqueue([group("a", 8, 4_000)]).await;
    let plan = world.node("n1");
    let place = plan.place();
    let mut outside = plan.outside(&place);
    outside.marks = std::sync::Arc::new(HangingMarks);
    let agent = Agent::new(plan.config, outside);
    let handle = agent.handle();
    let task = tokio::spawn(agent.run(CancellationToken::new()));
    within(handle.wait_until(|agent| agent.counts().tokens_stored > 0)).await;
    world.queue.request_drain(scale_in(&"n1".parse().unwrap(), 5)).await.unwrap();
    within(handle.wait_until(|agent| agent.state() == NodeState::Drained)).await;
    let report = handle.report();
    assert_eq!(report.drains.len(), 1);
    assert!(report.drains[0].duration < Duration::from_secs(2), "{report:?}");
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn rehearsal_hands_back_reports_marks_nothing_and_returns_to_work_by_itself() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let node = world.node("n1").with_engine(|engine| engine.context_length = 200_000).start();
    node.wait_until_busy(8).await;
    let drill = DrainRequest { reason: DrainReason::Drill, ..scale_in(&node.name, 30) };
    world.queue.request_drain(drill).await.unwrap();
    until(|| async { !world.queue.reports(1).await.unwrap().is_empty() }).await;
    let report = world.queue.reports(1).await.unwrap()[0].clone();
    assert_eq!((report.reason, report.units_handed_back), (DrainReason::Drill, 8));
    node.wait_until_busy(8).await;
    let drain = world.queue.view().await.unwrap().drains[0].clone();
    assert_eq!(drain.state, DrainState::Cancelled);
    let marked = world.marks.node(&node.name);
    assert!(!marked.is_cordoned && marked.taint.is_none(), "{marked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_asked_for_during_a_rehearsal_outlives_it() {
    let world = World::new();
    world.enqueue([group("a", 8, 100_000)]).await;
    let node = world.node("n1").with_engine(|engine| engine.context_length = 200_000).start();
    node.wait_until_busy(8).await;
    let request_id = "drill-1".to_owned();
    let drill = DrainRequest { reason: DrainReason::Drill, request_id, ..scale_in(&node.name, 5) };
    world.queue.request_drain(drill).await.unwrap();
    world.queue.request_drain(scale_in(&node.name, 60)).await.unwrap();
    within(world.marks.wait_for(&node.name, |marked| marked.is_cordoned)).await;
    until(|| async { world.queue.view().await.unwrap().drains[0].state == DrainState::Drained })
        .await;
    assert!(!node.agent.is_gate_open() && node.agent.held() == 0);
    let report = node.agent.report().drains.pop().unwrap();
    assert!(report.lead > Duration::from_secs(30), "the rehearsal's time is its own: {report:?}");
}

/// Taken back and asked for anew between two looks of the agent: it is another drain, with a
/// deadline and a report of its own.
#[tokio::test(flavor = "multi_thread")]
async fn drain_that_was_replaced_unseen_begins_anew() {
    let world = World::new();
    let way = world.own_way();
    let n1 = world.node("n1").by(way.clone()).start();
    n1.wait_until(|agent| agent.state() == NodeState::Ready).await;
    let request = |name: &str, seconds| DrainRequest {
        replica: "n1".parse().expect("valid"),
        request_id: name.to_owned(),
        generation: 0,
        reason: DrainReason::Operator,
        remaining: Duration::from_secs(seconds),
        lost: NodeNames::default(),
    };
    let drained = async |name: &str| {
        until(|| async {
            let reports = world.queue.reports(10).await.expect("reachable");
            reports.iter().any(|report| report.request_id == name)
        })
        .await;
        let reports = world.queue.reports(10).await.expect("reachable");
        reports.into_iter().find(|report| report.request_id == name).expect("there")
    };
    world.queue.request_drain(request("first", 30)).await.expect("reachable");
    drained("first").await;
    way.set_down(true);
    let progress = DrainProgress {
        replica: "n1".parse().expect("valid"),
        request_id: "first".to_owned(),
        generation: 0,
        state: DrainState::Cancelled,
    };
    world.queue.report_drain(progress).await.expect("reachable");
    world.queue.request_drain(request("second", 600)).await.expect("reachable");
    way.set_down(false);
    let report = drained("second").await;
    assert!(report.lead_ms > 500_000, "{report:?}");
    assert_eq!(n1.agent.state(), NodeState::Drained);
}
