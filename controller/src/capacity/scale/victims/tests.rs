//! Whom a smaller size would take, and what is refused because of it.

use ebbtide_core::observation::InstanceState;
use k8s_openapi::api::autoscaling::v1::Scale;

use super::*;

fn object(kind: ScaledKind, replicas: u32, size: u32) -> Object {
    let (scale, selector) = (Scale::default(), "app=ep".to_owned());
    Object { kind, scale, replicas, size, first_ordinal: 0, selector }
}

/// A pod that runs and is ready on a node of its own.
fn pod(name: &str) -> SeenPod {
    SeenPod {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        node: Some(format!("node-{name}").parse().expect("valid")),
        is_going: false,
        is_running: true,
        is_ready: true,
        ordinal: name.rsplit('-').next().and_then(|end| end.parse().ok()),
        set: None,
        group_index: None,
        leads: false,
        owner: Some("rs".to_owned()),
        deletion_cost: 0,
        unschedulable: None,
    }
}

fn unbound(name: &str) -> SeenPod {
    SeenPod { node: None, is_running: false, is_ready: false, ..pod(name) }
}

/// A pod of a group of a LeaderWorkerSet.
fn member(name: &str, index: u32) -> SeenPod {
    SeenPod { group_index: Some(index), leads: name == format!("ep-{index}"), ..pod(name) }
}

/// By how much the size is lowered when these are named, or which pod is in the way.
fn lowered(object: &Object, pods: &[SeenPod], names: &[&str]) -> Result<u32, String> {
    let ids: Vec<InstanceId> =
        pods.iter().filter(|pod| names.contains(&pod.name.as_str())).map(SeenPod::id).collect();
    let named = named(object, pods, &ids);
    fewer(object, pods, &named).map_err(|error| error.to_string())
}

fn in_the_way(pod: &str) -> Result<u32, String> {
    let why = "lowering the scale was refused: OutOfTurn";
    Err(format!("{why}: pod {pod} would go first, and was not named"))
}

#[test]
fn stateful_set_gives_up_its_highest_ordinals_alone() {
    let set = object(ScaledKind::StatefulSet, 4, 1);
    let pods: Vec<SeenPod> = ["ep-0", "ep-1", "ep-2", "ep-3"].map(pod).into();
    assert_eq!(lowered(&set, &pods, &["ep-3"]), Ok(1));
    assert_eq!(lowered(&set, &pods, &["ep-2", "ep-3"]), Ok(2));
    assert_eq!(lowered(&set, &pods, &["ep-1"]), in_the_way("ep-3"));
    assert_eq!(lowered(&set, &pods, &["ep-1", "ep-3"]), Ok(1), "the other waits");
    let ranks: Vec<u32> = instances(&set, &pods).iter().map(|one| one.removal_rank).collect();
    assert_eq!(ranks, [3, 2, 1, 0]);
}

#[test]
fn pods_without_a_node_are_given_up_first_one_for_each_that_is_named() {
    let set = object(ScaledKind::StatefulSet, 4, 1);
    let pods = [pod("ep-0"), pod("ep-1"), unbound("ep-2")];
    assert_eq!(lowered(&set, &pods, &["ep-1"]), Ok(1), "ep-3 was not even made");
    let set = object(ScaledKind::StatefulSet, 2, 1);
    assert_eq!(lowered(&set, &pods, &["ep-1"]), Ok(1));
    let seen = instances(&set, &pods);
    assert_eq!(seen.len(), 2, "what has no node is no instance");
}

#[test]
fn pod_beyond_the_size_goes_and_is_not_named_again() {
    let set = object(ScaledKind::StatefulSet, 1, 1);
    let pods = [pod("ep-0"), pod("ep-1")];
    let ids = [pods[1].id()];
    assert!(named(&set, &pods, &ids).is_empty());
    assert_eq!(instances(&set, &pods)[1].state, InstanceState::Terminating);
}

#[test]
fn group_is_given_up_whole() {
    let set = object(ScaledKind::LeaderWorkerSet, 2, 2);
    let pods = [member("ep-0", 0), member("ep-0-1", 0), member("ep-1", 1), member("ep-1-1", 1)];
    assert_eq!(lowered(&set, &pods, &["ep-1", "ep-1-1"]), Ok(1));
    assert_eq!(lowered(&set, &pods, &["ep-1"]), Ok(1), "with who leads goes the group");
    assert_eq!(lowered(&set, &pods, &["ep-1-1"]), in_the_way("ep-1"));
    assert_eq!(lowered(&set, &pods, &["ep-0", "ep-0-1"]), in_the_way("ep-1"));
    let seen = instances(&set, &pods);
    let ranks: Vec<(u32, Option<&str>)> =
        seen.iter().map(|one| (one.removal_rank, one.group.as_deref())).collect();
    assert_eq!(ranks, [(1, Some("0")), (1, Some("0")), (0, Some("1")), (0, Some("1"))]);
}

#[test]
fn deployment_gives_up_the_cheapest_of_those_that_are_ready() {
    let set = object(ScaledKind::Deployment, 3, 1);
    let cheap = SeenPod { deletion_cost: i32::MIN, ..pod("b") };
    let pods = [pod("a"), cheap.clone(), pod("c")];
    assert_eq!(lowered(&set, &pods, &["b"]), Ok(1));
    assert_eq!(lowered(&set, &pods, &["a"]), in_the_way("b"));
    let starting = SeenPod { is_ready: false, ..pod("a") };
    let pods = [starting, cheap, pod("c")];
    assert_eq!(lowered(&set, &pods, &["b"]), in_the_way("a"), "whatever it costs");
    let ranks: Vec<u32> = instances(&set, &pods).iter().map(|one| one.removal_rank).collect();
    assert_eq!(ranks, [1, 2, 2]);
}

#[test]
fn deployment_that_replaces_its_pods_is_not_lowered() {
    let other = SeenPod { owner: Some("another".to_owned()), ..pod("b") };
    assert!(one_owner(&[pod("a"), other.clone()]).is_err());
    let going = SeenPod { is_going: true, ..other };
    assert!(one_owner(&[pod("a"), going]).is_ok());
}
