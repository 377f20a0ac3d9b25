//! From a command to the arguments of its function, as the head of each Lua file lists them.

use std::time::Duration;

use ebbtide_core::ids::{Holder, PolicyVersion};
use ebbtide_core::time::whole_millis;
use ebbtide_core::work::{OnDeadSlot, PromptGroup, ResumePolicy};

use super::Layout;
use super::library::Function;
use crate::codec;
use crate::command::{
    AuditPart, COMMAND_UNITS_LIMIT, Command, LeaseRequest, ProgressLimits, Renewal, Stage,
    TakeWhich, Then, UnitWrite, Waiting,
};
use crate::memory::AGENT_PROCESS_PREFIX;

/// A function with its arguments.
pub(super) struct FunctionCall {
    pub function: Function,
    pub arguments: Vec<Vec<u8>>,
    /// Whether safe mode makes the caller wait until the write lasts.
    pub must_last: bool,
}

/// What to run for a command on a run of this layout.
pub(super) fn function_call(command: &Command, layout: Layout) -> FunctionCall {
    let (function, arguments) = match command {
        Command::Enqueue(group) => (Function::Enqueue, enqueue(group, layout, "")),
        Command::Retry { record_id, group } => {
            (Function::Enqueue, enqueue(group, layout, record_id))
        }
        Command::Lease(request) => (Function::Exchange, exchange(&[], request)),
        Command::Write { holder, writes } => {
            (Function::Exchange, exchange(writes, &nothing(holder)))
        }
        Command::Exchange { writes, lease } => (Function::Exchange, exchange(writes, lease)),
        Command::Renew { holder, renewals, limits } => {
            (Function::Renew, renew(holder, renewals, *limits))
        }
        Command::Reap { limit } => (Function::Reap, vec![text(limit)]),
        Command::Reclaim { holder } => (
            Function::Reclaim,
            vec![
                text(&holder.node),
                text(&holder.boot_id),
                text(&holder.process),
                text(&AGENT_PROCESS_PREFIX),
            ],
        ),
        Command::Requeue { unit, fencing_token } => {
            (Function::Requeue, vec![text(unit), text(fencing_token)])
        }
        Command::FailGroup { group, reason } => {
            (Function::FailGroup, vec![text(group), text(reason)])
        }
        Command::CancelRun { cursor, reason } => {
            (Function::CancelRun, vec![text(cursor), text(reason)])
        }
        Command::SetVersion(version) => (Function::SetVersion, vec![text(version)]),
        Command::Take { consumer, limit, which } => {
            let which = match which {
                TakeWhich::Own => "own",
                TakeWhich::New => "new",
            };
            (Function::Take, vec![text(consumer), text(limit), text(&which)])
        }
        Command::Acknowledge { consumer, groups } => (
            Function::Acknowledge,
            std::iter::once(text(consumer)).chain(groups.iter().map(text)).collect(),
        ),
        Command::TakeOver { from, to, limit } => {
            (Function::TakeOver, vec![text(from), text(to), text(limit)])
        }
        Command::RemoveConsumer { consumer } => (Function::RemoveConsumer, vec![text(consumer)]),
        Command::Status => (Function::Status, Vec::new()),
        Command::Held { node } => (Function::Held, vec![text(node)]),
        Command::Scan { cursor } => (Function::Scan, vec![text(cursor)]),
        Command::Failures { after, limit } => (Function::Failures, vec![text(after), text(limit)]),
        Command::Peek { stage, limit } => {
            (Function::Peek, vec![text(&stage_number(*stage)), text(limit)])
        }
        Command::Trace { group } => (Function::Trace, vec![text(group)]),
        Command::DropFailure { record_id } => (Function::DropFailure, vec![text(record_id)]),
        Command::Audit { part, cursor, repair } => {
            (Function::Audit, vec![text(&part_word(*part)), text(cursor), flag(*repair)])
        }
    };
    FunctionCall { function, arguments, must_last: must_last(command) }
}

/// What nobody may be told before it lasts: that work was taken in, finished or given back.
fn must_last(command: &Command) -> bool {
    match command {
        Command::Enqueue(_)
        | Command::Retry { .. }
        | Command::SetVersion(_)
        | Command::Acknowledge { .. } => true,
        Command::Write { writes, .. } | Command::Exchange { writes, .. } => {
            writes.iter().any(|write| write.then != Then::Continue)
        }
        _ => false,
    }
}

fn stage_number(stage: Stage) -> u8 {
    match stage {
        Stage::Generate => 0,
        Stage::Reward => 1,
    }
}

