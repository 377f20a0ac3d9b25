//! Reasons about capacity: what it costs, and whether it comes.

use std::time::Duration;

use super::{HoldKind, Reason};
use crate::ids::ReplicaId;
use crate::policy::{PoolName, ReservationId};
use crate::scale::quota::QuotaFamily;
use crate::time::UnixMillis;

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
    /// The same, but they were there before anything was asked for here: they are left alone.
    Strangers {
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
    /// A replica has been silent for long, nothing is leased to it, and its instances run.
    LongSilent {
        /// Which.
        replica: ReplicaId,
    },
    /// Replicas are at work whose instances no pool of the policy has.
    Unpooled {
        /// How many.
        replicas: u32,
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
    /// The budget pays for no more.
    BudgetSpent {
        /// Dollars per hour that are left, in cents.
        left_cents: u32,
    },
    /// More runs than the budget pays: the dearest replicas drain, down to the minimum.
    BudgetExceeded {
        /// Dollars per hour beyond it, in cents.
        over_cents: u32,
    },
    /// A price is unknown: no budget can be guaranteed, and nothing is launched.
    BudgetUnknown {
        /// The pool; `None` for one of another worker group.
        pool: Option<PoolName>,
    },
    /// The run is behind the uniform progress that its deadline asks for.
    BehindSchedule {
        /// Updates that are done.
        done: u64,
        /// How many should be.
        expected: u32,
        /// The deadline.
        by: UnixMillis,
    },
    /// The updates that are left would take all the time to the deadline but two starts.
    NoTimeToSpare {
        /// Updates that are left.
        left: u32,
        /// How long they take with all replicas that are wanted.
        needed: Duration,
        /// How long it is to the deadline.
        remaining: Duration,
    },
    /// The deadline asks for more replicas than the pace does.
    DeadlineNeeds {
        /// So many.
        replicas: u32,
    },
    /// Not even the most replicas that are allowed would keep the deadline.
    DeadlineInfeasible {
        /// Updates that are left.
        left: u32,
        /// The deadline.
        by: UnixMillis,
        /// Time that each of them may take.
        allowed: Duration,
        /// Time that each takes at best.
        possible: Duration,
    },
    /// The deadline has passed before all updates were done: sizing goes on as without one.
    DeadlinePassed {
        /// Updates that are done.
        done: u64,
        /// How many there should be.
        updates: u32,
    },
    /// What is reserved is not there yet: nothing is ordered.
    NotReservedYet {
        /// The pool.
        pool: PoolName,
        /// Its reservation.
        id: ReservationId,
        /// Until it begins.
        remaining: Duration,
    },
    /// What is reserved ends: nothing more is ordered there, and what runs there is replaced.
    ReservationEnds {
        /// The pool.
        pool: PoolName,
        /// Its reservation.
        id: ReservationId,
        /// Until its replicas drain; zero from then on.
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
            Self::FallbackLimited { .. }
            | Self::BudgetSpent { .. }
            | Self::BudgetExceeded { .. }
            | Self::BudgetUnknown { .. } => Some(HoldKind::Cost),
            Self::Halved { .. } | Self::QuotaExceeded { .. } | Self::BreakerOpen { .. } => {
                Some(HoldKind::Breaker)
            }
            Self::PoolTooSmall { .. } | Self::PartialGroup { .. } => Some(HoldKind::Gang),
            _ => None,
        }
    }
}
