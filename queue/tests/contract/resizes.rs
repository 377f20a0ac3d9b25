//! The laws of the trainer's size, checked in every world.

use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::{
    NodeNames, ResizeConfirmation, ResizeRecord, TrainerPhase, TrainerRecord,
};

use super::worlds::*;

laws![
    1;
    resize_is_asked_for_confirmed_and_ended,
    only_the_request_that_holds_can_be_confirmed,
    trainer_that_has_left_nodes_runs_on_fewer,
    older_leader_asks_for_nothing_and_ends_nothing,
    every_history_of_requests_follows_the_rules,
];

fn said(size: u32, generation: u64, released: &str) -> ResizeConfirmation {
    let released = NodeNames::try_from(released.to_owned()).unwrap();
    ResizeConfirmation { size, generation, released }
}

async fn report(world: &World, nodes: Option<u32>) {
    let heartbeat = UnixMillis(0);
    let phase = TrainerPhase::Wait;
    let record = TrainerRecord { phase, step: 4, groups_per_step: 8, nodes, heartbeat };
    world.queue.put_trainer(record).await.unwrap();
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

    world.queue.end_resize(2, 1).await.unwrap();
    let ended = holds(&world).await;
    assert_eq!((ended.size, ended.generation, ended.confirmed), (None, 1, 1));
    let next = world.queue.request_resize(2, 2).await.unwrap();
    assert_eq!((next.generation, next.is_confirmed()), (2, false), "an old word is none");
}

async fn only_the_request_that_holds_can_be_confirmed(world: World) {
    assert!(!world.queue.confirm_resize(said(4, 1, "")).await.unwrap(), "none was asked for");
    world.queue.request_resize(1, 4).await.unwrap();
    for wrong in [said(2, 1, "n1"), said(4, 2, ""), said(4, 0, "")] {
        assert!(!world.queue.confirm_resize(wrong.clone()).await.unwrap(), "{wrong:?}");
        assert!(!holds(&world).await.is_confirmed());
    }
    // It was withdrawn while the trainer came to its safe point.
    world.queue.end_resize(1, 1).await.unwrap();
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
    world.queue.end_resize(1, 1).await.unwrap();
    assert!(holds(&world).await.released.is_empty(), "no name outlives its request");
}

async fn older_leader_asks_for_nothing_and_ends_nothing(world: World) {
    world.queue.request_resize(5, 4).await.unwrap();
    assert!(world.queue.claim(6, "anything").await.unwrap());
    assert!(world.queue.request_resize(5, 2).await.is_err());
    world.queue.end_resize(5, 1).await.unwrap();
    assert_eq!((holds(&world).await.size, holds(&world).await.generation), (Some(4), 1));
    world.queue.end_resize(6, 1).await.unwrap();
    assert_eq!(holds(&world).await.size, None);
}

async fn every_history_of_requests_follows_the_rules(world: World) {
    let mut expected = ResizeRecord::default();
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
                expected = expected.confirm(&said).unwrap_or(expected);
                world.queue.confirm_resize(said).await.unwrap();
            }
            _ => {
                expected = expected.end(generation);
                world.queue.end_resize(1, generation).await.unwrap();
            }
        }
        assert_eq!(holds(&world).await, expected);
    }
}
