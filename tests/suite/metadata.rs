//! The real `ebbtide agent` process on its way to the metadata service: past every proxy, and
//! outspoken where that way is too long.

use std::time::Duration;

use ebbtide_agent::emulator::engine::{EngineConfig, EngineEmulator};
use ebbtide_agent::emulator::imds::{Fault, SpotAction, path};
use ebbtide_agent::emulator::{ImdsEmulator, InstanceIdentity};
use ebbtide_harness::{Aemm, Redis, require};
use ebbtide_queue::control::{DrainReason, NodeState};

use crate::programs::*;

const RUN: &str = "run-metadata";

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run-metadata}
spec:
  queue: {shards: 1}
  trainer: {groupsPerStep: 2, groupSize: 4}
  rollout: {maxReplicas: 4, pools: [local], concurrencyPerReplica: 16}
  pools: [{name: local, provider: local, market: spot, maxNodes: 4}]
";

/// One that has the weights of a run that has published none.
fn an_engine() -> EngineEmulator {
    let weights_label = "0".to_owned();
    EngineEmulator::start(EngineConfig { weights_label, ..EngineConfig::default() }).unwrap()
}

/// Every variable by which a program is told of a proxy, and those that would except this machine.
fn proxied(proxy: &str) -> [(&'static str, &str); 8] {
    let names =
        ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let [a, b, c, d, e, f] = names.map(|name| (name, proxy));
    [a, b, c, d, e, f, ("NO_PROXY", ""), ("no_proxy", "")]
}

/// Case 8. The emulated service refuses what a proxy has forwarded.
#[tokio::test]
async fn notice_comes_past_every_proxy_that_the_environment_names() {
    let redis = require!(Redis::start().await);
    let proxy = SilentService::start();
    let imds = ImdsEmulator::start(InstanceIdentity::spot("i-0abc", "us-east-2b")).unwrap();
    let engine = an_engine();
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let queue = queue(&redis, RUN, 1).await;
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), imds.base_url());
    let program = AgentProgram {
        run: RUN,
        node: "proxied",
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: None,
    };
    let (mut agent, _) = program.start_with(&proxied(&proxy.url));
    let knows_itself = view_becomes(&queue, "the instance to be known", |view| {
        view.nodes.iter().any(|node| node.instance_id.as_deref() == Some("i-0abc"))
    });
    knows_itself.await.unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
    imds.handle().announce_spot(SpotAction::Terminate, time);
    view_becomes(&queue, "the node to be drained", |view| {
        view.nodes.iter().any(|node| node.state == NodeState::Drained)
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    assert_eq!(proxy.connections(), 0);
    assert!(agent.is_running());
}

/// Case 5.
#[tokio::test]
async fn hop_limit_that_is_too_low_is_named_with_what_to_do() {
    let redis = require!(Redis::start().await);
    let imds = ImdsEmulator::start(InstanceIdentity::spot("i-0abc", "us-east-2b")).unwrap();
    imds.handle().fault(path::TOKEN, Fault::Hang);
    let engine = an_engine();
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), imds.base_url());
    let program = AgentProgram {
        run: RUN,
        node: "container",
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: None,
    };
    let (mut agent, health) = program.start();
    for word in ["the hop limit is too low", "hostNetwork", "HttpPutResponseHopLimit"] {
        agent.logged(word, EVENT_LIMIT).await.expect(word);
    }
    let handle = imds.handle();
    let asked = handle.await_requests(path::TOKEN, 6);
    tokio::time::timeout(Duration::from_secs(2 * 6), asked).await.expect("two seconds a cycle");
    let metrics = reqwest::get(format!("{health}/metrics")).await.unwrap().text().await.unwrap();
    let series = r#"ebbtide_imds_reads_total{outcome="hop_limit",source="spot"} "#;
    let counted = metrics.lines().find_map(|line| line.strip_prefix(series));
    assert!(counted.is_some_and(|count| count != "0"), "{metrics}");
    assert_eq!(handle.requests(path::SPOT_ACTION), 0, "never without a token");
    // Once, not at every look.
    let told = agent.log().matches("the hop limit is too low").count();
    assert!(told <= 5, "once for each source: {told}");
    assert!(agent.is_running());
}

/// Cases 23 and 25, by AWS's own mock: the day has one digit, and the reboot is weeks ahead.
#[tokio::test]
async fn maintenance_that_is_weeks_ahead_is_told_to_the_second_and_drains_nothing() {
    let redis = require!(Redis::start().await);
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap();
    let ahead = (14..60).map(|days| now + jiff::SignedDuration::from_hours(24 * days));
    let has_one_digit = |at: &jiff::Timestamp| at.strftime("%d").to_string().starts_with('0');
    let begins = ahead.clone().find(has_one_digit).expect("a month has such days");
    let not_before = begins.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let terms = ["--code", "system-reboot", "--state", "active", "--not-before", &not_before];
    let imds = require!(Aemm::start(&[&["events", "--imdsv2"], &terms[..]].concat()).await);
    let engine = an_engine();
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), POLICY);
    let queue = queue(&redis, RUN, 1).await;
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), imds.base_url());
    let program = AgentProgram {
        run: RUN,
        node: "weeks-ahead",
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: None,
    };
    let (mut agent, health) = program.start();
    let told = view_becomes(&queue, "the maintenance to be told", |view| {
        view.nodes.iter().any(|node| node.notice_kind.as_deref() == Some("maintenance"))
    });
    let told = told.await.unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    let deadline = told.nodes[0].notice_deadline.expect("a time");
    let expected = u64::try_from(begins.as_millisecond()).unwrap();
    assert!(deadline.0.abs_diff(expected) < 5_000, "{deadline}, not {begins}");
    agent.ready(&format!("{health}/readyz"), EVENT_LIMIT).await.expect("it goes on");
    assert!(queue.view().await.expect("redis is there").drains.is_empty());
}

/// By AWS's own mock, which has the path and the words of the real service.
#[tokio::test]
async fn target_state_terminated_drains_the_node_within_the_time_of_the_policy() {
    let redis = require!(Redis::start().await);
    let terminated = ["asglifecycle", "--imdsv2", "--asg-termination-delay-sec", "0"];
    let imds = require!(Aemm::start(&terminated).await);
    let engine = an_engine();
    let folder = tempfile::tempdir().unwrap();
    let policy = policy_file(folder.path(), &format!("{POLICY}  drain: {{asgDeadline: 90s}}\n"));
    let queue = queue(&redis, RUN, 1).await;
    let (redis_url, engine_url, imds_url) = (redis.url(), engine.base_url(), imds.base_url());
    let program = AgentProgram {
        run: RUN,
        node: "taken-out",
        redis: &redis_url,
        imds: &imds_url,
        engine: &engine_url,
        policy: &policy,
        kubeconfig: None,
    };
    let (mut agent, _) = program.start();
    let drained = view_becomes(&queue, "the node to be drained", |view| {
        view.nodes.iter().any(|node| node.state == NodeState::Drained) && !view.drains.is_empty()
    });
    let view = drained.await.unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    assert_eq!(view.nodes[0].notice_kind.as_deref(), Some("asg_termination"));
    let drain = &view.drains[0];
    assert_eq!(
        (drain.reason, drain.lost.to_string().as_str()),
        (DrainReason::Lifecycle, "taken-out")
    );
    let asked_for = drain.deadline.since(drain.requested_at).as_secs();
    assert!((85..=90).contains(&asked_for), "{drain:?}");
    assert!(agent.is_running());
}
