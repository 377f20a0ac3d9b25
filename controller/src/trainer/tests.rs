//! The whole controller resizes a trainer, on a queue in memory and the local provider.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_queue::control::{
    HoldRecord, NodeNames, ResizeConfirmation, ResizeRecord, TrainerPhase,
};
use tokio::sync::watch;

use super::*;
use crate::capacity::local::LocalNode;
use crate::controller::tests::world::World;
use crate::leader::Leadership;

/// What the trainer's window is in these tests.
const WINDOW: Duration = Duration::from_secs(10);

/// Two sizes are legal; a replica bears one sample, so that eight are of use where four may be.
fn resizing(mode: &str) -> FleetPolicy {
    resizing_after(mode, "10s")
}

fn resizing_after(mode: &str, window: &str) -> FleetPolicy {
    let text = format!(
        "apiVersion: ebbtide.dev/v1alpha1
kind: FleetPolicy
metadata: {{name: run}}
spec:
  mode: {mode}
  staleness: {{maxLag: 3}}
  trainer:
    groupsPerStep: 2
    groupSize: 1
    pool: trainers
    legalSizes: [1, 2, 4]
    resizeAfter: {window}
  rollout:
    minReplicas: 1
    maxReplicas: 4
    concurrencyPerReplica: 1
    pools: [spot]
    bufferTargetSteps: 1.0
    bufferMaxSteps: 2.0
    startupEstimate: 5s
    stabilizationDown: 5s
    tick: 1s
  pools:
    - {{name: spot, provider: local, market: spot, maxNodes: 8}}
    - {{name: trainers, provider: local, market: onDemand, maxNodes: 8}}
"
    );
    FleetPolicy::parse(&text, "test").expect("valid")
}

/// Nodes of the trainer's pool that have booted.
fn trainers(world: &World) -> Vec<LocalNode> {
    let is_trainer = |node: &LocalNode| node.pool.as_str() == "trainers";
    world.provider.nodes().into_iter().filter(is_trainer).collect()
}

async fn resize(world: &World) -> ResizeRecord {
    world.queue.view().await.expect("memory").resize
}

/// A world whose trainer of so many nodes limits the run: the buffer is full, and it trains.
async fn too_slow(mode: &str, nodes: u32) -> World {
    let world = World::start_with_trainer(resizing(mode), nodes).await;
    world.enqueue_groups(0..8).await;
    world.fill_buffer(4).await;
    make_updates(&world, TrainerPhase::Train, 6).await;
    world
}

/// A world whose trainer waits for rollouts, of which no more may be had.
async fn too_fast(mode: &str, nodes: u32) -> World {
    let world = World::start_with_trainer(resizing(mode), nodes).await;
    world.enqueue_groups(0..40).await;
    make_updates(&world, TrainerPhase::Wait, 6).await;
    world
}

/// Time passes, with so many updates in it.
async fn make_updates(world: &World, phase: TrainerPhase, updates: u64) {
    for _ in 0..updates {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let record = &mut world.trainer().record;
        (record.phase, record.step) = (phase, record.step + 1);
    }
}

async fn until_asked(world: &World, size: u32) -> ResizeRecord {
    world.until("it is asked", async || resize(world).await.size == Some(size)).await;
    resize(world).await
}

/// The trainer comes to a safe point, leaves these nodes, and says so.
async fn confirm(world: &World, asked: &ResizeRecord, leaves: &[LocalNode]) -> bool {
    let released = NodeNames(leaves.iter().map(|node| node.node.clone()).collect());
    let size = asked.size.expect("asked");
    if !leaves.is_empty() {
        world.trainer().record.nodes = Some(size);
    }
    let incarnation = world.trainer().record.incarnation.clone();
    let said = ResizeConfirmation { size, generation: asked.generation, released, incarnation };
    world.queue.confirm_resize(said).await.expect("memory")
}

