//! The plan: what to do, in an order that is safe, and the reasons of every number.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ScaleMemory;
use super::reason::Reason;
use crate::bottleneck::Bottleneck;
use crate::ids::{NodeName, ReplicaId};
use crate::observation::{FailureKind, InstanceId};
use crate::policy::PoolName;

/// One decision of sizing.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalePlan {
    /// Replicas that run or are on their way, drained ones left out; `None` when a size is
    /// unknown.
    pub running: Option<u32>,
    /// Replicas that the demand asks for, before minimum and maximum.
    pub wish: Option<u32>,
    /// Replicas that there should be, within minimum and maximum.
    pub desired: Option<u32>,
    /// Which stage limits the policy iteration.
    pub bottleneck: Bottleneck,
    /// What to do now.
    pub actions: Vec<Action>,
    /// Why.
    pub reasons: Vec<Reason>,
    /// What the next plan has to know.
    pub memory: ScaleMemory,
}

/// One step. Each may be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Takes back a drain that has not reached `terminating`.
    CancelDrain {
        /// The replica that works on.
        replica: ReplicaId,
        /// The drain to take back.
        request_id: String,
    },
    /// Asks a pool for more nodes, by their absolute number.
    Raise {
        /// The pool.
        pool: PoolName,
        /// What it is asked for so far, in nodes.
        from: u32,
        /// What it shall be asked for, in nodes.
        to: u32,
    },
    /// Asks a replica to drain, to be terminated afterwards.
    RequestDrain {
        /// The replica.
        replica: ReplicaId,
        /// Why it goes.
        why: LeaveReason,
    },
    /// Marks a drained replica `terminating` and terminates exactly its instances.
    Retire {
        /// The replica.
        replica: ReplicaId,
        /// Its drain.
        request_id: String,
        /// Its pool.
        pool: PoolName,
        /// Its instances.
        instances: Vec<InstanceId>,
    },
    /// Terminates instances that have been in service for long and never became nodes.
    Discard {
        /// Their pool.
        pool: PoolName,
        /// The instances.
        instances: Vec<InstanceId>,
    },
    /// Removes the records of a replica whose instances are gone and whose leases are.
    Forget {
        /// The replica.
        replica: ReplicaId,
        /// Its nodes.
        nodes: Vec<NodeName>,
        /// Whether its drain is over with that: every node that it was about is gone.
        ends_drain: bool,
    },
}

/// What became of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActionResult {
    /// It was carried out.
    Done,
    /// It was refused, and nothing has changed; or its call was not answered within its limit
    /// (`TimedOut`), and nobody knows.
    Refused(FailureKind),
    /// A part of it was carried out, and the rest refused.
    Partly {
        /// What the refusal says about its pool.
        kind: FailureKind,
        /// Nodes that came of it.
        came: u32,
    },
    /// It was not carried out, or nobody knows.
    Failed,
}

/// Why sizing lets a replica go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveReason {
    /// Fewer are needed.
    ScaleIn,
    /// A cheaper one has taken its place.
    Swap,
    /// It lacks a node, and none has come in time.
    Partial,
    /// It has been silent for long, and nothing is leased to it.
    Silent,
    /// The reservation of its pool ends.
    ReservationEnds,
    /// More runs than the budget pays.
    Budget,
}

impl Action {
    /// The word in metrics and journals.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CancelDrain { .. } => "cancel_drain",
            Self::Raise { .. } => "raise",
            Self::RequestDrain { .. } => "request_drain",
            Self::Retire { .. } => "retire",
            Self::Discard { .. } => "discard",
            Self::Forget { .. } => "forget",
        }
    }

    /// All words of [`Action::kind`], for metrics.
    pub const KINDS: [&str; 6] =
        ["cancel_drain", "raise", "request_drain", "retire", "discard", "forget"];

    /// Whether the action decides on the size, not only follows up an earlier decision.
    pub fn is_decision(&self) -> bool {
        matches!(self, Self::CancelDrain { .. } | Self::Raise { .. } | Self::RequestDrain { .. })
    }

    /// Whether this asks the replica to drain.
    pub(super) fn asks_to_drain(&self, replica: &ReplicaId) -> bool {
        matches!(self, Self::RequestDrain { replica: asked, .. } if asked == replica)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CancelDrain { replica, .. } => write!(f, "cancel the drain of {replica}"),
            Self::Raise { pool, from, to } => write!(f, "raise pool {pool} from {from} to {to}"),
            Self::RequestDrain { replica, why: LeaveReason::ScaleIn } => {
                write!(f, "ask {replica} to drain")
            }
            Self::RequestDrain { replica, why: LeaveReason::Swap } => {
                write!(f, "ask {replica} to drain, its replacement is ready")
            }
            Self::RequestDrain { replica, why: LeaveReason::Partial } => {
                write!(f, "ask {replica} to drain, it lacks a node")
            }
            Self::RequestDrain { replica, why: LeaveReason::Silent } => {
                write!(f, "ask {replica} to drain, its nodes hang")
            }
            Self::RequestDrain { replica, why: LeaveReason::ReservationEnds } => {
                write!(f, "ask {replica} to drain, its reservation ends")
            }
            Self::RequestDrain { replica, why: LeaveReason::Budget } => {
                write!(f, "ask {replica} to drain, the budget does not pay for it")
            }
            Self::Retire { replica, pool, instances, .. } => {
                write!(f, "terminate {replica} in pool {pool}: {}", listed(instances))
            }
            Self::Discard { pool, instances } => {
                write!(f, "terminate what never joined in pool {pool}: {}", listed(instances))
            }
            Self::Forget { replica, .. } => write!(f, "forget {replica}"),
        }
    }
}

fn listed(instances: &[InstanceId]) -> String {
    let instances: Vec<&str> = instances.iter().map(|id| id.0.as_str()).collect();
    instances.join(", ")
}

impl ScalePlan {
    /// Whether there is nothing to do.
    pub fn is_settled(&self) -> bool {
        self.actions.is_empty()
    }
}

impl fmt::Display for ScalePlan {
    /// One line for the numbers, one for each action, one for each reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |number: Option<u32>| number.map_or("unknown".to_owned(), |n| n.to_string());
        let (running, desired) = (shown(self.running), shown(self.desired));
        writeln!(f, "replicas: {running} run, {desired} desired")?;
        for action in &self.actions {
            writeln!(f, "do: {action}")?;
        }
        for reason in &self.reasons {
            writeln!(f, "because: {reason}")?;
        }
        Ok(())
    }
}
