//! Capacity that is reserved until a moment.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::observation::{FailureKind, ReplicaState, Signal};
use crate::policy::{Market, Reservation, ReservationKind};
use crate::scale::{CapacityReason, Reason};
use crate::time::UnixMillis;

const MINUTE: Duration = Duration::from_mins(1);

pub(super) const BLOCK: usize = 0;

/// A Capacity Block of four nodes before on-demand nodes; it ends that long after now. Its
/// replicas drain 42 minutes before that: EC2 takes the last 30, a drain may take ten, and two are
/// for terminating. A start takes two minutes.
pub(super) fn block_world(ends_in: Duration) -> World {
    let pools = [("block", Market::OnDemand), ("on-demand", Market::OnDemand)];
    let mut world = World::of_pools(&pools).with_work(64, 0, 0).with_bounds(1, 4);
    world.terms.pools[BLOCK].max_nodes = 4;
    world.terms.pools[BLOCK].reservation = Some(Reservation {
        id: "cr-0a".parse().expect("valid"),
        kind: ReservationKind::CapacityBlock,
        starts_at: None,
        ends_at: world.seen.now.plus(ends_in),
    });
    world
}

fn reservation(world: &mut World) -> &mut Reservation {
    world.terms.pools[BLOCK].reservation.as_mut().expect("has one")
}

#[test]
fn reserved_nodes_are_ordered_as_long_as_they_come_to_work() {
    let plan = block_world(MINUTE * 45).plan();
    assert_eq!(actions(&plan), ["raise pool block from 0 to 4"], "{plan}");
    let plan = block_world(MINUTE * 44).plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "{plan}");
    let said = plan.to_string();
    let expected = "because: cr-0a ends: nothing more is ordered in pool block, its replicas drain \
                    in 2m\n";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn reserved_replicas_are_replaced_before_they_drain_and_drain_in_time() {
    let mut world = block_world(MINUTE * 60).with_replicas(BLOCK, &[16; 4]);
    assert!(world.plan_for(MINUTE * 15).is_settled());
    world.pass(MINUTE);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "a start ahead: {plan}");
    world.apply(&plan);
    for id in 5..9 {
        world.replica_mut(&format!("on-demand-{id}")).state = ReplicaState::Loading;
    }
    assert!(world.plan_for(MINUTE).is_settled(), "its replicas work on");
    for id in 5..9 {
        world.replica_mut(&format!("on-demand-{id}")).state = ReplicaState::Ready;
    }
    world.pass(MINUTE);
    let plan = world.plan();
    let drains = (1..5).map(|id| format!("ask block-{id} to drain, its reservation ends"));
    assert_eq!(actions(&plan), drains.collect::<Vec<_>>(), "{plan}");
    assert!(plan.to_string().contains("in pool block, its replicas drain\n"), "{plan}");
    world.apply(&plan);
    let plan = world.plan();
    let gone = (1..5).map(|id| format!("terminate block-{id} in pool block: i-block-{id}.0"));
    assert_eq!(actions(&plan), gone.collect::<Vec<_>>());
    world.apply(&plan);
    let plan = world.plan();
    world.apply(&plan);
    assert_eq!(world.size_mut(BLOCK).desired, 0);
    for _ in 0..10 {
        let plan = world.plan_for(MINUTE * 10);
        assert!(plan.is_settled(), "{plan}");
    }
}

#[test]
fn drain_of_a_reservation_that_ends_is_not_taken_back() {
    let mut world = block_world(MINUTE * 42).with_replicas(BLOCK, &[16; 4]);
    world.terms.pools[1].max_nodes = 0;
    let plan = world.plan();
    assert_eq!(actions(&plan).len(), 4, "{plan}");
    for action in &plan.actions {
        if let crate::scale::Action::RequestDrain { replica, .. } = action {
            let (purpose, stage) = (
                crate::observation::DrainPurpose::Sizing,
                crate::observation::DrainStage::Draining,
            );
            world.set_drain(replica.as_str(), purpose, stage);
        }
    }
    assert!(world.plan_for(MINUTE * 5).is_settled(), "nobody else has room: {}", world.plan());
}

