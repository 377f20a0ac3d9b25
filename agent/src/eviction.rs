//! Which pods leave the node now, which wait, which stay: decided, not done.
//!
//! Pods leave in tiers ([`Tier`]): ordinary ones, critical ones, custom workers, engines. A tier
//! begins when the ones before it are gone or their time is up. Pods that hold work are left alone
//! while they do, until deadline − grace; from then on everything goes, and what a disruption
//! budget still keeps is deleted if the policy says so. From the deadline on nothing is done.
//!
//! The plan is made anew at every look, of what is seen and of what was tried. So a successor of
//! this agent, which knows nothing of earlier tries, goes on where they ended.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::policy::BlockedEviction;
use tokio::time::Instant;

use crate::kubernetes::{PodId, SeenPod, StayReason};

pub(crate) use plan::plan_evictions;

/// What bounds evictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictionTerms {
    /// Everything goes from this long before the deadline on.
    pub(crate) grace: Duration,
    /// Evictions that are held back begin this long before the deadline at the latest.
    pub(crate) reserve: Duration,
    pub(crate) on_blocked: BlockedEviction,
}

/// The node as it is when evictions are planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    /// All pods of the node.
    pub(crate) pods: &'a [SeenPod],
    /// What was tried with them, by UID.
    pub(crate) tried: &'a BTreeMap<String, Tried>,
    pub(crate) drain: DrainAround,
}

/// The drain that pods leave for, and how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DrainAround {
    pub(crate) holdings: Holdings,
    /// Whether the node is cordoned, so that no evicted pod can come back to it.
    pub(crate) is_cordoned: bool,
    /// No pod is evicted before this, or before deadline − reserve.
    pub(crate) held_until: Option<Instant>,
    /// When the drain began.
    pub(crate) begun: Instant,
    pub(crate) deadline: Instant,
}

/// Who still holds work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Holdings {
    /// An engine has a stream.
    pub(crate) has_streams: bool,
    /// A custom worker has a unit.
    pub(crate) has_worker_units: bool,
}

/// How far an attempt to make a pod leave has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tried {
    /// The call is under way.
    Calling,
    /// The server has accepted it.
    Accepted,
    /// It is gone, whatever is seen.
    Gone,
    /// A disruption budget kept it.
    Blocked { retry_at: Instant },
    /// The call failed.
    Failed { is_blocked: bool, retry_at: Instant },
}

/// One decision for each pod, in the order in which pods leave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EvictionPlan {
    pub(crate) decisions: Vec<PodDecision>,
    /// When time alone changes something; none when it does not.
    pub(crate) next_due: Option<Instant>,
}

impl EvictionPlan {
    /// Pods that are still to go.
    pub(crate) fn left(&self) -> usize {
        let is_left = |decision: &&PodDecision| !matches!(decision.verdict, Verdict::Skip(_));
        self.decisions.iter().filter(is_left).count()
    }
}

/// The decision on one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodDecision {
    pub(crate) pod: PodId,
    pub(crate) verdict: Verdict,
}

/// What becomes of a pod, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is evicted now, with this grace.
    Evict { grace: Duration, why: EvictWhy },
    /// It is deleted now, with this grace: a budget kept it, and the time is up.
    Delete { grace: Duration },
    /// Nothing is done yet.
    Wait(WaitReason),
    /// Nothing is ever done.
    Skip(SkipReason),
}

/// Why a pod is evicted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictWhy {
    /// Its tier has begun and it holds nothing.
    Turn,
    /// It needs the time that is left to end in peace.
    OwnGrace,
    /// Deadline − grace has come.
    TimeUp,
}

impl EvictWhy {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::OwnGrace => "own_grace",
            Self::TimeUp => "time_up",
        }
    }
}

/// Why nothing is done yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// It is on its way out.
    Leaving,
    /// The call for it is under way.
    Calling,
    /// Evictions are held back until something is confirmed.
    Held,
    /// It could come back to the node, which is not cordoned yet.
    NotCordoned,
    /// Pods of an earlier tier are still there.
    EarlierTier,
    /// It holds work.
    HoldsWork,
    /// The last try failed or was refused; the next one is due later.
    Retry,
    /// Enough calls are under way.
    Busy,
}

/// Why nothing is ever done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SkipReason {
    /// It stays whatever happens to the node.
    Stays(StayReason),
    /// It is gone, though still seen.
    Gone,
    /// A disruption budget keeps it and the policy lets it.
    LeftToBudget,
    /// The deadline has passed.
    TooLate,
}
