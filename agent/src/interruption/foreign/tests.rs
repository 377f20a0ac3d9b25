//! Sights of a node, and what of them counts.

use std::sync::Arc;

use super::*;
use crate::kubernetes::{SeenNode, Termination};

const WALL: UnixMillis = UnixMillis(1_000_000_000);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn marks() -> ForeignMarks {
    ForeignMarks::new(DrainTerms::default())
}

fn sight(taints: &[(&str, &str)], pods: Vec<SeenPod>) -> NodeSight {
    let taint = |(key, value): &(&str, &str)| SeenTaint {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    let node = SeenNode { taints: taints.iter().map(taint).collect(), ..SeenNode::default() };
    NodeSight { node: Some(node), pods: Some(Arc::new(pods)), failures: 0 }
}

fn see(marks: &mut ForeignMarks, sight: &NodeSight, at: Instant) -> Vec<News> {
    marks.see(sight, |_| false, WALL, at)
}

/// Kind and time left of the only thing that empties the node.
fn only(marks: &ForeignMarks, now: Instant) -> Option<(NoticeKind, u64)> {
    let all: Vec<Emptying> = marks.emptying().collect();
    assert!(all.len() <= 1, "{all:?}");
    all.first().map(|one| (one.kind, one.deadline.saturating_duration_since(now).as_secs()))
}

fn engine(uid: &str, termination: Option<(u64, u64)>) -> SeenPod {
    let termination = termination
        .map(|(left, grace)| Termination { by: WALL.plus(seconds(left)), grace: seconds(grace) });
    SeenPod { tier: Tier::Engine, termination, ..SeenPod::ordinary("rl", uid, uid) }
}

#[test]
fn each_handlers_taint_empties_the_node_in_its_own_time() {
    let now = Instant::now();
    let hundred_seconds_ago = (WALL.0 / 1000 - 100).to_string();
    for (key, value, left) in [
        ("karpenter.sh/disrupted", "", 600),
        ("karpenter.sh/disruption", "disrupting", 600),
        ("aws-node-termination-handler/spot-itn", "spot-itn-1f", 120),
        ("aws-node-termination-handler/scheduled-maintenance", "m", 600),
        ("aws-node-termination-handler/asg-lifecycle-termination", "a", 120),
        ("ToBeDeletedByClusterAutoscaler", hundred_seconds_ago.as_str(), 500),
        ("ToBeDeletedByClusterAutoscaler", "9999999999", 600),
        ("ToBeDeletedByClusterAutoscaler", "1", 0),
        ("ToBeDeletedByClusterAutoscaler", "soon", 600),
        ("node.kubernetes.io/out-of-service", "nodeshutdown", 0),
    ] {
        let mut marks = marks();
        let news = see(&mut marks, &sight(&[(key, value)], vec![]), now);
        assert_eq!(news, [News::Announced(NoticeKind::Foreign)], "{key}");
        assert_eq!(only(&marks, now), Some((NoticeKind::Foreign, left)), "{key}={value}");
    }
}

#[test]
fn taints_of_others_and_our_own_mean_nothing() {
    let now = Instant::now();
    let mut marks = marks();
    let taints = [
        ("nvidia.com/gpu", "present"),
        ("ebbtide.dev/interruption", "spot_terminate"),
        ("node.kubernetes.io/unschedulable", ""),
        ("aws-node-termination-handler/other", ""),
    ];
    assert_eq!(see(&mut marks, &sight(&taints, vec![engine("e", None)]), now), []);
    assert!(marks.is_quiet());
}

#[test]
fn mark_counts_from_its_first_sight_and_only_while_it_stands() {
    let start = Instant::now();
    let mut marks = marks();
    let disrupted = sight(&[("karpenter.sh/disrupted", "")], vec![]);
    see(&mut marks, &disrupted, start);
    assert_eq!(see(&mut marks, &disrupted, start + seconds(100)), []);
    assert_eq!(only(&marks, start), Some((NoticeKind::Foreign, 600)));
    assert!(!marks.is_quiet());
    let news = see(&mut marks, &sight(&[], vec![]), start + seconds(101));
    assert_eq!(news, [News::Withdrawn(NoticeKind::Foreign)]);
    assert!(marks.is_quiet());
}

#[test]
fn nothing_is_certain_before_node_and_pods_were_seen() {
    let mut marks = marks();
    assert!(!marks.is_quiet());
    let half = NodeSight { pods: None, ..sight(&[("karpenter.sh/disrupted", "")], vec![]) };
    assert_eq!(see(&mut marks, &half, Instant::now()), []);
    assert!(!marks.is_quiet());
}

#[test]
fn deletion_of_an_engine_pod_lasts_as_long_as_its_grace_whatever_the_clocks_say() {
    let now = Instant::now();
    for (left, grace, expected) in [(45, 60, 45), (500, 60, 60), (0, 60, 0)] {
        let mut marks = marks();
        let pods = vec![engine("e", Some((left, grace))), engine("f", None)];
        see(&mut marks, &sight(&[], pods), now);
        assert_eq!(only(&marks, now), Some((NoticeKind::EngineDeleted, expected)));
    }
}

#[test]
fn shortened_deletion_tightens_and_a_longer_one_does_not() {
    let now = Instant::now();
    let mut marks = marks();
    for (left, expected) in [(60, 60), (20, 20), (50, 20)] {
        see(&mut marks, &sight(&[], vec![engine("e", Some((left, 60)))]), now);
        assert_eq!(only(&marks, now), Some((NoticeKind::EngineDeleted, expected)));
    }
    assert_eq!(
        see(&mut marks, &sight(&[], vec![engine("successor", None)]), now),
        [News::Withdrawn(NoticeKind::EngineDeleted)]
    );
}

#[test]
fn own_evictions_and_deletions_of_other_pods_are_no_marks() {
    let now = Instant::now();
    let mut marks = marks();
    let ordinary = SeenPod { tier: Tier::Ordinary, ..engine("o", Some((10, 10))) };
    let pods = vec![engine("own", Some((10, 10))), ordinary];
    let news = marks.see(&sight(&[], pods), |pod| pod.id.uid == "own", WALL, now);
    assert_eq!(news, []);
    assert!(marks.is_quiet());
}

#[test]
fn rebalance_of_another_handler_has_no_deadline() {
    let now = Instant::now();
    let mut marks = marks();
    let taint = ("aws-node-termination-handler/rebalance-recommendation", "r");
    let news = see(&mut marks, &sight(&[taint], vec![]), now);
    assert_eq!(news, [News::Announced(NoticeKind::Rebalance)]);
    assert_eq!((only(&marks, now), marks.rebalance_since()), (None, Some(now)));
}

#[test]
fn deletion_of_the_node_object_empties_the_node() {
    let now = Instant::now();
    let mut marks = marks();
    let node = SeenNode { is_being_deleted: true, ..SeenNode::default() };
    see(&mut marks, &NodeSight { node: Some(node), ..sight(&[], vec![]) }, now);
    assert_eq!(only(&marks, now), Some((NoticeKind::Foreign, 600)));
}
