//! The budget.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions, pool_name};
use crate::observation::{DrainPurpose, DrainStage};
use crate::scale::{BudgetTerms, CapacityReason, Reason, ScalePlan};

fn budget(dollars: f64, others: Option<f64>) -> Option<BudgetTerms> {
    Some(BudgetTerms { dollars_per_hour: dollars, others_dollars_per_hour: others })
}

/// Work for more than there is; a trainer for 100 dollars, Spot for 20 and on-demand for 60.
fn world_with_budget(dollars: f64) -> World {
    let mut world = World::new().with_work(400, 0, 0).with_prices(100.0, 20.0, 60.0);
    world.terms.budget = budget(dollars, Some(100.0));
    world.terms.max_lag = 9;
    world
}

fn has(plan: &ScalePlan, reason: CapacityReason) -> bool {
    plan.reasons.contains(&Reason::Capacity(reason))
}

#[test]
fn budget_bounds_what_is_launched() {
    let mut world = world_with_budget(155.0);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 0 to 2"], "{plan}");
    assert!(has(&plan, CapacityReason::BudgetSpent { left_cents: 1500 }), "{plan}");
    let said = plan.to_string();
    assert!(said.contains("the budget leaves 15.00 dollars per hour: no more is paid"), "{said}");
    assert!(!said.contains("no pool has room"), "{said}");
    world.apply(&plan);
    assert!(world.plan().is_settled());
}

#[test]
fn cheaper_pool_is_bought_where_the_preferred_one_is_too_dear() {
    let mut world = world_with_budget(150.0);
    world.terms.pools.swap(SPOT, ON_DEMAND);
    world.seen.pools.swap(SPOT, ON_DEMAND);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["raise pool spot from 0 to 2"], "{plan}");
}

#[test]
fn what_was_asked_for_is_paid_before_it_comes() {
    let mut world = world_with_budget(190.0);
    world.size_mut(SPOT).desired = 4;
    let plan = world.plan();
    assert!(plan.desired > plan.running && plan.is_settled(), "{plan}");
}

#[test]
fn budget_holds_for_the_minimum_too() {
    let mut world = world_with_budget(130.0).with_bounds(3, 10);
    assert_eq!(actions(&world.plan()), ["raise pool spot from 0 to 1"]);
}

/// 20 for Spot and 60 for on-demand, beside 100 for the trainer: 240 in all.
fn overspent_world(dollars: f64) -> World {
    let world = world_with_budget(dollars).with_bounds(1, 10);
    world.with_replicas(SPOT, &[16; 4]).with_replicas(ON_DEMAND, &[16])
}

#[test]
fn what_the_budget_does_not_pay_any_more_drains_the_dearest_first() {
    let mut world = overspent_world(240.0);
    assert!(world.plan().is_settled());
    world.terms.budget = budget(239.0, Some(100.0));
    let plan = world.plan();
    let drains = ["ask on-demand-5 to drain, the budget does not pay for it"];
    assert_eq!(actions(&plan), drains, "{plan}");
    let said = plan.to_string();
    let expected = "because: 1.00 dollars per hour more is spent than the budget allows: the \
                    dearest replicas drain\n";
    assert!(said.contains(expected), "{said}");
    world.apply(&plan);
    let plan = world.plan();
    assert_eq!(actions(&plan), ["terminate on-demand-5 in pool on-demand: i-on-demand-5.0"]);
    world.apply(&plan);
    let plan = world.plan();
    let paid = ["forget on-demand-5", "raise pool spot from 4 to 6"];
    assert_eq!(actions(&plan), paid, "what can be paid: {plan}");
    world.apply(&plan);
    assert!(world.plan().is_settled());
}

#[test]
fn minimum_stays_whatever_the_budget() {
    let mut world = overspent_world(110.0).with_bounds(2, 10);
    world.terms.max_changes_per_tick = 2;
    let mut asked = 0;
    for _ in 0..10 {
        let plan = world.plan();
        let drains = actions(&plan).iter().filter(|it| it.starts_with("ask")).count();
        assert!(drains <= 2, "{plan}");
        asked += drains;
        world.apply(&plan);
    }
    assert_eq!(asked, 3, "two of five stay");
    assert!(world.plan().is_settled());
}

#[test]
fn drain_is_taken_back_only_as_far_as_the_budget_pays() {
    let mut world = overspent_world(240.0);
    for id in ["spot-1", "on-demand-5"] {
        world.set_drain(id, DrainPurpose::Sizing, DrainStage::Draining);
    }
    let mut poor = world.clone();
    poor.terms.budget = budget(200.0, Some(100.0));
    assert_eq!(actions(&poor.plan()), ["cancel the drain of spot-1"]);
    let taken_back = ["cancel the drain of on-demand-5", "cancel the drain of spot-1"];
    assert_eq!(actions(&world.plan()), taken_back);
}

#[test]
fn unknown_price_guarantees_no_budget() {
    let mut world = world_with_budget(1000.0);
    world.terms.pools[SPOT].dollars_per_node_hour = None;
    let plan = world.plan();
    assert!(plan.is_settled(), "{plan}");
    assert!(has(&plan, CapacityReason::BudgetUnknown { pool: Some(pool_name("spot")) }), "{plan}");

    let mut world = world_with_budget(1000.0);
    world.terms.budget = budget(1000.0, None);
    let plan = world.plan();
    assert!(plan.is_settled(), "{plan}");
    assert!(has(&plan, CapacityReason::BudgetUnknown { pool: None }), "{plan}");
}

#[test]
fn swap_must_be_paid_as_well() {
    let mut world = World::new()
        .with_work(400, 48, 8)
        .with_prices(60.0, 20.0, 60.0)
        .with_replicas(SPOT, &[16])
        .with_replicas(ON_DEMAND, &[16, 9]);
    world.terms.budget = budget(159.0, Some(0.0));
    assert!(world.plan_for(Duration::from_mins(30)).is_settled());
    world.terms.budget = budget(160.0, Some(0.0));
    assert_eq!(actions(&world.plan()), ["raise pool spot from 1 to 2"]);
}

/// What goes because fewer are needed is not paid any more either.
#[test]
fn replica_that_goes_anyway_counts_for_the_budget() {
    let mut world = overspent_world(239.0).with_bounds(1, 4);
    world.terms.budget = budget(240.0, Some(100.0));
    assert!(world.plan_for(Duration::from_secs(55)).is_settled());
    world.terms.budget = budget(239.0, Some(100.0));
    world.pass(Duration::from_secs(5));
    let plan = world.plan();
    assert_eq!(actions(&plan), ["ask on-demand-5 to drain"], "{plan}");
}
