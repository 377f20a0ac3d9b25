//! Launches that never end, and instances that never become nodes.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::ids::NodeName;
use crate::observation::{FailureKind, InstanceId, InstanceState, InstanceView, Signal};
use crate::scale::{Action, ActionResult, BreakerReason, CapacityReason, Reason};

const SECOND: Duration = Duration::from_secs(1);

/// Two healthy replicas, and three instances in service whose nodes never reported.
fn silent_world() -> World {
    silent_world_of(&[16, 16], World::add_silent)
}

/// The same with other healthy replicas, and with nodes that were asked for here, or not.
fn silent_world_of(loads: &[u32], add: fn(&mut World, usize, &str, InstanceState)) -> World {
    let mut world = World::new().with_work(400, 32, 8).with_replicas(SPOT, loads);
    for id in ["i-x", "i-y", "i-z"] {
        add(&mut world, SPOT, id, InstanceState::InService);
    }
    world
}

fn node(id: &str) -> NodeName {
    format!("node-of-{id}").parse().expect("valid")
}

/// Case T38 of autoscaling.
#[test]
fn instances_that_never_join_are_terminated_and_the_breaker_opens() {
    let mut world = silent_world();
    assert!(world.plan_for(SECOND * 895).is_settled());
    assert_eq!(world.memory.breaker(), None);
    world.pass(SECOND * 5);
    let plan = world.plan();
    let expected = ["terminate what never joined in pool spot: i-x, i-y, i-z"];
    assert_eq!(actions(&plan), expected, "{plan}");
    assert_eq!(world.memory.breaker(), Some(BreakerReason::JoinFailed));
    let said = plan.to_string();
    assert!(said.contains("because: 3 of pool spot came into service and never reported\n"));
    assert!(said.contains("because: JoinFailed: instances never became nodes"), "{said}");
    world.apply(&plan);
    assert_eq!(world.size_mut(SPOT).desired, 2, "healthy ones are untouched");

    world.seen.buffer_groups = Signal::fresh(0);
    let plan = world.plan();
    assert!(plan.desired > plan.running && plan.is_settled(), "nothing more is launched: {plan}");
    world.pass(SECOND * 900);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 2 to 3"], "one is tried: {plan}");
    world.apply(&plan);
    world.plan();
    assert_eq!(world.memory.breaker(), None, "it has reported");
}

/// Case T38, of the very first launches.
#[test]
fn first_instances_that_never_join_are_terminated() {
    let mut world = silent_world_of(&[], World::add_silent);
    let plan = world.plan_for(SECOND * 900);
    let discard = "terminate what never joined in pool spot: i-x, i-y, i-z".to_owned();
    assert!(actions(&plan).contains(&discard), "{plan}");
}

/// A fleet of somebody else, taken over in mode observe: its nodes have no agents yet, or those of
/// another run, or of one node only.
#[test]
fn instances_that_were_there_before_are_left_alone() {
    for loads in [&[][..], &[16]] {
        let mut world = silent_world_of(loads, World::add_stranger);
        let plan = world.plan_for(SECOND * 2000);
        let ends = |action: &Action| matches!(action, Action::Discard { .. });
        assert!(!plan.actions.iter().any(ends), "{plan}");
        assert!(
            plan.to_string().contains("3 of pool spot never reported and were there"),
            "{plan}"
        );
        // Others of the pool that somebody else adds are theirs as well, in the meantime.
        world.add_stranger(SPOT, "i-late", InstanceState::InService);
        let plan = world.plan_for(SECOND * 900);
        assert!(!plan.actions.iter().any(ends), "{plan}");
    }
}

