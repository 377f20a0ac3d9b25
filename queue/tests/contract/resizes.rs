//! The laws of the trainer's size, checked in every world.

use std::time::Duration;

use ebbtide_core::ids::Incarnation;
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{EVENT_LIMIT, until};
use ebbtide_queue::control::{
    NodeNames, ResizeConfirmation, ResizeRecord, TrainerPhase, TrainerRecord,
};

use super::worlds::*;

laws![
    1;
    resize_is_asked_for_confirmed_and_ended,
    only_the_request_that_holds_can_be_confirmed,
    trainer_that_has_left_nodes_runs_on_fewer,
    only_the_trainer_that_reports_can_confirm,
    what_was_left_may_go_only_while_the_word_for_it_holds,
    size_of_no_nodes_is_none,
    word_before_the_first_report_is_kept,
    older_leader_asks_for_nothing_and_ends_nothing,
    every_history_of_requests_follows_the_rules,
];

/// The word of the trainer whose start is called `a`.
fn said(size: u32, generation: u64, released: &str) -> ResizeConfirmation {
    let released = NodeNames::try_from(released.to_owned()).unwrap();
    ResizeConfirmation { size, generation, released, incarnation: incarnation("a") }
}

fn incarnation(name: &str) -> Option<Incarnation> {
    Some(name.parse().unwrap())
}

async fn report(world: &World, nodes: Option<u32>) {
    report_by(world, nodes, incarnation("a")).await;
}

async fn report_by(world: &World, nodes: Option<u32>, incarnation: Option<Incarnation>) {
    let record = TrainerRecord {
        phase: TrainerPhase::Wait,
        step: 4,
        groups_per_step: 8,
        nodes,
        incarnation,
        heartbeat: UnixMillis(0),
    };
    world.queue.put_trainer(record).await.unwrap();
}

async fn may_release(world: &World, leader: u64, generation: u64) -> bool {
    let limit = Duration::from_secs(60);
    world.queue.may_release(leader, generation, limit).await.unwrap()
}

async fn holds(world: &World) -> ResizeRecord {
    world.queue.view().await.unwrap().resize
}

async fn nodes(world: &World) -> Option<u32> {
    world.queue.view().await.unwrap().trainer.unwrap().nodes
}

async fn resize_is_asked_for_confirmed_and_ended(world: World) {
    assert_eq!(holds(&world).await, ResizeRecord::default());
    report(&world, Some(2)).await;
    let asked = world.queue.request_resize(1, 4).await.unwrap();
    assert_eq!((asked.size, asked.generation, asked.is_confirmed()), (Some(4), 1, false));
    let now = world.queue.view().await.unwrap().now;
    assert!(asked.requested_at.is_some_and(|at| at > UnixMillis(0) && at <= now), "{asked:?}");
    assert_eq!(world.queue.request_resize(2, 4).await.unwrap(), asked, "not asked for anew");

    assert!(world.queue.confirm_resize(said(4, 1, "")).await.unwrap());
    assert!(world.queue.confirm_resize(said(4, 1, "")).await.unwrap(), "said again");
    assert!(holds(&world).await.is_confirmed());
    assert_eq!(nodes(&world).await, Some(2), "it says itself when it has grown");
    report(&world, Some(4)).await;
    report(&world, None).await;
    assert_eq!(nodes(&world).await, Some(4), "a report without a size leaves it");

    world.queue.end_resize(2, 1, "done").await.unwrap();
    let ended = holds(&world).await;
    assert_eq!((ended.size, ended.generation, ended.confirmed), (None, 1, 1));
    assert_eq!(ended.end.as_deref(), Some("done"));
    let now = world.queue.view().await.unwrap().now;
    assert!(ended.ended_at.is_some_and(|at| at > UnixMillis(0) && at <= now), "{ended:?}");
    world.queue.end_resize(2, 1, "taken_back").await.unwrap();
    assert_eq!(holds(&world).await, ended, "it ends once");
    let again = world.queue.confirm_resize(said(4, 1, "")).await.unwrap();
    assert!(again, "its word was taken, whatever became of the answer");
    let next = world.queue.request_resize(2, 2).await.unwrap();
    assert_eq!((next.generation, next.is_confirmed()), (2, false), "an old word is none");
    assert_eq!((next.end, next.ended_at), (None, None), "nor is an old end");
}

