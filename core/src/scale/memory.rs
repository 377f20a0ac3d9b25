//! What one plan hands to the next: everything that sizing has learned of the run and of its pools.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::arrivals::{Arrivals, Late};
use super::bench::PoolMemory;
use super::breaker::Breaker;
use super::clock::CountedClock;
use super::deadline::Schedule;
use super::demand::is_buffer_filled;
use super::groups::PartialGroups;
use super::guard::RaiseGuard;
use super::pace::Pace;
use super::plan::{Action, ActionResult};
use super::quota::{QuotaFamily, share_refusals};
use super::reason::BreakerReason;
use super::startup::StartupMemory;
use super::swap::SwapMemory;
use super::sync::is_spreading;
use super::terms::SizingTerms;
use super::window::{Keep, WishWindow};
use super::writer::WriterMemory;
use crate::bottleneck::{Bottleneck, IterationClock, judge_bottleneck};
use crate::observation::{FailureKind, InstanceId, Observation};
use crate::policy::PoolName;
use crate::time::UnixMillis;

/// Longest time between two looks in which nobody can have reported without being seen: after a
/// longer one, or when the clock has made a step, instances have their time to join anew.
const LOOK_GAP: Duration = Duration::from_mins(5);

/// Share of the starts that are over within the time that is planned with.
const STARTUP_SHARE: f64 = 0.9;

/// Longest update for which a service waits with giving up replicas: a node costs less than the
/// updates that wait for it, up to here.
const WAVE_MAX: Duration = Duration::from_hours(1);

/// What one plan hands to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleMemory {
    pub(super) pace: Pace,
    pub(super) iteration: IterationClock,
    pub(super) startup: StartupMemory,
    pub(super) guard: RaiseGuard,
    pub(super) pools: BTreeMap<PoolName, PoolMemory>,
    pub(super) highest: WishWindow,
    pub(super) lowest: WishWindow,
    /// Replicas of a service that were at work lately, the fewest of the last while.
    pub(super) at_work: WishWindow,
    /// Time in which more could be asked for.
    pub(super) raise_clock: CountedClock,
    /// Instances that AWS takes, as far as they were taken note of.
    pub(super) reclaimed: BTreeSet<InstanceId>,
    pub(super) swap: SwapMemory,
    pub(super) arrivals: Arrivals,
    pub(super) breaker: Breaker,
    pub(super) groups: PartialGroups,
    pub(super) schedule: Schedule,
    /// Nodes of the trainer, by its last word.
    pub(super) trainer_nodes: Option<u32>,
    /// Replicas that the last plan wanted.
    pub(super) desired: u32,
    /// When the last plan was made.
    pub(super) planned_at: UnixMillis,
    /// Nodes of one replica, by the terms of the last plan.
    pub(super) gang: u32,
}

/// What one observation says beside sizes.
pub(super) struct Look {
    /// The terms, with what has been measured in the place of what the policy estimates.
    pub terms: SizingTerms,
    /// What limits the iteration.
    pub bottleneck: Bottleneck,
    /// Instances that came too late, by pool.
    pub late: BTreeMap<PoolName, Late>,
    /// Quotas that are used up, and until when their pools wait.
    pub quotas: BTreeMap<QuotaFamily, UnixMillis>,
    /// Whether weights spread.
    pub is_sync: bool,
}

impl Default for ScaleMemory {
    fn default() -> Self {
        Self {
            pace: Pace::default(),
            iteration: IterationClock::default(),
            startup: StartupMemory::default(),
            guard: RaiseGuard::default(),
            pools: BTreeMap::new(),
            highest: WishWindow::new(Keep::Largest),
            lowest: WishWindow::new(Keep::Smallest),
            at_work: WishWindow::new(Keep::Smallest),
            raise_clock: CountedClock::default(),
            reclaimed: BTreeSet::new(),
            swap: SwapMemory::default(),
            arrivals: Arrivals::default(),
            breaker: Breaker::default(),
            groups: PartialGroups::default(),
            schedule: Schedule::default(),
            trainer_nodes: None,
            desired: 0,
            planned_at: UnixMillis::default(),
            gang: 1,
        }
    }
}

