//! The whole controller on a queue in memory, the local provider and a lease in memory.

mod hanging;
mod services;
mod two_leaders;
pub(crate) mod world;

use std::sync::atomic::Ordering;

use ebbtide_core::ids::NodeName;
use ebbtide_core::time::whole_millis;
use ebbtide_queue::control::{DrainState, HoldRecord, TrainerPhase};

use super::*;
use world::{DirectWorker, Told, World, paused_clock, policy};

#[tokio::test(start_paused = true)]
async fn empty_buffer_raises_the_fleet() {
    let world = World::start(policy("act")).await;
    world.enqueue_groups(0..40).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    world.until("it is settled", async || world.snapshot().actions.is_empty()).await;
    let snapshot = world.snapshot();
    assert_eq!((snapshot.running, snapshot.desired), (Some(4), Some(4)), "{snapshot:?}");
    assert!(snapshot.scale_decisions >= 1);
    assert!(snapshot.problems.is_empty(), "{snapshot:?}");
}

/// Four nodes work, the buffer is full, and three are to go, which do not drain yet.
async fn world_with_three_victims() -> World {
    let world = World::start(policy("act")).await;
    world.enqueue_groups(0..40).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    world.agents.may_drain.store(false, Ordering::Relaxed);
    world.fill_buffer(4).await;
    world.until("three drains are asked for", async || world.drains().await.len() == 3).await;
    world
}

#[tokio::test(start_paused = true)]
async fn full_buffer_terminates_the_chosen_victim_after_it_drained() {
    let world = world_with_three_victims().await;
    let asked: Vec<String> = world.drains().await.into_iter().map(|(id, _)| id).collect();

    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.provider.nodes().len(), 4, "nothing is terminated before it drained");

    world.agents.may_drain.store(true, Ordering::Relaxed);
    world.until("one node is left", async || world.provider.nodes().len() == 1).await;
    let left = world.provider.nodes()[0].node.to_string();
    assert!(!asked.contains(&left), "exactly the chosen ones went: {asked:?}, left {left}");
    world.until("their records are gone", async || world.node_records().await == 1).await;
    assert!(world.drains().await.is_empty(), "their drains are forgotten");
}

#[tokio::test(start_paused = true)]
async fn silent_victim_is_terminated_only_after_its_leases_were_reaped() {
    let world = world_with_three_victims().await;
    // Its agent is gone. A worker of the same node, with leases of its own, is not.
    let victim: NodeName = world.drains().await[0].0.parse().expect("valid");
    let worker = DirectWorker::start(&world, &victim).await;
    world.agents.kill(&victim);
    let is_there = || world.provider.nodes().iter().any(|node| node.node == victim);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(worker.renew().await && is_there(), "its leases are alive");
    }
    let renewed_at = tokio::time::Instant::now();
    world.until("it is terminated", async || !is_there()).await;
    let waited = renewed_at.elapsed();
    assert!(waited >= DirectWorker::TTL, "its lease had to expire: {waited:?}");
    let units = world.queue.scan().await.expect("memory");
    let unit = units.iter().find(|unit| unit.unit == worker.grant.unit).expect("it is there");
    assert_eq!((unit.infra_attempts, unit.attempts), (1, 0), "it was reaped: {unit:?}");
    assert_eq!(world.provider.nodes().len(), 3, "the others are drained and not done");
}

