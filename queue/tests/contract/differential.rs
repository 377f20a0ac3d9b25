//! Random histories, carried out in memory and on Redis: both must answer the same at every step.
//!
//! A failing history is shrunk and printed by proptest, together with its seed.

use std::sync::Arc;
use std::time::Duration;

use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion, UnitId};
use ebbtide_core::time::UnixMillis;
use ebbtide_core::work::{OnDeadSlot, PromptGroup, ResumePolicy};
use ebbtide_harness::{Redis, require};
use ebbtide_queue::client::{MemoryPort, QueuePort, wall_clock_now};
use ebbtide_queue::command::{
    Command, HandBackCause, LeaseRequest, ProgressLimits, Renewal, Reply, ScanPage, Then,
    UnitWrite, Waiting,
};
use ebbtide_queue::redis::{RedisOptions, RedisPort};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::worlds::{LONG, group, group_id, options, stop, tokens};

/// One step of a history. Numbers choose among what exists at that point.
#[derive(Debug, Clone)]
enum Step {
    Enqueue {
        group: u8,
        size: u16,
        policy: u8,
        shrinks: bool,
        priority: i32,
    },
    Lease {
        holder: u8,
        limit: usize,
        version: u64,
        expires_at_once: bool,
    },
    RepeatLease,
    Renew {
        grant: usize,
    },
    Write {
        grant: usize,
        wrong_holder: bool,
        offset_error: u32,
        count: u32,
        version: u64,
        then: u8,
    },
    RepeatWrite,
    Reap,
    Reclaim {
        holder: u8,
    },
    FailGroup {
        group: u8,
    },
    SetVersion {
        version: u64,
    },
    Take {
        consumer: u8,
        limit: usize,
    },
    Acknowledge {
        consumer: u8,
        group: u8,
    },
    TakeOver {
        from: u8,
        to: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let flag = || prop::bool::weighted(0.15);
    prop_oneof![
        3 => (0..6_u8, 1..4_u16, 0..3_u8, any::<bool>(), -2..3_i32).prop_map(
            |(group, size, policy, shrinks, priority)| Step::Enqueue {
                group, size, policy, shrinks, priority
            }
        ),
        5 => (0..3_u8, 1..4_usize, 0..4_u64, flag()).prop_map(
            |(holder, limit, version, expires_at_once)| Step::Lease {
                holder, limit, version, expires_at_once
            }
        ),
        1 => Just(Step::RepeatLease),
        1 => (0..20_usize).prop_map(|grant| Step::Renew { grant }),
        9 => (0..20_usize, flag(), prop_oneof![6 => Just(0_u32), 1 => 1..3_u32], 0..4_u32, 0..4_u64,
              0..6_u8).prop_map(
            |(grant, wrong_holder, offset_error, count, version, then)| Step::Write {
                grant, wrong_holder, offset_error, count, version, then
            }
        ),
        1 => Just(Step::RepeatWrite),
        1 => Just(Step::Reap),
        1 => (0..4_u8).prop_map(|holder| Step::Reclaim { holder }),
        1 => (0..6_u8).prop_map(|group| Step::FailGroup { group }),
        1 => (0..5_u64).prop_map(|version| Step::SetVersion { version }),
        2 => (0..2_u8, 1..3_usize).prop_map(|(consumer, limit)| Step::Take { consumer, limit }),
        2 => (0..2_u8, 0..6_u8).prop_map(
            |(consumer, group)| Step::Acknowledge { consumer, group }
        ),
        1 => (0..2_u8, 0..2_u8).prop_map(|(from, to)| Step::TakeOver { from, to }),
    ]
}

/// What the story remembers to choose from.
#[derive(Default)]
struct Story {
    grants: Vec<(UnitId, FencingToken, Holder, u32)>,
    last_lease: Option<Command>,
    last_write: Option<Command>,
    requests: u32,
}

fn any_holder(index: u8) -> Holder {
    let names = ["n1/b1/agent-1", "n1/b1/agent-2", "n2/b1/worker-1", "n2/b2/agent-3"];
    names[usize::from(index)].parse().unwrap()
}

fn any_group(index: u8, size: u16, policy: u8, shrinks: bool, priority: i32) -> PromptGroup {
    let mut group = group(&format!("g{index}"), size);
    group.max_lag = 1;
    group.priority = priority;
    group.max_attempts = 2;
    group.sampling.max_tokens = 6;
    group.resume_policy =
        [ResumePolicy::ContinueMixed, ResumePolicy::RestartIfNewer, ResumePolicy::MaskOld]
            [usize::from(policy)];
    if shrinks {
        group.on_dead_slot = OnDeadSlot::Shrink { min_samples: 1 };
    }
    group
}

impl Story {
    fn command(&mut self, step: &Step) -> Option<Command> {
        Some(match step {
            Step::Enqueue { group, size, policy, shrinks, priority } => {
                let group = any_group(*group, *size, *policy, *shrinks, *priority);
                Command::Enqueue(Box::new(group))
            }
            Step::Lease { holder, limit, version, expires_at_once } => {
                self.requests += 1;
                let lease = Command::Lease(LeaseRequest {
                    holder: any_holder(*holder),
                    request_id: self.requests.to_string(),
                    limit: *limit,
                    ttl: if *expires_at_once { Duration::ZERO } else { LONG },
                    worker_version: PolicyVersion(*version),
                    start_at: 0,
                    allow_fresh: true,
                });
                self.last_lease = Some(lease.clone());
                lease
            }
            Step::RepeatLease => self.last_lease.clone()?,
            Step::RepeatWrite => self.last_write.clone()?,
            Step::Renew { grant } => {
                let (unit, token, holder, _) = self.pick(*grant)?;
                let waiting = Waiting::Nothing;
                let renewal = Renewal { unit, fencing_token: token, ttl: LONG, waiting };
                let limits = ProgressLimits::default();
                Command::Renew { holder, renewals: vec![renewal], limits }
            }
            Step::Write { grant, wrong_holder, offset_error, count, version, then } => {
                let write = self.write(*grant, *offset_error, *count, *version, *then)?;
                let holder = if *wrong_holder { any_holder(3) } else { write.1 };
                let command = Command::Write { holder, writes: vec![write.0] };
                self.last_write = Some(command.clone());
                command
            }
            Step::Reap => Command::Reap { limit: 100 },
            Step::Reclaim { holder } => Command::Reclaim { holder: any_holder(*holder) },
            Step::FailGroup { group } => Command::FailGroup {
                group: group_id(&format!("g{group}")),
                reason: "unwanted".to_owned(),
            },
            Step::SetVersion { version } => Command::SetVersion(PolicyVersion(*version)),
            Step::Take { consumer, limit } => {
                Command::Take { consumer: format!("t{consumer}"), limit: *limit }
            }
            Step::Acknowledge { consumer, group } => Command::Acknowledge {
                consumer: format!("t{consumer}"),
                groups: vec![group_id(&format!("g{group}"))],
            },
            Step::TakeOver { from, to } if from == to => return None,
            Step::TakeOver { from, to } => {
                Command::TakeOver { from: format!("t{from}"), to: format!("t{to}") }
            }
        })
    }

