//! The real Karpenter takes the node away while the agent works on it. What holds Karpenter up is
//! the engine's pod, which waits for the agent.

use ebbtide_agent::emulator::imds::{SpotAction, path};
use ebbtide_core::notice::NoticeKind;
use ebbtide_harness::{ControlPlane, InstanceType, Karpenter, require, until};
use ebbtide_queue::control::{DrainOutcome, DrainReason, DrainState, NodeState};
use serde_json::Value;

use super::world::{Running, Space, client, engine_deployment, has_taint, is_marked};
use crate::programs::EVENT_LIMIT;

const DISRUPTED: &str = "karpenter.sh/disrupted";

/// What Karpenter may launch.
fn types() -> [InstanceType; 1] {
    [InstanceType::gpu("p5en.48xlarge").spot("us-east-1a", 21.5)]
}

/// An engine's pod runs on a node that Karpenter has made for it; gives the pod and the claim.
async fn node_of_karpenter(cluster: &ControlPlane) -> (Space<'_>, String, String) {
    let kubectl = cluster.kubectl();
    kubectl.create(&Karpenter::node_pool("rollout")).await.unwrap();
    let in_pool = ("karpenter.sh/nodepool", "rollout");
    kubectl.create(&engine_deployment("default", in_pool)).await.unwrap();
    let node = until("a node for the engine", EVENT_LIMIT, || async {
        let pods = kubectl.get(&["pods", "--selector=app=engine"]).await.ok()?;
        pods["items"][0]["spec"]["nodeName"].as_str().map(str::to_owned)
    });
    let (name, node) = ("default".to_owned(), node.await.unwrap());
    let space = Space { cluster, name, node };
    let pod = space.running_pod("engine").await;
    let claims = kubectl.get(&["nodeclaims"]).await.unwrap();
    let claim = claims["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    let initialized =
        ["wait", "--for=condition=Initialized", "--timeout=300s", "nodeclaim", &claim];
    kubectl.run(&initialized).await.unwrap();
    (space, pod, claim)
}

async fn delete_claim(space: &Space<'_>, claim: &str) {
    space.kubectl().run(&["delete", "nodeclaim", claim, "--wait=false"]).await.unwrap();
}

/// Each of the two has tainted the node, once, and the pod still waits for its hook.
async fn both_have_marked(space: &Space<'_>, pod: &str) {
    let is_by_both = |node: &Value| is_marked(node) && has_taint(node, DISRUPTED);
    let node = space.node_becomes("to be marked by both", is_by_both).await;
    let keys = |key: &str| {
        let taints = node["spec"]["taints"].as_array().unwrap();
        taints.iter().filter(|taint| taint["key"] == key).count()
    };
    assert_eq!((keys(DISRUPTED), keys(super::world::OURS)), (1, 1), "{node}");
    let waits = |pod: &Value| pod["metadata"].get("deletionTimestamp").is_some();
    space.pod_becomes(pod, "to be evicted", waits).await;
}

async fn node_goes(space: &Space<'_>) {
    let get = ["get", "node", &space.node, "--ignore-not-found", "--output=name"];
    until("the node to go", EVENT_LIMIT, || async {
        let found = space.kubectl().run(&get).await.ok()?;
        found.trim().is_empty().then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn node_that_karpenter_takes_away_gives_its_work_to_the_one_it_makes() {
    let mut cluster = require!(ControlPlane::start().await);
    let _karpenter = require!(Karpenter::start(&mut cluster, &types()).await);
    let (space, pod, claim) = node_of_karpenter(&cluster).await;
    let agent = space.start_agent(|_| {}).await;
    agent.give_work().await;

    delete_claim(&space, &claim).await;
    agent.pre_stop().await;
    let tokens = agent.work_is_back().await;
    both_have_marked(&space, &pod).await;
    let drain = agent.queue.view().await.unwrap().drains.remove(0);
    assert_eq!(drain.reason, DrainReason::Foreign);
    let report = agent.agent.report().drains.remove(0);
    assert_eq!((report.kind, report.outcome), (Some(NoticeKind::Foreign), DrainOutcome::Drained));
    agent.engine.kill();
    space.end_pod(&pod).await;
    node_goes(&space).await;
    assert_eq!(agent.agent.state(), NodeState::Drained, "a node that is gone does not come back");
    assert!(agent.metric(r#"ebbtide_evictions_total"#).await < 1.0, "Karpenter evicts");

    let heir = until("the engine on another node", EVENT_LIMIT, || async {
        let pods = space.kubectl().get(&["pods", "--selector=app=engine"]).await.ok()?;
        let node = pods["items"][0]["spec"]["nodeName"].as_str()?;
        (node != space.node).then_some(node.to_owned())
    });
    let (heir, way) = (heir.await.unwrap(), client(&cluster).await);
    let heir = Running::join(&heir, way, agent.queue.clone(), |_| {}).await;
    heir.wait_until("at work", |agent| agent.held() == 4).await;
    assert_eq!(heir.agent.counts().tokens_continued, tokens);
}

#[tokio::test]
async fn notice_and_karpenter_at_once_are_one_drain_that_lasts_as_long_as_either() {
    let mut cluster = require!(ControlPlane::start().await);
    let _karpenter = require!(Karpenter::start(&mut cluster, &types()).await);
    let (space, pod, claim) = node_of_karpenter(&cluster).await;
    let agent = space.start_agent(|_| {}).await;
    agent.give_work().await;

    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(100);
    let imds = agent.imds.handle();
    imds.announce_spot(SpotAction::Terminate, time);
    delete_claim(&space, &claim).await;
    agent.pre_stop().await;
    agent.work_is_back().await;
    both_have_marked(&space, &pod).await;
    let is_told = || async {
        let drains = agent.queue.view().await.ok()?.drains;
        let is_one = drains.len() == 1 && drains[0].reason == DrainReason::Notice;
        (is_one && drains[0].state == DrainState::Drained).then_some(())
    };
    until("one drain for the notice", EVENT_LIMIT, is_told).await.unwrap();

    // The notice ends first: the node is Karpenter's all the same.
    imds.withdraw_spot();
    let notice = |agent: &ebbtide_agent::AgentHandle| agent.notice().is_none();
    agent.wait_until("free of the notice", notice).await;
    let looks = imds.requests(path::REBALANCE);
    imds.await_requests(path::REBALANCE, looks + 6).await;
    assert_eq!(agent.agent.state(), NodeState::Drained);
    assert_eq!(agent.agent.counts().units_leased, 4, "nothing was leased again");
    both_have_marked(&space, &pod).await;
    agent.engine.kill();
    space.end_pod(&pod).await;
    node_goes(&space).await;
    assert_eq!(agent.agent.state(), NodeState::Drained);
    assert_eq!(agent.agent.held(), 0);
}
