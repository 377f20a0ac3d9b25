//! Laws that hold for any world.

use std::time::Duration;

use proptest::prelude::*;

use super::goals::{any_goals, spent};
use super::world::{ON_DEMAND, SPOT, World};
use crate::observation::{DrainPurpose, DrainStage, ReplicaState, Signal, TrainerPhase};
use crate::scale::{Action, CapacityReason, LeaveReason, Reason, SwapStep, plan_scale};

pub(super) const PHASES: [TrainerPhase; 5] = [
    TrainerPhase::Train,
    TrainerPhase::Sync,
    TrainerPhase::Wait,
    TrainerPhase::Checkpoint,
    TrainerPhase::Done,
];

pub(super) const STAGES: [DrainStage; 4] =
    [DrainStage::Requested, DrainStage::Draining, DrainStage::Drained, DrainStage::Terminating];

pub(super) const PURPOSES: [DrainPurpose; 4] =
    [DrainPurpose::Sizing, DrainPurpose::Reclaim, DrainPurpose::Passing, DrainPurpose::Others];

/// Which signals are unknown, one bit each.
pub(super) fn blind(world: &mut World, bits: u8) {
    let seen = &mut world.seen;
    let why = || Signal::unknown("test");
    let has = |bit: u8| bits & (1 << bit) != 0;
    if has(0) {
        seen.ready = why();
    }
    if has(1) {
        seen.in_flight = why();
    }
    if has(2) {
        seen.buffer_groups = why();
    }
    if has(3) {
        seen.trainer = Signal::unknown("test");
    }
    if has(4) {
        seen.pools[SPOT].size = Signal::unknown("test");
    }
    if has(5) {
        seen.replicas = Signal::unknown("test");
    }
}

/// Any world in which everything is known, with or without goals.
fn known_world() -> impl Strategy<Value = World> {
    (plain_world(), any_goals()).prop_map(|(world, goals)| goals.set_in(world))
}

/// Any world in which everything is known and nobody is in a hurry or short of money.
fn plain_world() -> impl Strategy<Value = World> {
    let work = (0..600_u64, 0..200_u64, 0..40_u64);
    let bounds = (0..6_u32, 0..12_u32, 1..6_u32, 1..3_u16);
    let loads =
        (proptest::collection::vec(0..17_u32, 0..8), proptest::collection::vec(0..17_u32, 0..4));
    let drains = proptest::collection::vec((0..12_usize, 0..4_usize, 0..4_usize), 0..4);
    let notices = proptest::collection::vec(0..12_usize, 0..3);
    let pace = prop_oneof![Just(None), (5..40_u64, 5..200_u64).prop_map(Some)];
    let parts = (work, bounds, loads, drains, notices, pace, 0..PHASES.len(), 0..5_u32);
    parts.prop_map(|(work, bounds, loads, drains, notices, pace, phase, missing)| {
        let mut world = World::new();
        let (min, above, changes, nodes) = bounds;
        world.terms.nodes_per_replica = nodes;
        world.terms.max_changes_per_tick = changes;
        let mut world = world
            .with_bounds(min, min + above)
            .with_work(work.0, work.1, work.2)
            .with_replicas(SPOT, &loads.0)
            .with_replicas(ON_DEMAND, &loads.1);
        if let Some((busy, in_flight)) = pace {
            world = world.with_pace(busy, in_flight);
        }
        let mut world = world.with_phase(PHASES[phase]);
        world.size_mut(SPOT).desired += missing;
        let ids: Vec<String> = world.replicas().iter().map(|r| r.id.to_string()).collect();
        for (index, purpose, stage) in drains {
            if let Some(id) = ids.get(index) {
                world.set_drain(id, PURPOSES[purpose], STAGES[stage]);
            }
        }
        for index in notices {
            if let Some(id) = ids.get(index) {
                world.replica_mut(id).has_notice = true;
            }
        }
        world
    })
}

/// Drains end some day; here they are over, as all notices are.
fn quieten(world: &mut World) {
    let ids: Vec<String> = world.replicas().iter().map(|r| r.id.to_string()).collect();
    for id in &ids {
        let replica = world.replica_mut(id);
        replica.has_notice = false;
        if replica.drain.as_ref().is_some_and(|d| d.purpose != DrainPurpose::Sizing) {
            replica.drain = None;
            replica.state = ReplicaState::Ready;
        }
        replica.leased = Signal::fresh(0);
        if replica.drain.is_some() {
            world.set_drain(id, DrainPurpose::Sizing, DrainStage::Drained);
        }
    }
}

