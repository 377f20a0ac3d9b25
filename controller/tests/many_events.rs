//! Case 58: what ten thousand events leave behind. A process of its own, so that its memory is the
//! controller's alone.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use ebbtide_controller::capacity::local::{LocalCapacity, LocalPool};
use ebbtide_controller::controller::{ControllerConfig, EventParts, Outside, QueueSource, run};
use ebbtide_controller::events::memory::MemoryEventQueue;
use ebbtide_controller::image_rollout::NoGroups;
use ebbtide_controller::leader::MemoryLease;
use ebbtide_controller::metrics::Metrics;
use ebbtide_controller::policy_source::PolicySource;
use ebbtide_controller::signals::NoSources;
use ebbtide_controller::status::ControllerStatus;
use ebbtide_core::ids::NodeName;
use ebbtide_core::policy::{FleetPolicy, Market};
use ebbtide_queue::client::{MemoryPort, WorkQueue, wall_clock_now};
use ebbtide_queue::control::{DrainProgress, DrainState, NodeRecord, NodeState};
use ebbtide_queue::memory::ShardSettings;
use tokio_util::sync::CancellationToken;

const ROUNDS: u32 = 10;
const EVENTS_OF_A_ROUND: u32 = 1000;

/// Nodes of the run that events are about.
const NODES: u32 = 3;

/// Growth of resident memory that is the allocator's, not the events'.
const GROWTH_KIB: u64 = 4096;

const POLICY: &str = "
apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {name: run}
spec:
  drain: {rebalance: ignore}
  trainer: {groupsPerStep: 2, groupSize: 1}
  rollout: {minReplicas: 0, maxReplicas: 4, concurrencyPerReplica: 2, pools: [spot], tick: 1s}
  pools: [{name: spot, provider: local, market: spot, maxNodes: 8}]
";

fn event(round: u32, number: u32) -> String {
    let now = wall_clock_now();
    let unknown = format!("i-{round:04x}{number:04x}");
    let known = format!("i-{}", number % NODES);
    let (detail_type, instance, more) = match number % 5 {
        0 => ("EC2 Spot Instance Interruption Warning", known, r#","instance-action":"stop""#),
        1 => ("EC2 Instance Rebalance Recommendation", known, ""),
        2 => ("EC2 Spot Instance Interruption Warning", unknown, r#","instance-action":"stop""#),
        3 => ("EC2 Instance Rebalance Recommendation", unknown, ""),
        _ => ("EC2 Instance State-change Notification", unknown, r#","state":"terminated""#),
    };
    format!(
        r#"{{"id":"e-{round}-{number}","detail-type":"{detail_type}","time":"{now}",
            "detail":{{"instance-id":"{instance}"{more}}}}}"#
    )
}

/// Agents that report and take their drains up.
async fn play_agents(queue: WorkQueue) {
    loop {
        for number in 0..NODES {
            let node: NodeName = format!("node-{number}").parse().unwrap();
            let replica = (&node).into();
            let drain = queue.view().await.unwrap().active_drain(&replica).cloned();
            if let Some(drain) = drain {
                let (request_id, state) = (drain.request_id, DrainState::Draining);
                let progress = DrainProgress { replica, request_id, generation: 0, state };
                queue.report_drain(progress).await.unwrap();
            }
            queue.put_node(record(node, number)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn record(node: NodeName, number: u32) -> NodeRecord {
    NodeRecord {
        instance_id: Some(format!("i-{number}")),
        market: Some(Market::Spot),
        ..NodeRecord::new(format!("{node}/boot/agent").parse().unwrap(), NodeState::Draining)
    }
}

fn start_controller(queue: &WorkQueue, inbox: &MemoryEventQueue, metrics: &Metrics) {
    let pool = LocalPool {
        name: "spot".parse().unwrap(),
        market: Market::Spot,
        zone: None,
        initial_nodes: 0,
        limit: 8,
    };
    let outside = Outside {
        queue: QueueSource::Ready(queue.clone()),
        capacity: Arc::new(LocalCapacity::new(vec![pool], Duration::ZERO, wall_clock_now)),
        events: EventParts { inbox: Some(Arc::new(inbox.clone())), ..EventParts::default() },
        leader: Arc::new(MemoryLease::default().candidate()),
        groups: Arc::new(NoGroups),
        signals: Arc::new(NoSources),
        metrics: metrics.clone(),
        status: ControllerStatus::default(),
        now: wall_clock_now,
    };
    let config = ControllerConfig {
        policy: FleetPolicy::parse(POLICY, "test").unwrap(),
        policy_source: PolicySource::Fixed,
        listen: None,
        tick: None,
        journal: None,
    };
    tokio::spawn(async move { run(config, outside, CancellationToken::new()).await.unwrap() });
}

/// Resident memory of this process, by the kernel's word.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn ten_thousand_events_leave_series_and_memory_as_they_were() {
    let memory = MemoryPort::new(1, ShardSettings::default(), wall_clock_now);
    let queue = WorkQueue::new(Arc::new(memory));
    let (inbox, metrics) = (MemoryEventQueue::default(), Metrics::new().unwrap());
    let agents = tokio::spawn(play_agents(queue.clone()));
    start_controller(&queue, &inbox, &metrics);
    let (mut series, mut resident) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for number in 0..EVENTS_OF_A_ROUND {
            inbox.send(event(round, number));
        }
        let is_empty = async {
            while !inbox.left().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(300), is_empty).await.expect("all are handled");
        series.push(metrics.render().lines().filter(|line| !line.starts_with('#')).count());
        resident.push(resident_kib());
    }
    assert!(series[1..].iter().all(|count| *count == series[1]), "{series:?}");
    assert!(resident[9] < resident[1] + GROWTH_KIB, "{resident:?} KiB");
    let handled = metrics.render();
    assert!(handled.contains(r#"kind="spot_stop",outcome="drain_requested""#), "{handled}");
    assert!(!agents.is_finished(), "the agents were played to the end");
}
