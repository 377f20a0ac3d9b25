//! Its pool is larger than the trainer: it is asked which nodes it does not run on.

use super::*;

/// A trainer that runs on 2 of the 4 nodes of its pool.
fn surplus() -> Run {
    let mut run = Run::new();
    run.holds(4);
    run
}

#[test]
fn nodes_that_the_trainer_does_not_run_on_are_named_by_it_and_go() {
    let mut run = surplus();
    assert_eq!(run.watch(30 * MINUTE), None);
    assert_eq!(
        run.told(),
        [
            "do: ask the trainer which nodes it has left, beside the 2 it runs on",
            "pool trainers is asked for 4 nodes, and the trainer runs on 2"
        ]
    );
    run.asked(2);
    assert_eq!(run.watch(10 * MINUTE), None, "nothing goes before it has named them");
    run.confirmed(&["n1", "n3"]);
    assert_eq!(run.plan().action, release(&["i-1", "i-3"]));
    run.pool().instances.retain(|it| ["i-2", "i-4"].contains(&it.id.0.as_str()));
    run.pool().desired = 2;
    assert_eq!(run.plan().action, end_without(2, ResizeEnd::Done, &["n1", "n3"]));
}

/// A released node that AWS takes is replaced by its group.
#[test]
fn replacement_of_a_node_that_was_left_goes_as_well() {
    let mut run = surplus();
    run.asked(2);
    run.confirmed(&["n3", "n4"]);
    run.resize().released[1].has_notice = true;
    assert_eq!(run.plan().action, release(&["i-3"]));
    run.pool().instances.truncate(2);
    run.pool().desired = 3;
    assert_eq!(run.plan().action, end_without(2, ResizeEnd::Done, &["n3", "n4"]));
    run.ended(ResizeEnd::Done);
    assert_eq!(run.watch(30 * MINUTE), None);
    assert_eq!(run.plan().action, request(2, 2));
}

#[test]
fn growth_that_is_not_taken_ends_and_its_nodes_go_before_it_grows_again() {
    let mut run = Run::new().too_slow();
    run.asked(4);
    run.confirmed(&[]);
    run.holds(4);
    assert_eq!(run.watch(180 * MINUTE), None);
    assert_eq!(run.plan().action, end(4, ResizeEnd::NotTaken));
    run.ended(ResizeEnd::NotTaken);
    assert_eq!(run.told()[0], "pool trainers is asked for 4 nodes, and the trainer runs on 2");
    assert_eq!(run.watch(60 * MINUTE), None);
    assert_eq!(run.plan().action, request(2, 2));
}

#[test]
fn trainer_that_is_too_slow_takes_them_instead() {
    let mut run = surplus().too_slow();
    assert_eq!(run.watch(30 * MINUTE), None);
    assert_eq!(run.plan().action, request(2, 4));
}

#[test]
fn pool_is_left_alone_while_nobody_knows_what_the_trainer_needs() {
    let hindrances: [fn(&mut Run); 4] = [
        |run| run.terms.trainer.as_mut().expect("has").legal_sizes = vec![4, 8],
        |run| run.pool().floor = 3,
        |run| run.says(TrainerPhase::Done, 10, Some(2)),
        |run| run.seen.trainer = Signal::unknown("silent"),
    ];
    for (number, hinder) in hindrances.into_iter().enumerate() {
        let mut run = surplus();
        hinder(&mut run);
        assert_eq!(run.watch(120 * MINUTE), None, "{number}");
    }
}

#[test]
fn request_is_over_once_the_pool_is_no_larger() {
    let mut run = surplus();
    run.asked(2);
    run.holds(2);
    assert_eq!(run.plan().action, end(2, ResizeEnd::Done));
}

/// It is not to give up what it works on by now.
#[test]
fn trainer_that_takes_them_while_it_is_asked_is_asked_no_more() {
    let mut run = surplus();
    run.asked(2);
    assert_eq!(run.watch(MINUTE), None);
    run.says(TrainerPhase::Train, 10, Some(4));
    assert_eq!(run.plan().action, end(2, ResizeEnd::TakenBack));
    assert_eq!(run.plan().action, end(2, ResizeEnd::TakenBack), "until that is done");
    run.resize().generation += 1;
    assert_eq!(run.plan().action, None, "a request to shrink is another one");
}
