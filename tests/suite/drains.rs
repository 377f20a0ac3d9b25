//! Drains that meet trouble, by the real programs: agents that are killed or stand still, a Redis
//! that restarts, drains that are taken back and asked for again. No unit is lost, none is counted
//! as a failed attempt, and no token of a response changes.

mod world;

use std::time::Duration;

use ebbtide_core::ids::NodeName;
use ebbtide_harness::{Redis, require, until};
use ebbtide_queue::control::{DrainReason, DrainRequest, DrainState, NodeState};
use ebbtide_queue::state::{SlotState, UnitSnapshot};

use self::world::Fleet;
use crate::programs::*;

/// What an agent says at each step of a drain, in order.
const STEPS: [&str; 5] =
    ["interruption notice", "drain begins", "drain plan", "drain step", "duration_ms"];

#[tokio::test]
async fn agent_killed_at_any_step_of_a_drain_has_a_successor_that_ends_it() {
    let redis = require!(Redis::start().await);
    for (number, step) in STEPS.into_iter().enumerate() {
        let fleet = Fleet::begin(&redis, &format!("killed-{number}")).await;
        let mut node = fleet.busy_node("n1").await;
        node.announce(100);
        node.says(step).await;
        node.replace_agent();
        fleet.work_is_back(&node, 1).await;
        let record = fleet.state(&node, NodeState::Drained).await;
        assert!(record.drained_for.is_some() || record.notice_kind.is_some(), "{record:?}");
        let view = view_becomes(&fleet.run.queue, "a drain that is over", |view| {
            view.drains.len() == 1 && view.drains[0].state == DrainState::Drained
        });
        let view = view.await.unwrap_or_else(|error| panic!("{error}\n{}", node.agent.log()));
        assert_eq!(view.drains[0].reason, DrainReason::Notice, "killed at {step}");
        fleet.work_is_back(&node, 1).await;
        let heir = fleet.node("n2", 100.0);
        fleet.is_finished_by(&heir).await;
        assert_eq!(status(&fleet.run.queue).await.lease_expiries, 0, "killed at {step}");
    }
}

#[tokio::test]
async fn redis_that_restarts_in_a_drain_gets_everything_back() {
    let mut redis = require!(Redis::options().appendonly().start().await);
    let fleet = Fleet::begin(&redis, "restarted").await;
    let mut node = fleet.busy_node("n1").await;
    redis.pause().unwrap();
    node.announce(100);
    node.says("drain begins").await;
    redis.kill();
    redis.restart().await.expect("starts");
    fleet.work_is_back(&node, 1).await;
    fleet.state(&node, NodeState::Drained).await;
    let heir = fleet.node("n2", 100.0);
    fleet.is_finished_by(&heir).await;
}

/// A Redis that keeps nothing: the work has to come anew, and nobody has to restart an agent.
#[tokio::test]
async fn redis_that_forgets_everything_in_a_drain_leaves_a_drained_node() {
    let mut redis = require!(Redis::start().await);
    let fleet = Fleet::begin(&redis, "forgotten").await;
    let mut node = fleet.busy_node("n1").await;
    redis.pause().unwrap();
    node.announce(100);
    node.says("drain begins").await;
    redis.kill();
    redis.restart().await.expect("starts");
    fleet.state(&node, NodeState::Drained).await;
    let view = view_becomes(&fleet.run.queue, "the drain", |view| {
        view.drains.first().is_some_and(|drain| drain.state == DrainState::Drained)
    });
    view.await.unwrap_or_else(|error| panic!("{error}\n{}", node.agent.log()));
    assert!(node.agent.is_running());
    fleet.give_work().await;
    let heir = fleet.node("n2", 100.0);
    fleet.is_finished_by(&heir).await;
    assert_eq!(status(&fleet.run.queue).await.hand_backs.len(), 0);
}

