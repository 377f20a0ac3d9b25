//! On-demand nodes that stand in for Spot: how many, and for how long.

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::observation::FailureKind;
use crate::policy::Market;
use crate::scale::{CapacityReason, Reason, ScalePlan, Unjudged};
use crate::time::UnixMillis;

/// A run that could use 9 replicas, of which the eighth is the last that shortens an update: 32
/// samples take 20 s of training, each is 75 s in flight, 16 at a time on a replica.
fn hungry_world() -> World {
    let mut world = World::new().with_work(400, 0, 0).with_pace(20, 75);
    world.terms.max_lag = 9;
    world
}

/// Plans and lets happen until nothing is raised any more.
fn settle(world: &mut World) -> ScalePlan {
    for _ in 0..20 {
        let plan = world.plan();
        if plan.is_settled() {
            return plan;
        }
        world.apply(&plan);
    }
    panic!("it never settles: {}", world.plan());
}

fn lose_spot(world: &mut World) {
    world.size_mut(SPOT).instances.clear();
    world.plan();
    world.fail_launch(SPOT, FailureKind::Capacity, UnixMillis(77_000));
}

fn limited(wanted: u32, allowed: u32) -> Reason {
    CapacityReason::FallbackLimited { wanted, allowed }.into()
}

/// Case T13 of autoscaling: a zone without Spot is left for the next one at once, and on-demand is
/// bought only as far as it is worth its price.
#[test]
fn next_zone_is_tried_at_once_and_on_demand_only_for_its_worth() {
    let pools = [("z1", Market::Spot), ("z2", Market::Spot), ("on-demand", Market::OnDemand)];
    let mut world = World::of_pools(&pools).with_work(400, 0, 0).with_pace(20, 75);
    (world.terms.max_lag, world.terms.pools[1].max_nodes) = (9, 4);
    let mut world = world.with_prices(252.0, 25.0, 63.0).with_replicas(1, &[16, 16]);
    world.plan();
    world.size_mut(0).desired = 2;
    world.fail_launch(0, FailureKind::Capacity, UnixMillis(77_000));
    let plan = world.plan();
    let expected = ["raise pool z2 from 2 to 4", "raise pool on-demand from 0 to 2"];
    assert_eq!(actions(&plan), expected, "{plan}");
    world.apply(&plan);
    let plan = settle(&mut world);
    assert_eq!(world.size_mut(2).desired, 3, "4 Spot and 3 on-demand are cheapest: {plan}");
    assert!(plan.reasons.contains(&limited(3, 0)), "{plan}");
}

/// Case T45 of autoscaling.
#[test]
fn fallback_for_a_zone_that_vanished_stays_within_its_value() {
    let mut world = hungry_world().with_replicas(SPOT, &[16; 8]).with_prices(126.0, 25.0, 63.0);
    lose_spot(&mut world);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "one replan: {plan}");
    world.apply(&plan);
    let plan = settle(&mut world);
    assert_eq!(plan.desired, Some(10), "{plan}");
    assert_eq!(world.size_mut(ON_DEMAND).desired, 7, "the knee is at 7.5 replicas: {plan}");
    assert!(plan.reasons.contains(&limited(3, 0)), "{plan}");
}

#[test]
fn dear_fallback_beside_enough_spot_is_not_bought() {
    let mut world = hungry_world().with_replicas(SPOT, &[16; 4]).with_prices(126.0, 25.0, 63.0);
    world.terms.pools[SPOT].max_nodes = 4;
    let plan = world.plan();
    assert!(plan.is_settled(), "4 × (63 − 25) are more than the trainer costs: {plan}");
    assert!(plan.reasons.contains(&limited(4, 0)), "{plan}");
    world.terms.trainer_dollars_per_hour = Some(250.0);
    assert_eq!(actions(&world.plan()), ["raise pool on-demand from 0 to 3"]);
}

#[test]
fn serial_run_stops_earlier_than_an_overlapped_one() {
    let mut world = hungry_world().with_prices(126.0, 25.0, 63.0);
    world.terms.pools[SPOT].max_nodes = 0;
    settle(&mut world);
    assert_eq!(world.size_mut(ON_DEMAND).desired, 7);
    let mut world = hungry_world().with_prices(126.0, 25.0, 63.0);
    (world.terms.pools[SPOT].max_nodes, world.terms.max_lag) = (0, 0);
    world.terms.concurrency_per_replica = 4;
    let plan = settle(&mut world);
    // W = 32 × 75 / 4 = 600: sqrt(126 × 600 / (63 × 20)) = 7.7.
    assert_eq!((plan.desired, world.size_mut(ON_DEMAND).desired), (Some(8), 8), "{plan}");
    world.terms.trainer_dollars_per_hour = Some(31.5);
    world.size_mut(ON_DEMAND).desired = 0;
    world.size_mut(ON_DEMAND).instances.clear();
    settle(&mut world);
    assert_eq!(world.size_mut(ON_DEMAND).desired, 4);
}

#[test]
fn minimum_is_bought_whatever_it_costs() {
    let mut world = hungry_world().with_bounds(3, 10).with_prices(1.0, 25.0, 63.0);
    world.terms.pools[SPOT].max_nodes = 1;
    let plan = world.plan();
    let expected = ["raise pool spot from 0 to 1", "raise pool on-demand from 0 to 2"];
    assert_eq!(actions(&plan), expected, "{plan}");
}

#[test]
fn fallback_of_unknown_value_is_bought_and_says_so() {
    let mut world = hungry_world();
    world.terms.pools[SPOT].max_nodes = 0;
    let unjudged = |plan: &ScalePlan| {
        plan.reasons.iter().find_map(|reason| match reason {
            Reason::Capacity(CapacityReason::FallbackUnjudged { why }) => Some(why.clone()),
            _ => None,
        })
    };
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"]);
    assert_eq!(unjudged(&plan), Some(Unjudged::TrainerPrice));
    world.terms.trainer_dollars_per_hour = Some(126.0);
    let pool = super::world::pool_name("on-demand");
    assert_eq!(unjudged(&world.plan()), Some(Unjudged::PoolPrice { pool }));

    let mut world = World::new().with_work(400, 0, 0).with_prices(126.0, 25.0, 63.0);
    world.terms.pools[SPOT].max_nodes = 0;
    let plan = world.plan();
    assert_eq!(unjudged(&plan), Some(Unjudged::Pace));
    let said = plan.to_string();
    let expected = "on-demand fallback is not limited by its value: pace is not measured yet";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn on_demand_before_spot_is_a_choice_and_no_fallback() {
    let pools = [("reserved", Market::OnDemand), ("spot", Market::Spot)];
    let mut world = World::of_pools(&pools).with_work(400, 0, 0).with_pace(20, 75);
    world = world.with_prices(1.0, 25.0, 63.0);
    assert_eq!(actions(&world.plan()), ["raise pool reserved from 0 to 4"]);
}
