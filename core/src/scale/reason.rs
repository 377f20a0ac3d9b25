//! Why a plan says what it says: one reason for every number, in words that an operator reads.

mod capacity;
mod capacity_words;
mod words;

use std::time::Duration;

pub use self::capacity::{BreakerReason, CapacityReason, SwapStep, Unjudged};
use super::role::Role;
use super::stock::Stock;
use crate::bottleneck::IterationStage;
use crate::ids::ReplicaId;
use crate::observation::FailureKind;
use crate::policy::PoolName;

/// A signal that sizing depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SignalName {
    /// Units that wait.
    Ready,
    /// Units in flight.
    InFlight,
    /// Sealed groups.
    Buffer,
    /// The trainer's report.
    Trainer,
    /// The replicas' records.
    Replicas,
    /// The size of a pool.
    PoolSize,
}

impl SignalName {
    /// All signals, for metrics.
    pub const ALL: [Self; 6] =
        [Self::Ready, Self::InFlight, Self::Buffer, Self::Trainer, Self::Replicas, Self::PoolSize];

    /// The word in metrics and journals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::InFlight => "in_flight",
            Self::Buffer => "buffer",
            Self::Trainer => "trainer",
            Self::Replicas => "replicas",
            Self::PoolSize => "pool_size",
        }
    }
}

/// Which way a change goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// More replicas.
    Up,
    /// Fewer replicas.
    Down,
}

impl Direction {
    /// The word in metrics and journals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// One reason of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A signal could not be read: nothing is lowered.
    SignalUnknown {
        /// Which.
        signal: SignalName,
        /// Why it is unknown.
        why: String,
    },
    /// The size of a pool could not be read: nothing is written.
    SizeUnknown {
        /// Which pool.
        pool: PoolName,
        /// Why it is unknown.
        why: String,
    },
    /// The trainer said that the run has ended.
    RunEnded,
    /// Weights are spread: samples that are not made meanwhile are not lost demand.
    WeightSync {
        /// How long so far.
        lasted: Duration,
    },
    /// Units that can be worked on, and how many of them the trainer can use in time.
    WorkOccupies {
        /// Waiting and in flight.
        work: u64,
        /// How many fit under the admission ceiling.
        useful: u64,
        /// Replicas that the smaller number occupies.
        replicas: u32,
    },
    /// What the measured pace asks for.
    PaceNeeds {
        /// Milliseconds that the trainer is busy for one update.
        busy_ms: u32,
        /// Milliseconds that one sample is in flight.
        in_flight_ms: u32,
        /// Replicas for that.
        replicas: u32,
    },
    /// There is not enough evidence of the pace yet.
    PaceUnmeasured,
    /// The buffer holds less than it should.
    BufferLow {
        /// Sealed groups.
        stock: Stock,
        /// How many there should be.
        target: u32,
    },
    /// The buffer holds what it should.
    BufferInBand {
        /// Sealed groups.
        stock: Stock,
        /// How many there should be.
        target: u32,
    },
    /// The buffer holds more than the trainer needs.
    BufferFull {
        /// Sealed groups.
        stock: Stock,
        /// How many are enough.
        max: u32,
    },
    /// Nothing waits; that proves no end of the work.
    ZeroIsNoProof,
    /// What a service has to do.
    ItemsNeed {
        /// Items that wait.
        waiting: u64,
        /// Items that are worked on; `None` when nobody tells.
        working: Option<u64>,
        /// What the rollouts are about to be, in per cent of what they are.
        growth_percent: u32,
        /// Replicas for that.
        replicas: u32,
    },
    /// What waits for a service will be gone before another replica could help.
    BacklogPasses,
    /// No node of a service is on record, and what runs is left alone.
    NoAgents {
        /// Which service.
        role: Role,
    },
    /// The policy's minimum asks for more than the demand does.
    AtMinimum {
        /// The minimum.
        minimum: u32,
    },
    /// The policy's maximum allows less than the demand.
    AtMaximum {
        /// The maximum.
        maximum: u32,
    },
    /// Another stage limits the iteration: more rollouts would only wait.
    LimitedElsewhere {
        /// Which stage.
        stage: IterationStage,
        /// Replicas that are wanted.
        wanted: u32,
        /// Replicas that are allowed meanwhile.
        kept: u32,
    },
    /// A replica ordered now would not be ready when the next may join.
    MissesJoin {
        /// Until the step under way is expected to end.
        remaining: Duration,
        /// From an order to the first token.
        startup: Duration,
    },
    /// A change waits until it has been wanted long enough.
    Stabilizing {
        /// Which way.
        direction: Direction,
        /// What is wanted now.
        wanted: u32,
        /// How much longer.
        remaining: Duration,
    },
    /// More changes are wanted than one plan may make.
    ChangesLimited {
        /// Wanted changes.
        wanted: u32,
        /// The limit.
        limit: u32,
    },
    /// A pool is left out for a while after a failed launch.
    PoolBenched {
        /// Which.
        pool: PoolName,
        /// What kind of failure.
        kind: FailureKind,
        /// How much longer.
        remaining: Duration,
    },
    /// AWS has just taken an instance of a pool: others come before it for a while.
    PoolReclaimed {
        /// Which.
        pool: PoolName,
        /// For how much longer.
        remaining: Duration,
    },
    /// A pool has fewer nodes than were asked for and fills up by itself.
    PoolFilling {
        /// Which.
        pool: PoolName,
        /// Nodes that were asked for.
        desired: u32,
        /// Nodes that are there or on their way.
        observed: u32,
    },
    /// Somebody else sets the size of a pool: it is left alone for a while.
    ConflictingWriter {
        /// Which pool.
        pool: PoolName,
        /// Nodes that were asked for here.
        asked: u32,
        /// Nodes that were found to be asked for instead.
        found: u32,
        /// For how much longer.
        remaining: Duration,
    },
    /// No pool has room for a replica.
    NoRoom {
        /// Replicas that are missing.
        missing: u32,
    },
    /// No pool can ever hold one replica.
    Infeasible {
        /// Nodes of one replica.
        nodes_per_replica: u32,
    },
    /// Fewer replicas can be drained than should be.
    NoVictim {
        /// Replicas that stay.
        missing: u32,
    },
    /// A replica that AWS takes is left to AWS.
    LeftToAws {
        /// Which.
        replica: ReplicaId,
    },
    /// A drained replica waits until its leases are gone.
    WaitsForLeases {
        /// Which.
        replica: ReplicaId,
    },
    /// A replica that is to drain is silent, and its agent may come back and say that it has.
    WaitsForAgent {
        /// Which.
        replica: ReplicaId,
        /// For how much longer that is waited for.
        remaining: Duration,
    },
    /// A drained replica waits for others, which its provider takes before it.
    WaitsForTurn {
        /// Which.
        replica: ReplicaId,
    },
    /// What capacity costs, and whether it comes.
    Capacity(CapacityReason),
}