/// The whole node stands still, until somebody else has its work.
#[tokio::test]
async fn agent_that_stands_still_in_a_drain_changes_nothing_when_it_wakes() {
    let redis = require!(Redis::start().await);
    let fleet = Fleet::begin(&redis, "still").await;
    let mut node = fleet.busy_node("n1").await;
    node.agent.pause().unwrap();
    node.announce(3);
    let heir = fleet.node("n2", 10.0);
    let is_heirs = |unit: &UnitSnapshot| {
        unit.holder.as_ref().is_some_and(|holder| holder.node.as_str() == "n2")
    };
    let units = fleet.units("the heir to have all units", &[&heir], is_heirs).await;
    assert!(units.iter().all(|unit| (unit.infra_attempts, unit.attempts) == (1, 0)), "{units:?}");
    node.agent.resume().unwrap();
    node.says("interruption notice").await;
    fleet.state(&node, NodeState::Drained).await;
    fleet.is_finished_by(&heir).await;
}

#[tokio::test]
async fn drain_that_is_taken_back_and_asked_for_again_is_what_was_asked_for_last() {
    let redis = require!(Redis::start().await);
    let fleet = Fleet::begin(&redis, "again").await;
    let node = fleet.busy_node("n1").await;
    for _ in 0..5 {
        let said = fleet.run.command(&["drain", "n1", "--deadline", "60s"]).await;
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
        let said = fleet.run.command(&["drain", "n1", "--cancel"]).await;
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    }
    let said = fleet.run.command(&["drain", "n1", "--deadline", "60s", "--wait"]).await;
    assert_eq!(said.code, 0, "{}{}\n{}", said.out, said.err, node.agent.log());
    assert!(said.out.contains("handed back"), "its own report: {}", said.out);
    let said = fleet.run.command(&["drain", "n1"]).await;
    assert!(said.out.contains("n1 drains already (operator, drained)"), "{}", said.out);
    let is_back = |unit: &UnitSnapshot| unit.state == SlotState::Enqueued;
    fleet.units("all units to be back", &[&node], is_back).await;
    fleet.run.command(&["drain", "n1", "--cancel"]).await;
    fleet.state(&node, NodeState::Ready).await;
    fleet.is_finished_by(&node).await;
}

/// A drain is asked for while nobody runs on the node; the agent that comes must not lease at all.
#[tokio::test]
async fn node_that_is_to_be_drained_before_its_agent_is_up_never_leases() {
    let redis = require!(Redis::start().await);
    let fleet = Fleet::begin(&redis, "early").await;
    let request = DrainRequest {
        replica: "n1".parse().unwrap(),
        request_id: "event-1".to_owned(),
        generation: 0,
        reason: DrainReason::Lifecycle,
        remaining: Duration::from_secs(100),
        lost: "n1".parse::<NodeName>().unwrap().into(),
    };
    fleet.run.queue.request_drain(request).await.unwrap();
    let node = fleet.node("n1", 10.0);
    let record = fleet.state(&node, NodeState::Drained).await;
    assert_eq!(record.drained_for.as_deref(), Some("event-1"));
    let view = view_becomes(&fleet.run.queue, "a drain that is over", |view| {
        view.drains[0].state == DrainState::Drained
    });
    view.await.unwrap_or_else(|error| panic!("{error}\n{}", node.agent.log()));
    let never =
        |unit: &UnitSnapshot| (unit.hand_backs, unit.tokens, unit.leased_at) == (0, 0, None);
    fleet.units("nothing to be leased", &[&node], never).await;
    assert_eq!(node.engine.handle().counts().requests, 0);
}

/// SIGTERM in a drain, as of an upgrade: the next agent goes on with it.
#[tokio::test]
async fn agent_that_is_upgraded_in_a_drain_hands_back_and_its_successor_goes_on() {
    let redis = require!(Redis::start().await);
    let fleet = Fleet::begin(&redis, "upgraded").await;
    let mut node = fleet.busy_node("n1").await;
    node.announce(100);
    node.says("drain begins").await;
    let status = node.agent.terminate(Duration::from_secs(10)).await.expect("ends");
    assert!(status.success(), "{}", node.agent.log());
    fleet.work_is_back(&node, 1).await;
    node.agent.start_again().expect("starts");
    let drained_twice =
        || async { (node.agent.log().matches("duration_ms").count() == 2).then_some(()) };
    until("its successor to be drained", EVENT_LIMIT, drained_twice).await.unwrap();
    fleet.work_is_back(&node, 1).await;
    let heir = fleet.node("n2", 100.0);
    fleet.is_finished_by(&heir).await;
}
