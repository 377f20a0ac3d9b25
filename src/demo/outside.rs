//! The end of a demo whose trainer is another program: nobody here knows what it enqueued, so only
//! the queue's own accounts can be checked, against its raw keys.

use std::sync::PoisonError;

use ebbtide_core::ids::RunId;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::status::ShardStatus;

use super::arguments::DemoArgs;
use super::ledger::Balance;
use super::report::{OutsideTrainer, Report};
use super::{Lived, world};
use crate::queue_command::examine;

/// Steps that the trainer reports; none while it has not.
pub async fn trainer_steps(queue: &WorkQueue) -> u64 {
    let view = queue.view().await.unwrap_or_default();
    view.trainer.map_or(0, |trainer| trainer.step)
}

/// What is known at the end.
///
/// # Errors
/// A shard does not answer.
pub async fn settle(
    args: &DemoArgs,
    run: &RunId,
    queue: &WorkQueue,
    lived: &Lived,
    steps_before: u64,
) -> anyhow::Result<Report> {
    // The trainer may still be at work: what is found is looked for twice.
    let examined = examine::examine_twice(queue).await;
    let status = ShardStatus::sum(queue.status().await.complete()?);
    let problems = examined.problems.into_values();
    let steps = trainer_steps(queue).await.saturating_sub(steps_before);
    let facts = lived.facts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Report {
        seed: args.seed,
        ran_for: args.run_for,
        outside: Some(OutsideTrainer { steps, how_to_look: how_to_look(args, run) }),
        disagreements: problems.map(|found| format!("{} {}", found.subject, found.text)).collect(),
        tokens_unstored: None,
        balance: balance_of(&status),
        status,
        notices: facts.notices,
        kills: facts.kills,
        scale_decisions: lived.status.snapshot().scale_decisions,
        capacity: facts.capacity(),
        trainer_sizes: Vec::new(),
        speed_tokens_per_second: world::TOKENS_PER_SECOND,
    })
}

/// The queue's own counters as a balance.
fn balance_of(status: &ShardStatus) -> Balance {
    Balance {
        units_enqueued: status.enqueued,
        samples_completed: status.completed,
        units_dead: status.dead,
        units_expired: status.expired,
        units_cancelled: status.cancelled,
        units_in_system: status.in_system(),
        groups_sealed: status.groups_sealed,
        groups_failed: status.groups_failed,
        tokens_accepted: status.tokens.accepted,
        tokens_in_system: status.tokens.in_system(),
        ..Balance::default()
    }
}

fn how_to_look(args: &DemoArgs, run: &RunId) -> String {
    let url = args.redis.as_deref().map_or(String::new(), without_password);
    format!("ebbtide queue status --redis {url} --run {run}")
}

/// A URL that may be shown.
fn without_password(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?))) {
        Some((scheme, (_, host))) => format!("{scheme}://…@{host}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_of_a_url_is_not_shown() {
        assert_eq!(without_password("redis://127.0.0.1:6379"), "redis://127.0.0.1:6379");
        assert_eq!(without_password("redis://me:p@ss@host:6379/1"), "redis://…@host:6379/1");
    }
}
