//! Keeps the savings ledger of the run. The leader counts, and writes it into the queue now and
//! then, so that whoever leads next, or starts again, goes on where it ended.

use std::time::Duration;

use ebbtide_core::ledger::Ledger;
use ebbtide_core::observation::{Observation, PoolView};
use ebbtide_core::scale::{ScalePlan, SizingTerms};
use ebbtide_queue::client::WorkQueue;
use tokio::time::Instant;

use crate::observe::Reads;

/// Time between two writes, but for those after a verified update. What a process that was killed
/// had not written is counted by the next, with the fleet that it finds.
const WRITE_EVERY: Duration = Duration::from_secs(30);

/// Longest time of a write.
const WRITE_LIMIT: Duration = Duration::from_secs(1);

/// The ledger as this process knows it.
#[derive(Default)]
pub(crate) struct Accounts {
    /// As it was read while another leads, as it is counted while this process does.
    ledger: Option<Ledger>,
    counts: bool,
    written: Option<(Instant, Ledger)>,
    was_failing: bool,
}

impl Accounts {
    /// The ledger, once it is known.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// Counts a tick while this controller leads, under its generation, with the pools of services
    /// and their prices; otherwise takes over what the leader wrote.
    pub async fn keep(
        &mut self,
        reads: &Reads,
        (terms, services): (&SizingTerms, &[(Option<f64>, &PoolView)]),
        observation: &Observation,
        plan: &ScalePlan,
        (queue, generation): (&WorkQueue, Option<u64>),
    ) {
        let leads = generation.is_some();
        if !leads || !self.counts {
            // A ledger that could not be read must not be begun anew.
            let Ok(view) = &reads.view else { return };
            self.ledger = view.ledger;
            self.counts = leads;
            self.written = None;
        }
        let Some(generation) = generation else { return };
        let now = observation.now;
        let ledger = self.ledger.get_or_insert_with(|| Ledger::begin(now));
        let acknowledged = reads.status.as_ref().ok().map(|status| {
            let held = status.sealed_waiting + status.sealed_taken;
            status.groups_sealed.saturating_sub(held)
        });
        ledger.count(&plan.memory.priced(terms), observation, plan.desired, acknowledged);
        ledger.count_services(services, now);
        let ledger = *ledger;
        let is_due = self.written.as_ref().is_none_or(|(at, written)| {
            at.elapsed() >= WRITE_EVERY || written.verified_updates != ledger.verified_updates
        });
        if is_due {
            self.write(ledger, (queue, generation)).await;
        }
    }

    async fn write(&mut self, ledger: Ledger, (queue, generation): (&WorkQueue, u64)) {
        let written = queue.put_ledger(generation, ledger);
        let problem = match tokio::time::timeout(WRITE_LIMIT, written).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {WRITE_LIMIT:?}")),
        };
        match &problem {
            None => self.written = Some((Instant::now(), ledger)),
            Some(problem) if !self.was_failing => {
                tracing::warn!(%problem, "savings ledger is not in the queue");
            }
            Some(_) => {}
        }
        self.was_failing = problem.is_some();
    }
}

#[cfg(test)]
mod tests;
