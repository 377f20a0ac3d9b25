//! A drain of sizing ends with the pods that it was for, and never before.

use std::time::Duration;

use ebbtide_core::observation::{InstanceState, InstanceView, PoolSize, PoolView, Signal};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{NodeNames, NodeState};

use super::*;

const NOW: UnixMillis = UnixMillis(1_000_000);

fn policy(provider: &str) -> FleetPolicy {
    let text = format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run}}
spec:
  trainer: {{groupsPerStep: 4, groupSize: 1}}
  rollout: {{maxReplicas: 4, pools: [pods]}}
  pools: [{{name: pods, market: spot, maxNodes: 4, {provider}}}]
"
    );
    FleetPolicy::parse(&text, "policy.yaml").expect("valid")
}

const SCALE: &str = "provider: scale, scale: {kind: StatefulSet, name: ep}";

fn id(name: &str) -> InstanceId {
    InstanceId(name.to_owned())
}

fn drain(reason: DrainReason, state: DrainState) -> DrainRecord {
    DrainRecord {
        replica: "n1".parse().expect("valid"),
        request_id: "r".to_owned(),
        generation: 1,
        reason,
        deadline: NOW,
        state,
        requested_at: NOW,
        lost: NodeNames::default(),
    }
}

/// One drain, its node that reported so long ago, and a pool that shows these pods on that node.
fn reads(drain: DrainRecord, silence: u64, pods: Option<&[&str]>) -> Reads {
    let holder = "n1/boot/agent".parse().expect("valid");
    let node = NodeRecord {
        heartbeat: NOW.minus(Duration::from_secs(silence)),
        ..NodeRecord::new(holder, NodeState::Drained)
    };
    let pod = |name: &&str| InstanceView {
        node: Some("n1".parse().expect("valid")),
        ..InstanceView::new(id(name), InstanceState::Terminating)
    };
    let size = pods
        .map(|pods| PoolSize { instances: pods.iter().map(pod).collect(), ..PoolSize::default() });
    let name = "pods".parse().expect("valid");
    let unread = PoolView::unread(name, "away");
    let size = size.map_or(unread.size.clone(), Signal::fresh);
    Reads {
        watched_for: Duration::ZERO,
        status: Err("not asked".to_owned()),
        view: Ok(ControlView {
            now: NOW,
            nodes: vec![node],
            drains: vec![drain],
            ..ControlView::default()
        }),
        pools: vec![PoolView { size, ..unread }],
        service_pools: BTreeMap::new(),
        trainer_pool: None,
        gone: BTreeSet::new(),
        problems: Vec::new(),
    }
}

fn retire(pod: &str) -> Action {
    Action::Retire {
        replica: "n1".parse().expect("valid"),
        request_id: "r".to_owned(),
        pool: "pods".parse().expect("valid"),
        instances: vec![id(pod)],
    }
}

fn ended(retired: &mut Retired, mut reads: Reads, provider: &str) -> bool {
    let actions = retired.take_ended(&mut reads, &policy(provider));
    let is_left = !reads.view.expect("read").drains.is_empty();
    assert_eq!(actions.is_empty(), is_left, "what is ended is not planned with");
    !is_left
}

#[test]
fn drain_ends_when_its_pod_is_gone_though_another_stands_in_its_place() {
    let terminating = || drain(DrainReason::ScaleIn, DrainState::Terminating);
    let mut retired = Retired::default();
    retired.note(&retire("ep-1/old"), false);
    assert!(!ended(&mut retired, reads(terminating(), 1, Some(&["ep-1/new"])), SCALE), "not done");
    retired.note(&retire("ep-1/old"), true);
    assert!(!ended(&mut retired, reads(terminating(), 1, Some(&["ep-1/old"])), SCALE));
    assert!(!ended(&mut retired, reads(terminating(), 1, None), SCALE), "nobody knows");
    assert!(ended(&mut retired, reads(terminating(), 1, Some(&["ep-1/new"])), SCALE));
    assert!(ended(&mut retired, reads(terminating(), 90, Some(&[])), SCALE));
}

#[test]
fn drain_that_another_process_followed_up_ends_when_its_nodes_live_without_pods() {
    let terminating = || drain(DrainReason::Swap, DrainState::Terminating);
    let over = |reads| ended(&mut Retired::default(), reads, SCALE);
    assert!(over(reads(terminating(), 1, Some(&[]))));
    assert!(!over(reads(terminating(), 90, Some(&[]))), "it may be gone with its node");
    assert!(!over(reads(terminating(), 1, Some(&["ep-1/any"]))));
}

#[test]
fn drains_of_others_and_of_nodes_that_go_with_their_instance_are_left_alone() {
    let asg = "provider: asg, autoScalingGroup: g, instanceType: p5.48xlarge";
    let cases = [
        (drain(DrainReason::ScaleIn, DrainState::Terminating), asg),
        (drain(DrainReason::ScaleIn, DrainState::Drained), SCALE),
        (drain(DrainReason::Notice, DrainState::Terminating), SCALE),
    ];
    for (drain, provider) in cases {
        let mut retired = Retired::default();
        retired.note(&retire("i-1"), true);
        assert!(!ended(&mut retired, reads(drain.clone(), 1, Some(&[])), provider), "{drain:?}");
    }
}
