//! Reasons about capacity in words.

use std::fmt;

use super::capacity::{BreakerReason, CapacityReason, SwapStep, Unjudged};
use crate::policy::PoolName;
use crate::policy::duration::Written;

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
            Self::Strangers { pool, instances } => write!(
                f,
                "{instances} of pool {pool} never reported and were there before anything was \
                 asked for: they are left alone; run agents on them, or take them out of the pool"
            ),
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
            Self::LongSilent { replica } => write!(
                f,
                "{replica} has been silent for a quarter of an hour and holds no work: its nodes \
                 hang"
            ),
            Self::Unpooled { replicas } => write!(
                f,
                "{replicas} that work are of no pool of this policy: they are not counted, paid \
                 for nor drained; put their pool back under its name, or drain them"
            ),
            Self::PartialGroup { replica, nodes, of, remaining } => {
                write!(f, "{replica} has {nodes} of {of} nodes and serves nothing: ")?;
                match remaining.is_zero() {
                    true => write!(f, "none has come in time"),
                    false => write!(f, "it is completed for {} more", Written(*remaining)),
                }
            }
            Self::Swap { pool, step } => fmt_swap(pool, *step, f),
            other => other.fmt_goal(f),
        }
    }
}

impl CapacityReason {
    /// The reasons that speak of budget, deadline and reservations.
    fn fmt_goal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BudgetSpent { left_cents } => {
                write!(f, "the budget leaves {}: no more is paid", Dollars(*left_cents))
            }
            Self::BudgetExceeded { over_cents } => write!(
                f,
                "{} more is spent than the budget allows: the dearest replicas drain",
                Dollars(*over_cents)
            ),
            Self::BudgetUnknown { pool: Some(pool) } => write!(
                f,
                "price of pool {pool} is unknown: no budget can be guaranteed, nothing is launched"
            ),
            Self::BudgetUnknown { pool: None } => write!(
                f,
                "cost of the other worker groups is unknown: no budget can be guaranteed, nothing \
                 is launched"
            ),
            Self::BehindSchedule { done, expected, by } => write!(
                f,
                "{done} updates are done and {expected} should be, to be ready by {by}: on-demand \
                 is bought whatever it costs"
            ),
            Self::NoTimeToSpare { left, needed, remaining } => write!(
                f,
                "{left} updates are left and take {}, the deadline is in {}: on-demand is bought \
                 whatever it costs",
                Written(*needed),
                Written(*remaining)
            ),
            Self::DeadlineNeeds { replicas } => write!(f, "the deadline asks for {replicas}"),
            Self::DeadlineInfeasible { left, by, allowed, possible } => write!(
                f,
                "Infeasible: {left} updates are left until {by}, {} each; one takes {} at best",
                Written(*allowed),
                Written(*possible)
            ),
            Self::DeadlinePassed { done, updates } => write!(
                f,
                "Infeasible: the deadline has passed with {done} of {updates} updates; sizing \
                 goes on as without one"
            ),
            Self::NotReservedYet { pool, id, remaining } => write!(
                f,
                "{id} begins in {}: nothing is ordered in pool {pool}",
                Written(*remaining)
            ),
            Self::ReservationEnds { pool, id, remaining } => {
                write!(f, "{id} ends: nothing more is ordered in pool {pool}, its replicas ")?;
                match remaining.is_zero() {
                    true => write!(f, "drain"),
                    false => write!(f, "drain in {}", Written(*remaining)),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Dollars per hour, given in cents.
struct Dollars(u32);

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02} dollars per hour", self.0 / 100, self.0 % 100)
    }
}

fn fmt_swap(pool: &PoolName, step: SwapStep, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match step {
        SwapStep::Launch => {
            write!(f, "pool {pool} is expected to last: one replica there replaces one on demand")
        }
        SwapStep::Probe => {
            write!(f, "one replica probes pool {pool}, since on-demand ones stand in for Spot")
        }
        SwapStep::Ready => {
            write!(f, "a replica of pool {pool} replaces one on demand once it is ready")
        }
        SwapStep::Last { remaining } => write!(
            f,
            "a replica of pool {pool} replaces one on demand when the pool has lasted for {} more",
            Written(remaining)
        ),
        SwapStep::Drain => {
            write!(f, "a replica of pool {pool} is ready in the place of one on demand")
        }
        SwapStep::GiveUp => {
            write!(f, "pool {pool} has not lasted long enough to replace one on demand")
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