impl ScaleMemory {
    /// The measured pace so far.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The measured starts so far.
    pub fn startup(&self) -> &StartupMemory {
        &self.startup
    }

    /// Why each pool is left out, as of `now`.
    pub fn benched(&self, now: UnixMillis) -> impl Iterator<Item = (&PoolName, FailureKind)> {
        self.pools
            .iter()
            .filter_map(move |(name, pool)| pool.benched(now).map(|(kind, _)| (name, kind)))
    }

    /// Why nothing more is launched, if so.
    pub fn breaker(&self) -> Option<BreakerReason> {
        self.breaker.open()
    }

    /// Takes note of what became of an action, so that a size that somebody else set is told
    /// from one that was asked for here, and less is asked for where more was refused.
    pub fn note_outcome(&mut self, action: &Action, result: ActionResult) {
        let is_done = result == ActionResult::Done;
        if is_done {
            self.swap.note_done(action);
        }
        let (name, asked) = match action {
            Action::Raise { pool, to, .. } => (pool, Some(*to)),
            Action::Retire { pool, instances, .. } | Action::Discard { pool, instances } => {
                let fewer = u32::try_from(instances.len()).unwrap_or(u32::MAX);
                let before = self.pools.get(pool).and_then(|pool| pool.writer.asked());
                // Of a part of a group some providers take off the whole.
                let is_whole = fewer.is_multiple_of(self.gang.max(1));
                let before = before.filter(|_| is_whole);
                (pool, before.map(|before| before.saturating_sub(fewer)))
            }
            _ => return,
        };
        let pool = self.pools.entry(name.clone()).or_default();
        pool.writer.note_asked(asked.filter(|_| is_done));
        let Action::Raise { from, to, .. } = action else { return };
        pool.writer.note_tried();
        let asked_for = to.saturating_sub(*from);
        let replicas = |nodes: u32| nodes.div_ceil(self.gang.max(1));
        let is_launch = match result {
            ActionResult::Done => {
                pool.note_granted();
                true
            }
            ActionResult::Refused(FailureKind::TimedOut) => {
                pool.note_unanswered(*from);
                false
            }
            ActionResult::Refused(kind) => {
                pool.note_refusal(kind, replicas(asked_for));
                false
            }
            ActionResult::Partly { kind, came } => {
                pool.writer.note_asked(Some(from.saturating_add(came)));
                pool.note_refusal(kind, replicas(asked_for.saturating_sub(came)));
                true
            }
            ActionResult::Failed => false,
        };
        if is_launch {
            pool.writer.note_raised(self.planned_at);
            self.breaker.note_launch(self.planned_at);
        }
    }

    /// Forgets what was asked for here: while another controller leads, every size is its.
    pub fn forget_writes(&mut self) {
        for pool in self.pools.values_mut() {
            pool.writer = WriterMemory::default();
        }
        self.swap = SwapMemory::default();
    }

    /// Takes in one more observation.
    pub(super) fn look(&mut self, terms: &SizingTerms, observation: &Observation) -> Look {
        if observation.now.since(self.planned_at) > LOOK_GAP {
            self.arrivals = self.arrivals.unread(observation.now);
        }
        self.look_at_pools(observation);
        let bottleneck = self.look_at_run(terms, observation);
        let terms = self.learned(terms, observation);
        (self.gang, self.planned_at) = (terms.gang(), observation.now);
        self.schedule = self.schedule.advance(terms.deadline, observation);
        self.look_at_reservations(&terms, observation.now);
        let late = self.look_at_arrivals(&terms, observation);
        let quotas = share_refusals(&terms, &mut self.pools);
        let is_sync = match &observation.service {
            Some(service) => service.is_paused,
            None => is_spreading(observation, &self.startup),
        };
        Look { terms, bottleneck, late, quotas, is_sync }
    }