#[test]
fn end_of_a_reservation_is_no_loss_of_demand() {
    // While the pace is not measured and the buffer is in its band, what runs is what is wanted.
    let mut world = block_world(MINUTE * 60).with_bounds(1, 10).with_work(64, 0, 8);
    world = world.with_replicas(BLOCK, &[16; 4]).with_replicas(1, &[16; 2]);
    world.seen.buffer_groups = Signal::fresh(12);
    assert_eq!(world.plan_for(MINUTE * 15).desired, Some(6));
    world.pass(MINUTE);
    let plan = world.plan();
    assert_eq!(plan.desired, Some(6), "{plan}");
    assert_eq!(actions(&plan), ["raise pool on-demand from 2 to 6"], "{plan}");
    world.apply(&plan);
    let plan = world.plan_for(MINUTE);
    assert_eq!((plan.desired, plan.is_settled()), (Some(6), true), "{plan}");
}

#[test]
fn reservation_that_is_prolonged_is_as_good_as_new() {
    let mut world = block_world(MINUTE * 43).with_replicas(BLOCK, &[16; 2]);
    assert_eq!(actions(&world.plan()), ["raise pool on-demand from 0 to 4"]);
    let ends_at = world.seen.now.plus(MINUTE * 600);
    reservation(&mut world).ends_at = ends_at;
    assert_eq!(actions(&world.plan()), ["raise pool block from 2 to 4"]);
}

#[test]
fn silent_and_noticed_replicas_are_left_as_they_are() {
    let mut world = block_world(MINUTE * 42).with_replicas(BLOCK, &[16, 16, 16]);
    world.replica_mut("block-1").has_notice = true;
    world.replica_mut("block-2").nodes[0].heartbeat_age = MINUTE;
    world.terms.pools[1].max_nodes = 0;
    let plan = world.plan();
    assert_eq!(actions(&plan), ["ask block-3 to drain, its reservation ends"], "{plan}");
}

#[test]
fn nothing_is_ordered_before_the_reservation_begins() {
    let mut world = block_world(MINUTE * 600);
    let starts_at = world.seen.now.plus(MINUTE * 30);
    reservation(&mut world).starts_at = Some(starts_at);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "{plan}");
    let said = plan.to_string();
    assert!(said.contains("because: cr-0a begins in 30m: nothing is ordered in pool block\n"));
    world.pass(MINUTE * 30);
    assert_eq!(actions(&world.plan()), ["raise pool block from 0 to 4"]);
}

#[test]
fn reservation_of_another_kind_lasts_to_its_end() {
    let mut world = block_world(MINUTE * 15);
    reservation(&mut world).kind = ReservationKind::OnDemand;
    assert_eq!(actions(&world.plan()), ["raise pool block from 0 to 4"]);
    world.pass(MINUTE);
    assert_eq!(actions(&world.plan()), ["raise pool on-demand from 0 to 4"]);
}

#[test]
fn capacity_block_is_under_no_quota_of_on_demand_nodes() {
    let mut world = block_world(MINUTE * 600).with_bounds(1, 10).with_work(400, 0, 0);
    let kind = "p5en.48xlarge".parse().ok();
    for pool in &mut world.terms.pools {
        pool.instance_type.clone_from(&kind);
    }
    world.plan();
    world.size_mut(1).desired = 1;
    world.fail_launch(1, FailureKind::Quota, UnixMillis(77_000));
    let plan = world.plan();
    assert!(
        plan.reasons
            .iter()
            .any(|reason| matches!(reason, Reason::Capacity(CapacityReason::QuotaExceeded { .. })))
    );
    assert_eq!(actions(&plan), ["raise pool block from 0 to 4"], "{plan}");
}

#[test]
fn nodes_that_are_paid_for_are_no_reason_to_move_to_spot() {
    let mut world = World::new().with_work(400, 48, 8).with_prices(60.0, 20.0, 0.0);
    world = world.with_replicas(SPOT, &[16]).with_replicas(ON_DEMAND, &[16, 9]);
    let ends_at = world.seen.now.plus(MINUTE * 600);
    let (id, kind) = ("cr-0a".parse().expect("valid"), ReservationKind::CapacityBlock);
    let reservation = Reservation { id, kind, starts_at: None, ends_at };
    world.terms.pools[ON_DEMAND].reservation = Some(reservation);
    assert!(world.plan_for(MINUTE * 60).is_settled());
}
