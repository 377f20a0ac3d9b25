//! What keeps the trainer's size as it is, or ends a request.

use super::*;

#[test]
fn request_that_is_not_confirmed_in_time_is_withdrawn_and_not_repeated_for_a_while() {
    let mut run = Run::new().too_slow();
    run.watch(31 * MINUTE);
    run.asked(4);
    run.pass(MINUTE);
    assert_eq!(run.watch(60 * MINUTE), end(4, ResizeEnd::NotConfirmed));
    run.ended(ResizeEnd::NotConfirmed);
    assert_eq!(run.watch(40 * MINUTE), None);
    assert_eq!(
        run.told(),
        ["the last request came to nothing: the trainer is asked for 4 nodes in 20m"]
    );
    // Another leader knows of it as well.
    run.memory = TrainerMemory::default();
    assert_eq!(run.watch(20 * MINUTE), None);
    assert_eq!(run.watch(9 * MINUTE), None, "it has not seen the evidence");
    assert_eq!(run.watch(2 * MINUTE), request(2, 4));
}

#[test]
fn what_comes_to_nothing_on_the_trainers_side_is_not_repeated_for_a_while() {
    for (how, after) in [
        (ResizeEnd::NotConfirmed, 60),
        (ResizeEnd::NotTaken, 60),
        (ResizeEnd::TakenBack, 60),
        (ResizeEnd::NotInPool, 60),
        (ResizeEnd::NotReleased, 60),
        (ResizeEnd::Done, 30),
        (ResizeEnd::TooDear, 30),
        (ResizeEnd::NotLegal, 30),
    ] {
        let mut run = Run::new().too_slow();
        run.ended(how);
        assert_eq!(run.watch(after * MINUTE), None, "{how:?}");
        assert_eq!(run.plan().action, request(2, 4), "{how:?}");
    }
}

#[test]
fn request_ends_when_it_may_not_be_made_any_more() {
    let asked = || {
        let mut run = Run::new().too_slow();
        run.asked(4);
        run
    };
    let mut run = asked();
    run.terms.trainer.as_mut().expect("has").legal_sizes = vec![2, 8];
    assert_eq!(run.plan().action, end(4, ResizeEnd::NotLegal));
    run.confirmed(&[]);
    assert_eq!(run.plan().action, end(4, ResizeEnd::NotLegal));
    run.terms.trainer = None;
    run.seen.trainer_pool = None;
    assert_eq!(run.plan().action, end(4, ResizeEnd::NotLegal));

    let mut run = asked();
    run.says(TrainerPhase::Train, 20, Some(4));
    run.holds(4);
    assert_eq!(run.plan().action, end(4, ResizeEnd::Done), "it has come to that by itself");
}

#[test]
fn run_that_has_ended_gets_no_nodes_and_gives_none_up() {
    let mut run = Run::new().too_slow();
    run.says(TrainerPhase::Done, 20, Some(2));
    run.asked(4);
    assert_eq!(run.plan().action, end(4, ResizeEnd::RunEnded));
    run.confirmed(&[]);
    assert_eq!(run.plan().action, end(4, ResizeEnd::RunEnded), "its pool is not raised");
    run.asked(2);
    run.confirmed(&["n3", "n4"]);
    run.holds(4);
    assert_eq!(run.plan().action, end(2, ResizeEnd::RunEnded), "it may be started anew on them");
}

#[test]
fn growth_is_over_only_when_its_pool_was_raised() {
    let mut run = Run::new().too_slow();
    run.asked(4);
    // It counts nodes that are on their way, or speaks too early.
    run.says(TrainerPhase::Train, 20, Some(4));
    assert_eq!(run.plan().action, None, "it has not confirmed");
    run.confirmed(&[]);
    let raise = TrainerAction::Raise { pool: pool_name("trainers"), from: 2, to: 4 };
    assert_eq!(run.plan().action, Some(raise));
    run.holds(4);
    assert_eq!(run.plan().action, end(4, ResizeEnd::Done));
}

