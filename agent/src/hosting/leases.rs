//! Keeps the leases of held units, and tells what became of those that ended.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_queue::client::Backoff;
use ebbtide_queue::command::Renewal;
use tokio::time::{Instant, sleep};

use crate::ledger::Settled;
use crate::shared::Shared;

/// Pause after a renewal that was not answered: leases are short.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Bounds of the pause between two tries to reclaim.
const RECLAIM_PAUSE_MIN: Duration = Duration::from_millis(100);
const RECLAIM_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Hands back what earlier agent processes of this node still hold; tries until the queue has
/// answered.
pub(super) async fn reclaim(shared: &Shared) {
    let mut backoff = Backoff::new(RECLAIM_PAUSE_MIN, RECLAIM_PAUSE_MAX);
    loop {
        match shared.queue.reclaim(&shared.config.holder).await {
            Ok(units) => {
                if units > 0 {
                    tracing::info!(units, "units of earlier agents of this node handed back");
                }
                shared.is_reclaimed.send_replace(true);
                // A drain waits for this.
                shared.desk.nudge();
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "units of earlier agents not handed back yet");
                sleep(backoff.next_pause()).await;
            }
        }
    }
}

/// Keeps the leases of the engines' units, for as long as it is polled.
pub(super) async fn keep(shared: &Shared) {
    let is_paused =
        |engine: usize| shared.engines.at(engine).is_some_and(|hosted| hosted.slot.is_paused());
    let held = |ttl| shared.desk.ledger().renewals(ttl, is_paused);
    let lose = |unit: &UnitId, token| {
        if shared.desk.change(|ledger| ledger.lose(unit, token, Instant::now())) {
            shared.metrics.leases_lost.inc();
            tracing::warn!(%unit, "lease lost, its stream is ended");
        }
    };
    keep_renewed(shared, held, lose).await;
}

/// Renews in batches the leases that `held` names for a time to live, for as long as it is polled;
/// `lose` is told those that the queue has given to others.
pub(crate) async fn keep_renewed(
    shared: &Shared,
    held: impl Fn(Duration) -> Vec<Renewal>,
    lose: impl Fn(&UnitId, FencingToken),
) {
    let renew_every = shared.config.lease.renew_every;
    loop {
        let is_done = renew_all(shared, &held, &lose).await;
        sleep(if is_done { renew_every } else { RETRY_PAUSE.min(renew_every) }).await;
    }
}

/// Renews everything once; false when the queue did not answer.
async fn renew_all(
    shared: &Shared,
    held: impl Fn(Duration) -> Vec<Renewal>,
    lose: impl Fn(&UnitId, FencingToken),
) -> bool {
    let ttl = shared.lease_ttl(Instant::now());
    if ttl.is_zero() {
        return true;
    }
    let renewals = held(ttl);
    if renewals.is_empty() {
        return true;
    }
    // By the answer, the same unit may be held under a newer token.
    let tokens: BTreeMap<UnitId, FencingToken> =
        renewals.iter().map(|renewal| (renewal.unit.clone(), renewal.fencing_token)).collect();
    let limits = shared.config.lease.progress;
    match shared.queue.renew(&shared.config.holder, renewals, limits).await {
        Ok(lost) => {
            let lost = lost.iter().filter_map(|unit| Some((unit, *tokens.get(unit)?)));
            lost.for_each(|(unit, token)| lose(unit, token));
            true
        }
        Err(error) => {
            tracing::debug!(%error, "leases not renewed");
            false
        }
    }
}

/// Counts and logs what a batch of writes came to.
pub(crate) fn report(shared: &Shared, settled: &Settled) {
    let metrics = &shared.metrics;
    metrics.units_completed.inc_by(settled.completed as u64);
    metrics.leases_lost.inc_by(settled.lost as u64);
    metrics.streams.note_restarted(settled.restarted);
    for cause in &settled.handed_back {
        metrics.handed_back(*cause).inc();
    }
    for (unit, problem) in &settled.faults {
        metrics.units_faulted.inc();
        tracing::warn!(%unit, problem, "unit given back because of a fault");
    }
}
