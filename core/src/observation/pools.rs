//! Capacity pools as their providers show them. Moments here are the provider's own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{InstanceId, Signal};
use crate::ids::NodeName;
use crate::policy::{Market, PoolName, Zone};
use crate::time::UnixMillis;

/// One capacity pool as its provider shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// The pool.
    pub name: PoolName,
    /// Its size and instances.
    pub size: Signal<PoolSize>,
    /// What it did lately; unknown as well when it was not asked.
    pub activities: Signal<Activities>,
}

impl PoolView {
    /// A pool that could not be read.
    pub fn unread(name: PoolName, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { name, size: Signal::unknown(why.clone()), activities: Signal::Unknown { why } }
    }
}

/// What a pool did lately, on the provider's clock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activities {
    /// Start of the newest activity.
    pub newest_at: Option<UnixMillis>,
    /// Recent failures to launch, in any order.
    pub failures: Vec<LaunchFailure>,
}

/// Size and content of a pool, in nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolSize {
    /// What was asked for.
    pub desired: u32,
    /// The provider's own limit, when it has one.
    pub limit: Option<u32>,
    /// Below which the provider refuses to go; 0 when there is no such size.
    pub floor: u32,
    /// What is there.
    pub instances: Vec<InstanceView>,
    /// Whether nobody keeps its size: what lives is what was asked for, and a loss is no change of
    /// mind.
    pub is_unmanaged: bool,
    /// What its provider has to remark, in words.
    pub remarks: Vec<String>,
}

impl PoolSize {
    /// Instances that count against what was asked for: on their way in, or in service.
    pub fn counted(&self) -> impl Iterator<Item = &InstanceView> {
        self.instances.iter().filter(|instance| instance.state.counts())
    }

    /// How many these are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.counted().count()).unwrap_or(u32::MAX)
    }

    /// Nodes that are or will be paid: what was asked for, or what is there where that is more.
    pub fn committed(&self) -> u32 {
        self.desired.max(self.count())
    }

    /// How many of them serve: a group that has fewer than the `gang` nodes of a replica serves
    /// nothing.
    pub fn counted_nodes(&self, gang: u32) -> u32 {
        let mut groups = BTreeMap::<&str, u32>::new();
        let mut nodes = 0;
        for instance in self.counted() {
            match &instance.group {
                Some(group) => *groups.entry(group).or_default() += 1,
                None => nodes += 1,
            }
        }
        nodes + groups.values().filter(|members| **members >= gang).sum::<u32>()
    }
}

/// One instance of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// The instance.
    pub id: InstanceId,
    /// Where it is in its life.
    pub state: InstanceState,
    /// Whether the group may not choose it as a victim.
    pub is_protected: bool,
    /// The node that it becomes, when its name tells.
    pub node: Option<NodeName>,
    /// Its zone.
    pub zone: Option<Zone>,
    /// Its market.
    pub market: Option<Market>,
    /// The group that it came with, where the provider makes groups.
    pub group: Option<String>,
    /// When it can go: the provider can take an instance only after all of a lower rank. The same
    /// for all where any may be named.
    pub removal_rank: u32,
}

impl InstanceView {
    /// An instance of which no more is known; any may go before it.
    pub fn new(id: InstanceId, state: InstanceState) -> Self {
        Self {
            id,
            state,
            is_protected: false,
            node: None,
            zone: None,
            market: None,
            group: None,
            removal_rank: 0,
        }
    }
}

/// Where an instance is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// On its way in.
    Pending,
    /// Part of the group.
    InService,
    /// On its way out; the group no longer counts it.
    Terminating,
    /// Set aside (standby, detached, warmed).
    Aside,
}

impl InstanceState {
    /// Whether the instance counts against the desired size.
    pub fn counts(self) -> bool {
        matches!(self, Self::Pending | Self::InService)
    }
}

/// A launch that did not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaunchFailure {
    /// When it began, on the provider's clock.
    pub at: UnixMillis,
    /// What kind it is.
    pub kind: FailureKind,
    /// What the provider said.
    pub message: String,
}

