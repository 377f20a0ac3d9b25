//! From a command to the arguments of its script, as the head of each Lua file lists them.

use ebbtide_core::time::whole_millis;
use ebbtide_core::work::{OnDeadSlot, PromptGroup, ResumePolicy};

use super::scripts::ScriptName;
use crate::codec;
use crate::command::{
    Command, LEASE_REAPS_UNITS, LEASE_SCAN_LIMIT, LeaseRequest, ProgressLimits, Renewal, Then,
    UnitWrite, Waiting,
};
use crate::memory::AGENT_PROCESS_PREFIX;
use ebbtide_core::ids::Holder;

/// A script with its arguments.
pub(super) struct ScriptCall {
    pub script: ScriptName,
    pub arguments: Vec<Vec<u8>>,
    /// Whether safe mode makes the caller wait until the write lasts.
    pub must_last: bool,
}

/// What to run for a command.
pub(super) fn script_call(command: &Command) -> ScriptCall {
    let (script, arguments) = match command {
        Command::Enqueue(group) => (ScriptName::Enqueue, enqueue(group)),
        Command::Lease(request) => (ScriptName::Lease, lease(request)),
        Command::Renew { holder, renewals, limits } => {
            (ScriptName::Renew, renew(holder, renewals, *limits))
        }
        Command::Write { holder, writes } => (ScriptName::Write, write(holder, writes)),
        Command::Reap { limit } => (ScriptName::Reap, vec![text(limit)]),
        Command::Reclaim { holder } => (
            ScriptName::Reclaim,
            vec![
                text(&holder.node),
                text(&holder.boot_id),
                text(&holder.process),
                text(&AGENT_PROCESS_PREFIX),
            ],
        ),
        Command::FailGroup { group, reason } => {
            (ScriptName::FailGroup, vec![text(group), text(reason)])
        }
        Command::SetVersion(version) => (ScriptName::SetVersion, vec![text(version)]),
        Command::Take { consumer, limit } => (ScriptName::Take, vec![text(consumer), text(limit)]),
        Command::Acknowledge { consumer, groups } => (
            ScriptName::Acknowledge,
            std::iter::once(text(consumer)).chain(groups.iter().map(text)).collect(),
        ),
        Command::TakeOver { from, to } => (ScriptName::TakeOver, vec![text(from), text(to)]),
        Command::Status => (ScriptName::Status, Vec::new()),
        Command::Scan { cursor } => (ScriptName::Scan, vec![text(cursor)]),
        Command::Failures { after, limit } => {
            (ScriptName::Failures, vec![text(after), text(limit)])
        }
    };
    let must_last = match command {
        Command::Enqueue(_) | Command::SetVersion(_) | Command::Acknowledge { .. } => true,
        Command::Write { writes, .. } => writes.iter().any(|write| write.then != Then::Continue),
        _ => false,
    };
    ScriptCall { script, arguments, must_last }
}

fn text(value: &impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn flag(value: bool) -> Vec<u8> {
    text(&u8::from(value))
}

fn enqueue(group: &PromptGroup) -> Vec<Vec<u8>> {
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
        text(&group.max_lag),
        text(&resume),
        text(&group.min_policy_version),
        text(&group.priority),
        text(&group.max_attempts),
        text(&group.max_infra_attempts),
        text(&group.max_leased_ms),
        text(&group.expires_at.map_or(0, |moment| moment.0)),
        text(&group.sampling.max_tokens),
        codec::encode_group(group),
    ]
}

fn lease(request: &LeaseRequest) -> Vec<Vec<u8>> {
    vec![
        text(&request.holder),
        text(&request.request_id),
        text(&request.limit),
        text(&whole_millis(request.ttl)),
        text(&request.worker_version),
        text(&request.start_at),
        flag(request.allow_fresh),
        text(&LEASE_REAPS_UNITS),
        text(&LEASE_SCAN_LIMIT),
    ]
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

fn write(holder: &Holder, writes: &[UnitWrite]) -> Vec<Vec<u8>> {
    let mut arguments = vec![text(holder)];
    for write in writes {
        let (verb, detail) = match &write.then {
            Then::Continue => ("CONTINUE", Vec::new()),
            Then::Complete(finish) => (
                "COMPLETE",
                rmp_serde::to_vec_named(finish).expect("plain fields always serialise"),
            ),
            Then::HandBack(cause) => ("HANDBACK", text(&cause.as_str())),
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
                codec::encode_chunk(chunk),
            ]);
        }
    }
    arguments
}
