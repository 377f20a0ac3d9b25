//! Reasons about capacity: what it costs, and whether it comes.

use std::fmt;
use std::time::Duration;

use super::{HoldKind, Reason};
use crate::ids::ReplicaId;
use crate::policy::PoolName;
use crate::policy::duration::Written;
use crate::scale::quota::QuotaFamily;

/// One reason of a plan that is about capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacityReason {
    /// More on-demand fallback would raise the cost of an update.
    FallbackLimited {
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
    /// More was refused as a whole: fewer are asked for before anything else is tried.
    Halved {
        /// Of which pool.
        pool: PoolName,
        /// Replicas that are asked for at most.
        most: u32,
    },
    /// The account may not have more: every pool under that quota is left out.
    QuotaExceeded {
        /// Which quota.
        family: QuotaFamily,
        /// How much longer.
        remaining: Duration,
    },
    /// Instances have been in service for long, and their nodes never reported.
    NeverJoined {
        /// In which pool.
        pool: PoolName,
        /// How many.
        instances: u32,
    },
    /// Nothing comes of what is launched: nothing more is, until a node reports.
    BreakerOpen {
        /// What did not work.
        reason: BreakerReason,
    },
    /// No whole replica fits into a pool; the others are filled.
    PoolTooSmall {
        /// Which pool.
        pool: PoolName,
        /// Nodes of one replica.
        nodes_per_replica: u32,
    },
    /// An EP group lacks a node and serves nothing.
    PartialGroup {
        /// Which.
        replica: ReplicaId,
        /// Its nodes.
        nodes: u32,
        /// How many it needs.
        of: u32,
        /// Until what is left is released.
        remaining: Duration,
    },
    /// On-demand replicas that stand in for Spot are exchanged, one at a time.
    Swap {
        /// The Spot pool.
        pool: PoolName,
        /// How far the exchange is.
        step: SwapStep,
    },
}

/// Why nothing more is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerReason {
    /// No node has come of several scale-ups in a row.
    ScaleUpFailed,
    /// Instances came into service and never became nodes.
    JoinFailed,
}

impl BreakerReason {
    /// All reasons, for metrics.
    pub const ALL: [Self; 2] = [Self::ScaleUpFailed, Self::JoinFailed];

    /// The word in metrics and journals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ScaleUpFailed => "scale_up_failed",
            Self::JoinFailed => "join_failed",
        }
    }
}

/// How far a swap is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapStep {
    /// A replica is launched where Spot is expected to last.
    Launch,
    /// A replica is launched to see whether Spot lasts.
    Probe,
    /// The replacement is not ready yet.
    Ready,
    /// The replacement is ready, and Spot must last before it counts.
    Last {
        /// For how much longer.
        remaining: Duration,
    },
    /// The on-demand replica goes.
    Drain,
    /// The replacement goes: Spot has not lasted, or it did not get ready.
    GiveUp,
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
            Self::Halved { .. } | Self::QuotaExceeded { .. } | Self::BreakerOpen { .. } => {
                Some(HoldKind::Breaker)
            }
            Self::PoolTooSmall { .. } | Self::PartialGroup { .. } => Some(HoldKind::Gang),
            Self::FallbackUnjudged { .. } | Self::NeverJoined { .. } | Self::Swap { .. } => None,
        }
    }
}

impl fmt::Display for CapacityReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FallbackLimited { wanted, allowed } => write!(
                f,
                "{wanted} could be bought on demand, {allowed} are worth their price: more would \
                 raise the cost of an update"
            ),
            Self::FallbackUnjudged { why } => {
                write!(f, "on-demand fallback is not limited by its value: {why}")
            }
            Self::Halved { pool, most } => {
                write!(f, "pool {pool} refused more at a time: at most {most} are asked for next")
            }
            Self::QuotaExceeded { family, remaining } => write!(
                f,
                "QuotaExceeded: the quota for {family} is used up, no pool of it is asked for {}",
                Written(*remaining)
            ),
            Self::NeverJoined { pool, instances } => {
                write!(f, "{instances} of pool {pool} came into service and never reported")
            }
            Self::BreakerOpen { reason: BreakerReason::ScaleUpFailed } => write!(
                f,
                "ScaleUpFailed: no node has come of the last launches; until one reports, one \
                 replica at a time is tried"
            ),
            Self::BreakerOpen { reason: BreakerReason::JoinFailed } => write!(
                f,
                "JoinFailed: instances never became nodes; until one reports, one replica at a \
                 time is tried"
            ),
            Self::PoolTooSmall { pool, nodes_per_replica } => {
                write!(f, "Infeasible: pool {pool} cannot hold {nodes_per_replica} nodes")
            }
            Self::PartialGroup { replica, nodes, of, remaining } => {
                write!(f, "{replica} has {nodes} of {of} nodes and serves nothing: ")?;
                match remaining.is_zero() {
                    true => write!(f, "none has come in time"),
                    false => write!(f, "it is completed for {} more", Written(*remaining)),
                }
            }
            Self::Swap { pool, step: SwapStep::Launch } => {
                write!(
                    f,
                    "pool {pool} is expected to last: one replica there replaces one on demand"
                )
            }
            Self::Swap { pool, step: SwapStep::Probe } => {
                write!(f, "one replica probes pool {pool}, since on-demand ones stand in for Spot")
            }
            Self::Swap { pool, step: SwapStep::Ready } => {
                write!(f, "a replica of pool {pool} replaces one on demand once it is ready")
            }
            Self::Swap { pool, step: SwapStep::Last { remaining } } => write!(
                f,
                "a replica of pool {pool} replaces one on demand when the pool has lasted for {} \
                 more",
                Written(*remaining)
            ),
            Self::Swap { pool, step: SwapStep::Drain } => {
                write!(f, "a replica of pool {pool} is ready in the place of one on demand")
            }
            Self::Swap { pool, step: SwapStep::GiveUp } => {
                write!(f, "pool {pool} has not lasted long enough to replace one on demand")
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