#[test]
fn larger_trainer_must_be_paid_beside_all_that_was_asked_for() {
    let mut run = Run::new().too_slow();
    for pool in &mut run.terms.pools {
        pool.dollars_per_node_hour = Some(1.0);
    }
    let budget = |dollars| {
        // The smallest trainer, at 2 × $10, is among the others.
        Some(BudgetTerms { dollars_per_hour: dollars, others_dollars_per_hour: Some(25.0) })
    };
    let raise = crate::scale::Action::Raise { pool: pool_name("spot"), from: 0, to: 6 };
    run.plan.actions = vec![raise];
    run.terms.budget = budget(50.9);
    assert_eq!(run.watch(40 * MINUTE), None);
    assert_eq!(run.told(), ["the budget does not pay for a trainer of 4 nodes"]);
    run.terms.budget = budget(51.0);
    assert_eq!(run.plan().action, request(2, 4));
    run.asked(4);
    run.terms.budget = budget(50.0);
    assert_eq!(run.plan().action, end(4, ResizeEnd::TooDear));
    run.confirmed(&[]);
    assert_eq!(run.plan().action, end(4, ResizeEnd::TooDear));
    run.holds(4);
    assert_eq!(run.plan().action, None, "what was asked for is paid already");

    // A pool that could not be read says nothing about money.
    run.holds(2);
    run.seen.pools[0].size = Signal::unknown("no answer");
    let unknown = "whether the budget pays for a trainer of 4 nodes is not known: a pool is \
                   unread, or has no price";
    assert_eq!(run.told(), [unknown]);
    run.resize().is_confirmed = false;
    assert_eq!(run.plan().action, None, "nor does it withdraw a request");
    run.terms.trainer.as_mut().expect("has").dollars_per_node_hour = None;
    (run.seen.trainer_resize, run.memory) = (None, TrainerMemory::default());
    run.terms.budget = budget(1000.0);
    assert_eq!(run.watch(40 * MINUTE), None, "what has no price is not bought");
}

#[test]
fn smaller_trainer_must_keep_pace_and_the_deadline() {
    let mut run = Run::new().too_fast();
    run.says(TrainerPhase::Wait, 10, Some(4));
    run.holds(4);
    let seconds = PhaseSeconds { train: 45.0, sync: 5.0, wait: 50.0, checkpoint: 0.0 };
    run.limits(IterationStage::Rollout, false, seconds);
    assert_eq!(run.watch(90 * MINUTE), None, "two nodes would train for 90 of 100 seconds");
    let seconds = PhaseSeconds { train: 40.0, wait: 55.0, ..seconds };
    run.limits(IterationStage::Rollout, false, seconds);
    let by = run.seen.now;
    let late = CapacityReason::BehindSchedule { done: 1, expected: 2, by };
    run.plan.reasons.push(late.into());
    assert_eq!(run.watch(31 * MINUTE), None);
    assert_eq!(
        run.told(),
        ["the run is late for its deadline: the trainer is not made smaller, to 2"]
    );
    run.plan.reasons.truncate(1);
    assert_eq!(run.plan().action, request(4, 2));

    // Where stages take turns, a slower trainer makes every update longer.
    run.plan.bottleneck.phases.is_overlapped = false;
    run.memory = TrainerMemory::default();
    assert_eq!(run.watch(90 * MINUTE), None);
    run.plan.bottleneck.phases.seconds.train = 6.0;
    assert_eq!(run.watch(31 * MINUTE), request(4, 2));
}

