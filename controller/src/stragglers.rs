//! Names replicas that are slower than their peers: metric, status, and a control record by which
//! their agents learn of it and tell it on the Kubernetes node. Decided by
//! `ebbtide_core::straggler`; nothing is drained or replaced here.

use std::collections::BTreeSet;

use ebbtide_core::ids::ReplicaId;
use ebbtide_core::observation::Observation;
use ebbtide_core::straggler::{Straggler, StragglerMemory};
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::control::{ControlView, StragglerRecord};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Stragglers {
    memory: StragglerMemory,
}

impl Stragglers {
    /// Takes in what was seen in a tick.
    pub(crate) fn note(&mut self, view: Option<&ControlView>, observation: &Observation) {
        // What another controller named, this one takes over until it knows better itself.
        for record in view.iter().flat_map(|view| &view.stragglers) {
            let StragglerRecord { replica, share, .. } = record.clone();
            self.memory.adopt(Straggler { replica, share });
        }
        self.memory.note(observation);
    }

    /// The replicas that are slower than their peers.
    pub(crate) fn named(&self) -> Vec<Straggler> {
        self.memory.stragglers().collect()
    }

    /// Brings the records to what is known; only the leader does, under its generation.
    ///
    /// # Errors
    /// The queue did not answer, or a newer leader has taken over; the next tick tries again.
    pub(crate) async fn publish(
        &self,
        (queue, generation): (&WorkQueue, u64),
        view: &ControlView,
    ) -> Result<(), QueueError> {
        let named = self.named();
        let on_record: BTreeSet<&ReplicaId> =
            view.stragglers.iter().map(|record| &record.replica).collect();
        for Straggler { replica, share } in &named {
            if !on_record.contains(replica) {
                let percent = percent(*share);
                tracing::warn!(%replica, percent, "replica is slower than its peers");
                let record =
                    StragglerRecord { replica: replica.clone(), share: *share, named_at: view.now };
                queue.put_straggler(generation, record).await?;
            }
        }
        for replica in on_record {
            if !named.iter().any(|straggler| straggler.replica == *replica) {
                tracing::info!(%replica, "replica is no longer slower than its peers");
                queue.remove_straggler(generation, replica).await?;
            }
        }
        Ok(())
    }
}

/// One in words.
pub(crate) fn describe(straggler: &Straggler) -> String {
    let Straggler { replica, share } = straggler;
    format!("{replica} makes {} % of the tokens of its peers at an equal batch", percent(*share))
}

fn percent(share: f64) -> f64 {
    (share * 100.0).round()
}
