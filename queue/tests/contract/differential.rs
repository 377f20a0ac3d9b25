//! Random histories, carried out in memory and on Redis: both must answer the same at every step,
//! look the same afterwards, and hold every invariant that an audit knows.
//!
//! A failing history is shrunk and printed by proptest, together with its seed.

use std::sync::atomic::{AtomicU32, Ordering};

use ebbtide_core::ids::GroupId;
use ebbtide_core::time::UnixMillis;
use ebbtide_harness::{Redis, require};
use ebbtide_queue::client::{MemoryPort, QueuePort, wall_clock_now};
use ebbtide_queue::command::{AuditPart, Command, Stage};
use ebbtide_queue::memory::ShardSettings;
use ebbtide_queue::redis::{RedisOptions, RedisPort};
use ebbtide_queue::reply::{Failure, Reply};
use ebbtide_queue::state::{ScanPage, SlotState, UnitEvent, UnitSnapshot};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::histories::{Step, Story, step};
use super::worlds::{group_id, layout, options};

const NEVER: UnixMillis = UnixMillis(0);

/// Takes out what may differ: moments, the names of records, and the order of a scan.
fn comparable(reply: Reply) -> Reply {
    match reply {
        Reply::Status(mut status) => {
            status.now = NEVER;
            status.oldest_ready_at = status.oldest_ready_at.map(|_| NEVER);
            Reply::Status(status)
        }
        Reply::Page(page) => {
            let mut units: Vec<_> = page.units.into_iter().map(without_moments).collect();
            units.sort_by(|a, b| a.unit.cmp(&b.unit));
            Reply::Page(ScanPage { cursor: 0, units })
        }
        Reply::Units(units) => Reply::Units(units.into_iter().map(without_moments).collect()),
        Reply::Trace(mut trace) => {
            trace.forgotten_at = trace.forgotten_at.map(|_| NEVER);
            for unit in &mut trace.units {
                unit.unit = without_moments(unit.unit.clone());
                forget_moments(&mut unit.history);
            }
            Reply::Trace(trace)
        }
        Reply::Failures(failures) => {
            Reply::Failures(failures.into_iter().map(without_names).collect())
        }
        other => other,
    }
}

fn without_moments(unit: UnitSnapshot) -> UnitSnapshot {
    UnitSnapshot {
        enqueued_at: NEVER,
        leased_at: unit.leased_at.map(|_| NEVER),
        lease_deadline: unit.lease_deadline.map(|_| NEVER),
        ..unit
    }
}

fn without_names(mut failure: Failure) -> Failure {
    forget_moments(&mut failure.history);
    Failure { record_id: String::new(), failed_at: None, ..failure }
}

fn forget_moments(history: &mut [UnitEvent]) {
    history.iter_mut().for_each(|event| event.at = NEVER);
}

/// Everything that can be read of a shard.
fn readings() -> Vec<Command> {
    let groups = (0..6).map(|number| -> GroupId { group_id(&format!("g{number}")) });
    let traces = groups.map(|group| Command::Trace { group });
    let audits =
        AuditPart::ALL.map(|part| Command::Audit { part, cursor: 0, repair: false }).into_iter();
    let others = [
        Command::Status,
        Command::Scan { cursor: 0 },
        Command::Peek { stage: Stage::Generate, limit: 5 },
        Command::Peek { stage: Stage::Reward, limit: 5 },
    ];
    let nodes = ["n1", "n2"].map(|node| node.parse().expect("valid"));
    let held = nodes.map(|node| Command::Held { node });
    others.into_iter().chain(held).chain(traces).chain(audits).collect()
}

async fn both_agree(memory: &MemoryPort, redis: &RedisPort, steps: &[Step]) {
    let mut story = Story::default();
    for (index, step) in steps.iter().enumerate() {
        let Some([first, second]) = story.commands(step) else { continue };
        let in_memory = memory.call(0, first.clone()).await.expect("memory");
        let on_redis = redis.call(0, second).await.expect("redis");
        story.learn(&first, &in_memory);
        let failures = Command::Failures { after: String::new(), limit: 1000 };
        let mut recorded = [memory.call(0, failures.clone()).await, redis.call(0, failures).await]
            .map(|reply| match reply {
                // CANCEL_RUN ends its groups in any order.
                Ok(Reply::Failures(mut failures)) => {
                    failures.sort_by(|a, b| a.group.cmp(&b.group));
                    failures
                }
                other => panic!("wanted failures, got {other:?}"),
            });
        assert_eq!(comparable(in_memory), comparable(on_redis), "step {index}: {step:?}");
        for command in readings() {
            let in_memory = comparable(memory.call(0, command.clone()).await.expect("memory"));
            let on_redis = comparable(redis.call(0, command.clone()).await.expect("redis"));
            assert_eq!(in_memory, on_redis, "step {index}: {step:?}, {command:?}");
            assert_invariants(&in_memory, &format!("step {index}: {step:?}"));
        }
        let [of_memory, of_redis] = &mut recorded;
        story.learn_failures(0, of_memory.clone());
        story.learn_failures(1, of_redis.clone());
        let comparable = |failures: &mut Vec<Failure>| -> Vec<Failure> {
            std::mem::take(failures).into_iter().map(without_names).collect()
        };
        assert_eq!(comparable(of_memory), comparable(of_redis), "step {index}: {step:?}");
    }
}

