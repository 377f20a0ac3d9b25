//! A metadata service in trouble: the agent outlives it, says what is wrong, and sees the notice.

use std::time::Duration;

use ebbtide_agent::Pace;
use ebbtide_agent::emulator::imds::{EVERY_PATH, Fault, path};
use ebbtide_core::notice::NoticeKind;
use ebbtide_queue::control::NodeState;
use tokio::time::Instant;

use crate::outages::{body_of, free_port};
use crate::world::{Node, World, until, within};

/// Longest look at a source, with everything that goes with it.
const CYCLE_LIMIT: Duration = Duration::from_secs(2);

async fn instance_of(world: &World) -> Option<String> {
    world.queue.view().await.unwrap().nodes.first()?.instance_id.clone()
}

async fn sees_a_notice(node: &Node) {
    node.announce(60);
    node.wait_until(|agent| agent.notice() == Some(NoticeKind::SpotTerminate)).await;
    assert!(!node.task.is_finished());
}

/// Case 1. The service takes no read with two tokens.
#[tokio::test(flavor = "multi_thread")]
async fn token_that_ends_early_is_replaced_once_and_no_look_is_missed() {
    let world = World::new();
    let node = world.node("n1").start();
    let imds = node.imds();
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    // Six hours are promised, and kept is a moment.
    imds.override_token_lifetime(Some(Duration::from_millis(300)));
    imds.revoke_tokens();
    let granted = imds.requests(path::TOKEN);
    within(imds.await_requests(path::TOKEN, granted + 4)).await;
    imds.override_token_lifetime(None);
    imds.revoke_tokens();
    let looks = imds.requests(path::SPOT_ACTION);
    within(imds.await_requests(path::SPOT_ACTION, looks + 4)).await;
    imds.revoke_tokens();
    let (granted, looks) = (imds.requests(path::TOKEN), imds.requests(path::SPOT_ACTION));
    sees_a_notice(&node).await;
    // The one under way, the one that was refused, and its repetition.
    let looks = imds.requests(path::SPOT_ACTION) - looks;
    assert!(looks <= 3, "seen at the next look, not after {looks}");
    assert_eq!(imds.requests(path::TOKEN) - granted, 1, "one new token for all sources");
}

/// Case 3.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_fails_at_the_start_is_outlived_and_the_identity_learned_later() {
    let page = "<?xml version=\"1.0\"?>\n<html>503</html>";
    for fault in [
        Fault::Status(503),
        Fault::Status(403),
        Fault::Hang,
        Fault::Body(page.to_owned()),
        // A token and an instance id, for all that one can see of it.
        Fault::Body("nonsense".to_owned()),
    ] {
        let world = World::new();
        let plan = world.node("n1");
        let place = plan.place();
        place.imds.handle().fault(EVERY_PATH, fault.clone());
        let node = plan.start_at(place);
        node.wait_until(|agent| agent.state() == NodeState::Ready).await;
        within(node.imds().await_requests(path::TOKEN, 1)).await;
        let kinds = [path::TOKEN, path::SPOT_ACTION, path::INSTANCE_ID];
        let asked = || kinds.iter().map(|path| node.imds().requests(path)).sum::<u64>();
        let before = asked();
        until(|| async { asked() >= before + 4 }).await;
        assert_eq!(instance_of(&world).await, None, "{fault:?}");
        assert!(node.agent.is_gate_open() && node.agent.notice().is_none(), "{fault:?}");
        node.imds().clear_faults();
        until(|| async { instance_of(&world).await.as_deref() == Some("i-n1") }).await;
        sees_a_notice(&node).await;
    }
}

/// Case 3, where nobody listens at first.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_comes_late_is_met_later() {
    let world = World::new();
    let plan = world.node("n1");
    let place = plan.place();
    place.imds.handle().refuse();
    let node = plan.start_at(place);
    node.wait_until(|agent| agent.state() == NodeState::Ready).await;
    node.imds().come_back().unwrap();
    until(|| async { instance_of(&world).await.as_deref() == Some("i-n1") }).await;
    sees_a_notice(&node).await;
}

