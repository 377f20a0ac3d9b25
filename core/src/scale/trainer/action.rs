//! The steps of a resize, and how it ends.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::NodeName;
use crate::observation::{InstanceId, ResizeEnd};
use crate::policy::PoolName;

/// One step of a resize. Each may be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainerAction {
    /// Asks the trainer for another size, or, at the size that it has, which nodes of its pool it
    /// does not run on.
    Request {
        /// Nodes that it runs on.
        from: u32,
        /// Nodes that it shall run on.
        to: u32,
    },
    /// Asks its pool for more nodes, by their absolute number.
    Raise {
        /// The pool.
        pool: PoolName,
        /// What it is asked for so far, in nodes.
        from: u32,
        /// What it shall be asked for, in nodes.
        to: u32,
    },
    /// Terminates exactly the instances that the trainer has left.
    Release {
        /// The request under which it left them, which must hold until the last moment.
        #[serde(default)]
        generation: u64,
        /// Their pool.
        pool: PoolName,
        /// The instances.
        instances: Vec<InstanceId>,
    },
    /// Ends a request, carried out or not.
    End {
        /// The request.
        generation: u64,
        /// The size that was asked for.
        size: u32,
        /// How it ended.
        how: ResizeEnd,
        /// Nodes that are gone with it, whose records go as well.
        gone: Vec<NodeName>,
    },
}

impl TrainerAction {
    /// All words of [`TrainerAction::kind`], for metrics.
    pub const KINDS: [&str; 4] = ["request", "raise", "release", "end"];

    /// The word in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Request { .. } => "request",
            Self::Raise { .. } => "raise",
            Self::Release { .. } => "release",
            Self::End { .. } => "end",
        }
    }
}

impl fmt::Display for TrainerAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { from, to } if from == to => {
                write!(f, "ask the trainer which nodes it has left, beside the {to} it runs on")
            }
            Self::Request { from, to } => {
                write!(f, "ask the trainer to run on {} instead of {from}", nodes(*to))
            }
            Self::Raise { pool, from, to } => {
                write!(f, "raise pool {pool} of the trainer from {from} to {to}")
            }
            Self::Release { pool, instances, .. } => {
                let instances: Vec<&str> = instances.iter().map(|id| id.0.as_str()).collect();
                let instances = instances.join(", ");
                write!(f, "terminate what the trainer has left in pool {pool}: {instances}")
            }
            Self::End { size, how, .. } => {
                write!(f, "end the request for a trainer of {}: {how}", nodes(*size))
            }
        }
    }
}

/// So many nodes, in words.
pub(super) fn nodes(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} node{plural}")
}
