//! Tends what workers hold: renews their leases, and hands back what they have to let go or have
//! let fall.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_queue::client::Backoff;
use futures::FutureExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::writing::Outcome;
use crate::hosting::{keep_renewed, report_settled};
use crate::rhythm::all_of;
use crate::shared::Shared;

/// Bounds of the pause after a call that the queue did not answer.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Longest time between two looks when nothing is held.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Tends for as long as it is polled.
pub(crate) async fn tend(shared: &Shared) {
    all_of([hand_back(shared).boxed(), renew(shared).boxed()]).await;
}

/// Hands back what is due, again and again until the queue has answered.
async fn hand_back(shared: &Shared) {
    let silence_limit = shared.config.lease.ttl;
    let mut changes = shared.workers.subscribe();
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        let now = Instant::now();
        let due = shared.workers.workers().next_due(silence_limit);
        tokio::select! {
            () = sleep_until(due.unwrap_or(now + LOOK_EVERY)) => {}
            _ = changes.changed() => {}
        }
        let silent = {
            let mut workers = shared.workers.workers();
            workers.take_due(silence_limit, Instant::now())
        };
        if silent > 0 {
            tracing::warn!(units = silent, "units of silent workers are handed back");
        }
        let (writes, sent): (Vec<_>, Vec<_>) =
            shared.workers.workers().hand_backs().into_iter().unzip();
        if writes.is_empty() {
            continue;
        }
        let replies = shared.queue.write(&shared.config.holder, writes).await;
        let settle = |workers: &mut super::Workers| workers.settle(sent, replies, Instant::now());
        let (_, outcome) = shared.workers.change(settle);
        note_outcome(shared, &outcome);
        match outcome.settled.retry {
            None => backoff.reset(),
            Some(problem) => {
                if backoff.failures() == 0 {
                    tracing::warn!(problem, "units of workers not handed back yet");
                }
                sleep(backoff.next_pause()).await;
            }
        }
    }
}

/// Counts what a batch came to, and tells those who wait for units to go.
pub(super) fn note_outcome(shared: &Shared, outcome: &Outcome) {
    shared.metrics.tokens.received.inc_by(outcome.tokens);
    report_settled(shared, &outcome.settled);
    if !outcome.lengths.is_empty() {
        let mut ledger = shared.desk.ledger();
        outcome.lengths.iter().for_each(|length| ledger.note_length(*length));
    }
    if outcome.has_ends() {
        shared.desk.nudge();
    }
}

/// Keeps the leases of workers.
async fn renew(shared: &Shared) {
    let held = |ttl| shared.workers.workers().renewals(ttl);
    keep_renewed(shared, held, |unit, token| note_lost(shared, unit, token)).await;
}

/// Lets go a unit whose lease the queue has given to others.
pub(super) fn note_lost(shared: &Shared, unit: &UnitId, token: FencingToken) {
    if shared.workers.change(|workers| workers.lose(unit, token)) {
        shared.metrics.leases_lost.inc();
        tracing::warn!(%unit, "lease of a worker lost");
        shared.desk.nudge();
    }
}
