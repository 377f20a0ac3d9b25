//! Counting: what each pool has promised, what is there, and what is on its way out.
//!
//! *Promised* is what was asked for and may still come: it keeps a group that heals itself from
//! being raised again. *Present* is what is there: only that can be given up. Replicas that drain
//! on our behalf count as neither. All in whole replicas; a part of one is none.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::arrivals::Late;
use super::bench::{PoolMemory, Standing};
use super::demand::whole;
use super::reason::Reason;
use super::reserved::Tenure;
use super::terms::{PoolTerms, SizingTerms};
use crate::observation::{
    DrainPurpose, InstanceId, InstanceState, Observation, PoolSize, ReplicaState, ReplicaView,
};
use crate::policy::{Market, PoolName};
use crate::time::UnixMillis;

/// The pools of the rollout group, counted.
#[derive(Debug)]
pub(super) struct Census<'a> {
    /// Each pool, in the order of preference.
    pub pools: Vec<PoolCount<'a>>,
    /// Every replica that reported; empty when they are unknown.
    pub replicas: &'a [ReplicaView],
    /// Nodes of one replica.
    pub gang: u32,
    /// Silence after which a replica that was asked to drain is taken to be drained.
    pub silence_limit: Duration,
    /// Where each instance is.
    places: HashMap<&'a InstanceId, Place>,
}

/// Where an instance is.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Its pool, by the order of preference.
    pool: usize,
    state: InstanceState,
}

/// One pool, counted.
#[derive(Debug)]
pub(super) struct PoolCount<'a> {
    pub terms: &'a PoolTerms,
    pub size: &'a PoolSize,
    /// Replicas that were asked for and may still come.
    pub promised: u32,
    /// Replicas that are there or on their way.
    pub present: u32,
    /// Replicas among them that drain on our behalf or for others.
    pub leaving: u32,
    /// Replicas that it can hold at all.
    pub holds: u32,
    /// Replicas that may be added.
    pub room: u32,
    /// Replicas that may be asked to leave before the provider's own least size is met.
    pub spare: u32,
    /// Nodes that may be terminated before that, the same left out.
    pub spare_nodes: u32,
    /// Nodes that count, those that came too late left out.
    pub counted: u32,
    /// Whether AWS has just taken an instance of it, so that others come first.
    pub comes_last: bool,
    /// Whether its last launch failed, so that its like come first.
    pub has_failed: bool,
    /// How many replicas may be asked for at most, after more were refused.
    pub halved: Option<u32>,
    /// Replicas lost lately.
    pub losses: u32,
    /// How far it is in the time for which it is reserved.
    pub tenure: Tenure,
}

/// Counts; the reasons when a size is unknown.
pub(super) fn take_census<'a>(
    terms: &'a SizingTerms,
    observation: &'a Observation,
    memory: &BTreeMap<PoolName, PoolMemory>,
    late: &BTreeMap<PoolName, Late>,
) -> Result<Census<'a>, Vec<Reason>> {
    let mut unknown = Vec::new();
    let mut sizes = Vec::new();
    for pool in &terms.pools {
        let view = observation.pools.iter().find(|view| view.name == pool.name);
        match view.map(|view| (view.size.known(), view.size.why_unknown())) {
            Some((Some(size), _)) => sizes.push((pool, size)),
            other => {
                let why = other.and_then(|(_, why)| why).unwrap_or("it was not read").to_owned();
                unknown.push(Reason::SizeUnknown { pool: pool.name.clone(), why });
            }
        }
    }
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let replicas = observation.replicas.known().map_or(&[][..], Vec::as_slice);
    let mut places = HashMap::new();
    for (pool, (_, size)) in sizes.iter().enumerate() {
        for instance in &size.instances {
            places.insert(&instance.id, Place { pool, state: instance.state });
        }
    }
    let mut census = Census {
        pools: Vec::new(),
        replicas,
        gang: terms.gang(),
        silence_limit: terms.silence_limit(),
        places,
    };
    let mut leaving = vec![0; sizes.len()];
    for pool in replicas.iter().filter_map(|replica| census.leaves_from(replica)) {
        leaving[pool] += 1;
    }
    for ((pool, size), leaving) in sizes.into_iter().zip(leaving) {
        let memory = memory.get(&pool.name).cloned().unwrap_or_default();
        let late = late.get(&pool.name).map_or(0, Late::nodes);
        let count = PoolCount::of(terms, pool, size, (leaving, late), &memory, observation.now);
        census.pools.push(count);
    }
    Ok(census)
}

