//! Why the trainer's size changes, or stays, in words that an operator reads.

use std::fmt;
use std::time::Duration;

use super::action::nodes;
use crate::ids::NodeName;
use crate::policy::PoolName;
use crate::policy::duration::Written;
use crate::scale::reason::Direction;

/// One reason of a plan of the trainer's size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrainerReason {
    /// The trainer is unknown: nothing of it changes.
    Silent {
        /// Why it is unknown.
        why: String,
    },
    /// The trainer does not say on how many nodes it runs.
    SizeUntold,
    /// The size of its pool could not be read.
    PoolUnknown {
        /// The pool.
        pool: PoolName,
        /// Why it is unknown.
        why: String,
    },
    /// Its pool is asked for more nodes than it runs on.
    PoolLarger {
        /// The pool.
        pool: PoolName,
        /// Nodes that the pool is asked for.
        desired: u32,
        /// Nodes that it runs on.
        nodes: u32,
    },
    /// Its size has just changed.
    Settling {
        /// Updates until it can be judged.
        updates: u64,
    },
    /// It has not been too slow, or too fast, for long enough.
    Watching {
        /// Which way its size should go.
        direction: Direction,
        /// The size that would be asked for.
        to: u32,
        /// For how long so far.
        held: Duration,
        /// For how long it must be.
        after: Duration,
    },
    /// It is too slow or too fast, and there is no legal size that way.
    NoSuchSize {
        /// Which way its size should go.
        direction: Direction,
        /// Nodes that it runs on.
        nodes: u32,
    },
    /// The last request came to nothing on its side.
    Quiet {
        /// The size that would be asked for.
        to: u32,
        /// Until it is asked again.
        left: Duration,
    },
    /// Its pool does not go so far.
    PoolBound {
        /// The size that would be asked for.
        to: u32,
        /// The pool's own maximum or minimum.
        bound: u32,
    },
    /// The budget does not pay for it.
    TooDear {
        /// The size that would be asked for.
        to: u32,
    },
    /// Whether the budget pays for it is not known: a pool is unread, or has no price.
    PriceUnknown {
        /// The size that would be asked for, or was.
        to: u32,
    },
    /// The run is late for its deadline.
    Late {
        /// The size that would be asked for.
        to: u32,
    },
    /// It was asked and has not confirmed.
    Asked {
        /// The size that it was asked for.
        size: u32,
        /// How long ago.
        waited: Duration,
        /// How long it may take.
        limit: Duration,
    },
    /// Its nodes are on their way.
    Filling {
        /// The pool.
        pool: PoolName,
        /// Nodes that are there or on their way.
        observed: u32,
        /// Nodes that were asked for.
        desired: u32,
    },
    /// Its nodes are there, and it does not run on them yet.
    NotTaken {
        /// Nodes that it confirmed.
        size: u32,
        /// Nodes that it runs on.
        nodes: u32,
    },
    /// It named nodes that its pool does not show.
    NotInPool {
        /// Their names.
        names: Vec<NodeName>,
    },
    /// Without the nodes that it named fewer would be left than it runs on.
    TooManyReleased {
        /// Nodes that it named and that are there.
        released: u32,
        /// Nodes that would be left.
        stay: u32,
        /// Nodes that it runs on.
        nodes: u32,
    },
}

impl fmt::Display for TrainerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent { why } => {
                write!(f, "the trainer is unknown ({why}): its size is left alone")
            }
            Self::SizeUntold => f.write_str(
                "the trainer does not report how many nodes it runs on: its size is left alone",
            ),
            Self::PoolUnknown { pool, why } => write!(
                f,
                "size of pool {pool} is unknown ({why}): the trainer's size is left alone"
            ),
            Self::PoolLarger { pool, desired, nodes } => write!(
                f,
                "pool {pool} is asked for {desired} nodes, and the trainer runs on {nodes}"
            ),
            Self::Settling { updates } => write!(
                f,
                "the trainer's size has just changed: it can be judged {updates} updates later"
            ),
            Self::Watching { direction, to, held, after } => write!(
                f,
                "{} for {}: after {} it is asked to run on {}",
                because(*direction),
                whole_seconds(*held),
                Written(*after),
                nodes(*to)
            ),
            Self::NoSuchSize { direction: Direction::Up, nodes } => {
                write!(f, "{}, and no legal size is above {nodes}", because(Direction::Up))
            }
            Self::NoSuchSize { direction: Direction::Down, nodes } => {
                write!(f, "{}, and no legal size is below {nodes}", because(Direction::Down))
            }
            other => other.fmt_hindrance(f),
        }
    }
}

impl TrainerReason {
    /// The reasons for which a change waits or is not made.
    fn fmt_hindrance(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quiet { to, left } => write!(
                f,
                "the last request came to nothing: the trainer is asked for {} in {}",
                nodes(*to),
                whole_seconds(*left)
            ),
            Self::PoolBound { to, bound } => {
                write!(f, "{to} nodes are beyond the bound of the trainer's pool, {bound}")
            }
            Self::TooDear { to } => {
                write!(f, "the budget does not pay for a trainer of {to} nodes")
            }
            Self::PriceUnknown { to } => write!(
                f,
                "whether the budget pays for a trainer of {to} nodes is not known: a pool is \
                 unread, or has no price"
            ),
            Self::Late { to } => write!(
                f,
                "the run is late for its deadline: the trainer is not made smaller, to {to}"
            ),
            Self::Asked { size, waited, limit } => write!(
                f,
                "the trainer was asked to run on {} {} ago and has not confirmed, which \
                 it may until {}",
                nodes(*size),
                whole_seconds(*waited),
                Written(*limit)
            ),
            Self::Filling { pool, observed, desired } => {
                write!(f, "pool {pool} of the trainer fills up: {observed} of {desired} nodes")
            }
            Self::NotTaken { size, nodes } => write!(
                f,
                "the trainer confirmed {size} nodes, they are there, and it runs on {nodes}"
            ),
            Self::NotInPool { names } => {
                let names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
                let names = names.join(", ");
                write!(f, "the trainer released what its pool does not show: {names}")
            }
            Self::TooManyReleased { released, stay, nodes } => write!(
                f,
                "the trainer released {released} nodes, which would leave {stay} of the {nodes} \
                 that it runs on: none is terminated"
            ),
            _ => Ok(()),
        }
    }
}

fn because(direction: Direction) -> &'static str {
    match direction {
        Direction::Up => "the trainer is what limits the run",
        Direction::Down => "the trainer waits for rollouts, of which there can be no more",
    }
}

fn whole_seconds(duration: Duration) -> Written {
    Written(Duration::from_secs(duration.as_secs()))
}