/// Why a wanted change was not made; the closed set of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HoldKind {
    /// It has not been wanted long enough.
    Stabilization,
    /// Weights are spread.
    Sync,
    /// A signal is unknown.
    StaleSignal,
    /// The pools refuse.
    Breaker,
    /// A replica does not fit.
    Gang,
    /// Another stage limits the iteration.
    Bottleneck,
    /// It would miss the next join point.
    Join,
    /// It costs more than it is worth, or than may be spent.
    Cost,
}

impl HoldKind {
    /// All kinds, for metrics.
    pub const ALL: [Self; 8] = [
        Self::Stabilization,
        Self::Sync,
        Self::StaleSignal,
        Self::Breaker,
        Self::Gang,
        Self::Bottleneck,
        Self::Join,
        Self::Cost,
    ];

    /// The word in metrics and journals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stabilization => "stabilization",
            Self::Sync => "sync",
            Self::StaleSignal => "stale_signal",
            Self::Breaker => "breaker",
            Self::Gang => "gang",
            Self::Bottleneck => "bottleneck",
            Self::Join => "join",
            Self::Cost => "cost",
        }
    }
}

impl Reason {
    /// All words of [`Reason::demand`], for metrics.
    pub const DEMANDS: [&str; 6] =
        ["run_ended", "buffer_low", "buffer_in_band", "buffer_full", "items", "minimum"];

    /// The word for what the demand follows from, when the reason is about that.
    pub fn demand(&self) -> Option<&'static str> {
        match self {
            Self::RunEnded => Some("run_ended"),
            Self::BufferLow { .. } => Some("buffer_low"),
            Self::BufferInBand { .. } => Some("buffer_in_band"),
            Self::BufferFull { .. } => Some("buffer_full"),
            Self::ItemsNeed { .. } => Some("items"),
            Self::AtMinimum { .. } => Some("minimum"),
            _ => None,
        }
    }

    /// What the reason holds back, if anything.
    pub fn held(&self) -> Option<HoldKind> {
        match self {
            Self::SignalUnknown { .. } | Self::SizeUnknown { .. } | Self::ZeroIsNoProof => {
                Some(HoldKind::StaleSignal)
            }
            Self::WeightSync { .. } => Some(HoldKind::Sync),
            Self::Stabilizing { .. } => Some(HoldKind::Stabilization),
            Self::PoolBenched { .. } | Self::NoRoom { .. } | Self::ConflictingWriter { .. } => {
                Some(HoldKind::Breaker)
            }
            Self::Infeasible { .. } => Some(HoldKind::Gang),
            Self::LimitedElsewhere { .. } => Some(HoldKind::Bottleneck),
            Self::MissesJoin { .. } => Some(HoldKind::Join),
            Self::Capacity(reason) => reason.held(),
            _ => None,
        }
    }
}
