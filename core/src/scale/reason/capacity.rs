//! Reasons about capacity: what it costs, and whether it comes.

use std::fmt;

use super::{HoldKind, Reason};
use crate::policy::PoolName;

/// One reason of a plan that is about capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacityReason {
    /// More on-demand fallback would raise the cost of an update.
    FallbackLimited {
        /// Of which pool.
        pool: PoolName,
        /// Replicas that could be bought on demand.
        wanted: u32,
        /// How many of them are.
        allowed: u32,
    },
    /// On-demand fallback is bought without a look at its value.
    FallbackUnjudged {
        /// What is not known.
        why: Unjudged,
    },
}

/// Why the value of fallback cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unjudged {
    /// There is not enough evidence of the pace yet.
    Pace,
    /// The price of the trainer's nodes, or their number, is unknown.
    TrainerPrice,
    /// The price of a pool is unknown.
    PoolPrice {
        /// Which.
        pool: PoolName,
    },
}

impl From<CapacityReason> for Reason {
    fn from(reason: CapacityReason) -> Self {
        Self::Capacity(reason)
    }
}

impl CapacityReason {
    /// What the reason holds back, if anything.
    pub(super) fn held(&self) -> Option<HoldKind> {
        match self {
            Self::FallbackLimited { .. } => Some(HoldKind::Cost),
            Self::FallbackUnjudged { .. } => None,
        }
    }
}

impl fmt::Display for CapacityReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FallbackLimited { pool, wanted, allowed } => write!(
                f,
                "{wanted} could come from pool {pool} on demand, {allowed} are worth their price: \
                 more would raise the cost of an update"
            ),
            Self::FallbackUnjudged { why } => {
                write!(f, "on-demand fallback is not limited by its value: {why}")
            }
        }
    }
}

impl fmt::Display for Unjudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pace => write!(f, "pace is not measured yet"),
            Self::TrainerPrice => write!(f, "price or size of the trainer is unknown"),
            Self::PoolPrice { pool } => write!(f, "price of pool {pool} is unknown"),
        }
    }
}
