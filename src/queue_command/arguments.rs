//! What `ebbtide queue` is told.

use clap::{Args, Subcommand, ValueEnum};
use ebbtide_core::ids::{GroupId, UnitId};
use ebbtide_queue::command::Stage;

use crate::place::Place;

/// Most units that `peek` shows.
const PEEK_LIMIT: u64 = 1000;

fn peek_limit() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=PEEK_LIMIT)
}

const EXAMPLES: &str = "\
Examples:
  ebbtide queue status --redis redis://10.0.0.5:6379 --run grpo-7b
  ebbtide queue trace --run grpo-7b g000017.0002
  ebbtide queue dead retry --run grpo-7b --all --reason dead
  ebbtide queue check --run grpo-7b --repair

Exit code: 0 when all is well, 1 when something is not, 2 for wrong usage or a run out of reach.";

/// `ebbtide queue …`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct QueueArgs {
    #[command(subcommand)]
    pub command: QueueCommand,
}

#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// Show depth, work in flight, buffer, lag, tokens and losses.
    #[command(after_help = "Exit code 1: a shard does not answer; 2: the run is not reachable.")]
    Status {
        #[command(flatten)]
        place: Place,
        /// Leave out the lag, for which every unit must be read
        #[arg(long)]
        no_lag: bool,
    },
    /// List the units that would be leased next, in their order.
    Peek {
        #[command(flatten)]
        place: Place,
        /// Of which stage
        #[arg(long, value_enum, default_value_t = StageName::Generate)]
        stage: StageName,
        /// Most units to list
        #[arg(long, default_value_t = 20, value_parser = peek_limit())]
        limit: u64,
    },
    /// Take leased units from their holders and make them ready; no attempt is counted.
    Requeue {
        #[command(flatten)]
        place: Place,
        /// Units, such as g000017.0002
        #[arg(required = true, value_name = "UNIT")]
        units: Vec<UnitId>,
    },
    /// List failed groups and dead units, enqueue them again, or drop their records.
    Dead {
        #[command(subcommand)]
        command: DeadCommand,
    },
    /// Recompute everything that must hold from the raw keys; mend what does not.
    #[command(after_help = "Exit code 0: everything holds, or was mended; 1: something does not.")]
    Check {
        #[command(flatten)]
        place: Place,
        /// Mend what is found
        #[arg(long)]
        repair: bool,
    },
    /// Tell the life of a unit, or of all units of a group.
    Trace {
        #[command(flatten)]
        place: Place,
        /// A unit, such as g000017.0002, or a group
        #[arg(value_name = "UNIT|GROUP")]
        subject: Subject,
    },
    /// End every group that is not sealed; their prompts stay in the failure records.
    Cancel {
        #[command(flatten)]
        place: Place,
        /// Why; it stands in every failure record
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Really do it
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum DeadCommand {
    /// List the failure records.
    List {
        #[command(flatten)]
        place: Place,
        /// With every slot, and the life of the unit that brought it about
        #[arg(long, short)]
        verbose: bool,
    },
    /// Enqueue failed groups again.
    Retry {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        choice: Choice,
        /// Of all, only those that failed for this reason
        #[arg(long, requires = "all")]
        reason: Option<String>,
    },
    /// Delete failure records, with the prompts in them.
    Drop {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        choice: Choice,
        /// Really drop all
        #[arg(long, requires = "all")]
        yes: bool,
    },
}

/// Which failure records.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Choice {
    /// Groups
    #[arg(value_name = "GROUP")]
    pub groups: Vec<GroupId>,
    /// All that there are
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StageName {
    Generate,
    Reward,
}

/// What can be traced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Unit(UnitId),
    Group(GroupId),
}

impl std::str::FromStr for Subject {
    type Err = ebbtide_core::ids::IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A group id has no dot.
        if text.contains('.') {
            text.parse().map(Self::Unit)
        } else {
            text.parse().map(Self::Group)
        }
    }
}

impl QueueCommand {
    /// Which run, and how to answer.
    pub fn place(&self) -> &Place {
        match self {
            Self::Status { place, .. }
            | Self::Peek { place, .. }
            | Self::Requeue { place, .. }
            | Self::Check { place, .. }
            | Self::Trace { place, .. }
            | Self::Cancel { place, .. } => place,
            Self::Dead { command } => match command {
                DeadCommand::List { place, .. }
                | DeadCommand::Retry { place, .. }
                | DeadCommand::Drop { place, .. } => place,
            },
        }
    }
}

impl From<StageName> for Stage {
    fn from(name: StageName) -> Self {
        match name {
            StageName::Generate => Self::Generate,
            StageName::Reward => Self::Reward,
        }
    }
}