/// What must hold of every reading, whatever has happened before.
fn assert_invariants(reading: &Reply, context: &str) {
    match reading {
        Reply::Status(status) => {
            // I8: every slot is counted once, at every instant.
            let ended = status.completed + status.dead + status.expired + status.cancelled;
            assert_eq!(status.enqueued, ended + status.in_system(), "{context}: {status:?}");
        }
        Reply::Findings(_, findings) => assert_eq!(findings, &[], "{context}"),
        Reply::Trace(trace) => {
            for unit in &trace.units {
                // I4: chunks are contiguous, with a log-probability for each token.
                let mut end = 0;
                for chunk in &unit.chunks {
                    assert_eq!(chunk.offset, end, "{context}: {unit:?}");
                    assert_eq!(chunk.token_ids.len(), chunk.logprobs.len(), "{context}: {unit:?}");
                    end = chunk.end();
                }
                assert_eq!(end, unit.unit.tokens, "{context}: {unit:?}");
                // I9: versions never fall along a response.
                let versions = unit.chunks.iter().map(|chunk| chunk.weight_version);
                assert!(versions.is_sorted(), "{context}: {unit:?}");
                // I12: only faults are attempts.
                let faults = unit.history.iter().filter(|event| event.what == "fault").count();
                assert_eq!(usize::from(unit.unit.attempts), faults, "{context}: {unit:?}");
                // I6: a complete sample has ended by itself.
                let is_complete = unit.unit.state == SlotState::Completed;
                let limit = trace.spec.as_ref().map_or(0, |spec| spec.sampling.max_tokens);
                assert!(!is_complete || unit.unit.tokens <= limit, "{context}: {unit:?}");
            }
        }
        _ => {}
    }
}

/// Tells a history to a new run on Redis and to one in memory.
async fn tell(redis: &Redis, run: &str, has_reward_stage: bool, steps: &[Step]) {
    let mut layout = layout(1);
    layout.stage_count = 1 + u8::from(has_reward_stage);
    let run = run.parse().unwrap();
    let options = RedisOptions { run, layout: Some(layout), ..options(&redis.url(), 1) };
    let port = RedisPort::connect(options).await.expect("connects");
    let settings = ShardSettings { has_reward_stage, ..ShardSettings::default() };
    both_agree(&MemoryPort::new(1, settings, wall_clock_now), &port, steps).await;
}

#[test]
fn memory_and_redis_answer_the_same() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = require!(runtime.block_on(Redis::start()));
    let cases = if ebbtide_harness::is_long() { 2000 } else { 40 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = AtomicU32::new(0);
    let histories = (any::<bool>(), prop::collection::vec(step(), 1..80));
    TestRunner::new(config)
        .run(&histories, |(has_reward_stage, steps)| {
            let run = format!("r{}", run.fetch_add(1, Ordering::Relaxed));
            runtime.block_on(tell(&redis, &run, has_reward_stage, &steps));
            Ok(())
        })
        .unwrap();
}

/// A worker whose LEASE got no answer asks again, beside what it has finished meanwhile.
#[tokio::test]
async fn write_beside_a_repeated_lease_is_stored() {
    let redis = require!(Redis::start().await);
    let (group, policy, priority, shrinks) = (0, 0, 0, false);
    let (scores, holder, version, expires_at_once) = (false, 0, 0, false);
    let then_complete = 3;
    let steps = [
        Step::Enqueue { group, size: 2, policy, shrinks, priority },
        Step::Lease { scores, holder, limit: 2, version, expires_at_once },
        Step::Write {
            leases_next: true,
            leases_again: true,
            grant: 0,
            wrong_holder: false,
            offset_error: 0,
            count: 2,
            version,
            then: then_complete,
        },
        Step::Reap,
    ];
    tell(&redis, "beside", false, &steps).await;
}
