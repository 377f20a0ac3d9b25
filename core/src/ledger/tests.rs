//! Laws of the ledger.

use super::*;
use crate::observation::{Signal, TrainerPhase, TrainerView};
use crate::scale::tests::world::{ON_DEMAND, SPOT, World};

const HOUR: Duration = Duration::from_hours(1);

/// Two nodes on Spot at $10, one on demand at $30, a trainer at $100 an hour.
fn world() -> World {
    let mut world = World::new().with_prices(100.0, 10.0, 30.0);
    world.terms.pools[SPOT].dollars_per_node_hour = Some(10.0);
    world.terms.pools[ON_DEMAND].dollars_per_node_hour = Some(30.0);
    world.terms.trainer_dollars_per_hour = Some(100.0);
    world.with_replicas(SPOT, &[4, 4]).with_replicas(ON_DEMAND, &[4])
}

fn at_step(world: &mut World, step: u64) {
    let trainer = TrainerView { phase: TrainerPhase::Train, step, groups_per_step: 8, nodes: None };
    world.seen.trainer = Signal::fresh(trainer);
}

/// Looks every five minutes for so long.
fn count(ledger: &mut Ledger, world: &mut World, time: Duration) {
    let every = Duration::from_mins(5);
    let mut passed = Duration::ZERO;
    while passed < time {
        world.pass(every);
        passed += every;
        ledger.count(&world.terms, &world.seen, Some(4), None);
    }
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "expected {expected}, found {found}");
}

#[test]
fn hours_of_nodes_are_dollars_by_market() {
    let mut world = world();
    let mut ledger = Ledger::begin(world.seen.now);
    count(&mut ledger, &mut world, 2 * HOUR);
    assert_near(ledger.spot_dollars, 40.0);
    assert_near(ledger.on_demand_dollars, 60.0);
    assert_near(ledger.trainer_dollars, 200.0);
    assert_near(ledger.static_on_demand_dollars().expect("priced"), 4.0 * 2.0 * 30.0 + 200.0);
    assert_near(ledger.static_spot_dollars().expect("priced"), 4.0 * 2.0 * 10.0 + 200.0);
    assert_eq!(ledger.dollars_per_verified_update(), None, "none was made");
    assert_near(ledger.unwatched_seconds, 0.0);
}

#[test]
fn unknown_price_is_told_and_is_not_zero() {
    let mut world = world();
    world.terms.pools[SPOT].dollars_per_node_hour = None;
    world.terms.trainer_dollars_per_hour = None;
    let mut ledger = Ledger::begin(world.seen.now);
    at_step(&mut world, 0);
    ledger.count(&world.terms, &world.seen, Some(4), Some(0));
    at_step(&mut world, 1);
    ledger.count(&world.terms, &world.seen, Some(4), Some(8));
    count(&mut ledger, &mut world, HOUR);
    assert_near(ledger.unpriced_node_seconds, 2.0 * 3600.0);
    assert_eq!(ledger.verified_updates, 1);
    assert_eq!(ledger.dollars_per_verified_update(), None);
    assert_eq!(ledger.static_spot_dollars(), None);
    let told = ledger.to_lines().join("\n");
    for part in ["at least $30.00", "2.0 node-hours have no price", "the trainer left out"] {
        assert!(told.contains(part), "{part} in\n{told}");
    }
    assert!(told.contains("on Spot, never interrupted: unknown"), "{told}");
}

#[test]
fn unknown_size_is_made_up_for_and_a_long_absence_is_told() {
    let mut world = world();
    let mut ledger = Ledger::begin(world.seen.now);
    let size = world.seen.pools[SPOT].size.clone();
    world.seen.pools[SPOT].size = Signal::unknown("no answer");
    count(&mut ledger, &mut world, Duration::from_mins(5));
    assert_near(ledger.dollars(), 0.0);
    world.seen.pools[SPOT].size = size;
    count(&mut ledger, &mut world, Duration::from_mins(55));
    assert_near(ledger.spot_dollars, 20.0);
    assert_near(ledger.unwatched_seconds, 600.0);
    world.pass(2 * HOUR);
    ledger.count(&world.terms, &world.seen, None, None);
    assert_near(ledger.spot_dollars, 60.0);
    assert_near(ledger.unwatched_seconds, 600.0 + 7200.0);
    assert!(ledger.to_lines().join("\n").contains("nobody looked for 130 min"));
}

