//! What keeps the trainer's size as it is, or ends a request.

use super::*;

#[test]
fn request_that_is_not_confirmed_in_time_is_withdrawn_and_not_repeated_for_a_while() {
    let mut run = Run::new().too_slow();
    run.watch(31 * MINUTE);
    run.asked(4);
    run.pass(MINUTE);
    assert_eq!(run.watch(60 * MINUTE), end(4, ResizeEnd::NotConfirmed));
    run.seen.trainer_resize = None;
    assert_eq!(run.watch(60 * MINUTE), None);
    assert_eq!(run.watch(2 * MINUTE), request(2, 4), "the evidence has lasted all the while");

    let mut run = Run::new().too_slow();
    run.asked(4);
    run.confirmed(&[]);
    run.holds(4);
    assert_eq!(run.watch(181 * MINUTE), end(4, ResizeEnd::NotTaken));
    run.seen.trainer_resize = None;
    let told = run.told();
    assert_eq!(told[0], "pool trainers is asked for 4 nodes, and the trainer runs on 2");
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
    run.says(TrainerPhase::Done, 20, Some(2));
    assert_eq!(run.plan().action, end(4, ResizeEnd::RunEnded));
    let mut run = asked();
    run.says(TrainerPhase::Train, 20, Some(4));
    assert_eq!(run.plan().action, end(4, ResizeEnd::Done), "it has come to that by itself");
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
    run.terms.trainer.as_mut().expect("has").dollars_per_node_hour = None;
    (run.seen.trainer_resize, run.memory) = (None, TrainerMemory::default());
    run.terms.budget = budget(1000.0);
    assert_eq!(run.watch(40 * MINUTE), None, "what has no price is not bought");
}

#[test]
fn only_nodes_that_the_trainer_has_left_go_and_it_keeps_as_many_as_it_runs_on() {
    let left = |names: &[&str]| {
        let mut run = Run::new();
        run.asked(2);
        run.confirmed(names);
        run.holds(4);
        run
    };
    let mut run = left(&["n2", "n3", "n4"]);
    assert_eq!(
        run.told(),
        ["the trainer released 3 nodes, which would leave 1 of the 2 that it runs on: none is \
          terminated"]
    );
    let mut run = left(&["n9"]);
    let gone = vec!["n9".parse().expect("valid")];
    let how = ResizeEnd::Done;
    let done = TrainerAction::End { generation: 7, size: 2, how, gone };
    assert_eq!(run.plan().action, Some(done), "a node of another pool is none of ours");

    let release = |ids: &[&str]| {
        let instances = ids.iter().map(|id| InstanceId((*id).to_owned())).collect();
        Some(TrainerAction::Release { pool: pool_name("trainers"), instances })
    };
    let mut run = left(&["n3", "n4"]);
    run.resize().released[0].has_notice = true;
    assert_eq!(run.plan().action, release(&["i-4"]), "AWS takes the other one");
    let mut run = left(&["n3", "n4"]);
    run.pool().instances[3].node = None;
    assert_eq!(run.plan().action, release(&["i-3"]), "nobody knows which one is n4");
    run.resize().released[1].instance = Some(InstanceId("i-4".to_owned()));
    assert_eq!(run.plan().action, release(&["i-3", "i-4"]), "its agent told");
    // Its old launcher has started it again on all of its nodes.
    run.says(TrainerPhase::Wait, 10, Some(4));
    assert_eq!(run.plan().action, end(2, ResizeEnd::TakenBack));
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
        assert_eq!(run.watch(60 * MINUTE), None, "{number}");
        (run.seen, run.plan) = (Observation { now: run.seen.now, ..seen }, plan);
        assert_eq!(run.watch(10 * MINUTE), None, "{number}: twenty minutes were seen before");
        assert_eq!(run.watch(2 * MINUTE), request(2, 4), "{number}");
    }
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
