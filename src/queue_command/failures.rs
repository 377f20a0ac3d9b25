//! The records of failed groups and dead units: reading them, and how they look.

use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::reply::Failure;
use ebbtide_queue::state::SlotState;
use serde_json::{Value, json};

use super::life;
use crate::table::Table;
use crate::words::{counted, flow, span, thousands};

/// Records read in one call.
const PAGE: usize = 100;
/// Characters of a line.
const WIDTH: usize = 96;

/// All records of one shard, oldest first.
///
/// # Errors
/// The shard does not answer.
pub async fn read_shard(queue: &WorkQueue, shard: u16) -> Result<Vec<Failure>, QueueError> {
    let (mut records, mut after) = (Vec::<Failure>::new(), String::new());
    loop {
        let page = queue.failures(shard, &after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(records) };
        after.clone_from(&last.record_id);
        records.extend(page);
    }
}

/// A record in two or three lines; the first begins with the group.
pub fn to_lines(failure: &Failure, now: UnixMillis) -> Vec<String> {
    let ago = failure.failed_at.map_or(String::new(), |at| format!(" {} ago", span(now.since(at))));
    let head = if failure.ends_group {
        format!("{} failed{ago}: {}", failure.group, failure.reason)
    } else {
        format!("{} goes on without a unit that died{ago}", failure.group)
    };
    let mut lines = vec![head];
    if let Some(unit) = &failure.culprit {
        let said =
            if failure.detail.is_empty() { "no word of its holder" } else { &failure.detail };
        let holder =
            failure.slots.get(usize::from(unit.slot)).and_then(|slot| slot.holder.as_ref());
        let holder = holder.map_or(String::new(), |holder| format!(" ({})", holder.node));
        lines.push(format!("    {unit}: {said}{holder}"));
    }
    lines.extend(
        flow(&counts(failure), ", ", WIDTH - 4).into_iter().map(|line| format!("    {line}")),
    );
    lines
}

fn counts(failure: &Failure) -> Vec<String> {
    let states = [
        (failure.completed, "completed"),
        (failure.dead, "dead"),
        (failure.expired, "expired"),
        (failure.cancelled, "cancelled"),
    ];
    let counts = states.iter().filter(|(count, _)| *count > 0);
    let of = format!("of {}", counted(failure.group_size.into(), "sample"));
    let mut parts: Vec<String> = counts.map(|(count, state)| format!("{count} {state}")).collect();
    match parts.first_mut() {
        Some(first) => *first = format!("{of}: {first}"),
        None => parts.push(of),
    }
    parts.push(format!("{} wasted", counted(failure.tokens_wasted, "token")));
    if failure.spec.is_none() {
        parts.push("its prompt is lost".to_owned());
    }
    parts
}

/// The slots at the end, and the life of the culprit.
pub fn details(failure: &Failure) -> Vec<String> {
    let mut table =
        Table::new(["SLOT", "STATE", ">TOKENS", ">FAULTS", ">LOST", ">BACK", "LAST HOLDER"]);
    for (number, slot) in failure.slots.iter().enumerate() {
        table.row([
            format!("{number:04x}"),
            state_word(slot.state).to_owned(),
            thousands(slot.tokens.into()),
            slot.attempts.to_string(),
            slot.infra_attempts.to_string(),
            slot.hand_backs.to_string(),
            slot.holder.as_ref().map_or(String::new(), |holder| holder.node.to_string()),
        ]);
    }
    let events = failure.history.iter().map(life::event_line);
    table.to_lines().into_iter().chain(events).map(|line| format!("    {line}")).collect()
}

/// For machines.
pub fn to_json(failure: &Failure) -> Value {
    let slots: Vec<Value> = failure
        .slots
        .iter()
        .map(|slot| {
            json!({
                "state": state_word(slot.state),
                "tokens": slot.tokens,
                "attempts": slot.attempts,
                "holdersLost": slot.infra_attempts,
                "handBacks": slot.hand_backs,
                "holder": slot.holder.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    json!({
        "group": failure.group,
        "recordId": failure.record_id,
        "failedAtMs": failure.failed_at,
        "endsGroup": failure.ends_group,
        "reason": failure.reason,
        "culprit": failure.culprit.as_ref().map(ToString::to_string),
        "detail": failure.detail,
        "groupSize": failure.group_size,
        "completed": failure.completed,
        "dead": failure.dead,
        "expired": failure.expired,
        "cancelled": failure.cancelled,
        "tokensWasted": failure.tokens_wasted,
        "hasPrompt": failure.spec.is_some(),
        "slots": slots,
        "history": failure.history.iter().map(life::event_json).collect::<Vec<_>>(),
    })
}

/// The word for a slot's state.
pub fn state_word(state: SlotState) -> &'static str {
    match state {
        SlotState::Enqueued => "enqueued",
        SlotState::Leased => "leased",
        SlotState::Streaming => "streaming",
        SlotState::Completed => "completed",
        SlotState::Dead => "dead",
        SlotState::Expired => "expired",
        SlotState::Cancelled => "cancelled",
    }
}