/// A clock that is a year ahead for one look.
#[test]
fn step_of_the_clock_costs_a_day_at_most_and_counting_goes_on() {
    let mut world = world();
    let mut ledger = Ledger::begin(world.seen.now);
    count(&mut ledger, &mut world, HOUR);
    let (hour, right) = (ledger.dollars(), world.seen.now);
    world.pass(HOUR * 24 * 365);
    ledger.count(&world.terms, &world.seen, None, None);
    assert_near(ledger.dollars(), hour * 25.0);
    world.seen.now = right;
    ledger.count(&world.terms, &world.seen, None, None);
    count(&mut ledger, &mut world, HOUR);
    assert_near(ledger.dollars(), hour * 26.0);
}

#[test]
fn verified_are_updates_whose_groups_the_queue_has_seen_acknowledged() {
    let mut world = world();
    let mut ledger = Ledger::begin(world.seen.now);
    let mut look = |step: u64, acknowledged: u64| {
        at_step(&mut world, step);
        ledger.count(&world.terms, &world.seen, None, Some(acknowledged));
        (ledger.updates, ledger.verified_updates)
    };
    assert_eq!(look(5, 100), (0, 0), "what was before is not counted");
    assert_eq!(look(6, 100), (1, 0), "its word comes before its groups are acknowledged");
    assert_eq!(look(6, 108), (1, 1));
    assert_eq!(look(6, 116), (1, 1), "acknowledged before its word");
    assert_eq!(look(7, 116), (2, 2));
    assert_eq!(look(9, 116), (4, 2), "made of something else");
    assert_eq!(look(3, 116), (4, 2), "back to a checkpoint");
    assert_eq!(look(9, 132), (4, 4), "nothing is counted twice");
}

/// Whoever goes on with the fields goes on with the same figures.
#[test]
fn ledger_reads_back_as_it_was_written() {
    let mut world = world();
    let mut ledger = Ledger::begin(world.seen.now);
    at_step(&mut world, 1);
    count(&mut ledger, &mut world, Duration::from_mins(35));
    let fields = serde_json::to_value(ledger).expect("it has a form");
    assert!(fields.as_object().expect("flat").values().all(|field| !field.is_object()));
    let read: Ledger = serde_json::from_value(fields).expect("read");
    assert_eq!(read, ledger);
}

#[test]
fn services_cost_beside_every_fleet_and_their_unknown_sizes_are_made_up_for() {
    let mut world = world();
    let mut ledger = Ledger::begin(world.seen.now);
    let scorers = world.seen.pools[ON_DEMAND].clone();
    ledger.count_services(&[(Some(3.0), &scorers)], world.seen.now);
    count(&mut ledger, &mut world, HOUR);
    let away = PoolView::unread(scorers.name.clone(), "away");
    ledger.count_services(&[(Some(3.0), &away)], world.seen.now);
    count(&mut ledger, &mut world, HOUR);
    let fleet = ledger.static_spot_dollars().expect("priced");
    ledger.count_services(&[(Some(3.0), &scorers)], world.seen.now);
    assert_near(ledger.service_dollars, 6.0);
    assert_near(ledger.dollars(), 40.0 + 60.0 + 200.0 + 6.0);
    assert_near(ledger.static_spot_dollars().expect("priced"), fleet + 6.0);
    let lines = ledger.to_lines().join("\n");
    let line = "Spot $40.00, on demand $60.00, scorers and environments $6.00, the trainer $200.00";
    assert!(lines.contains(line), "{lines}");
    world.pass(HOUR);
    ledger.count_services(&[(None, &scorers)], world.seen.now);
    assert!(!ledger.is_priced(), "without a price it is told");
}
