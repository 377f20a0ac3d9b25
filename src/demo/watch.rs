//! Where the demo's pictures come from.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ebbtide_controller::status::ControllerStatus;
use ebbtide_core::observation::TrainerPhase;
use ebbtide_core::policy::FleetPolicy;
use ebbtide_queue::client::WorkQueue;
use ebbtide_queue::control::{ControlView, NodeRecord};
use ebbtide_queue::status::ShardStatus;

use super::arguments::DemoArgs;
use super::clock::Clock;
use super::ledger::Ledger;
use super::picture::{NodeRow, Picture};
use super::world::{self, Facts};

/// A node that has not reported for longer is not shown: it reports five times a second.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);

/// Everything that a picture is made of.
pub struct Watch<'a> {
    pub args: &'a DemoArgs,
    pub policy: &'a FleetPolicy,
    pub queue: &'a WorkQueue,
    pub clock: &'a Clock,
    pub facts: &'a Mutex<Facts>,
    pub ledger: &'a Mutex<Ledger>,
    pub status: &'a ControllerStatus,
}

/// A picture, and what it tells the demo itself.
pub struct Sight {
    pub picture: Picture,
    /// Whether there is work to do.
    pub has_work: bool,
    /// Whether the trainer says that the run has ended.
    pub is_done: bool,
}

impl Watch<'_> {
    /// Looks once.
    pub async fn look(&self) -> Sight {
        let status = ShardStatus::sum(self.queue.status().await.answers);
        let view = self.queue.view().await.unwrap_or_default();
        Sight {
            has_work: status.in_system() > 0,
            is_done: self.is_done(&view),
            picture: self.picture(status, &view),
        }
    }

    /// A word from before the demo's time is that of an earlier trainer.
    fn is_done(&self, view: &ControlView) -> bool {
        let is_of_now = |heartbeat| view.now.since(heartbeat) < self.clock.elapsed();
        view.trainer.as_ref().is_some_and(|trainer| {
            trainer.phase == TrainerPhase::Done && is_of_now(trainer.heartbeat)
        })
    }

    fn picture(&self, status: ShardStatus, view: &ControlView) -> Picture {
        let controller = self.status.snapshot();
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let is_alive = |record: &&NodeRecord| view.now.since(record.heartbeat) < SILENCE_LIMIT;
        let mut nodes: Vec<&NodeRecord> = view.nodes.iter().filter(is_alive).collect();
        // By number: node-9 before node-10.
        nodes.sort_by_key(|record| (record.node.as_str().len(), record.node.clone()));
        let market = |node: &NodeRecord| node.market.map_or("", world::market_word);
        let steps = view.trainer.as_ref().map_or(0, |trainer| trainer.step);
        Picture {
            is_waiting: self.clock.begun_at().is_none(),
            elapsed: self.clock.elapsed(),
            total: self.args.run_for,
            nodes: nodes.iter().map(|node| NodeRow::of(node, market(node), view)).collect(),
            nodes_wanted: controller.desired.unwrap_or(self.policy.rollout.min_replicas),
            status,
            updates: if self.args.is_external() { steps } else { ledger.updates().0 },
            notices: facts.notices,
            kills: facts.kills,
            trainer: controller.trainer.first().cloned().unwrap_or_default(),
            last_decision: controller.last_decision.clone().unwrap_or_default(),
            events: facts.events.clone(),
        }
    }
}