/// Case T38, of groups that come and go as one: more nodes than may change at a time.
#[test]
fn groups_that_never_join_go_whole() {
    let mut world = World::new().with_work(0, 0, 16).with_bounds(0, 4);
    (world.terms.nodes_per_replica, world.terms.max_changes_per_tick) = (8, 1);
    let group_of = |instance: &InstanceView| instance.id.0[..4].to_owned();
    for node in 0..8 {
        world.add_silent(SPOT, &format!("ep-0-{node}"), InstanceState::InService);
        world.add_silent(SPOT, &format!("ep-1-{node}"), InstanceState::InService);
    }
    for instance in &mut world.size_mut(SPOT).instances {
        instance.group = Some(group_of(instance));
    }
    let plan = world.plan_for(SECOND * 900);
    let nodes: Vec<String> = (0..8).map(|node| format!("ep-0-{node}")).collect();
    let expected = format!("terminate what never joined in pool spot: {}", nodes.join(", "));
    assert_eq!(actions(&plan), [expected], "one group is one change: {plan}");
    // A group of which some nodes report is no case of this.
    let mut at_work = world.seen.others_at_work.known().cloned().expect("known");
    at_work.instances.insert(InstanceId("ep-0-3".to_owned()));
    world.seen.others_at_work = Signal::fresh(at_work);
    let plan = world.plan_for(SECOND * 10);
    assert!(actions(&plan)[0].starts_with("terminate what never joined in pool spot: ep-1-0"));
    assert!(!plan.to_string().contains("ep-0"), "{plan}");
}

/// What is on its way when a controller starts was asked for by the one before.
#[test]
fn instance_on_its_way_at_the_first_look_is_no_stranger() {
    let mut world = World::new().with_work(400, 32, 8).with_replicas(SPOT, &[16, 16]);
    world.add_stranger(SPOT, "i-x", InstanceState::Pending);
    world.plan();
    let last = world.size_mut(SPOT).instances.len() - 1;
    world.size_mut(SPOT).instances[last].state = InstanceState::InService;
    let plan = world.plan_for(SECOND * 900);
    assert_eq!(actions(&plan), ["terminate what never joined in pool spot: i-x"], "{plan}");
}

#[test]
fn breaker_closes_when_a_node_reports() {
    let mut world = silent_world();
    let plan = world.plan_for(SECOND * 900);
    world.apply(&plan);
    world.seen.buffer_groups = Signal::fresh(0);
    world.add_silent(SPOT, "i-late", InstanceState::Pending);
    assert!(world.plan().is_settled(), "one is on its way");
    let last = world.size_mut(SPOT).instances.len() - 1;
    world.size_mut(SPOT).instances[last].state = InstanceState::InService;
    world.plan();
    let mut replica = world.replica_mut("spot-1").clone();
    replica.id = "late".parse().expect("valid");
    replica.nodes[0].name = node("i-late");
    replica.nodes[0].instance = None;
    let mut replicas = world.replicas().to_vec();
    replicas.push(replica);
    world.seen.replicas = Signal::fresh(replicas);
    let plan = world.plan();
    assert_eq!(world.memory.breaker(), None);
    assert!(!plan.is_settled(), "{plan}");
}

#[test]
fn minimum_is_tried_while_the_breaker_is_open_one_by_one() {
    let mut world = silent_world().with_bounds(5, 10);
    let plan = world.plan_for(SECOND * 900);
    assert_eq!(plan.running, Some(2));
    let expected =
        ["raise pool spot from 5 to 6", "terminate what never joined in pool spot: i-x, i-y, i-z"];
    assert_eq!(actions(&plan), expected, "{plan}");
    world.memory.note_outcome(&plan.actions[0], ActionResult::Done);
    world.add_silent(SPOT, "i-w", InstanceState::Pending);
    let plan = world.plan();
    assert_eq!(actions(&plan), expected[1..], "one at a time: {plan}");
}

#[test]
fn open_breaker_holds_no_drain_back() {
    let mut world = silent_world();
    let plan = world.plan_for(SECOND * 900);
    world.apply(&plan);
    world.seen.buffer_groups = Signal::fresh(40);
    let plan = world.plan_for(SECOND * 65);
    assert_eq!(actions(&plan), ["ask spot-1 to drain"], "{plan}");
    world.apply(&plan);
    world.replica_mut("spot-1").leased = Signal::fresh(1);
    world.seen.buffer_groups = Signal::fresh(0);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["cancel the drain of spot-1"], "nor its end: {plan}");
}