/// Case 5.
#[tokio::test(flavor = "multi_thread")]
async fn token_call_that_hangs_is_counted_as_the_hop_limit_and_nothing_is_read_without_a_token() {
    let world = World::new();
    let address = ([127, 0, 0, 1], free_port()).into();
    let plan = world.node("n1").with(|config| config.listen = Some(address));
    let place = plan.place();
    place.imds.handle().fault(path::TOKEN, Fault::Hang);
    let begun = Instant::now();
    let node = plan.start_at(place);
    within(node.imds().await_requests(path::TOKEN, 4)).await;
    assert!(begun.elapsed() < CYCLE_LIMIT * 4, "four cycles took {:?}", begun.elapsed());
    for source in ["spot", "rebalance", "lifecycle", "maintenance"] {
        let counted =
            format!(r#"ebbtide_imds_reads_total{{outcome="hop_limit",source="{source}"}} "#);
        until(|| async { value_of(address, &counted).await > 0 }).await;
    }
    for path in [path::SPOT_ACTION, path::REBALANCE, path::TARGET_LIFECYCLE, path::MAINTENANCE] {
        assert_eq!(node.imds().requests(path), 0, "{path} without a token");
    }
    node.imds().clear_faults();
    sees_a_notice(&node).await;
}

/// The value of one series; 0 when there is none.
async fn value_of(address: std::net::SocketAddr, series: &str) -> u64 {
    let metrics = body_of(address, "/metrics").await;
    let value = metrics.lines().find_map(|line| line.strip_prefix(series));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Case 10.
#[tokio::test(flavor = "multi_thread")]
async fn slow_paths_never_delay_another() {
    for fault in [Fault::Hang, Fault::Delay(Duration::from_millis(1900))] {
        let world = World::new();
        let node = world.node("n1").start();
        let others = [
            path::MAINTENANCE,
            path::REBALANCE,
            path::TARGET_LIFECYCLE,
            path::INSTANCE_ID,
            path::ZONE,
        ];
        others.iter().for_each(|path| node.imds().fault(path, fault.clone()));
        let counts = |path| node.imds().requests(path);
        let (looks, slow) = (counts(path::SPOT_ACTION), counts(path::MAINTENANCE));
        within(node.imds().await_requests(path::MAINTENANCE, slow + 4)).await;
        let looks = counts(path::SPOT_ACTION) - looks;
        // At least three time limits of 800 ms lie in between, each worth eight looks.
        assert!(looks > 10, "{fault:?}: {looks} looks");
        sees_a_notice(&node).await;
    }
}

/// Case 11.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_planned_is_no_error_however_it_is_said() {
    let world = World::new();
    let address = ([127, 0, 0, 1], free_port()).into();
    let node = world.node("n1").with(|config| config.listen = Some(address)).start();
    let bodies = ["[]", "", " \r\n", "\u{feff}[ ]"].map(|body| Fault::Body(body.to_owned()));
    for fault in [Fault::Status(404)].into_iter().chain(bodies) {
        node.imds().fault(path::MAINTENANCE, fault);
        let looks = node.imds().requests(path::MAINTENANCE);
        within(node.imds().await_requests(path::MAINTENANCE, looks + 2)).await;
    }
    let counted = |outcome: &str| {
        format!(r#"ebbtide_imds_reads_total{{outcome="{outcome}",source="maintenance"}} "#)
    };
    until(|| async { value_of(address, &counted("nothing")).await >= 9 }).await;
    for outcome in ["failed", "unreadable", "something", "hop_limit"] {
        assert_eq!(value_of(address, &counted(outcome)).await, 0, "{outcome}");
    }
    node.imds().fault(path::MAINTENANCE, Fault::Body("<html>".to_owned()));
    until(|| async { value_of(address, &counted("unreadable")).await > 0 }).await;
}

/// With the rates that agents have by themselves, once it is known who the instance is.
#[tokio::test(flavor = "multi_thread")]
async fn notices_are_looked_for_every_second_within_three_requests_a_second() {
    let world = World::new();
    let plan = world.node("n1").with(|config| config.pace = Pace::default());
    let node = plan.without_engine().start();
    let imds = node.imds();
    let paths = [path::SPOT_ACTION, path::REBALANCE, path::TARGET_LIFECYCLE, path::MAINTENANCE];
    let identity =
        [path::TOKEN, path::LIFE_CYCLE, path::INSTANCE_ID, path::INSTANCE_TYPE, path::ZONE];
    until(|| async { instance_of(&world).await.is_some() }).await;
    let count = || {
        let all = paths.iter().chain(&identity).map(|path| imds.requests(path));
        (all.sum::<u64>(), paths.map(|path| imds.requests(path)))
    };
    within(imds.await_requests(path::SPOT_ACTION, imds.requests(path::SPOT_ACTION) + 1)).await;
    let (begun, (all_before, before)) = (Instant::now(), count());
    within(imds.await_requests(path::SPOT_ACTION, before[0] + 6)).await;
    let (took, (all, after)) = (begun.elapsed().as_secs_f64(), count());
    let spot = (after[0] - before[0]) as f64 / took;
    assert!((0.8..=1.2).contains(&spot), "{spot} looks for a Spot notice a second");
    for source in [1, 2] {
        let looks = (after[source] - before[source]) as f64 / took;
        assert!((0.25..=0.8).contains(&looks), "{}: {looks} a second", paths[source]);
    }
    let rate = (all - all_before) as f64 / took;
    assert!(rate <= 3.0, "{rate} requests a second");
}