/// What a failed launch says about its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The pool has no machine left.
    Capacity,
    /// The account may not have more.
    Quota,
    /// Too many calls, or another activity goes on: says nothing about the pool.
    Throttled,
    /// Anything else: configuration, permissions.
    Other,
    /// Nothing came within the launch limit, and nothing was said.
    TimedOut,
}

impl FailureKind {
    /// All kinds, for metrics.
    pub const ALL: [Self; 5] =
        [Self::Capacity, Self::Quota, Self::Throttled, Self::Other, Self::TimedOut];

    /// The word in metrics and journals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Quota => "quota",
            Self::Throttled => "throttled",
            Self::Other => "other",
            Self::TimedOut => "timed_out",
        }
    }

    /// Whether more from this pool is pointless for a while.
    pub fn benches(self) -> bool {
        self != Self::Throttled
    }

    /// Reads the kind from an error code, or from the text of a failed activity.
    ///
    /// Source: the capacity codes that Karpenter handles, and EC2's throttling codes.
    pub fn of_text(text: &str) -> Self {
        const THROTTLED: [&str; 6] = [
            "RequestLimitExceeded",
            "Throttling",
            "Rate exceeded",
            "ScalingActivityInProgress",
            "ResourceContention",
            "TooManyRequests",
        ];
        const QUOTA: [&str; 5] = [
            "MaxSpotInstanceCountExceeded",
            "Max spot instance count exceeded",
            "VcpuLimitExceeded",
            "vCPU capacity",
            "MaxFleetCountExceeded",
        ];
        const CAPACITY: [&str; 7] = [
            "InsufficientInstanceCapacity",
            "Insufficient capacity",
            "UnfulfillableCapacity",
            "sufficient capacity",
            "no Spot capacity",
            "InsufficientFreeAddressesInSubnet",
            "ReservationCapacityExceeded",
        ];
        let mentions = |words: &[&str]| {
            let text = text.to_ascii_lowercase();
            words.iter().any(|word| text.contains(&word.to_ascii_lowercase()))
        };
        match () {
            () if mentions(&THROTTLED) => Self::Throttled,
            () if mentions(&QUOTA) => Self::Quota,
            () if mentions(&CAPACITY) => Self::Capacity,
            () => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_texts_are_told_apart() {
        let table = [
            ("InsufficientInstanceCapacity", FailureKind::Capacity),
            (
                "We currently do not have sufficient p5en.48xlarge capacity in zones us-east-2a. \
                 Launching EC2 instance failed: InsufficientInstanceCapacity",
                FailureKind::Capacity,
            ),
            ("MaxSpotInstanceCountExceeded: Max spot instance count exceeded", FailureKind::Quota),
            ("You have requested more vCPU capacity than your current limit", FailureKind::Quota),
            ("RequestLimitExceeded: Request limit exceeded.", FailureKind::Throttled),
            ("Throttling: Rate exceeded", FailureKind::Throttled),
            ("InvalidAMIID.NotFound", FailureKind::Other),
        ];
        for (text, kind) in table {
            assert_eq!(FailureKind::of_text(text), kind, "{text}");
        }
    }

    #[test]
    fn group_that_lacks_a_node_serves_nothing() {
        let instance = |name: &str, group: Option<&str>, state| InstanceView {
            group: group.map(str::to_owned),
            ..InstanceView::new(InstanceId(name.to_owned()), state)
        };
        use InstanceState::{InService, Pending, Terminating};
        let size = PoolSize {
            instances: vec![
                instance("a0", Some("a"), InService),
                instance("a1", Some("a"), Pending),
                instance("b0", Some("b"), InService),
                instance("c0", Some("c"), InService),
                instance("c1", Some("c"), Terminating),
                instance("d", None, InService),
            ],
            ..PoolSize::default()
        };
        assert_eq!(size.counted_nodes(2), 3, "a and d");
        assert_eq!(size.counted_nodes(1), 5, "all but what goes");
    }

    #[test]
    fn throttling_benches_nothing() {
        assert!(!FailureKind::Throttled.benches());
        assert!(FailureKind::ALL.iter().filter(|kind| kind.benches()).count() == 4);
    }
}