impl<'a> PoolCount<'a> {
    fn of(
        terms: &SizingTerms,
        pool: &'a PoolTerms,
        size: &'a PoolSize,
        (leaving, late): (u32, u32),
        memory: &PoolMemory,
        now: UnixMillis,
    ) -> Self {
        let gang = terms.gang();
        let counted = size.counted_nodes(gang);
        // What came too late is asked for elsewhere.
        let counted = counted.saturating_sub(late);
        let desired = size.desired.saturating_sub(late);
        let present = counted.min(desired);
        let limit = pool.max_nodes.min(size.limit.unwrap_or(u32::MAX));
        // Nodes that are no whole replica are completed by the next one.
        let holds = limit / gang;
        let free = holds.saturating_sub(size.desired / gang);
        let standing = memory.standing(now);
        let (promised, room) = match standing {
            Standing::Benched => (present, 0),
            // What is on its way is the probe.
            Standing::Probing if counted < desired => {
                (desired.min(present.saturating_add(gang)), 0)
            }
            Standing::Probing => (desired, free.min(1)),
            Standing::Free => (desired, free.min(memory.halved().unwrap_or(u32::MAX))),
        };
        let above = size.desired.saturating_sub(size.floor);
        let spare = (above / gang).saturating_sub(leaving);
        let spare_nodes = above.saturating_sub(leaving.saturating_mul(gang));
        let tenure = memory.tenure;
        let promised = match tenure {
            Tenure::Open => promised,
            Tenure::NotBegun { .. } | Tenure::Ending { .. } => present,
        };
        let may_order = tenure == Tenure::Open && !memory.writer.is_left_alone(now);
        let may_lower = !tenure.is_ending() && !memory.writer.is_left_alone(now);
        Self {
            terms: pool,
            size,
            promised: promised / gang,
            present: present / gang,
            leaving,
            holds,
            room: if may_order { room } else { 0 },
            spare: if may_lower { spare } else { 0 },
            spare_nodes: if may_lower { spare_nodes } else { 0 },
            counted,
            comes_last: memory.comes_last(now).is_some(),
            has_failed: standing != Standing::Free,
            halved: memory.halved(),
            losses: whole(memory.losses().round()) / gang,
            tenure,
        }
    }
}

impl PoolCount<'_> {
    /// Replicas that run or will, those on their way out and those of a pool that ends left out.
    pub fn running_promised(&self) -> u32 {
        match self.tenure.is_ending() {
            true => 0,
            false => self.promised.saturating_sub(self.leaving),
        }
    }

    /// Replicas that are there, those on their way out left out.
    pub fn staying(&self) -> u32 {
        self.present.saturating_sub(self.leaving)
    }
}

