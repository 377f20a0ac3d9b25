//! The trainer has left nodes: which of them go, and which never do.

use super::*;

/// A trainer that runs on 2 of the 4 nodes of its pool, and has left these.
fn left(names: &[&str]) -> Run {
    let mut run = Run::new();
    run.asked(2);
    run.confirmed(names);
    run.holds(4);
    run
}

#[test]
fn only_nodes_that_the_trainer_has_left_go_and_it_keeps_as_many_as_it_runs_on() {
    let mut run = left(&["n2", "n3", "n4"]);
    assert_eq!(
        run.told(),
        ["the trainer released 3 nodes, which would leave 1 of the 2 that it runs on: none is \
          terminated"]
    );
    let mut run = left(&["n3", "n4"]);
    run.resize().released[0].has_notice = true;
    assert_eq!(run.plan().action, release(&["i-4"]), "AWS takes the other one");
    let mut run = left(&["n3", "n4"]);
    run.pool().instances[3].node = None;
    assert_eq!(run.plan().action, release(&["i-3"]), "nobody knows which one is n4");
    run.resize().released[1].instance = Some(InstanceId("i-4".to_owned()));
    assert_eq!(run.plan().action, release(&["i-3", "i-4"]), "its agent told");
}

#[test]
fn trainer_that_works_on_them_again_or_may_takes_them_back() {
    // Its old launcher has started it again on all of its nodes.
    let mut run = left(&["n3", "n4"]);
    run.says(TrainerPhase::Wait, 10, Some(4));
    assert_eq!(run.plan().action, end(2, ResizeEnd::TakenBack));
    // It has started again, on as many nodes: nobody knows which.
    let mut run = left(&["n3", "n4"]);
    run.resize().has_restarted = true;
    assert_eq!(run.plan().action, end(2, ResizeEnd::TakenBack));
    // Too late for one of them.
    run.pool().instances.remove(3);
    assert_eq!(run.plan().action, end_without(2, ResizeEnd::TakenBack, &["n4"]));
    run.pool().instances.remove(2);
    run.pool().desired = 2;
    assert_eq!(run.plan().action, end_without(2, ResizeEnd::Done, &["n3", "n4"]));
}

#[test]
fn trainer_that_lost_a_node_meanwhile_still_gives_up_what_it_left() {
    let mut run = left(&["n3", "n4"]);
    run.says(TrainerPhase::Train, 10, Some(1));
    assert_eq!(run.plan().action, release(&["i-3", "i-4"]), "that is no growth");
    run.pool().instances.remove(0);
    assert_eq!(run.plan().action, release(&["i-3", "i-4"]), "it keeps the one that it runs on");
}

#[test]
fn names_that_its_pool_does_not_show_are_told_and_no_record_goes_for_them() {
    let mut run = left(&["n3", "n4.internal"]);
    run.resize().released[1].is_trainers = false;
    let unknown = "the trainer released what its pool does not show: n4.internal";
    let go = "do: terminate what the trainer has left in pool trainers: i-3";
    assert_eq!(run.told(), [go, unknown]);
    run.pool().instances.remove(2);
    run.pool().desired = 3;
    assert_eq!(run.plan().action, end_without(2, ResizeEnd::NotInPool, &["n3"]));
    assert_eq!(
        run.told(),
        [
            "do: end the request for a trainer of 2 nodes: it named nodes that its pool does not \
             have",
            unknown
        ]
    );
    // Nothing is left that it might have meant: nobody's agent had told of it.
    run.pool().desired = 2;
    assert_eq!(run.plan().action, end_without(2, ResizeEnd::Done, &["n3"]));
}

#[test]
fn confirmation_that_the_queue_has_lost_is_waited_for() {
    let mut run = Run::new();
    run.asked(2);
    run.holds(4);
    // Its report has survived, its word has not.
    run.says(TrainerPhase::Wait, 10, Some(2));
    assert_eq!(run.watch(59 * MINUTE), None);
    run.confirmed(&["n3", "n4"]);
    assert_eq!(run.plan().action, release(&["i-3", "i-4"]), "it said it again");
    run.resize().is_confirmed = false;
    assert_eq!(run.watch(2 * MINUTE), end(2, ResizeEnd::NotConfirmed));
}

#[test]
fn what_cannot_be_terminated_stays_in_the_end() {
    let mut run = left(&["n2", "n3", "n4"]);
    assert_eq!(run.watch(180 * MINUTE), None);
    assert_eq!(run.plan().action, end(2, ResizeEnd::NotReleased));
    let mut run = left(&["n3", "n4"]);
    run.pool().floor = 3;
    assert_eq!(run.told(), ["2 nodes are beyond the bound of the trainer's pool, 3"]);
    assert_eq!(run.watch(180 * MINUTE), None);
    assert_eq!(run.plan().action, end(2, ResizeEnd::NotReleased));
}
