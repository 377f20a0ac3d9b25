//! The deadline.

use std::time::Duration;

use super::world::{ON_DEMAND, SPOT, World, actions};
use crate::observation::{Signal, TrainerPhase, TrainerView};
use crate::policy::UpdateDeadline;
use crate::scale::{CapacityReason, Reason, ScalePlan};

const MINUTE: Duration = Duration::from_mins(1);

/// A run with a goal.
struct Race {
    world: World,
    /// Updates that were done before the goal was set.
    before: u32,
}

impl Race {
    /// So many more updates in so long.
    fn new(world: World, updates: u32, time: Duration) -> Self {
        let before = world.seen.trainer.known().map_or(0, |trainer| trainer.step);
        let before = u32::try_from(before).expect("few");
        let mut race = Self { world, before };
        race.set_goal(updates, time);
        race
    }

    fn set_goal(&mut self, updates: u32, time: Duration) {
        let by = self.world.seen.now.plus(time);
        self.world.terms.deadline = Some(UpdateDeadline { updates: self.before + updates, by });
    }

    /// Later; the trainer has done so many updates since the goal was set. More than ten minutes
    /// at once teach nothing about the pace.
    fn later(&mut self, time: Duration, done: u64) -> ScalePlan {
        self.world.pass(time);
        self.set_done(done)
    }

    fn set_done(&mut self, done: u64) -> ScalePlan {
        let step = u64::from(self.before) + done;
        let trainer =
            TrainerView { phase: TrainerPhase::Wait, step, groups_per_step: 8, nodes: None };
        self.world.seen.trainer = Signal::fresh(trainer);
        self.world.plan()
    }

    fn by(&self) -> crate::time::UnixMillis {
        self.world.terms.deadline.expect("set").by
    }
}

fn has(plan: &ScalePlan, reason: CapacityReason) -> bool {
    plan.reasons.contains(&Reason::Capacity(reason))
}

/// Four Spot replicas and no more: on-demand beside them is not worth its price, though it would
/// make an update nearly twice as fast. 200 updates in 200 minutes, each of which takes 20 s at
/// best.
fn dear_race() -> Race {
    let mut world = World::new().with_work(400, 0, 0).with_pace(20, 75);
    world.terms.max_lag = 9;
    let mut world = world.with_replicas(SPOT, &[16; 4]).with_prices(126.0, 25.0, 63.0);
    world.terms.pools[SPOT].max_nodes = 4;
    Race::new(world, 200, MINUTE * 200)
}

#[test]
fn run_that_is_behind_buys_on_demand_beyond_its_worth() {
    let mut race = dear_race();
    assert!(race.set_done(0).is_settled(), "nothing is late yet");
    let plan = race.later(MINUTE * 20, 20);
    assert!(plan.is_settled(), "on track: {plan}");
    let plan = race.later(MINUTE * 20, 39);
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "a whole update late: {plan}");
    let (done, expected) = (u64::from(race.before) + 39, race.before + 40);
    let by = race.by();
    assert!(has(&plan, CapacityReason::BehindSchedule { done, expected, by }), "{plan}");
    assert!(race.set_done(40).is_settled());
}

#[test]
fn deadline_that_has_passed_makes_no_hurry_any_more() {
    let mut race = dear_race();
    race.set_done(0);
    let plan = race.later(MINUTE * 199, 190);
    assert!(!plan.is_settled(), "a minute is left: {plan}");
    let plan = race.later(MINUTE, 199);
    assert!(plan.is_settled(), "{plan}");
    let (done, updates) = (u64::from(race.before) + 199, race.before + 200);
    assert!(has(&plan, CapacityReason::DeadlinePassed { done, updates }), "{plan}");
    assert!(plan.to_string().contains("Infeasible: the deadline has passed"), "{plan}");
    let plan = race.set_done(200);
    assert!(!plan.to_string().contains("deadline"), "everything is done: {plan}");
}

#[test]
fn new_goal_is_taken_from_where_the_run_stands() {
    let mut race = dear_race();
    race.set_done(0);
    assert!(!race.later(MINUTE * 50, 10).is_settled());
    race.set_goal(160, MINUTE * 150);
    assert!(race.world.plan().is_settled());
}

#[test]
fn silent_trainer_is_as_late_as_it_was() {
    let mut race = dear_race();
    race.set_done(0);
    race.later(MINUTE * 50, 50);
    race.world.seen.trainer = Signal::unknown("silent");
    assert!(race.world.plan().is_settled());
    race.world.pass(MINUTE * 2);
    assert!(!race.world.plan().is_settled());
}

