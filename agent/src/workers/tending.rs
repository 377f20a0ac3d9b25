//! Tends what workers hold: renews their leases, and hands back what they have to let go or have
//! let fall.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_queue::client::Backoff;
use tokio::time::{Instant, sleep, sleep_until};

use super::writing::Outcome;
use crate::hosting::report_settled;
use crate::shared::Shared;

/// Bounds of the pause after a call that the queue did not answer.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Pause after a renewal that was not answered: leases are short.
const RENEW_AGAIN: Duration = Duration::from_millis(500);

/// Longest time between two looks when nothing is held.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Tends for as long as it is polled.
pub(crate) async fn tend(shared: &Shared) {
    futures::join!(hand_back(shared), renew(shared));
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

/// Renews the leases of workers in batches.
async fn renew(shared: &Shared) {
    let renew_every = shared.config.lease.renew_every;
    loop {
        let pause =
            if renew_all(shared).await { renew_every } else { RENEW_AGAIN.min(renew_every) };
        sleep(pause).await;
    }
}

/// Renews everything once; false when the queue did not answer.
async fn renew_all(shared: &Shared) -> bool {
    let ttl = shared.lease_ttl(Instant::now());
    if ttl.is_zero() {
        return true;
    }
    let renewals = shared.workers.workers().renewals(ttl);
    if renewals.is_empty() {
        return true;
    }
    let tokens: BTreeMap<UnitId, FencingToken> =
        renewals.iter().map(|renewal| (renewal.unit.clone(), renewal.fencing_token)).collect();
    let limits = shared.config.lease.progress;
    match shared.queue.renew(&shared.config.holder, renewals, limits).await {
        Ok(lost) => {
            for unit in lost {
                let Some(token) = tokens.get(&unit) else { continue };
                note_lost(shared, &unit, *token);
            }
            true
        }
        Err(error) => {
            tracing::debug!(%error, "leases of workers not renewed");
            false
        }
    }
}

/// Lets go a unit whose lease the queue has given to others.
pub(super) fn note_lost(shared: &Shared, unit: &UnitId, token: FencingToken) {
    if shared.workers.change(|workers| workers.lose(unit, token)) {
        shared.metrics.leases_lost.inc();
        tracing::warn!(%unit, "lease of a worker lost");
        shared.desk.nudge();
    }
}