    fn pick(&self, grant: usize) -> Option<(UnitId, FencingToken, Holder, u32)> {
        // Counted from the newest, so that most picks are live leases and some are zombies.
        self.grants.iter().rev().nth(grant % self.grants.len().max(1)).cloned()
    }

    fn write(
        &mut self,
        grant: usize,
        offset_error: u32,
        count: u32,
        version: u64,
        then: u8,
    ) -> Option<(UnitWrite, Holder)> {
        let (unit, fencing_token, holder, stored) = self.pick(grant)?;
        let tail =
            if count == 0 { vec![] } else { vec![tokens(stored + offset_error, count, version)] };
        let then = match then {
            0..=2 => Then::Continue,
            3 => Then::Complete(stop()),
            4 => Then::HandBack(HandBackCause::Notice),
            _ => Then::Fault("fault".to_owned()),
        };
        Some((UnitWrite { unit, fencing_token, tail, then }, holder))
    }

    fn learn(&mut self, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::Lease(request), Reply::Lease(leased)) => {
                for grant in &leased.grants {
                    let stored = grant.partial.last().map_or(0, |chunk| chunk.end());
                    let holder = request.holder.clone();
                    self.grants.push((grant.unit.clone(), grant.fencing_token, holder, stored));
                }
            }
            (Command::Write { writes, .. }, Reply::Writes(replies)) => {
                use ebbtide_queue::command::WriteReply;
                let stored = writes[0].tail.last().map(|chunk| chunk.end());
                for grant in &mut self.grants {
                    let is_it = grant.0 == writes[0].unit && grant.1 == writes[0].fencing_token;
                    if is_it && replies[0] == WriteReply::Ok {
                        grant.3 = stored.unwrap_or(grant.3);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Takes out what may differ: moments, and the order of a scan.
fn comparable(reply: Reply) -> Reply {
    match reply {
        Reply::Status(mut status) => {
            status.now = UnixMillis(0);
            status.oldest_ready_at = status.oldest_ready_at.map(|_| UnixMillis(0));
            Reply::Status(status)
        }
        Reply::Page(mut page) => {
            page.units.sort_by(|a, b| a.unit.cmp(&b.unit));
            Reply::Page(ScanPage { cursor: 0, units: page.units })
        }
        Reply::Failures(mut failures) => {
            failures.iter_mut().for_each(|failure| failure.record_id.clear());
            Reply::Failures(failures)
        }
        other => other,
    }
}

async fn both_agree(memory: &MemoryPort, redis: &RedisPort, steps: &[Step]) {
    let mut story = Story::default();
    for (index, step) in steps.iter().enumerate() {
        let Some(command) = story.command(step) else { continue };
        let audits = [
            Command::Status,
            Command::Scan { cursor: 0 },
            Command::Failures { after: String::new(), limit: 100 },
        ];
        for command in std::iter::once(&command).chain(&audits) {
            let in_memory = comparable(memory.call(0, command.clone()).await.expect("memory"));
            let on_redis = comparable(redis.call(0, command.clone()).await.expect("redis"));
            assert_eq!(in_memory, on_redis, "step {index}: {step:?}, {command:?}");
            story.learn(command, &in_memory);
        }
    }
}

#[test]
fn memory_and_redis_answer_the_same() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = require!(runtime.block_on(Redis::start()));
    let cases = if ebbtide_harness::is_long() { 2000 } else { 100 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = std::sync::atomic::AtomicU32::new(0);
    TestRunner::new(config)
        .run(&prop::collection::vec(step(), 1..80), |steps| {
            let run = run.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let options = RedisOptions {
                run: format!("r{run}").parse().unwrap(),
                ..options(&redis.url(), 1)
            };
            runtime.block_on(async {
                let port = RedisPort::connect(options).await.expect("connects");
                let memory = Arc::new(MemoryPort::new(1, wall_clock_now));
                both_agree(&memory, &port, &steps).await;
            });
            Ok(())
        })
        .unwrap();
}
