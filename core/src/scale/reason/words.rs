//! Reasons in words that an operator reads.

use std::fmt;
use std::time::Duration;

use super::Reason;
use crate::policy::duration::Written;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SignalUnknown { signal, why } => {
                write!(f, "{} is unknown ({why}): nothing is lowered", signal.as_str())
            }
            Self::SizeUnknown { pool, why } => {
                write!(f, "size of pool {pool} is unknown ({why}): nothing is written")
            }
            Self::RunEnded => write!(f, "the trainer says that the run has ended"),
            Self::WeightSync { lasted } => {
                write!(f, "weights are spread for {}: no demand is lost", Written(*lasted))
            }
            Self::WorkOccupies { work, useful, replicas } => {
                write!(f, "{work} units of work, {useful} of use in time, occupy {replicas}")
            }
            Self::PaceNeeds { busy_ms, in_flight_ms, replicas } => write!(
                f,
                "pace of {} per update and {} per sample asks for {replicas}",
                written_ms(*busy_ms),
                written_ms(*in_flight_ms)
            ),
            Self::PaceUnmeasured => write!(f, "pace is not measured yet"),
            Self::BufferLow { stock, target } => {
                write!(f, "{stock}, below its target of {target}")
            }
            Self::BufferInBand { stock, target } => {
                write!(f, "{stock}, its target is {target}")
            }
            Self::BufferFull { stock, max } => {
                write!(f, "{stock}, {max} are enough")
            }
            Self::ZeroIsNoProof => {
                write!(f, "nothing waits, but the trainer did not say that the run has ended")
            }
            Self::ItemsNeed { waiting, working, growth_percent, replicas } => {
                match working {
                    Some(working) => write!(f, "{waiting} wait and {working} are worked on")?,
                    None => write!(f, "{waiting} wait")?,
                }
                if *growth_percent > 100 {
                    write!(f, ", the rollouts grow to {growth_percent} %")?;
                }
                write!(f, ": that asks for {replicas}")
            }
            Self::BacklogPasses => {
                write!(f, "what waits will be gone before another replica could help")
            }
            Self::NoAgents { role } => write!(
                f,
                "no node of this group reports, so none is given up: run ebbtide agent --role \
                 {role} there"
            ),
            other => other.fmt_change(f),
        }
    }
}

impl Reason {
    /// The reasons that speak of changes, not of demand.
    fn fmt_change(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMinimum { minimum } => write!(f, "the minimum is {minimum}"),
            Self::AtMaximum { maximum } => write!(f, "the maximum is {maximum}"),
            Self::Stabilizing { direction, wanted, remaining } => {
                let direction = direction.as_str();
                write!(f, "{direction} to {wanted} waits for {} more", Written(*remaining))
            }
            Self::LimitedElsewhere { stage, wanted, kept } => write!(
                f,
                "{stage} limits the iteration: {wanted} would not speed it up, {kept} are allowed; \
                 {}",
                stage.advice()
            ),
            Self::MissesJoin { remaining, startup } => write!(
                f,
                "a start takes {}, the step under way ends in {}: what is ordered now would miss \
                 it",
                Written(*startup),
                Written(*remaining)
            ),
            Self::ChangesLimited { wanted, limit } => {
                write!(f, "{wanted} changes are wanted, one plan makes {limit}")
            }
            Self::PoolBenched { pool, kind, remaining } => write!(
                f,
                "pool {pool} is benched for {} more ({})",
                Written(*remaining),
                kind.as_str()
            ),
            Self::PoolReclaimed { pool, remaining } => write!(
                f,
                "AWS has just taken an instance of pool {pool}: others come first for {} more",
                Written(*remaining)
            ),
            Self::PoolFilling { pool, desired, observed } => {
                write!(f, "pool {pool} has {observed} of {desired} nodes and fills up by itself")
            }
            Self::ConflictingWriter { pool, asked, found, remaining } => write!(
                f,
                "somebody else set pool {pool} to {found} nodes, {asked} were asked for: it is \
                 left alone for {} more",
                Written(*remaining)
            ),
            Self::NoRoom { missing } => write!(f, "no pool has room for {missing} more"),
            Self::Infeasible { nodes_per_replica } => {
                write!(f, "no pool can hold the {nodes_per_replica} nodes of one replica")
            }
            Self::NoVictim { missing } => {
                write!(f, "{missing} more should go, but no replica may be drained")
            }
            Self::LeftToAws { replica } => {
                write!(f, "{replica} has a notice and is left to AWS")
            }
            Self::WaitsForLeases { replica } => {
                write!(f, "{replica} waits until its leases are gone")
            }
            Self::WaitsForAgent { replica, remaining } => write!(
                f,
                "{replica} is silent and has not said that it is drained: that is waited for, {} \
                 more",
                Written(*remaining)
            ),
            Self::WaitsForTurn { replica } => {
                write!(f, "{replica} waits for others that its provider would take before it")
            }
            Self::Capacity(reason) => write!(f, "{reason}"),
            _ => Ok(()),
        }
    }
}

fn written_ms(ms: u32) -> Written {
    Written(Duration::from_millis(u64::from(ms)))
}
