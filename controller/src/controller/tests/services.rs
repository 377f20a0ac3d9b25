//! Services beside the rollouts: scorers that really lease, and an environment that is told of.

use super::world::{World, policy_of, score};
use super::*;
use ebbtide_core::scale::Role;

const REWARD: &str = "
  queue: {stages: [generate, reward]}
  reward:
    maxReplicas: 4
    itemsPerReplica: 2
    pools: [scorers]
    startupEstimate: 5s
    stabilizationDown: 5s
";

const ENVIRONMENT: &str = "
  environment:
    maxReplicas: 4
    itemsPerReplica: 2
    pools: [cpus]
    startupEstimate: 5s
    stabilizationDown: 5s
";

fn nodes_of(world: &World, pool: &str) -> usize {
    world.provider.nodes().iter().filter(|node| node.pool.as_str() == pool).count()
}

fn service(world: &World, role: Role) -> crate::status::ServiceSnapshot {
    let snapshot = world.snapshot();
    let found = snapshot.services.iter().find(|service| service.role == role);
    found.cloned().expect("the policy has it, and a tick has been")
}

#[tokio::test(start_paused = true)]
async fn scorers_grow_with_what_waits_for_them_and_go_when_it_is_scored() {
    let mut world = World::start(policy_of("act", REWARD)).await;
    world.spawn(score(world.queue.clone()));
    world.until("the least runs", async || nodes_of(&world, "scorers") == 1).await;
    world.enqueue_groups(0..40).await;
    world.until("four rollouts work", async || nodes_of(&world, "spot") == 4).await;
    assert_eq!(nodes_of(&world, "scorers"), 1, "nothing is to be scored yet");
    world.fill_buffer(30).await;
    world.until("four scorers work", async || nodes_of(&world, "scorers") == 4).await;
    let snapshot = service(&world, Role::Reward);
    assert_eq!((snapshot.running, snapshot.desired), (Some(4), Some(4)), "{snapshot:?}");
    assert!(world.metrics.render().contains("ebbtide_replicas_desired{role=\"reward\"} 4"));
    let sealed = async || {
        let shards = world.queue.status().await.complete().expect("memory");
        shards.iter().map(|shard| shard.sealed_waiting).sum::<u64>()
    };
    world.until("all of them are scored", async || sealed().await == 30).await;
    world.until("one scorer is left", async || nodes_of(&world, "scorers") == 1).await;
    let view = world.queue.view().await.expect("memory");
    assert!(view.nodes.iter().any(|node| node.role.as_str() == "reward"));
    let text = world.metrics.render();
    assert!(text.contains("ebbtide_busy_terminations_total{role=\"reward\"} 0"), "{text}");
    let expiries = world.queue.status().await.complete().expect("memory");
    assert_eq!(expiries.iter().map(|shard| shard.lease_expiries).sum::<u64>(), 0, "none was lost");
}

#[tokio::test(start_paused = true)]
async fn environment_has_what_the_rollouts_wait_for_and_a_hold_keeps_it() {
    let world = World::start(policy_of("act", ENVIRONMENT)).await;
    world.until("the least runs", async || nodes_of(&world, "cpus") == 1).await;
    world.until("a rollout works", async || nodes_of(&world, "spot") == 1).await;
    let rollout = world.provider.nodes().into_iter().find(|node| node.pool.as_str() == "spot");
    let rollout = rollout.expect("it runs").node;
    let waits = |units| {
        let told = Told { environment_waiting: Some(units), ..Told::default() };
        world.agents.tell(&rollout, told);
    };
    let now = world.queue.view().await.expect("memory").now;
    let hold = HoldRecord {
        role: "environment".to_owned(),
        until: now.plus(Duration::from_secs(60)),
        reason: "maintenance".to_owned(),
        who: "operator".to_owned(),
    };
    world.queue.put_hold(hold).await.expect("memory");
    waits(5);
    world.enqueue_groups(0..40).await;
    world.until("rollouts grow all the same", async || nodes_of(&world, "spot") == 4).await;
    let held = service(&world, Role::Environment).held;
    assert!(held.is_some_and(|held| held.contains("maintenance")));
    assert_eq!(nodes_of(&world, "cpus"), 1);
    world.until("three serve", async || nodes_of(&world, "cpus") == 3).await;
    waits(1);
    world.until("one is left", async || nodes_of(&world, "cpus") == 1).await;
}

/// Nobody but its agent knows whether it still serves.
#[tokio::test(start_paused = true)]
async fn silent_environment_is_terminated_only_after_the_time_that_a_drain_may_take() {
    let policy = policy_of("act", &format!("{ENVIRONMENT}  drain: {{requestDeadline: 90s}}\n"));
    let world = World::start(policy).await;
    world.until("a rollout works", async || nodes_of(&world, "spot") == 1).await;
    let rollout = world.provider.nodes().into_iter().find(|node| node.pool.as_str() == "spot");
    let rollout = rollout.expect("it runs").node;
    let waits = |units| {
        let told = Told { environment_waiting: Some(units), ..Told::default() };
        world.agents.tell(&rollout, told);
    };
    waits(3);
    world.until("two serve", async || world.ready_nodes().await == 3).await;
    world.agents.may_drain.store(false, Ordering::Relaxed);
    waits(1);
    world.until("one is to go", async || world.drains().await.len() == 1).await;
    let victim: NodeName = world.drains().await[0].0.parse().expect("valid");
    world.agents.kill(&victim);
    let killed_at = tokio::time::Instant::now();
    world.until("it is gone", async || nodes_of(&world, "cpus") == 1).await;
    let lasted = killed_at.elapsed();
    assert!((Duration::from_secs(89)..Duration::from_secs(100)).contains(&lasted), "{lasted:?}");
    let busy = "ebbtide_busy_terminations_total{role=\"environment\"} 1";
    assert!(world.metrics.render().contains(busy), "nobody said that it had drained");
}

#[tokio::test(start_paused = true)]
async fn unknown_signal_of_a_service_touches_no_other_group() {
    let signal = ENVIRONMENT.replace("    pools:", "    signal: {redisList: {key: a}}\n    pools:");
    let world = World::start(policy_of("act", &signal)).await;
    world.enqueue_groups(0..40).await;
    world.until("four rollouts work", async || nodes_of(&world, "spot") == 4).await;
    world.until("the least runs", async || nodes_of(&world, "cpus") == 1).await;
    let snapshot = world.snapshot();
    assert!(snapshot.problems.is_empty(), "the controller does its work: {snapshot:?}");
    let stale = &snapshot.conditions[1];
    assert!(stale.message.contains("environment: ready is unknown"), "{stale:?}");
    let reasons = service(&world, Role::Environment).reasons.concat();
    assert!(reasons.contains("this controller reads no signals of others"), "{reasons}");
}

#[tokio::test(start_paused = true)]
async fn service_is_only_recommended_in_observe_mode() {
    let world = World::start(policy_of("observe", REWARD)).await;
    world.until("a plan was made", async || !world.snapshot().services.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let snapshot = service(&world, Role::Reward);
    assert_eq!(snapshot.actions, ["raise pool scorers from 0 to 1"]);
    assert!(snapshot.held.is_some_and(|held| held.contains("observe")));
    assert!(world.provider.nodes().is_empty());
}
