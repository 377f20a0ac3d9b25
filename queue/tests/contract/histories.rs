//! Random histories of all operations by several holders, with replies that are lost and calls that
//! are repeated.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, Holder, PolicyVersion, UnitId};
use ebbtide_core::sample::Score;
use ebbtide_core::work::{OnDeadSlot, PromptGroup, ResumePolicy};
use ebbtide_queue::command::{
    Command, LeaseRequest, ProgressLimits, Renewal, Stage, TakeWhich, Then, UnitWrite, Waiting,
};
use ebbtide_queue::reply::{Failure, LeaseReply, Reply, WriteReply};
use proptest::prelude::*;

use super::worlds::{LONG, group, group_id, preempted, stop, tokens};

/// One step of a history. Numbers choose among what exists at that point.
#[derive(Debug, Clone)]
pub enum Step {
    Enqueue {
        group: u8,
        size: u16,
        policy: u8,
        shrinks: bool,
        priority: i32,
    },
    Lease {
        scores: bool,
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
        leases_next: bool,
        /// What it leases is what the holder was granted before, whose answer was lost.
        leases_again: bool,
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
    Requeue {
        grant: usize,
    },
    FailGroup {
        group: u8,
    },
    CancelRun,
    Retry {
        failure: usize,
    },
    DropFailure {
        failure: usize,
    },
    RemoveConsumer {
        consumer: u8,
    },
    SetVersion {
        version: u64,
    },
    Take {
        own: bool,
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

pub fn step() -> impl Strategy<Value = Step> {
    let flag = || prop::bool::weighted(0.15);
    prop_oneof![
        3 => (0..6_u8, 1..4_u16, 0..3_u8, any::<bool>(), -2..3_i32).prop_map(
            |(group, size, policy, shrinks, priority)| Step::Enqueue {
                group, size, policy, shrinks, priority
            }
        ),
        6 => (any::<bool>(), 0..3_u8, 1..4_usize, 0..4_u64, flag()).prop_map(
            |(scores, holder, limit, version, expires_at_once)| Step::Lease {
                scores, holder, limit, version, expires_at_once
            }
        ),
        1 => Just(Step::RepeatLease),
        1 => (0..20_usize).prop_map(|grant| Step::Renew { grant }),
        10 => (flag(), any::<bool>(), 0..20_usize, flag(),
              prop_oneof![6 => Just(0_u32), 1 => 1..3_u32], 0..4_u32, 0..4_u64, 0..8_u8).prop_map(
            |(leases_next, leases_again, grant, wrong_holder, offset_error, count, version, then)| {
                Step::Write {
                    leases_next, leases_again, grant, wrong_holder, offset_error, count, version,
                    then
                }
            }
        ),
        1 => Just(Step::RepeatWrite),
        1 => Just(Step::Reap),
        1 => (0..4_u8).prop_map(|holder| Step::Reclaim { holder }),
        1 => (0..20_usize).prop_map(|grant| Step::Requeue { grant }),
        1 => (0..6_u8).prop_map(|group| Step::FailGroup { group }),
        1 => Just(Step::CancelRun),
        1 => (0..20_usize).prop_map(|failure| Step::Retry { failure }),
        1 => (0..20_usize).prop_map(|failure| Step::DropFailure { failure }),
        1 => (0..3_u8).prop_map(|consumer| Step::RemoveConsumer { consumer }),
        1 => (0..5_u64).prop_map(|version| Step::SetVersion { version }),
        2 => (any::<bool>(), 0..2_u8, 1..3_usize).prop_map(
            |(own, consumer, limit)| Step::Take { own, consumer, limit }
        ),
        2 => (0..2_u8, 0..6_u8).prop_map(
            |(consumer, group)| Step::Acknowledge { consumer, group }
        ),
        1 => (0..2_u8, 0..2_u8).prop_map(|(from, to)| Step::TakeOver { from, to }),
    ]
}

/// What the story remembers to choose from.
#[derive(Default)]
pub struct Story {
    grants: Vec<(UnitId, FencingToken, Holder, u32)>,
    last_lease: Option<Command>,
    last_write: Option<Command>,
    requests: u32,
    /// Failures as the two worlds know them; records have other names there.
    failures: [Vec<Failure>; 2],
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
    /// The command of a step in each of the two worlds; `None` when there is nothing to choose.
    pub fn commands(&mut self, step: &Step) -> Option<[Command; 2]> {
        let command = match step {
            Step::Retry { failure } => {
                return self.on_failure(*failure, |failure| Command::Retry {
                    record_id: failure.record_id.clone(),
                    group: Box::new(PromptGroup::clone(failure.spec.as_ref().unwrap())),
                });
            }
            Step::DropFailure { failure } => {
                return self.on_failure(*failure, |failure| Command::DropFailure {
                    record_id: failure.record_id.clone(),
                });
            }
            _ => self.command(step)?,
        };
        Some([command.clone(), command])
    }

    fn on_failure(
        &self,
        index: usize,
        command: impl Fn(&Failure) -> Command,
    ) -> Option<[Command; 2]> {
        let [first, second] = &self.failures;
        let index = index % first.len().max(1);
        Some([command(first.get(index)?), command(second.get(index)?)])
    }

    fn command(&mut self, step: &Step) -> Option<Command> {
        Some(match step {
            Step::Enqueue { group, size, policy, shrinks, priority } => {
                let group = any_group(*group, *size, *policy, *shrinks, *priority);
                Command::Enqueue(Box::new(group))
            }
            Step::Lease { scores, holder, limit, version, expires_at_once } => {
                let stage = if *scores { Stage::Reward } else { Stage::Generate };
                let ttl = if *expires_at_once { Duration::ZERO } else { LONG };
                let request = self.request(stage, any_holder(*holder), *limit, ttl, *version);
                let lease = Command::Lease(request);
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
            Step::Write {
                leases_next,
                leases_again,
                grant,
                wrong_holder,
                offset_error,
                count,
                version,
                then,
            } => {
                let write = self.write(*grant, *offset_error, *count, *version, *then)?;
                let holder = if *wrong_holder { any_holder(3) } else { write.1 };
                let writes = vec![write.0];
                let command = if *leases_next {
                    let lease = self.request(Stage::Generate, holder, 1, LONG, *version);
                    let lease = match &self.last_lease {
                        Some(Command::Lease(last))
                            if *leases_again
                                && (&last.holder, last.stage) == (&lease.holder, lease.stage) =>
                        {
                            last.clone()
                        }
                        _ => lease,
                    };
                    Command::Exchange { writes, lease }
                } else {
                    Command::Write { holder, writes }
                };
                self.last_write = Some(command.clone());
                command
            }
            Step::Reap => Command::Reap { limit: 100 },
            Step::Reclaim { holder } => Command::Reclaim { holder: any_holder(*holder) },
            Step::Requeue { grant } => {
                let (unit, fencing_token, ..) = self.pick(*grant)?;
                Command::Requeue { unit, fencing_token }
            }
            Step::CancelRun => Command::CancelRun { cursor: 0, reason: "run cancelled".to_owned() },
            Step::RemoveConsumer { consumer } => {
                Command::RemoveConsumer { consumer: format!("t{consumer}") }
            }
            Step::Retry { .. } | Step::DropFailure { .. } => return None,
            Step::FailGroup { group } => Command::FailGroup {
                group: group_id(&format!("g{group}")),
                reason: "unwanted".to_owned(),
            },
            Step::SetVersion { version } => Command::SetVersion(PolicyVersion(*version)),
            Step::Take { own, consumer, limit } => {
                let which = if *own { TakeWhich::Own } else { TakeWhich::New };
                Command::Take { consumer: format!("t{consumer}"), limit: *limit, which }
            }
            Step::Acknowledge { consumer, group } => Command::Acknowledge {
                consumer: format!("t{consumer}"),
                groups: vec![group_id(&format!("g{group}"))],
            },
            Step::TakeOver { from, to } if from == to => return None,
            Step::TakeOver { from, to } => {
                Command::TakeOver { from: format!("t{from}"), to: format!("t{to}"), limit: 100 }
            }
        })
    }

    fn request(
        &mut self,
        stage: Stage,
        holder: Holder,
        limit: usize,
        ttl: Duration,
        version: u64,
    ) -> LeaseRequest {
        self.requests += 1;
        LeaseRequest {
            stage,
            holder,
            request_id: self.requests.to_string(),
            limit,
            ttl,
            worker_version: PolicyVersion(version),
            start_at: 0,
            allow_fresh: true,
        }
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
            4 => Then::HandBack(preempted()),
            5 | 6 => Then::Score(Score {
                value: 0.5,
                scorer_version: "rule/1".to_owned(),
                metadata: vec![7],
            }),
            _ => Then::Fault("fault".to_owned()),
        };
        Some((UnitWrite { unit, fencing_token, tail, then }, holder))
    }

    /// Remembers what a step brought.
    pub fn learn(&mut self, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::Lease(request), Reply::Lease(leased)) => self.note_grants(request, leased),
            (Command::Write { writes, .. }, Reply::Writes(replies)) => {
                self.note_write(&writes[0], replies[0]);
            }
            (Command::Exchange { writes, lease }, Reply::Exchanged(replies, leased)) => {
                self.note_write(&writes[0], replies[0]);
                self.note_grants(lease, leased);
            }
            _ => {}
        }
    }

    /// Remembers the records of failures in the two worlds.
    pub fn learn_failures(&mut self, world: usize, failures: Vec<Failure>) {
        self.failures[world] = failures;
    }

    fn note_grants(&mut self, request: &LeaseRequest, leased: &LeaseReply) {
        for grant in &leased.grants {
            let stored = grant.partial.last().map_or(0, |chunk| chunk.end());
            let holder = request.holder.clone();
            self.grants.push((grant.unit.clone(), grant.fencing_token, holder, stored));
        }
    }

    fn note_write(&mut self, write: &UnitWrite, reply: WriteReply) {
        let Some(stored) = write.tail.last().map(|chunk| chunk.end()) else { return };
        for grant in &mut self.grants {
            let is_it = grant.0 == write.unit && grant.1 == write.fencing_token;
            if is_it && reply == WriteReply::Ok {
                grant.3 = stored;
            }
        }
    }
}