proptest! {
    #[test]
    fn capacity_stays_within_bounds(mut world in known_world(), bits in 0..64_u8) {
        blind(&mut world, bits);
        for _ in 0..4 {
            let plan = world.plan();
            let (min, max) = (world.terms.min_replicas, world.terms.max_replicas);
            if let Some(desired) = plan.desired {
                prop_assert!((min..=max).contains(&desired), "{plan}");
            }
            let running = plan.running.unwrap_or(0);
            let mut added = 0;
            for action in &plan.actions {
                match action {
                    Action::Raise { pool, from, to } => {
                        let terms = world.terms.pools.iter().find(|t| t.name == *pool);
                        prop_assert!(*to <= terms.expect("exists").max_nodes, "{plan}");
                        prop_assert!(to > from, "{plan}");
                        added += (to - from).div_ceil(u32::from(world.terms.nodes_per_replica));
                        let is_whole = to % u32::from(world.terms.nodes_per_replica) == 0;
                        prop_assert!(is_whole, "gangs are whole: {plan}");
                    }
                    Action::CancelDrain { .. } => added += 1,
                    _ => {}
                }
            }
            // A replacement runs beside what it replaces until that has drained.
            let is_swap = |reason: &Reason| {
                let steps = [SwapStep::Launch, SwapStep::Probe];
                matches!(reason, Reason::Capacity(CapacityReason::Swap { step, .. })
                    if steps.contains(step))
            };
            let ends = |reason: &Reason| {
                matches!(reason, Reason::Capacity(CapacityReason::ReservationEnds { .. }))
            };
            let mut most = max + u32::from(plan.reasons.iter().any(is_swap));
            if plan.reasons.iter().any(ends) {
                most += world.size_mut(ON_DEMAND).desired;
            }
            prop_assert!(added == 0 || running + added <= most, "{plan}");
            prop_assert!(added <= world.terms.max_changes_per_tick, "{plan}");
            world.pass(Duration::from_secs(30));
        }
    }

    #[test]
    fn no_busy_and_no_noticed_replica_is_terminated(
        mut world in known_world(),
        bits in 0..64_u8,
        silent in 0..12_usize,
    ) {
        let ids: Vec<String> = world.replicas().iter().map(|r| r.id.to_string()).collect();
        if let Some(id) = ids.get(silent) {
            let replica = world.replica_mut(id);
            replica.nodes[0].heartbeat_age = Duration::from_secs(30);
            replica.state = ReplicaState::Unknown;
        }
        let before = world.clone();
        blind(&mut world, bits);
        for _ in 0..4 {
            let plan = world.plan();
            for action in &plan.actions {
                let (id, is_retired) = match action {
                    Action::Retire { replica, .. } => (replica, true),
                    Action::RequestDrain { replica, .. } => (replica, false),
                    _ => continue,
                };
                let replica = before.replicas().iter().find(|r| r.id == *id).expect("exists");
                prop_assert!(!replica.has_notice, "{plan}");
                prop_assert!(!is_retired || replica.leased.known() == Some(&0), "{plan}");
            }
            world.pass(Duration::from_secs(30));
        }
    }

    #[test]
    fn unknown_signals_lower_nothing(mut world in known_world(), bits in 1..64_u8) {
        blind(&mut world, bits);
        for _ in 0..8 {
            let plan = world.plan();
            // What cannot be paid, or is about to end, is known from the sizes alone.
            let known = [LeaveReason::Budget, LeaveReason::ReservationEnds];
            let lowers = |action: &Action| {
                matches!(action, Action::RequestDrain { why, .. } if !known.contains(why))
            };
            prop_assert!(!plan.actions.iter().any(lowers), "{plan}");
            if bits & (1 << 4) != 0 {
                prop_assert!(plan.is_settled(), "an unknown size writes nothing: {plan}");
            }
            world.pass(Duration::from_secs(30));
        }
    }

    #[test]
    fn more_demand_never_asks_for_less(
        world in known_world(),
        more_ready in 0..300_u64,
        more_in_flight in 0..100_u64,
        less_buffer in 0..40_u64,
    ) {
        let mut hungrier = world.clone();
        let raise = |signal: &Signal<u64>, by: u64| {
            Signal::fresh(signal.known().expect("known") + by)
        };
        hungrier.seen.ready = raise(&world.seen.ready, more_ready);
        hungrier.seen.in_flight = raise(&world.seen.in_flight, more_in_flight);
        let buffer = world.seen.buffer_groups.known().expect("known");
        hungrier.seen.buffer_groups = Signal::fresh(buffer.saturating_sub(less_buffer));
        let desired = |world: &World| {
            plan_scale(&world.terms, &world.seen, &world.memory).desired.expect("sizes are known")
        };
        // More in flight asks for more evidence of the pace; the law is about the same evidence.
        let is_measured = |world: &World| {
            plan_scale(&world.terms, &world.seen, &world.memory).memory.pace().measured().is_some()
        };
        prop_assume!(is_measured(&world) == is_measured(&hungrier));
        prop_assert!(desired(&hungrier) >= desired(&world));
    }

    #[test]
    fn nothing_is_launched_beyond_the_budget(mut world in known_world(), bits in 0..16_u8) {
        blind(&mut world, bits);
        let Some(budget) = world.terms.budget else { return Ok(()) };
        for _ in 0..8 {
            let before = spent(&world).unwrap_or(0.0);
            let plan = world.plan();
            world.apply(&plan);
            match spent(&world) {
                Some(spent) => {
                    let most = budget.dollars_per_hour.max(before) + 1e-6;
                    prop_assert!(spent <= most, "{spent} of {most}: {plan}");
                }
                None => {
                    let raises = |action: &Action| matches!(action, Action::Raise { .. });
                    prop_assert!(!plan.actions.iter().any(raises), "prices are unknown: {plan}");
                }
            }
            world.pass(Duration::from_secs(30));
        }
    }

    #[test]
    fn fleet_that_is_too_dear_shrinks_to_its_budget_or_its_minimum(mut world in known_world()) {
        let Some(budget) = world.terms.budget else { return Ok(()) };
        quieten(&mut world);
        for _ in 0..60 {
            let plan = world.plan();
            world.apply(&plan);
            world.pass(Duration::from_secs(30));
        }
        let ids = world.replicas().iter().filter(|replica| replica.drain.is_none()).count();
        let minimum = usize::try_from(world.terms.min_replicas).expect("few");
        // What was asked for and does not come costs nothing.
        for pool in [SPOT, ON_DEMAND] {
            world.size_mut(pool).desired = 0;
        }
        let is_paid = spent(&world).is_none_or(|spent| spent <= budget.dollars_per_hour + 1e-6);
        prop_assert!(is_paid || ids <= minimum, "{ids} replicas: {}", world.plan());
    }

    #[test]
    fn reserved_pool_is_empty_when_it_must_be(mut world in known_world()) {
        let Some(reservation) = world.terms.pools[ON_DEMAND].reservation.clone() else {
            return Ok(());
        };
        // Longer than a drain may take, and the time to terminate.
        if reservation.gone_by().remaining(world.seen.now) < Duration::from_mins(13) {
            return Ok(());
        }
        quieten(&mut world);
        while world.seen.now < reservation.gone_by() {
            let plan = world.plan();
            world.apply(&plan);
            world.pass(Duration::from_secs(30));
        }
        let left = world.size_mut(ON_DEMAND).instances.len();
        prop_assert_eq!(left, 0, "{}", world.plan());
        let plan = world.plan();
        world.apply(&plan);
        prop_assert_eq!(world.size_mut(ON_DEMAND).instances.len(), 0, "{}", plan);
    }

    #[test]
    fn settled_fleet_needs_no_change(mut world in known_world()) {
        quieten(&mut world);
        // Longer than a swap waits for Spot to last, and than the peace between two of them.
        let quiet = Duration::from_mins(30);
        let turn = Duration::from_secs(15);
        let mut quiet_for = Duration::ZERO;
        let mut last = String::new();
        for _ in 0..1000 {
            world.pass(turn);
            let plan = world.plan();
            quiet_for = if plan.is_settled() { quiet_for + turn } else { Duration::ZERO };
            last = plan.to_string();
            world.apply(&plan);
            if quiet_for > quiet {
                break;
            }
        }
        prop_assert!(quiet_for > quiet, "still busy: {last}");
    }
}