    /// Takes in what the iteration and the starts look like, and judges what limits the run.
    fn look_at_run(&mut self, terms: &SizingTerms, observation: &Observation) -> Bottleneck {
        self.startup.note(observation);
        self.iteration = self.iteration.advance(observation, terms.concurrency_per_replica);
        if !terms.role.is_rollout() {
            // The rollouts' plan says what limits the run.
            return Bottleneck::default();
        }
        let progress = self.iteration.update_progress();
        let is_filled = is_buffer_filled(terms, observation, progress);
        judge_bottleneck(&self.iteration.phases(terms.max_lag > 0, is_filled))
    }

    /// The terms with what has been measured in the place of what the policy estimates.
    fn learned(&mut self, terms: &SizingTerms, observation: &Observation) -> SizingTerms {
        let said = observation.trainer.known().and_then(|trainer| trainer.nodes);
        self.trainer_nodes = said.or(self.trainer_nodes);
        let mut terms = terms.beside(observation, self.trainer_nodes);
        terms.startup = self.startup.percentile(STARTUP_SHARE).unwrap_or(terms.startup);
        if !terms.role.is_rollout() {
            // Work comes in waves, one an update: less is needed only when a whole wave shows it.
            let wave = self.iteration.update_length().unwrap_or_default().min(WAVE_MAX);
            terms.stabilization_down = terms.stabilization_down.max(wave);
        }
        terms
    }

    /// The terms with the price of the trainer at the size that it has.
    #[must_use]
    pub fn priced(&self, terms: &SizingTerms) -> SizingTerms {
        terms.at_trainer_size(self.trainer_nodes, None)
    }

    fn look_at_pools(&mut self, observation: &Observation) {
        for view in &observation.pools {
            let next = self.pools.entry(view.name.clone()).or_default();
            *next = next.advance(view, observation.now);
        }
        self.pools.retain(|name, _| observation.pools.iter().any(|view| view.name == *name));
        self.look_for_reclaims(observation);
    }

    /// How far each reserved pool is in its time.
    fn look_at_reservations(&mut self, terms: &SizingTerms, now: UnixMillis) {
        for pool in &terms.pools {
            if let Some(memory) = self.pools.get_mut(&pool.name) {
                memory.tenure = memory.tenure.advance(terms, pool, now);
            }
        }
    }

    /// Which instances came too late, and what that says about pools and launches.
    fn look_at_arrivals(
        &mut self,
        terms: &SizingTerms,
        observation: &Observation,
    ) -> BTreeMap<PoolName, Late> {
        let now = observation.now;
        self.arrivals = self.arrivals.advance(observation, &self.pools);
        let late = self.arrivals.late(now);
        for (name, pool) in &mut self.pools {
            pool.note_stuck(late.get(name).map_or(0, |late| late.stuck.len()), now);
        }
        let unjoined = late.values().map(Late::unjoined).sum();
        self.breaker.look(self.arrivals.joins(), unjoined, terms.startup, now);
        late
    }

    pub(super) fn most_launches(&self, terms: &SizingTerms, running: u32) -> u32 {
        let is_any_awaited = self.arrivals.is_any_awaited(self.planned_at);
        self.breaker.most_launches(is_any_awaited, running, terms.clamp(0), self.planned_at)
    }

    /// Each instance that AWS takes counts against its pool once. Replicas that are unknown say
    /// nothing.
    fn look_for_reclaims(&mut self, observation: &Observation) {
        let Some(replicas) = observation.replicas.known() else { return };
        let mut counted = BTreeSet::new();
        for replica in replicas {
            let reclaimed = replica.nodes.iter().filter(|node| node.is_reclaimed);
            for instance in reclaimed.filter_map(|node| node.instance.clone()) {
                if !self.reclaimed.contains(&instance) {
                    let pool = replica.pool.as_ref().and_then(|name| self.pools.get_mut(name));
                    let Some(pool) = pool else { continue };
                    pool.note_reclaim(observation.now);
                }
                counted.insert(instance);
            }
        }
        self.reclaimed = counted;
    }
}