#[tokio::test(start_paused = true)]
async fn drained_victim_is_not_terminated_over_the_lease_of_a_worker_its_agent_does_not_know() {
    let world = world_with_three_victims().await;
    let victim: NodeName = world.drains().await[0].0.parse().expect("valid");
    let worker = DirectWorker::start(&world, &victim).await;
    world.agents.may_drain.store(true, Ordering::Relaxed);
    world.until("the others are gone", async || world.provider.nodes().len() == 2).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(worker.renew().await, "its lease is alive");
        assert!(world.provider.nodes().iter().any(|node| node.node == victim));
    }
    worker.hand_back().await;
    world.until("it is terminated", async || world.provider.nodes().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn drain_is_taken_back_when_demand_returns() {
    let world = world_with_three_victims().await;
    world.empty_buffer().await;
    let cancelled =
        async || world.drains().await.iter().all(|(_, state)| *state == DrainState::Cancelled);
    world.until("the drains are taken back", cancelled).await;
    assert_eq!(world.provider.nodes().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn observe_mode_recommends_and_writes_nothing() {
    let world = World::start(policy("observe")).await;
    world.enqueue_groups(0..40).await;
    world.until("it recommends", async || !world.snapshot().actions.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let snapshot = world.snapshot();
    assert_eq!(snapshot.actions, ["raise pool spot from 0 to 4"]);
    assert!(snapshot.held.as_deref().is_some_and(|held| held.contains("observe")));
    assert_eq!((world.provider.nodes().len(), snapshot.scale_decisions), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_stops_actuation_until_it_ends() {
    let world = World::start(policy("act")).await;
    world.until("the minimum runs", async || world.ready_nodes().await == 1).await;
    let now = world.queue.view().await.expect("memory").now;
    let hold = HoldRecord {
        role: "rollout".to_owned(),
        until: now.plus(Duration::from_secs(60)),
        reason: "maintenance".to_owned(),
        who: "operator".to_owned(),
    };
    world.queue.put_hold(hold).await.expect("memory");
    world.enqueue_groups(0..40).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(world.provider.nodes().len(), 1);
    assert!(world.snapshot().held.as_deref().is_some_and(|held| held.contains("maintenance")));
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
}

/// A hold that cannot be read stands, whether it was read before or not.
#[tokio::test(start_paused = true)]
async fn nothing_is_carried_out_while_nobody_knows_whether_there_is_a_hold() {
    let world = World::start(policy("act")).await;
    world.until("the minimum runs", async || world.ready_nodes().await == 1).await;
    world.port.hides_records.store(true, Ordering::Relaxed);
    let now = paused_clock();
    let hold = HoldRecord {
        role: "rollout".to_owned(),
        until: now.plus(Duration::from_secs(600)),
        reason: "maintenance".to_owned(),
        who: "operator".to_owned(),
    };
    world.queue.put_hold(hold).await.expect("memory");
    world.enqueue_groups(0..40).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let snapshot = world.snapshot();
    assert!(!snapshot.actions.is_empty(), "what is known asks for more: {snapshot:?}");
    assert_eq!(world.provider.nodes().len(), 1);
    let why = "nobody knows whether rollout is on hold: redis test is not reachable";
    assert!(snapshot.held.as_deref().is_some_and(|held| held.contains(why)), "{snapshot:?}");
    world.port.hides_records.store(false, Ordering::Relaxed);
    let is_read =
        async || world.snapshot().held.as_deref().is_some_and(|held| held.contains("maintenance"));
    world.until("the hold is read", is_read).await;
    assert_eq!(world.provider.nodes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn second_controller_is_passive_until_the_first_ends() {
    let mut world = World::start(policy("act")).await;
    let second = world.add_controller(policy("act"));
    world.enqueue_groups(0..40).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    let snapshot = second.snapshot();
    assert!(!snapshot.is_leader && snapshot.ticks > 0, "{snapshot:?}");
    assert_eq!(snapshot.scale_decisions, 0);
    assert!(snapshot.problems.is_empty(), "a passive controller is ready: {snapshot:?}");

    world.end_first().await;
    world.until("the second leads", async || second.snapshot().is_leader).await;
    assert_eq!(second.snapshot().generation, 2);
    world.fill_buffer(4).await;
    world.until("one node is left", async || world.provider.nodes().len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn queue_that_is_away_changes_nothing_and_is_met_again() {
    let world = World::start(policy("act")).await;
    world.enqueue_groups(0..40).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    let before = world.snapshot().scale_decisions;
    world.port.is_away.store(true, Ordering::Relaxed);
    world.until("it says so", async || !world.snapshot().problems.is_empty()).await;
    let snapshot = world.snapshot();
    assert!(snapshot.problems[0].contains("redis test is not reachable"), "{snapshot:?}");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.provider.nodes().len(), 4);
    assert_eq!(world.snapshot().scale_decisions, before);

    world.port.is_away.store(false, Ordering::Relaxed);
    world.until("it is well again", async || world.snapshot().problems.is_empty()).await;
    world.fill_buffer(4).await;
    world.until("one node is left", async || world.provider.nodes().len() == 1).await;
}

/// Case 53: the holder is gone without a word.
#[tokio::test(start_paused = true)]
async fn work_of_a_lost_holder_is_back_a_second_after_its_lease_and_reaping_is_said() {
    let world = World::start(policy("act")).await;
    world.enqueue_groups(0..1).await;
    let holder = "ghost/boot/process".parse().expect("valid");
    let ttl = Duration::from_secs(5);
    let leased = world.queue.lease(&holder, 1, ttl, Default::default()).await.expect("memory");
    let leased_at = tokio::time::Instant::now();
    assert_eq!(leased.grants.len(), 1);
    let ready = async || {
        let shards = world.queue.status().await.complete().expect("memory");
        shards.iter().map(|shard| shard.ready).sum::<u64>()
    };
    world.until("the unit is ready again", async || ready().await == 1).await;
    let took = leased_at.elapsed();
    // It is looked at every 100 ms.
    assert!((ttl..ttl + Duration::from_millis(1_100)).contains(&took), "{took:?}");
    let unit = &world.queue.scan().await.expect("memory")[0];
    assert_eq!((unit.attempts, unit.infra_attempts), (0, 1), "a lost holder is no failed attempt");
    let view = world.queue.view().await.expect("memory");
    let beat = view.reaper_beat.expect("the leader says that it reaps");
    assert!(whole_millis(view.now.since(beat)) <= 2000);
}

#[tokio::test(start_paused = true)]
async fn lost_node_is_forgotten_and_replaced_without_a_decision() {
    let world = World::start(policy("act")).await;
    world.enqueue_groups(0..40).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    let before = world.snapshot().scale_decisions;
    let lost = world.provider.nodes()[0].clone();
    world.agents.kill(&lost.node);
    world.provider.lose(&lost.instance);
    let is_forgotten = async || {
        let view = world.queue.view().await.expect("memory");
        view.nodes.iter().all(|record| record.node != lost.node)
    };
    world.until("its record is gone", is_forgotten).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    assert_eq!(world.snapshot().scale_decisions, before);
}

#[tokio::test(start_paused = true)]
async fn run_that_has_ended_goes_down_to_the_minimum() {
    let world = World::start(policy("act")).await;
    world.enqueue_groups(0..40).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    world.trainer().record.phase = TrainerPhase::Done;
    world.until("one node is left", async || world.provider.nodes().len() == 1).await;
}

#[tokio::test]
async fn shutdown_before_the_queue_was_ever_reached_ends_well() {
    let options = RedisOptions {
        url: "redis://127.0.0.1:1".to_owned(),
        run: "run".parse().expect("valid"),
        layout: None,
        durability: Default::default(),
    };
    let status = ControllerStatus::default();
    let outside = world::outside(
        QueueSource::Redis(options),
        world::provider(),
        Default::default(),
        status.clone(),
    );
    let shutdown = CancellationToken::new();
    let config = world::config(policy("act"));
    let running = tokio::spawn(run(config, outside, shutdown.clone()));
    let waits = async {
        while status.snapshot().problems.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), waits).await.expect("it says what is away");
    let problem = status.snapshot().problems[0].clone();
    assert!(problem.contains("127.0.0.1:1"), "{problem}");
    shutdown.cancel();
    running.await.expect("no panic").expect("ends well");
}

#[tokio::test(start_paused = true)]
async fn replica_that_is_slower_than_its_peers_is_named_until_it_is_as_fast() {
    let world = World::start(policy("act")).await;
    world.enqueue_groups(0..40).await;
    world.until("four nodes work", async || world.ready_nodes().await == 4).await;
    let nodes: Vec<NodeName> = world.provider.nodes().into_iter().map(|node| node.node).collect();
    let makes = |node: &NodeName, speed: f64| {
        let told = Told { pods_left: Some(0), speed: Some((8, speed)), ..Told::default() };
        world.agents.tell(node, told);
    };
    nodes.iter().for_each(|node| makes(node, 20.0));
    makes(&nodes[2], 9.0);
    let on_record = async || world.queue.view().await.expect("memory").stragglers;
    world.until("the slow one is on record", async || on_record().await.len() == 1).await;
    assert_eq!(on_record().await[0].replica.as_str(), nodes[2].as_str());
    let told = world.snapshot().stragglers.concat();
    assert!(told.contains(nodes[2].as_str()) && told.contains("45 %"), "{told}");
    assert!(world.metrics.render().contains("ebbtide_replicas_slow{role=\"rollout\"} 1"));
    assert!(world.drains().await.is_empty(), "naming drains nothing");

    makes(&nodes[2], 20.0);
    world.until("it is taken back", async || on_record().await.is_empty()).await;
    assert!(world.snapshot().stragglers.is_empty());
}