impl Census<'_> {
    /// Replicas that run or will, those on their way out and those of pools that end left out.
    pub fn running_promised(&self) -> u32 {
        self.pools.iter().map(PoolCount::running_promised).sum()
    }

    /// Replicas of pools that end, as long as they are not on their way out.
    pub fn running_ending(&self) -> u32 {
        self.pools.iter().filter(|pool| pool.tenure.is_ending()).map(PoolCount::staying).sum()
    }

    /// Whether the pool at this place stands in for Spot: on-demand, after a Spot pool in the order
    /// of preference.
    pub fn is_fallback(&self, place: usize) -> bool {
        let is_spot = |pool: &PoolCount<'_>| pool.terms.market == Market::Spot;
        let (before, after) = self.pools.split_at(place);
        before.iter().any(is_spot) && !after.first().is_none_or(is_spot)
    }

    /// Replicas that are there and stay.
    pub fn running_present(&self) -> u32 {
        self.pools.iter().filter(|pool| !pool.tenure.is_ending()).map(PoolCount::staying).sum()
    }

    /// Whether the replica belongs to a pool that ends.
    pub fn is_ending(&self, replica: &ReplicaView) -> bool {
        let pool = self.pools.get(self.rank(replica.pool.as_ref()));
        pool.is_some_and(|pool| pool.tenure.is_ending())
    }

    /// Whether the replica has drained: its agents said so, or they are silent for so long that
    /// nobody waits for their word any more. What it holds is another question.
    pub fn is_drained(&self, replica: &ReplicaView) -> bool {
        replica.is_said_drained()
            || (replica.drain.is_some() && replica.silence() > self.silence_limit)
    }

    /// Whether the replica's drain takes it out of the group.
    fn is_leaving(replica: &ReplicaView) -> bool {
        let purpose = replica.drain.as_ref().map(|drain| drain.purpose);
        matches!(purpose, Some(DrainPurpose::Sizing | DrainPurpose::Others))
    }

    /// Replicas that may be at work and stay. Nobody knows of a silent one that it is not.
    pub fn at_work(&self) -> u32 {
        let may_work = |replica: &&ReplicaView| {
            let is_at_work = matches!(replica.state, ReplicaState::Ready | ReplicaState::Unknown);
            is_at_work && !Self::is_leaving(replica) && self.is_counted(replica)
        };
        let at_work = self.replicas.iter().filter(may_work).count();
        u32::try_from(at_work).unwrap_or(u32::MAX)
    }

    /// The pool in which a replica on its way out still counts with all its instances.
    fn leaves_from(&self, replica: &ReplicaView) -> Option<usize> {
        let first = replica.nodes.first()?.instance.as_ref()?;
        let pool = self.places.get(first)?.pool;
        (Self::is_leaving(replica) && self.is_counted(replica)).then_some(pool)
    }

    /// Whether the replica is whole and every instance of it still counts in some pool. A part of
    /// a group counts as none, so that it can neither be missed nor kept.
    pub fn is_counted(&self, replica: &ReplicaView) -> bool {
        let counts = |instance: &InstanceId| {
            self.places.get(instance).is_some_and(|place| place.state.counts())
        };
        let instances = replica.nodes.iter().map(|node| node.instance.as_ref());
        let gang = usize::try_from(self.gang).unwrap_or(usize::MAX);
        replica.nodes.len() >= gang && instances.into_iter().all(|id| id.is_some_and(counts))
    }

    /// The instances of a replica that still count in some pool.
    pub fn counted_instances(&self, replica: &ReplicaView) -> Vec<InstanceId> {
        let counts = |id: &InstanceId| self.places.get(id).is_some_and(|p| p.state.counts());
        let instances = replica.nodes.iter().filter_map(|node| node.instance.as_ref());
        instances.filter(|id| counts(id)).cloned().collect()
    }

    /// Whether the replica works on instances that it names and that no pool has: a pool was
    /// renamed or taken out of the policy.
    pub fn is_unpooled(&self, replica: &ReplicaView) -> bool {
        let mut instances = replica.nodes.iter().filter_map(|node| node.instance.as_ref());
        replica.state == ReplicaState::Ready
            && replica.is_identified()
            && !instances.any(|id| self.places.contains_key(id))
    }

    /// Place of a pool in the order of preference.
    pub fn rank(&self, pool: Option<&PoolName>) -> usize {
        let place = |name: &PoolName| self.pools.iter().position(|pool| pool.terms.name == *name);
        pool.and_then(place).unwrap_or(self.pools.len())
    }
}
