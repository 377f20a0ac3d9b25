//! The nodes of the demo's trainer, and how it comes to more or fewer of them: between two updates,
//! when it is asked.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ebbtide_controller::capacity::local::LocalCapacity;
use ebbtide_core::ids::{Incarnation, NodeName};
use ebbtide_core::policy::{FleetPolicy, PoolName};
use ebbtide_queue::client::{QueueError, WorkQueue};
use ebbtide_queue::control::{NodeNames, ResizeConfirmation};

use super::clock::Clock;
use super::picture::Event;
use super::world::Facts;
use crate::words::counted;

/// How long one update takes on a single node; each more takes its share of it.
const UPDATE_TIME: Duration = Duration::from_millis(2400);
/// The same where nobody sizes the trainer.
const UPDATE_TIME_UNSIZED: Duration = Duration::from_millis(300);

/// The nodes of the trainer; none where the policy has one size for it.
#[derive(Clone)]
pub struct TrainerNodes {
    pub capacity: LocalCapacity,
    pub pool: Option<PoolName>,
    pub facts: Arc<Mutex<Facts>>,
    pub clock: Clock,
    /// On how many it runs.
    pub size: u32,
    /// Names this start of it.
    pub incarnation: Incarnation,
}

impl TrainerNodes {
    /// On how many nodes the trainer of this policy runs at first.
    pub fn first_size(policy: &FleetPolicy, wanted: Option<u32>) -> u32 {
        wanted.unwrap_or(policy.trainer.legal_sizes.last().copied().unwrap_or(1))
    }

    /// What the trainer reports of its size.
    pub fn reported(&self) -> Option<u32> {
        self.pool.as_ref().map(|_| self.size)
    }

    /// How long one update takes.
    pub fn update_time(&self) -> Duration {
        self.reported().map_or(UPDATE_TIME_UNSIZED, |size| UPDATE_TIME / size.max(1))
    }

    /// Nothing is in hand: nodes that are to go are left, and those that have come are taken.
    pub async fn come_to_safe_point(&mut self, queue: &WorkQueue) -> Result<(), QueueError> {
        if self.pool.is_none() {
            return Ok(());
        }
        let asked = queue.view().await?.resize;
        let Some(size) = asked.size else { return Ok(()) };
        let nodes = self.nodes();
        if asked.is_confirmed() {
            if size > self.size && u32::try_from(nodes.len()).unwrap_or(u32::MAX) >= size {
                self.run_on(size);
            }
            return Ok(());
        }
        // At the size that it has it is asked for what it does not run on.
        let stay = usize::try_from(size).unwrap_or(usize::MAX);
        let released = if size <= self.size { &nodes[stay.min(nodes.len())..] } else { &[] };
        let released = NodeNames(released.iter().cloned().collect());
        let (generation, incarnation) = (asked.generation, Some(self.incarnation.clone()));
        let said = ResizeConfirmation { size, generation, released, incarnation };
        if queue.confirm_resize(said).await? && size < self.size {
            self.run_on(size);
        }
        Ok(())
    }

    fn run_on(&mut self, size: u32) {
        self.size = size;
        let text = format!("the trainer runs on {} from now on", counted(size.into(), "node"));
        let at = self.clock.elapsed();
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.events.push(Event { at, text });
        facts.trainer_sizes.push(size);
    }

    /// Those that have booted.
    fn nodes(&self) -> Vec<NodeName> {
        let nodes = self.capacity.nodes().into_iter();
        nodes.filter(|node| Some(&node.pool) == self.pool.as_ref()).map(|node| node.node).collect()
    }
}
