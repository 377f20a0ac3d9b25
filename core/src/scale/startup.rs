//! How long a replica really takes from its order to its first lease, learned from those that came.
//!
//! Measured from the tick at which its first instance shows up in a pool, which is the one after
//! the order, to the tick at which it is ready. Instances that were there at the first look are
//! not measured: nobody knows when they were ordered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::observation::{InstanceId, Observation, PoolSize, ReplicaState, ReplicaView};
use crate::policy::PoolName;
use crate::time::UnixMillis;

/// Starts that are looked back on.
const KEPT: usize = 32;

/// Fewest starts before they count more than the policy's estimate.
const NEEDED: usize = 3;

/// What is known of past starts and of those under way.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StartupMemory {
    /// By pool; shared from plan to plan while nothing comes or goes.
    pools: BTreeMap<PoolName, Arc<SeenSince>>,
    /// The last starts, the newest at the back.
    lasted: VecDeque<Duration>,
}

/// When each instance was first seen; `None` once it is of no interest.
type SeenSince = BTreeMap<InstanceId, Option<UnixMillis>>;

impl StartupMemory {
    /// Takes in one observation. A pool of unknown size changes nothing.
    pub(super) fn note(&mut self, observation: &Observation) {
        let now = observation.now;
        for view in &observation.pools {
            let Some(size) = view.size.known() else { continue };
            match self.pools.get_mut(&view.name) {
                Some(seen) => note_instances(seen, size, now),
                None => {
                    let there = size.counted().map(|instance| (instance.id.clone(), None));
                    self.pools.insert(view.name.clone(), Arc::new(there.collect()));
                }
            }
        }
        self.pools.retain(|name, _| observation.pools.iter().any(|view| view.name == *name));
        self.note_ready(observation);
    }

    fn note_ready(&mut self, observation: &Observation) {
        let replicas = observation.replicas.known().map_or(&[][..], Vec::as_slice);
        for replica in replicas.iter().filter(|replica| replica.state == ReplicaState::Ready) {
            if !self.is_new(replica) {
                continue;
            }
            let seen = replica.pool.as_ref().and_then(|pool| self.pools.get_mut(pool));
            let Some(seen) = seen.map(Arc::make_mut) else { continue };
            let ids = replica.nodes.iter().filter_map(|node| node.instance.as_ref());
            let since: Vec<UnixMillis> =
                ids.filter_map(|id| seen.get_mut(id).and_then(Option::take)).collect();
            // A node that took the place of a lost one did not start a whole replica.
            if since.len() == replica.nodes.len()
                && let Some(first) = since.into_iter().min()
            {
                self.lasted.push_back(observation.now.since(first));
                if self.lasted.len() > KEPT {
                    self.lasted.pop_front();
                }
            }
        }
    }

    /// Whether the replica has never been ready, as far as anybody saw.
    pub(super) fn is_new(&self, replica: &ReplicaView) -> bool {
        let seen = replica.pool.as_ref().and_then(|pool| self.pools.get(pool));
        let ids = replica.nodes.iter().filter_map(|node| node.instance.as_ref());
        seen.is_some_and(|seen| ids.into_iter().any(|id| matches!(seen.get(id), Some(Some(_)))))
    }

    /// How many starts were measured, of the last ones.
    pub fn count(&self) -> usize {
        self.lasted.len()
    }

    /// The time within which this share of the starts (0 to 1) was over, by the nearest rank;
    /// `None` before there are three.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        if self.lasted.len() < NEEDED {
            return None;
        }
        let mut sorted: Vec<Duration> = self.lasted.iter().copied().collect();
        sorted.sort_unstable();
        let rank = (share * super::count(sorted.len() as u64)).ceil();
        let place = usize::try_from(super::whole(rank)).unwrap_or(usize::MAX);
        sorted.get(place.clamp(1, sorted.len()) - 1).copied()
    }
}

fn note_instances(seen: &mut Arc<SeenSince>, size: &PoolSize, now: UnixMillis) {
    let is_unchanged = size.counted().count() == seen.len()
        && size.counted().all(|instance| seen.contains_key(&instance.id));
    if is_unchanged {
        return;
    }
    let since = |id: &InstanceId| seen.get(id).copied().unwrap_or(Some(now));
    let there = size.counted().map(|instance| (instance.id.clone(), since(&instance.id)));
    *seen = Arc::new(there.collect());
}