#[test]
fn bounds_of_its_pool_and_of_the_legal_sizes_are_said() {
    let mut run = Run::new().too_slow();
    run.pool().limit = Some(3);
    run.watch(31 * MINUTE);
    assert_eq!(run.told(), ["4 nodes are beyond the bound of the trainer's pool, 3"]);
    run.says(TrainerPhase::Train, 10, Some(8));
    run.holds(8);
    run.memory = TrainerMemory::default();
    assert_eq!(run.told(), ["the trainer is what limits the run, and no legal size is above 8"]);
    let mut run = Run::new().too_fast();
    assert_eq!(run.watch(90 * MINUTE), None);
    assert_eq!(
        run.told(),
        ["the trainer waits for rollouts, of which there can be no more, and no legal size is \
          below 2"]
    );
}

#[test]
fn time_that_says_nothing_does_not_count() {
    let untold: [fn(&mut Run); 5] = [
        |run| run.says(TrainerPhase::Sync, 10, Some(2)),
        |run| run.says(TrainerPhase::Checkpoint, 10, Some(2)),
        |run| run.seen.buffer_groups = Signal::unknown("redis is away"),
        |run| run.plan.desired = None,
        |run| {
            let reason = BreakerReason::ScaleUpFailed;
            run.plan.reasons.push(CapacityReason::BreakerOpen { reason }.into());
        },
    ];
    for (number, make) in untold.into_iter().enumerate() {
        let mut run = Run::new().too_slow();
        run.watch(20 * MINUTE);
        let (seen, plan) = (run.seen.clone(), run.plan.clone());
        make(&mut run);
        assert_eq!(run.watch(50 * MINUTE), None, "{number}");
        (run.seen, run.plan) = (Observation { now: run.seen.now, ..seen }, plan);
        assert_eq!(run.watch(10 * MINUTE), None, "{number}: twenty minutes were seen before");
        assert_eq!(run.watch(2 * MINUTE), request(2, 4), "{number}");
    }
    // Evidence of long ago is none.
    let mut run = Run::new().too_slow();
    run.watch(29 * MINUTE);
    let seen = run.seen.clone();
    run.says(TrainerPhase::Checkpoint, 10, Some(2));
    run.watch(62 * MINUTE);
    run.seen = Observation { now: run.seen.now, ..seen };
    assert_eq!(run.watch(29 * MINUTE), None);
    assert_eq!(run.watch(3 * MINUTE), request(2, 4));
    // A controller that was asleep has not seen what it was.
    let mut run = Run::new().too_slow();
    run.watch(20 * MINUTE);
    run.pass(60 * MINUTE);
    assert_eq!(run.plan().action, None);
}

#[test]
fn trainer_that_does_not_say_its_size_is_left_alone() {
    let mut run = Run::new().too_slow();
    run.says(TrainerPhase::Train, 10, None);
    assert_eq!(run.watch(90 * MINUTE), None);
    assert_eq!(
        run.told(),
        ["the trainer does not report how many nodes it runs on: its size is left alone"]
    );
    run.terms.trainer.as_mut().expect("has").legal_sizes = vec![2];
    assert_eq!(run.told(), Vec::<String>::new(), "one legal size is none to choose");
}

#[test]
fn trainer_is_paid_at_the_size_that_it_reports() {
    let mut run = Run::new();
    let others = Some(25.0);
    run.terms.budget =
        Some(BudgetTerms { dollars_per_hour: 100.0, others_dollars_per_hour: others });
    let at = |run: &Run, nodes, asked| {
        let terms = run.terms.at_trainer_size(nodes, asked);
        let others = terms.budget.and_then(|budget| budget.others_dollars_per_hour);
        (terms.trainer_dollars_per_hour, others)
    };
    assert_eq!(at(&run, None, None), (None, Some(25.0)), "the smallest is counted");
    assert_eq!(at(&run, Some(2), None), (Some(20.0), Some(25.0)));
    assert_eq!(at(&run, Some(4), None), (Some(40.0), Some(45.0)));
    assert_eq!(at(&run, Some(2), Some(4)), (Some(20.0), Some(45.0)), "they may come at any time");
    run.terms.trainer.as_mut().expect("has").dollars_per_node_hour = None;
    assert_eq!(at(&run, Some(4), None), (None, None), "unknown, never free");
}
