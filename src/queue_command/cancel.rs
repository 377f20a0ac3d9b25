//! `ebbtide queue cancel`: ends every group that is not sealed.

use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::status::ShardStatus;
use serde_json::json;

use crate::place::Answer;
use crate::words::counted;

/// Ends the groups, when `is_confirmed`.
///
/// # Errors
/// It was not confirmed, or a shard does not answer; repeating the command goes on.
pub async fn cancel(queue: &WorkQueue, reason: &str, is_confirmed: bool) -> anyhow::Result<Answer> {
    let before = ShardStatus::sum(queue.status().await.complete()?);
    anyhow::ensure!(
        is_confirmed,
        "nothing was done: this ends every group that is not sealed, with {} in the system; add \
         --yes to really do it",
        counted(before.in_system(), "unit"),
    );
    let ended = queue.cancel_run(reason).await?;
    let text = format!(
        "{} failed as {reason:?}; sealed groups are still the trainer's\n\
         their prompts: ebbtide queue dead list, and dead retry to enqueue them again",
        counted(ended, "group"),
    );
    Ok(Answer { is_good: true, text, json: json!({ "ok": true, "groupsFailed": ended }) })
}