fn part_word(part: AuditPart) -> &'static str {
    match part {
        AuditPart::Groups => "groups",
        AuditPart::Units => "units",
        AuditPart::Specs => "specs",
        AuditPart::History => "history",
        AuditPart::Chunks => "chunks",
        AuditPart::Ready(Stage::Generate) => "ready:generate",
        AuditPart::Ready(Stage::Reward) => "ready:reward",
        AuditPart::Leases(Stage::Generate) => "lease:generate",
        AuditPart::Leases(Stage::Reward) => "lease:reward",
        AuditPart::Held => "held",
    }
}

fn text(value: &impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn flag(value: bool) -> Vec<u8> {
    text(&u8::from(value))
}

fn enqueue(group: &PromptGroup, layout: Layout, retry_of: &str) -> Vec<Vec<u8>> {
    let fewest = match group.on_dead_slot {
        OnDeadSlot::Fail => group.group_size,
        OnDeadSlot::Shrink { min_samples } => min_samples,
    };
    let resume = match group.resume_policy {
        ResumePolicy::ContinueMixed => 0,
        ResumePolicy::RestartIfNewer => 1,
        ResumePolicy::MaskOld => 2,
    };
    vec![
        text(&group.group_id),
        text(&group.group_size),
        text(&fewest),
        text(&layout.stage_count),
        text(&group.max_lag),
        text(&resume),
        text(&group.min_policy_version),
        text(&group.priority),
        text(&group.max_attempts),
        text(&group.max_infra_attempts),
        text(&group.max_leased_ms),
        text(&group.expires_at.map_or(0, |moment| moment.0)),
        text(&group.sampling.max_tokens),
        text(&whole_millis(layout.dedup_window)),
        codec::encode_group(group),
        text(&retry_of),
    ]
}

/// A lease of nothing.
fn nothing(holder: &Holder) -> LeaseRequest {
    LeaseRequest {
        stage: Stage::Generate,
        holder: holder.clone(),
        request_id: String::new(),
        limit: 0,
        ttl: Duration::ZERO,
        worker_version: PolicyVersion(0),
        start_at: 0,
        allow_fresh: false,
    }
}

fn exchange(writes: &[UnitWrite], request: &LeaseRequest) -> Vec<Vec<u8>> {
    let mut arguments = vec![
        text(&request.holder),
        text(&request.request_id),
        text(&stage_number(request.stage)),
        text(&request.limit.min(COMMAND_UNITS_LIMIT)),
        text(&whole_millis(request.ttl)),
        text(&request.worker_version),
        text(&request.start_at),
        flag(request.allow_fresh),
        text(&writes.len()),
    ];
    for write in writes {
        add_write(&mut arguments, write);
    }
    arguments
}

fn renew(holder: &Holder, renewals: &[Renewal], limits: ProgressLimits) -> Vec<Vec<u8>> {
    let mut arguments = vec![
        text(holder),
        text(&whole_millis(limits.idle)),
        text(&whole_millis(limits.environment)),
        text(&whole_millis(limits.engine_pause)),
    ];
    for renewal in renewals {
        let waiting = match renewal.waiting {
            Waiting::Nothing => 0,
            Waiting::Environment => 1,
            Waiting::EnginePause => 2,
        };
        arguments.extend([
            text(&renewal.unit),
            text(&renewal.fencing_token),
            text(&whole_millis(renewal.ttl)),
            text(&waiting),
        ]);
    }
    arguments
}

fn add_write(arguments: &mut Vec<Vec<u8>>, write: &UnitWrite) {
    let (verb, detail) = match &write.then {
        Then::Continue => ("CONTINUE", Vec::new()),
        Then::Complete(finish) => {
            ("COMPLETE", rmp_serde::to_vec_named(finish).expect("plain fields always serialise"))
        }
        Then::Score(score) => ("SCORE", codec::encode_score(score)),
        Then::HandBack(hand_back) => ("HANDBACK", text(hand_back)),
        Then::Fault(reason) => ("FAULT", text(reason)),
    };
    arguments.extend([
        text(&write.unit),
        text(&write.fencing_token),
        text(&verb),
        detail,
        text(&write.tail.len()),
    ]);
    for chunk in &write.tail {
        arguments.extend([
            text(&chunk.offset),
            text(&chunk.len()),
            text(&chunk.weight_version),
            text(&chunk.origin.engine),
            text(&chunk.origin.fabric.as_str()),
            codec::encode_chunk(chunk),
        ]);
    }
}
