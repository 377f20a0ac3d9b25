//! The order in which the instances of a pool can go.
//!
//! Some providers cannot be told whom to take: a StatefulSet gives up its highest ordinal, whatever
//! runs there. So there a replica can be asked to drain only when everything that would go before
//! it goes as well.

use std::collections::BTreeMap;

use super::census::Census;
use crate::observation::{DrainPurpose, InstanceId, ReplicaView};

/// What stays, and what would have to go first.
pub(super) struct Removal<'a> {
    /// Pool and rank of every instance that counts.
    ranks: BTreeMap<&'a InstanceId, (usize, u32)>,
    /// How many of them stay in each pool, by rank.
    stay: BTreeMap<(usize, u32), u32>,
}

impl<'a> Removal<'a> {
    /// Of the instances that count, those of replicas that `goes` stay no longer.
    pub fn new(census: &Census<'a>, goes: impl Fn(&ReplicaView) -> bool) -> Self {
        let mut removal = Self { ranks: BTreeMap::new(), stay: BTreeMap::new() };
        for (place, pool) in census.pools.iter().enumerate() {
            for instance in pool.size.counted() {
                let rank = (place, instance.removal_rank);
                removal.ranks.insert(&instance.id, rank);
                *removal.stay.entry(rank).or_default() += 1;
            }
        }
        for replica in census.replicas.iter().filter(|replica| goes(replica)) {
            removal.take(replica);
        }
        removal
    }

    /// Whether nothing that stays would have to go before this replica, but itself.
    pub fn may_go(&self, replica: &ReplicaView) -> bool {
        let own = self.ranks_of(replica);
        own.iter().all(|(rank, _)| {
            let before = self.stay.range((rank.0, 0)..*rank);
            before.map(|(rank, stay)| (stay, own.get(rank).unwrap_or(&0))).all(|(a, b)| a <= b)
        })
    }

    /// Its instances go.
    pub fn take(&mut self, replica: &ReplicaView) {
        for (rank, instances) in self.ranks_of(replica) {
            let stay = self.stay.entry(rank).or_default();
            *stay = stay.saturating_sub(instances);
        }
    }

    /// How late it goes: the highest rank of its instances.
    pub fn lateness(&self, replica: &ReplicaView) -> u32 {
        self.ranks_of(replica).keys().map(|(_, rank)| *rank).max().unwrap_or(0)
    }

    fn ranks_of(&self, replica: &ReplicaView) -> BTreeMap<(usize, u32), u32> {
        let mut ranks = BTreeMap::new();
        let instances = replica.nodes.iter().filter_map(|node| node.instance.as_ref());
        for rank in instances.filter_map(|id| self.ranks.get(id)) {
            *ranks.entry(*rank).or_default() += 1;
        }
        ranks
    }
}

/// Whether sizing has asked the replica to go.
pub(super) fn is_asked(replica: &ReplicaView) -> bool {
    replica.drain.as_ref().is_some_and(|drain| drain.purpose == DrainPurpose::Sizing)
}

/// Whether sizing has asked it to go and nothing keeps it.
pub(super) fn is_free(census: &Census<'_>, replica: &ReplicaView) -> bool {
    let is_empty = census.is_drained(replica) && replica.leased.known() == Some(&0);
    is_asked(replica) && is_empty && !replica.has_notice
}