#[tokio::test(start_paused = true)]
async fn trainer_that_is_too_slow_gets_nodes_once_it_has_confirmed() {
    let world = too_slow("act", 1).await;
    let asked = until_asked(&world, 2).await;
    assert_eq!((asked.generation, asked.is_confirmed()), (1, false));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(trainers(&world).len(), 1, "nothing comes before it has confirmed");
    assert!(world.snapshot().trainer[0].contains("is asked to run on 2"), "{:?}", world.snapshot());

    assert!(confirm(&world, &asked, &[]).await);
    world.until("its node has booted", async || trainers(&world).len() == 2).await;
    assert_eq!(resize(&world).await.size, Some(2), "it has not said that it runs on it");
    world.trainer().record.nodes = Some(2);
    world.until("the request is over", async || resize(&world).await.size.is_none()).await;
    tokio::time::sleep(WINDOW * 3).await;
    assert_eq!(resize(&world).await.size, None, "updates of the old size say nothing of the new");
    let metrics = world.metrics.render();
    for line in [
        "ebbtide_trainer_nodes{kind=\"running\",role=\"trainer\"} 2",
        "ebbtide_trainer_resize_steps_total{role=\"trainer\",step=\"request\"} 1",
        "ebbtide_trainer_resize_steps_total{role=\"trainer\",step=\"raise\"} 1",
        "ebbtide_trainer_resize_steps_total{role=\"trainer\",step=\"end\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    // And on, one size at a time, when it still is.
    make_updates(&world, TrainerPhase::Train, 6).await;
    assert_eq!(until_asked(&world, 4).await.generation, 2);
}

#[tokio::test(start_paused = true)]
async fn trainer_that_is_too_fast_gives_up_exactly_the_nodes_that_it_has_left() {
    let world = too_fast("act", 2).await;
    let asked = until_asked(&world, 1).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let before = trainers(&world);
    assert_eq!(before.len(), 2, "nothing goes before it has confirmed");
    assert!(confirm(&world, &asked, &before[..1]).await);
    world.until("the request is over", async || resize(&world).await.size.is_none()).await;
    assert_eq!(trainers(&world), before[1..], "the other one is left alone");
    let view = world.queue.view().await.expect("memory");
    let is_recorded = |node: &LocalNode| view.nodes.iter().any(|it| it.node == node.node);
    assert_eq!((is_recorded(&before[0]), is_recorded(&before[1])), (false, true));
}

/// It dies before it is asked, before it confirms, and after.
#[tokio::test(start_paused = true)]
async fn dead_trainer_changes_nothing() {
    let world = World::start_with_trainer(resizing_after("act", "60s"), 1).await;
    world.enqueue_groups(0..8).await;
    world.fill_buffer(4).await;
    // Its heartbeat counts for half a minute more.
    make_updates(&world, TrainerPhase::Train, 10).await;
    world.trainer().is_silent = true;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(resize(&world).await, ResizeRecord::default(), "it is asked for nothing");

    world.trainer().is_silent = false;
    make_updates(&world, TrainerPhase::Train, 6).await;
    let asked = until_asked(&world, 2).await;
    world.trainer().is_silent = true;
    tokio::time::sleep(Duration::from_secs(4000)).await;
    assert_eq!(resize(&world).await, asked, "nobody withdraws it from a trainer that is away");

    // The word of a trainer that dies in the same moment, while no controller can act on it.
    let now = world.queue.view().await.expect("memory").now;
    world.queue.put_hold(hold(now.plus(Duration::from_secs(60)))).await.expect("memory");
    assert!(confirm(&world, &asked, &[]).await);
    tokio::time::sleep(Duration::from_secs(4000)).await;
    assert_eq!(trainers(&world).len(), 1, "no node comes for it");
}

fn hold(until: ebbtide_core::time::UnixMillis) -> HoldRecord {
    let (role, reason, who) = ("trainer".to_owned(), "repair".to_owned(), "me".to_owned());
    HoldRecord { role, until, reason, who }
}

#[tokio::test(start_paused = true)]
async fn node_that_was_left_stays_while_the_trainer_is_silent_or_works_on_it_again() {
    let world = too_fast("act", 2).await;
    let asked = until_asked(&world, 1).await;
    let nodes = trainers(&world);
    let now = world.queue.view().await.expect("memory").now;
    world.queue.put_hold(hold(now.plus(Duration::from_secs(40)))).await.expect("memory");
    assert!(confirm(&world, &asked, &nodes[..1]).await);
    world.trainer().is_silent = true;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(trainers(&world), nodes, "the hold, then the silence");
    // Its launcher has started it again, on everything that is there.
    world.trainer().record.nodes = Some(2);
    world.trainer().is_silent = false;
    world.until("the request is over", async || resize(&world).await.size.is_none()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(trainers(&world), nodes);
}

#[tokio::test(start_paused = true)]
async fn confirmation_of_another_request_is_refused() {
    let world = too_slow("act", 1).await;
    let asked = until_asked(&world, 2).await;
    for wrong in [
        ResizeRecord { generation: 2, ..asked.clone() },
        ResizeRecord { size: Some(4), ..asked.clone() },
    ] {
        assert!(!confirm(&world, &wrong, &[]).await, "{wrong:?}");
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(trainers(&world).len(), 1);
    assert!(!resize(&world).await.is_confirmed());
}

#[tokio::test(start_paused = true)]
async fn request_without_an_answer_is_withdrawn() {
    let world = too_slow("act", 1).await;
    let asked = until_asked(&world, 2).await;
    tokio::time::sleep(Duration::from_secs(3590)).await;
    assert_eq!(resize(&world).await, asked);
    world.until("it is withdrawn", async || resize(&world).await.size.is_none()).await;
    assert!(!confirm(&world, &asked, &[]).await, "it came too late");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!((trainers(&world).len(), resize(&world).await.size), (1, None));
}

/// A controller ends at each stage, and another one leads.
#[tokio::test(start_paused = true)]
async fn another_controller_goes_on_where_one_ended() {
    let mut world = too_slow("act", 1).await;
    world.add_controller(resizing("act"));
    let asked = until_asked(&world, 2).await;
    world.end_first().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(resize(&world).await, asked, "it stands");
    let third = world.add_controller(resizing("act"));
    assert!(confirm(&world, &asked, &[]).await);
    world.until("its node has booted", async || trainers(&world).len() == 2).await;
    world.trainer().record.nodes = Some(2);
    world.until("the request is over", async || resize(&world).await.size.is_none()).await;
    assert!(!third.snapshot().is_leader, "one leads");
    assert_eq!(trainers(&world).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn observe_mode_and_a_hold_ask_for_nothing() {
    let world = too_slow("observe", 1).await;
    let is_told = async || world.snapshot().trainer.iter().any(|it| it.contains("recommended"));
    world.until("it recommends", is_told).await;
    assert_eq!(resize(&world).await, ResizeRecord::default());

    let world = World::start_with_trainer(resizing("act"), 1).await;
    let now = world.queue.view().await.expect("memory").now;
    world.queue.put_hold(hold(now.plus(Duration::from_secs(120)))).await.expect("memory");
    world.enqueue_groups(0..8).await;
    world.fill_buffer(4).await;
    make_updates(&world, TrainerPhase::Train, 20).await;
    assert_eq!(resize(&world).await.size, None);
    until_asked(&world, 2).await;
    let held_until = world.queue.view().await.expect("memory").now;
    assert!(held_until >= now.plus(Duration::from_secs(120)));
}

/// It crashed after its word, and its launcher takes what is there: the nodes that it had left.
#[tokio::test(start_paused = true)]
async fn trainer_that_starts_again_on_what_it_left_loses_nothing() {
    let world = too_fast("act", 2).await;
    let asked = until_asked(&world, 1).await;
    let nodes = trainers(&world);
    let now = world.queue.view().await.expect("memory").now;
    world.queue.put_hold(hold(now.plus(Duration::from_secs(20)))).await.expect("memory");
    assert!(confirm(&world, &asked, &nodes[..1]).await);
    // As many nodes as it was asked to run on, but which?
    world.trainer().record.incarnation = Some("second".parse().expect("valid"));
    world.until("the request is over", async || resize(&world).await.size.is_none()).await;
    assert_eq!(resize(&world).await.end.as_deref(), Some("taken_back"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(trainers(&world), nodes);
    assert!(!confirm(&world, &asked, &nodes[..1]).await, "the request is over");
}

/// What comes between the look and the deed.
#[tokio::test(start_paused = true)]
async fn release_that_was_decided_is_refused_once_the_trainer_has_started_again() {
    let world = too_fast("act", 2).await;
    let asked = until_asked(&world, 1).await;
    let nodes = trainers(&world);
    let now = world.queue.view().await.expect("memory").now;
    world.queue.put_hold(hold(now.plus(Duration::from_secs(600)))).await.expect("memory");
    assert!(confirm(&world, &asked, &nodes[..1]).await);
    let generation = world.snapshot().generation;
    let (_standing, leadership) = watch::channel(Some(Leadership { generation, until: None }));
    let mut tools = Tools {
        queue: world.queue.clone(),
        leadership,
        capacity: Arc::new(world.provider.clone()),
        policy: Arc::new(resizing("act")),
        process: 7,
        turn: 1,
    };
    let release = TrainerAction::Release {
        generation: asked.generation,
        pool: nodes[0].pool.clone(),
        instances: vec![nodes[0].instance.clone()],
    };
    let first = world.trainer().record.incarnation.clone();
    for (incarnation, is_done) in [(Some("second".parse().expect("valid")), false), (first, true)] {
        world.trainer().record.incarnation = incarnation;
        tokio::time::sleep(Duration::from_secs(2)).await;
        tools.turn += 1;
        let outcome = carry_out(&tools.actuator(), &release).await;
        assert_eq!(outcome == Outcome::Done, is_done, "{outcome:?}");
        assert_eq!(trainers(&world).contains(&nodes[0]), !is_done);
    }
    assert_eq!(trainers(&world), nodes[1..]);
}

/// The rollouts' own nodes are never the trainer's to give up.
#[tokio::test(start_paused = true)]
async fn name_of_a_node_of_the_rollouts_terminates_nothing() {
    let world = too_fast("act", 2).await;
    let asked = until_asked(&world, 1).await;
    let all: BTreeSet<NodeName> = world.provider.nodes().into_iter().map(|it| it.node).collect();
    let mut rollouts = world.provider.nodes();
    rollouts.retain(|node| node.pool.as_str() == "spot");
    assert!(confirm(&world, &asked, &rollouts[..1]).await);
    world.until("the request is over", async || resize(&world).await.size.is_none()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after: BTreeSet<NodeName> = world.provider.nodes().into_iter().map(|it| it.node).collect();
    assert!(all.is_subset(&after), "{all:?} {after:?}");
}
