//! An administrator's `kubectl drain` of a node whose agent hosts an engine. The engine's pod has a
//! grace and a `preStop` hook that waits for the agent, as the operator's guide advises.

use ebbtide_agent::emulator::imds::SpotAction;
use ebbtide_agent::kubernetes::ENGINE_LABEL;
use ebbtide_core::notice::NoticeKind;
use ebbtide_harness::{ControlPlane, Error, require, until};
use ebbtide_queue::control::{DrainOutcome, DrainReason, DrainState};
use tokio::task::JoinHandle;

use super::daemon_set;
use super::world::{OURS, Space, condition, engine_deployment, has_taint, is_marked};
use crate::programs::EVENT_LIMIT;

/// An engine's pod and one of a DaemonSet run on the node; gives their names.
async fn run_pods(space: &Space<'_>) -> (String, String) {
    let on_node = ("kubernetes.io/hostname", space.node.as_str());
    space.kubectl().create(&engine_deployment(&space.name, on_node)).await.unwrap();
    space.kubectl().create(&daemon_set(&space.name, &space.node)).await.unwrap();
    (space.running_pod("engine").await, space.running_pod("daemon").await)
}

/// Begins to drain the node as an administrator does.
fn kubectl_drain(space: &Space<'_>) -> JoinHandle<Result<String, Error>> {
    let (kubectl, node) = (space.kubectl().clone(), space.node.clone());
    tokio::spawn(async move {
        kubectl.run(&["drain", &node, "--ignore-daemonsets", "--timeout=120s"]).await
    })
}

#[tokio::test]
async fn node_drained_by_kubectl_gives_its_work_back_before_its_engine_ends() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-operator").await;
    let (engine, daemon) = run_pods(&space).await;
    let mut agent = space.start_agent(|_| {}).await;
    agent.give_work().await;

    let drain = kubectl_drain(&space);
    agent.pre_stop().await;
    let tokens = agent.work_is_back().await;
    let leaving = space.pod(&engine).await.expect("it is kept by its hook");
    assert!(leaving["metadata"]["labels"].get(ENGINE_LABEL).is_some());
    assert!(leaving["metadata"].get("deletionTimestamp").is_some(), "{leaving}");
    assert!(!drain.is_finished(), "kubectl waits for the pod");
    agent.engine.kill();
    space.end_pod(&engine).await;
    let told = drain.await.unwrap().expect("the drain succeeds");
    assert!(told.contains("drained"), "{told}");

    agent.wait_until("ready for another engine", |agent| agent.is_gate_open()).await;
    let report = agent.agent.report().drains.remove(0);
    assert_eq!((report.reason, report.outcome), (DrainReason::Foreign, DrainOutcome::Drained));
    assert_eq!(report.kind, Some(NoticeKind::EngineDeleted));
    assert_eq!((report.units_handed_back, report.tokens_preserved), (4, tokens));
    let drains = agent.queue.view().await.unwrap().drains;
    assert_eq!((drains.len(), drains[0].state), (1, DrainState::Cancelled));
    let stays = space.pod(&daemon).await.expect("an agent's pod is skipped");
    assert_eq!(stays["metadata"].get("deletionTimestamp"), None);
    let node = space.node_object(&space.node).await;
    assert_eq!(node["spec"]["unschedulable"], true, "the administrator's");
    assert!(!has_taint(&node, OURS) && !node["metadata"].to_string().contains("ebbtide.dev"));
    assert!(condition(&node).is_none_or(|(status, _)| status == "False"));

    // Maintenance is over: the next engine goes on where the first one ended.
    space.kubectl().run(&["uncordon", &space.node]).await.unwrap();
    space.running_pod("engine").await;
    agent.start_engine_again();
    agent.wait_until("at work again", |agent| agent.held() == 4).await;
    assert!(agent.agent.counts().tokens_continued >= tokens);
    let units = agent.queue.scan().await.unwrap();
    assert!(units.iter().all(|unit| (unit.attempts, unit.infra_attempts) == (0, 0)), "{units:?}");
    space.close().await;
}

#[tokio::test]
async fn cordon_of_kubectl_drain_outlasts_a_notice_that_came_after_it() {
    let cluster = require!(ControlPlane::shared().await);
    let space = Space::new(&cluster, "lane-notice").await;
    let (engine, daemon) = run_pods(&space).await;
    let agent = space.start_agent(|_| {}).await;
    agent.give_work().await;

    let drain = kubectl_drain(&space);
    space.node_becomes("to be cordoned", |node| node["spec"]["unschedulable"] == true).await;
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(90);
    agent.imds.handle().announce_spot(SpotAction::Terminate, time);
    let node = space.node_becomes("to be marked", |node| {
        is_marked(node) && condition(node) == Some(("True", "SpotTerminate"))
    });
    node.await;
    agent.pre_stop().await;
    agent.work_is_back().await;
    until("the drain to be one for the notice", EVENT_LIMIT, || async {
        let drains = agent.queue.view().await.unwrap().drains;
        (drains.len() == 1 && drains[0].reason == DrainReason::Notice).then_some(())
    })
    .await
    .unwrap();
    space.end_pod(&engine).await;
    drain.await.unwrap().expect("the drain succeeds");
    assert!(space.pod(&daemon).await.is_some());

    agent.imds.handle().withdraw_spot();
    let node = space.node_becomes("to be free of our marks", |node| {
        !has_taint(node, OURS) && condition(node).is_some_and(|(status, _)| status == "False")
    });
    assert_eq!(node.await["spec"]["unschedulable"], true, "the administrator's");
    agent.wait_until("at work again", |agent| agent.held() == 4).await;
    space.close().await;
}
