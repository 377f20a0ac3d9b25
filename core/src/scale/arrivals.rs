//! Instances that are on their way to become nodes, and those that never do.
//!
//! An instance waits from the moment it shows in its pool until its node reports. One that stays on
//! its way in for longer than a launch may take is stuck and no longer counted on; one that has
//! been in service for [`JOIN_LIMIT`] without a word never joined. While the records cannot be
//! read, nobody knows who reported: that time does not count.
//!
//! What was there before anything was asked for here may be at work for somebody else, whose nodes
//! have no agent: such *strangers* are counted on no more than others that never joined, and left
//! alone.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::bench::{LAUNCH_LIMIT, PoolMemory};
use crate::ids::NodeName;
use crate::observation::{InstanceId, InstanceState, InstanceView, Observation};
use crate::policy::PoolName;
use crate::time::UnixMillis;

/// How long an instance in service may stay without a report of its node (Cluster Autoscaler's
/// limit for nodes that do not register).
pub(super) const JOIN_LIMIT: Duration = Duration::from_secs(900);

/// Instances whose nodes have not reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Arrivals {
    waiting: BTreeMap<InstanceId, Arrival>,
    /// Instances whose nodes have reported; `None` before the first look.
    reported: Option<u64>,
    joins: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Arrival {
    pool: PoolName,
    state: InstanceState,
    /// Since when it is in that state, as far as that was seen.
    since: UnixMillis,
    /// Whether it came before anything was asked for here.
    is_stranger: bool,
}

impl Arrival {
    fn is_awaited(&self, now: UnixMillis) -> bool {
        let limit = if self.state == InstanceState::Pending { LAUNCH_LIMIT } else { JOIN_LIMIT };
        now.since(self.since) < limit
    }
}

/// Instances of one pool that came too late.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Late {
    /// On their way in for too long.
    pub stuck: Vec<InstanceId>,
    /// In service for long, and their nodes never reported.
    pub never_joined: Vec<InstanceId>,
    /// The same of those that were there before anything was asked for here.
    pub strangers: Vec<InstanceId>,
}

impl Late {
    /// Instances that are not counted on.
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.stuck.len() + self.unjoined()).unwrap_or(u32::MAX)
    }

    /// How many are in service for long, and never reported.
    pub fn unjoined(&self) -> usize {
        self.never_joined.len() + self.strangers.len()
    }
}

impl Arrivals {
    /// What is waited for after one more look at these pools.
    #[must_use]
    pub fn advance(
        &self,
        observation: &Observation,
        pools: &BTreeMap<PoolName, PoolMemory>,
    ) -> Self {
        let now = observation.now;
        let Some(reported) = Reported::of(observation) else { return self.unread(now) };
        let (mut waiting, mut count, mut joined) = (BTreeMap::new(), 0_u64, 0_u64);
        for view in &observation.pools {
            let Some(size) = view.size.known() else {
                let own = self.waiting.iter().filter(|(_, arrival)| arrival.pool == view.name);
                waiting.extend(own.map(|(id, arrival)| (id.clone(), arrival.clone())));
                continue;
            };
            let may_have_asked =
                pools.get(&view.name).is_some_and(|pool| pool.writer.may_have_asked());
            for instance in size.counted() {
                let before = self.waiting.get(&instance.id);
                if reported.has(instance) {
                    count += 1;
                    joined += u64::from(before.is_some());
                    continue;
                }
                // What is on its way at the first look works for nobody yet.
                let is_new = self.reported.is_none() && instance.state == InstanceState::Pending;
                let is_stranger =
                    before.map_or(!may_have_asked && !is_new, |before| before.is_stranger);
                let before = before.filter(|before| before.state == instance.state);
                let arrival = Arrival {
                    pool: view.name.clone(),
                    state: instance.state,
                    since: before.map_or(now, |before| before.since),
                    is_stranger,
                };
                waiting.insert(instance.id.clone(), arrival);
            }
        }
        // One that reports before it was ever seen waiting shows in the sum.
        let grown = self.reported.map_or(0, |before| count.saturating_sub(before));
        Self { waiting, reported: Some(count), joins: self.joins + joined.max(grown) }
    }

    /// Nobody knows who has reported: those in service may have, all the while.
    #[must_use]
    pub fn unread(&self, now: UnixMillis) -> Self {
        let mut next = self.clone();
        for arrival in next.waiting.values_mut() {
            if arrival.state == InstanceState::InService {
                arrival.since = now;
            }
        }
        next
    }

    /// Nodes that have reported since this memory began.
    pub fn joins(&self) -> u64 {
        self.joins
    }

    /// The instances that are too late, by pool.
    pub fn late(&self, now: UnixMillis) -> BTreeMap<PoolName, Late> {
        let mut late = BTreeMap::<PoolName, Late>::new();
        for (id, arrival) in &self.waiting {
            let waited = now.since(arrival.since);
            match arrival.state {
                InstanceState::Pending if waited >= LAUNCH_LIMIT => {
                    late.entry(arrival.pool.clone()).or_default().stuck.push(id.clone());
                }
                InstanceState::InService if waited >= JOIN_LIMIT => {
                    let late = late.entry(arrival.pool.clone()).or_default();
                    let ids = match arrival.is_stranger {
                        true => &mut late.strangers,
                        false => &mut late.never_joined,
                    };
                    ids.push(id.clone());
                }
                _ => {}
            }
        }
        late
    }

    /// Whether anything is still on its way.
    pub fn is_any_awaited(&self, now: UnixMillis) -> bool {
        self.waiting.values().any(|arrival| arrival.is_awaited(now))
    }

    /// Whether anything is still on its way into this pool.
    pub fn is_awaited_in(&self, pool: &PoolName, now: UnixMillis) -> bool {
        self.waiting.values().any(|arrival| arrival.pool == *pool && arrival.is_awaited(now))
    }
}

/// Who has reported.
struct Reported<'a> {
    instances: HashSet<&'a InstanceId>,
    nodes: HashSet<&'a NodeName>,
    /// Whether some node does not say which instance it is.
    has_unidentified: bool,
}

impl<'a> Reported<'a> {
    fn of(observation: &'a Observation) -> Option<Self> {
        let replicas = observation.replicas.known()?;
        let others = observation.others_at_work.known()?;
        let mut reported = Self {
            instances: others.instances.iter().collect(),
            nodes: others.nodes.iter().collect(),
            has_unidentified: !others.nodes.is_empty(),
        };
        for node in replicas.iter().flat_map(|replica| &replica.nodes) {
            reported.nodes.insert(&node.name);
            match &node.instance {
                Some(instance) => {
                    reported.instances.insert(instance);
                }
                None => reported.has_unidentified = true,
            }
        }
        Some(reported)
    }

    /// Whether the instance's node has reported, or may have.
    fn has(&self, instance: &InstanceView) -> bool {
        self.instances.contains(&instance.id)
            || match &instance.node {
                Some(node) => self.nodes.contains(node),
                None => self.has_unidentified && instance.state == InstanceState::InService,
            }
    }
}