async fn only_the_request_that_holds_can_be_confirmed(world: World) {
    report(&world, None).await;
    assert!(!world.queue.confirm_resize(said(4, 1, "")).await.unwrap(), "none was asked for");
    world.queue.request_resize(1, 4).await.unwrap();
    for wrong in [said(2, 1, "n1"), said(4, 2, ""), said(4, 0, "")] {
        assert!(!world.queue.confirm_resize(wrong.clone()).await.unwrap(), "{wrong:?}");
        assert!(!holds(&world).await.is_confirmed());
    }
    // It was withdrawn while the trainer came to its safe point.
    world.queue.end_resize(1, 1, "done").await.unwrap();
    assert!(!world.queue.confirm_resize(said(4, 1, "")).await.unwrap());
    world.queue.request_resize(1, 8).await.unwrap();
    world.queue.request_resize(1, 6).await.unwrap();
    assert!(!world.queue.confirm_resize(said(8, 2, "")).await.unwrap(), "another size followed");
    assert_eq!((holds(&world).await.size, holds(&world).await.confirmed), (Some(6), 0));
}

async fn trainer_that_has_left_nodes_runs_on_fewer(world: World) {
    report(&world, Some(4)).await;
    let before = world.queue.view().await.unwrap().trainer.unwrap().heartbeat;
    world.queue.request_resize(1, 2).await.unwrap();
    assert!(world.queue.confirm_resize(said(2, 1, "n4,n3")).await.unwrap());
    let view = world.queue.view().await.unwrap();
    assert_eq!(view.resize.released.to_string(), "n3,n4");
    let trainer = view.trainer.unwrap();
    assert_eq!(trainer.nodes, Some(2));
    assert!(trainer.heartbeat >= before, "its word is a heartbeat");
    assert!(world.queue.confirm_resize(said(2, 1, "n1,n2")).await.unwrap(), "taken before");
    assert_eq!(holds(&world).await.released.to_string(), "n3,n4", "and not changed");
    world.queue.end_resize(1, 1, "done").await.unwrap();
    assert!(holds(&world).await.released.is_empty(), "no name outlives its request");
}

async fn only_the_trainer_that_reports_can_confirm(world: World) {
    report(&world, Some(4)).await;
    world.queue.request_resize(1, 2).await.unwrap();
    let of = |name: &str| ResizeConfirmation { incarnation: incarnation(name), ..said(2, 1, "n3") };
    assert!(!world.queue.confirm_resize(of("b")).await.unwrap(), "it has not reported");
    let nobody = ResizeConfirmation { incarnation: None, ..said(2, 1, "n3") };
    assert!(!world.queue.confirm_resize(nobody.clone()).await.unwrap());
    assert_eq!((holds(&world).await.confirmed, nodes(&world).await), (0, Some(4)));
    report_by(&world, Some(4), incarnation("b")).await;
    assert!(!world.queue.confirm_resize(of("a")).await.unwrap(), "another has started since");
    assert!(world.queue.confirm_resize(of("b")).await.unwrap());
    assert!(!world.queue.confirm_resize(of("a")).await.unwrap(), "it was not its word");
    assert_eq!(holds(&world).await.confirmed_by, incarnation("b"));
}

