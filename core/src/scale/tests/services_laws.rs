//! Laws of services that hold for any work.

use std::time::Duration;

use proptest::prelude::*;

use super::world::{SPOT, World};
use crate::observation::{DrainPurpose, DrainStage, ReplicaState, Signal};
use crate::scale::Action;

fn any_service() -> impl Strategy<Value = World> {
    let work = (0..3_000_u64, 0..200_u64, 100..500_u32);
    let fleet = (0..4_u32, 0..12_u32, proptest::collection::vec(0..9_u32, 0..8));
    let pace = prop_oneof![Just(None), (1..200_u64).prop_map(Some)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (work, fleet, pace, flags, 0..8_usize).prop_map(|(work, fleet, pace, flags, leaving)| {
        let (waiting, working, growth_percent) = work;
        let (min, above, loads) = fleet;
        let mut world = World::of_service()
            .with_bounds(min, min + above)
            .with_work(waiting, working, 0)
            .with_replicas(SPOT, &loads);
        if let Some(seconds) = pace {
            world = world.with_pace(20, seconds);
        }
        let service = world.service_mut();
        service.rollout_growth = f64::from(growth_percent) / 100.0;
        (service.is_paused, service.limits_run, service.tells_in_flight) = flags;
        if !service.tells_in_flight {
            world.seen.in_flight = Signal::unknown("test");
        }
        if let Some(id) = world.ids().get(leaving) {
            world.set_drain(id, DrainPurpose::Sizing, DrainStage::Drained);
        }
        world
    })
}

proptest! {
    #[test]
    fn size_stays_within_bounds(mut world in any_service()) {
        for _ in 0..4 {
            let plan = world.plan();
            let (min, max) = (world.terms.min_replicas, world.terms.max_replicas);
            prop_assert!(plan.desired.is_none_or(|it| (min..=max).contains(&it)), "{plan}");
            let decided = plan.actions.iter().filter(|action| action.is_decision()).count();
            prop_assert!(decided <= 4, "{plan}");
            world.apply(&plan);
            world.pass(Duration::from_secs(40));
        }
    }

    #[test]
    fn what_is_unknown_lowers_nothing(mut world in any_service(), which in 0..4_u8) {
        let why = || Signal::unknown("test");
        match which {
            0 => world.seen.ready = why(),
            1 if world.service_mut().tells_in_flight => world.seen.in_flight = why(),
            2 => world.seen.replicas = Signal::unknown("test"),
            _ => world.seen.trainer = Signal::unknown("test"),
        }
        for _ in 0..20 {
            let plan = world.plan();
            let lowers = plan.actions.iter().any(|it| matches!(it, Action::RequestDrain { .. }));
            prop_assert!(!lowers, "{plan}");
            world.pass(Duration::from_secs(40));
        }
    }

    #[test]
    fn unknown_size_writes_nothing(mut world in any_service()) {
        world.seen.pools[SPOT].size = Signal::unknown("test");
        for _ in 0..4 {
            let plan = world.plan();
            prop_assert!(plan.actions.is_empty() && plan.desired.is_none(), "{plan}");
            world.pass(Duration::from_secs(40));
        }
    }

    #[test]
    fn no_busy_replica_is_terminated(mut world in any_service(), gives_up in any::<bool>()) {
        if gives_up {
            world = world.with_work(0, 0, 0);
        }
        for _ in 0..4 {
            let plan = world.plan_for(Duration::from_secs(120));
            for action in &plan.actions {
                let Action::Retire { replica, .. } = action else { continue };
                let found = world.replicas().iter().find(|it| it.id == *replica);
                prop_assert_eq!(found.expect("exists").leased.known(), Some(&0));
            }
        }
    }

    #[test]
    fn more_to_do_never_asks_for_less(world in any_service(), more in 1..500_u64) {
        let mut busier = world.clone();
        if let Signal::Known { value, .. } = &mut busier.seen.ready {
            *value += more;
        }
        let (before, after) = (world.clone().plan().wish, busier.plan().wish);
        prop_assert!(after >= before, "{before:?} then {after:?}");
        let mut growing = world.clone();
        growing.service_mut().rollout_growth += 0.5;
        prop_assert!(growing.plan().wish >= before);
    }

    #[test]
    fn what_is_ordered_asks_for_no_more(mut world in any_service(), steps in 1..12_u64) {
        let there = world.replicas().len();
        let mut without = world.clone();
        for _ in 0..steps {
            let mut plan = world.plan();
            let wish = without.plan().wish.max(plan.running);
            prop_assert!(plan.wish <= wish, "{wish:?} without them, with them {plan}");
            plan.actions.retain(|action| matches!(action, Action::Raise { .. }));
            world.apply(&plan);
            for id in world.ids().into_iter().skip(there) {
                world.replica_mut(&id).state = ReplicaState::Starting;
            }
            world.pass(Duration::from_secs(10));
            without.pass(Duration::from_secs(10));
        }
    }

    #[test]
    fn settled_service_needs_no_change(mut world in any_service()) {
        // A source that tells only what waits gives up one replica a minute, of twelve at most.
        for _ in 0..90 {
            // Nothing waits while there are places.
            let places = 8 * u64::try_from(world.replicas().len()).expect("few");
            if world.service_mut().tells_in_flight && world.seen.ready.known() > Some(&0) {
                world.seen.in_flight = Signal::fresh(places);
            }
            let plan = world.plan();
            world.apply(&plan);
            world.pass(Duration::from_secs(10));
        }
        let plan = world.plan();
        let decides = plan.actions.iter().any(Action::is_decision);
        prop_assert!(!decides, "{plan}");
    }
}
