//! What the controller shows of itself: one snapshot, replaced after every tick.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ebbtide_core::ledger::Ledger;
use ebbtide_core::scale::Role;
use ebbtide_core::time::UnixMillis;
use serde::Serialize;
use tokio::sync::watch;

pub use crate::conditions::{Condition, ConditionKind};

/// The controller at the end of its last tick.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// When the tick ended, on the controller's clock; 0 before the first.
    pub ticked_at: UnixMillis,
    /// Ticks so far.
    pub ticks: u64,
    /// Whether this controller leads.
    pub is_leader: bool,
    /// The generation of its leadership; 0 while it is passive.
    pub generation: u64,
    /// `observe` or `act`.
    pub mode: &'static str,
    /// Replicas that run or are on their way; none while a size is unknown.
    pub running: Option<u32>,
    /// Replicas that there should be; none while a size is unknown.
    pub desired: Option<u32>,
    /// Replicas by state.
    pub replicas: std::collections::BTreeMap<&'static str, u64>,
    /// Replicas that are slower than their peers at an equal batch, in words.
    pub stragglers: Vec<String>,
    /// Actions of the last plan, in words.
    pub actions: Vec<String>,
    /// Reasons of the last plan, in words.
    pub reasons: Vec<String>,
    /// Which stage limits the policy iteration, with the evidence, in words.
    pub bottleneck: String,
    /// The name of that stage, while it is known.
    pub limiting_stage: Option<&'static str>,
    /// The services of the rollouts, as far as the policy has them.
    pub services: Vec<ServiceSnapshot>,
    /// What is the matter with the policy and with what it asks for, each kind once.
    pub conditions: Vec<Condition>,
    /// The trainer's size, and what is done about it, in words; empty where nobody asks.
    pub trainer: Vec<String>,
    /// Why the last plan was not carried out, if it was not.
    pub held: Option<String>,
    /// What cannot be reached, in words; empty when all is well.
    pub problems: Vec<String>,
    /// What stands against the sizing of a pool (suspended processes, failed launches), in words.
    pub pool_remarks: Vec<String>,
    /// What hinders the handling of events and lifecycle actions, in words. Scaling goes on, so
    /// that a controller with such problems is ready.
    pub event_problems: Vec<String>,
    /// What is wrong with the newest policy, while the last valid one stays in force, or why none
    /// can be read.
    pub policy_problem: Option<String>,
    /// The generation of the custom resource that was read last.
    pub policy_generation: Option<i64>,
    /// Decisions on the size that were carried out since the controller began.
    pub scale_decisions: u64,
    /// The last decision on the size that was carried out, in words.
    pub last_decision: Option<String>,
    /// What the run has cost since it began: estimates, by the policy's prices.
    pub ledger: Option<Ledger>,
    /// The same in words.
    pub costs: Vec<String>,
}

/// A service of the rollouts at the end of a tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSnapshot {
    /// Which: `reward` or `environment`.
    pub role: Role,
    /// Items that wait for it; none while that is unknown.
    pub waiting: Option<u64>,
    /// Items that it works on; none while that is unknown, or not told by its source.
    pub in_flight: Option<u64>,
    /// Replicas that run or are on their way; none while a size is unknown.
    pub running: Option<u32>,
    /// Replicas that there should be; none while a size is unknown.
    pub desired: Option<u32>,
    /// Replicas by state.
    pub replicas: BTreeMap<&'static str, u64>,
    /// Actions of its last plan, in words.
    pub actions: Vec<String>,
    /// Reasons of its last plan, in words.
    pub reasons: Vec<String>,
    /// Why the last plan was not carried out, if it was not.
    pub held: Option<String>,
}

/// What a problem with events is about; one problem is shown of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    /// Reading the queue of events.
    EventQueue,
    /// Marking nodes whose agents are silent.
    Cordon,
    /// Completing lifecycle actions.
    Lifecycle,
    /// Leading: the queue follows another.
    Leadership,
}

/// A shared place for the snapshot.
#[derive(Debug, Clone, Default)]
pub struct ControllerStatus {
    snapshot: Arc<watch::Sender<Arc<Snapshot>>>,
    event_problems: Arc<Mutex<BTreeMap<Topic, String>>>,
}

impl ControllerStatus {
    /// The last snapshot, with the problems of this moment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let snapshot = self.snapshot.borrow().clone();
        let problems = self.event_problems.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.is_empty() {
            return snapshot;
        }
        let event_problems = problems.values().cloned().collect();
        Arc::new(Snapshot { event_problems, ..(*snapshot).clone() })
    }

    /// What tells of every new snapshot.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshot.subscribe()
    }

    pub(crate) fn set_problem(&self, topic: Topic, problem: String) {
        let mut problems = self.event_problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.insert(topic, problem);
    }

    pub(crate) fn clear_problem(&self, topic: Topic) {
        self.event_problems.lock().unwrap_or_else(PoisonError::into_inner).remove(&topic);
    }

    pub(crate) fn replace(&self, snapshot: Snapshot) {
        self.snapshot.send_replace(Arc::new(snapshot));
    }
}