async fn what_was_left_may_go_only_while_the_word_for_it_holds(world: World) {
    report(&world, Some(4)).await;
    world.queue.request_resize(5, 2).await.unwrap();
    assert!(!may_release(&world, 5, 1).await, "it has not confirmed");
    assert!(world.queue.confirm_resize(said(2, 1, "n3,n4")).await.unwrap());
    assert!(may_release(&world, 5, 1).await);
    assert!(!may_release(&world, 5, 2).await, "another request");
    let silence = Duration::from_millis(1);
    until("its heartbeat to be old", EVENT_LIMIT, || async {
        let may = world.queue.may_release(5, 1, silence).await.ok()?;
        (!may).then_some(())
    })
    .await
    .unwrap();
    report(&world, None).await;
    assert!(may_release(&world, 5, 1).await);
    report(&world, Some(3)).await;
    assert!(!may_release(&world, 5, 1).await, "it runs on more");
    report(&world, Some(1)).await;
    assert!(may_release(&world, 5, 1).await, "it has lost one meanwhile");
    assert!(world.queue.claim(6, "anything").await.unwrap());
    assert!(!may_release(&world, 5, 1).await, "another leads");
    assert!(may_release(&world, 6, 1).await);
    report_by(&world, None, incarnation("b")).await;
    assert!(!may_release(&world, 6, 1).await, "it may work on them again");
    report(&world, None).await;
    world.queue.end_resize(6, 1, "taken_back").await.unwrap();
    assert!(!may_release(&world, 6, 1).await, "it is over");
}

async fn size_of_no_nodes_is_none(world: World) {
    assert!(world.queue.request_resize(1, 0).await.is_err());
    assert_eq!(holds(&world).await, ResizeRecord::default());
    report(&world, Some(2)).await;
    assert!(!world.queue.confirm_resize(said(0, 0, "n1")).await.unwrap());
    world.queue.request_resize(1, 1).await.unwrap();
    world.queue.end_resize(1, 1, "done").await.unwrap();
    let before = holds(&world).await;
    assert!(!world.queue.confirm_resize(said(0, 1, "n1")).await.unwrap(), "nothing is asked for");
    assert_eq!((holds(&world).await, nodes(&world).await), (before, Some(2)));
}

async fn word_before_the_first_report_is_kept(world: World) {
    world.queue.request_resize(1, 4).await.unwrap();
    let word = |released| ResizeConfirmation { incarnation: None, ..said(4, 1, released) };
    assert!(!world.queue.confirm_resize(word("n1")).await.unwrap(), "nobody names nodes");
    assert!(world.queue.confirm_resize(word("")).await.unwrap());
    assert!(!may_release(&world, 1, 1).await);
    let view = world.queue.view().await.unwrap();
    assert_eq!((view.trainer, view.resize.confirmed_by), (None, None));
    report_by(&world, None, None).await;
    let trainer = world.queue.view().await.unwrap().trainer.unwrap();
    assert_eq!((trainer.nodes, trainer.incarnation), (None, None));
}

async fn older_leader_asks_for_nothing_and_ends_nothing(world: World) {
    world.queue.request_resize(5, 4).await.unwrap();
    assert!(world.queue.claim(6, "anything").await.unwrap());
    assert!(world.queue.request_resize(5, 2).await.is_err());
    world.queue.end_resize(5, 1, "done").await.unwrap();
    assert_eq!((holds(&world).await.size, holds(&world).await.generation), (Some(4), 1));
    world.queue.end_resize(6, 1, "done").await.unwrap();
    assert_eq!(holds(&world).await.size, None);
}

async fn every_history_of_requests_follows_the_rules(world: World) {
    report(&world, None).await;
    let mut expected = ResizeRecord::default();
    let speaker = incarnation("a");
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let size = u32::try_from(draw(3)).unwrap() + 1;
        let generation = expected.generation.saturating_sub(draw(4)).max(1);
        match draw(3) {
            0 => {
                let holds = world.queue.request_resize(1, size).await.unwrap();
                let at = holds.requested_at.unwrap();
                let rules = expected.request(size, at);
                expected = ResizeRecord { requested_at: Some(at), ..rules };
            }
            1 => {
                let said = said(size, generation, ["", "n1", "n1,n2"][size as usize % 3]);
                expected = expected.confirm(&said, speaker.as_ref()).unwrap_or(expected);
                world.queue.confirm_resize(said).await.unwrap();
            }
            _ => {
                world.queue.end_resize(1, generation, "done").await.unwrap();
                let ended_at = holds(&world).await.ended_at;
                let rules = expected.end(generation, "done", ended_at.unwrap_or_default());
                expected = ResizeRecord { ended_at, ..rules };
            }
        }
        assert_eq!(holds(&world).await, expected);
    }
}