#[test]
fn trainer_that_never_spoke_makes_no_hurry() {
    let mut race = dear_race();
    race.world.seen.trainer = Signal::unknown("silent");
    let plan = race.world.plan();
    assert!(!plan.to_string().contains("deadline"), "{plan}");
}

#[test]
fn updates_that_take_all_the_time_that_is_left_are_hurried() {
    // 200 updates of 20 s take 67 minutes, and two starts four more.
    let mut race = dear_race();
    race.set_goal(200, MINUTE * 72);
    assert!(race.set_done(0).is_settled());
    let mut race = dear_race();
    race.set_goal(200, MINUTE * 70);
    let plan = race.set_done(0);
    assert_eq!(actions(&plan), ["raise pool on-demand from 0 to 4"], "{plan}");
    let said = plan.to_string();
    assert!(said.contains("because: 200 updates are left and take 1h6m"), "{said}");
    assert!(said.contains(", the deadline is in 1h10m: on-demand is bought whatever"), "{said}");
}

#[test]
fn deadline_that_cannot_be_met_is_called_infeasible() {
    let mut race = dear_race();
    race.set_goal(200, MINUTE * 50);
    let said = race.set_done(0).to_string();
    let expected = format!(
        "Infeasible: 200 updates are left until {}, 15s each; one takes 20s at best",
        race.by()
    );
    assert!(said.contains(&expected), "{said}");

    let mut race = dear_race();
    race.world.terms.max_replicas = 2;
    race.set_goal(200, MINUTE * 200);
    let said = race.set_done(0).to_string();
    assert!(said.contains("1m each; one takes 1m15s at best"), "{said}");

    let said = dear_race().set_done(0).to_string();
    assert!(!said.contains("Infeasible"), "{said}");
}

/// Strictly on-policy: a step of 320 samples occupies 20 replicas; the pace asks for 9 of them,
/// with which an update takes 200 s of training and 167 s of rollouts. Two starts take 4000 s.
fn serial_race(updates: u32, time: Duration) -> Race {
    let mut world = World::new().with_bounds(1, 30);
    world.terms.group_size = 40;
    let mut world = world.with_work(320, 0, 0).with_pace(200, 75);
    world.terms.max_lag = 0;
    world.terms.max_changes_per_tick = 30;
    world.terms.startup = Duration::from_secs(2000);
    Race::new(world.with_replicas(SPOT, &[16; 8]), updates, time)
}

#[test]
fn deadline_asks_for_the_replicas_that_keep_it() {
    // W = 320 × 75 s / 16 = 1500 s: 200 s + 1500 s / n at most 350 s, from 10 replicas on.
    let long = MINUTE * 10_000;
    let plan = serial_race(100, long).set_done(0);
    assert_eq!(plan.desired, Some(9), "{plan}");
    let plan = serial_race(100, Duration::from_secs(39_000)).set_done(0);
    assert_eq!(plan.desired, Some(10), "{plan}");
    assert!(has(&plan, CapacityReason::DeadlineNeeds { replicas: 10 }), "{plan}");
    assert!(plan.to_string().contains("because: the deadline asks for 10\n"), "{plan}");
    let plan = serial_race(100, Duration::from_secs(26_000)).set_done(0);
    assert_eq!(plan.desired, Some(20), "more would have no work: {plan}");
}

#[test]
fn deadline_asks_for_nothing_while_more_would_be_of_no_use() {
    let mut race = serial_race(100, Duration::from_secs(39_000));
    race.world.seen.buffer_groups = Signal::fresh(16);
    let plan = race.set_done(0);
    assert!(!plan.to_string().contains("deadline asks"), "the buffer is full: {plan}");
    let mut race = serial_race(100, MINUTE);
    let plan = race.set_done(0);
    assert_eq!(plan.desired, Some(9), "no replica would be ready in time: {plan}");
}

#[test]
fn on_demand_is_given_back_only_when_the_run_is_ahead() {
    let world = World::new()
        .with_work(400, 48, 8)
        .with_prices(60.0, 20.0, 60.0)
        .with_replicas(SPOT, &[16])
        .with_replicas(ON_DEMAND, &[16, 9]);
    let mut race = Race::new(world, 100, MINUTE * 100);
    race.world.plan_for(MINUTE * 10);
    assert!(race.set_done(10).is_settled(), "on track, and two changeovers take four minutes");
    assert_eq!(actions(&race.set_done(14)), ["raise pool spot from 1 to 2"]);
}