#[test]
fn time_in_which_nobody_knows_who_reported_does_not_count() {
    let mut world = silent_world();
    world.plan_for(SECOND * 890);
    let known = std::mem::replace(&mut world.seen.replicas, Signal::unknown("away"));
    assert!(world.plan_for(SECOND * 60).is_settled());
    world.seen.replicas = known;
    assert!(world.plan_for(SECOND * 895).is_settled());
    assert!(!world.plan_for(SECOND * 10).is_settled());
}

/// A clock that makes a step, or a controller that stood still.
#[test]
fn time_in_which_nobody_looked_does_not_count() {
    let mut world = silent_world();
    world.plan_for(SECOND * 60);
    world.pass(SECOND * 1000);
    assert!(world.plan().is_settled());
    assert!(world.plan_for(SECOND * 890).is_settled());
    assert!(!world.plan_for(SECOND * 15).is_settled());
}

#[test]
fn instance_at_work_for_somebody_else_is_left_alone() {
    let mut world = silent_world();
    let others = world.seen.others_at_work.known().cloned().expect("known");
    let mut at_work = others;
    at_work.nodes.insert(node("i-x"));
    at_work.instances.insert(InstanceId("i-y".to_owned()));
    world.seen.others_at_work = Signal::fresh(at_work);
    let plan = world.plan_for(SECOND * 900);
    assert_eq!(actions(&plan), ["terminate what never joined in pool spot: i-z"], "{plan}");

    let mut world = silent_world();
    world.seen.others_at_work = Signal::unknown("away");
    assert!(world.plan_for(SECOND * 1200).is_settled());
}

#[test]
fn pool_at_its_own_least_size_keeps_what_never_joined() {
    let mut world = silent_world();
    world.size_mut(SPOT).floor = 4;
    let plan = world.plan_for(SECOND * 900);
    assert_eq!(actions(&plan), ["terminate what never joined in pool spot: i-x"], "{plan}");
}

/// Case T23 of autoscaling.
#[test]
fn launch_that_never_ends_is_asked_for_elsewhere() {
    let mut world = World::new().with_work(400, 32, 8).with_replicas(SPOT, &[16, 16]);
    for id in ["i-x", "i-y"] {
        world.add_silent(SPOT, id, InstanceState::Pending);
    }
    let plan = world.plan_for(SECOND * 595);
    assert_eq!((plan.running, actions(&plan)), (Some(4), vec![]), "{plan}");
    world.pass(SECOND * 5);
    world.seen.buffer_groups = Signal::fresh(0);
    let plan = world.plan();
    assert_eq!(plan.running, Some(2), "{plan}");
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "{plan}");
    let kinds: Vec<FailureKind> = world.memory.benched(world.seen.now).map(|(_, k)| k).collect();
    assert_eq!(kinds, [FailureKind::TimedOut]);
    world.apply(&plan);
    assert_eq!(world.size_mut(ON_DEMAND).desired, 4);
    for instance in &mut world.size_mut(SPOT).instances {
        instance.state = InstanceState::InService;
    }
    assert_eq!(world.plan().running, Some(8), "what comes in the end counts again");
}

#[test]
fn breaker_that_opens_says_so_in_the_plan() {
    let mut world = silent_world();
    let plan = world.plan_for(SECOND * 900);
    let open = CapacityReason::BreakerOpen { reason: BreakerReason::JoinFailed };
    assert!(plan.reasons.contains(&Reason::Capacity(open)), "{plan}");
}

/// Case T38 of autoscaling: fewer of them than a group has nodes.
#[test]
fn part_of_a_group_that_never_joins_is_terminated_too() {
    let mut world = World::new().with_work(0, 0, 16).with_bounds(0, 2);
    world.terms.nodes_per_replica = 3;
    for id in ["i-x", "i-y"] {
        world.add_silent(SPOT, id, InstanceState::InService);
    }
    let plan = world.plan_for(SECOND * 900);
    assert_eq!(actions(&plan), ["terminate what never joined in pool spot: i-x, i-y"], "{plan}");
}
