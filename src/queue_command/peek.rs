//! `ebbtide queue peek`: the units that would be leased next.
//!
//! Every shard has an order of its own and workers ask the shards in turn, so the first of each
//! shard come first, then the second, and so on.

use std::collections::BTreeMap;

use ebbtide_core::ids::GroupId;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::command::Stage;
use ebbtide_queue::state::UnitSnapshot;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::place::Answer;
use crate::table::Table;
use crate::words::{span, thousands};

/// Groups that are read at a time, for their priority.
const READS_AT_ONCE: usize = 8;

/// A unit as it is listed.
pub(super) struct Row {
    pub shard: u16,
    pub unit: UnitSnapshot,
    /// `None` when its group has ended meanwhile.
    pub priority: Option<i32>,
}

/// Reads at most `limit` units.
///
/// # Errors
/// A shard does not answer.
pub async fn look(queue: &WorkQueue, stage: Stage, limit: usize) -> anyhow::Result<Answer> {
    let found = queue.peek(stage, limit).await?;
    let now = queue.view().await?.now;
    let units = in_turn(found, limit, |unit| queue.shard_of(&unit.unit.group));
    let priorities = priorities(queue, &units).await;
    let rows: Vec<Row> = units
        .into_iter()
        .map(|(shard, unit)| Row {
            shard,
            priority: priorities.get(&unit.unit.group).copied(),
            unit,
        })
        .collect();
    Ok(Answer { is_good: true, text: to_text(&rows, now), json: to_json(&rows, now) })
}

/// The first units of every shard, then the second, and so on.
pub(super) fn in_turn(
    units: Vec<UnitSnapshot>,
    limit: usize,
    shard_of: impl Fn(&UnitSnapshot) -> u16,
) -> Vec<(u16, UnitSnapshot)> {
    let mut places = BTreeMap::<u16, usize>::new();
    let mut placed: Vec<(usize, u16, UnitSnapshot)> = units
        .into_iter()
        .map(|unit| {
            let shard = shard_of(&unit);
            let place = places.entry(shard).or_default();
            *place += 1;
            (*place, shard, unit)
        })
        .collect();
    placed.sort_by_key(|(place, shard, _)| (*place, *shard));
    placed.into_iter().take(limit).map(|(_, shard, unit)| (shard, unit)).collect()
}

async fn priorities(queue: &WorkQueue, units: &[(u16, UnitSnapshot)]) -> BTreeMap<GroupId, i32> {
    let groups: std::collections::BTreeSet<GroupId> =
        units.iter().map(|(_, unit)| unit.unit.group.clone()).collect();
    let reads = groups.into_iter().map(|group| async move {
        let spec = queue.trace(&group).await.ok()?.spec?;
        Some((group, spec.priority))
    });
    let reads = futures::stream::iter(reads).buffer_unordered(READS_AT_ONCE);
    reads.filter_map(|read| async move { read }).collect().await
}

/// For people.
pub(super) fn to_text(rows: &[Row], now: UnixMillis) -> String {
    if rows.is_empty() {
        return "nothing is ready".to_owned();
    }
    let mut table = Table::new([
        "UNIT",
        ">SHARD",
        ">AGE",
        ">PRIORITY",
        ">TOKENS",
        ">VERSIONS",
        ">FAULTS",
        ">LOST",
        ">BACK",
        "LAST HOLDER",
    ]);
    for Row { shard, unit, priority } in rows {
        table.row([
            unit.unit.to_string(),
            shard.to_string(),
            span(now.since(unit.enqueued_at)),
            priority.map_or("?".to_owned(), |priority| priority.to_string()),
            thousands(unit.tokens.into()),
            versions(unit),
            unit.attempts.to_string(),
            unit.infra_attempts.to_string(),
            unit.hand_backs.to_string(),
            unit.holder.as_ref().map_or(String::new(), |holder| holder.node.to_string()),
        ]);
    }
    table.to_lines().join("\n")
}

/// The weights of its tokens: `3`, or `3-5`.
fn versions(unit: &UnitSnapshot) -> String {
    match unit.versions {
        None => String::new(),
        Some(versions) if versions.first == versions.last => versions.first.to_string(),
        Some(versions) => format!("{}-{}", versions.first, versions.last),
    }
}

/// For machines.
fn to_json(rows: &[Row], now: UnixMillis) -> Value {
    let units: Vec<Value> = rows
        .iter()
        .map(|Row { shard, unit, priority }| {
            json!({
                "unit": unit.unit.to_string(),
                "shard": shard,
                "ageSeconds": now.since(unit.enqueued_at).as_secs_f64(),
                "priority": priority,
                "tokens": unit.tokens,
                "firstVersion": unit.versions.map(|versions| versions.first),
                "lastVersion": unit.versions.map(|versions| versions.last),
                "attempts": unit.attempts,
                "holdersLost": unit.infra_attempts,
                "handBacks": unit.hand_backs,
                "lastHolder": unit.holder.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    json!({ "ok": true, "units": units })
}
