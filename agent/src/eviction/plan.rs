//! The planner. See the module above for the rules.

use std::time::Duration;

use ebbtide_core::policy::BlockedEviction;
use tokio::time::Instant;

use super::{
    DrainAround, EvictWhy, EvictionPlan, EvictionTerms, PodDecision, Situation, SkipReason, Tried,
    Verdict, WaitReason,
};
use crate::kubernetes::{SeenPod, Tier};

/// Calls under way at a time: a node has at most about a hundred pods, and the API server serves
/// other nodes that go at the same moment.
const CALLS_LIMIT: usize = 16;

/// Shortest grace that is given: zero would be a forced deletion, which frees the pod's name while
/// it may still run.
const GRACE_MIN: Duration = Duration::from_secs(1);

/// Decides what becomes of every pod now.
pub(crate) fn plan_evictions(
    situation: &Situation<'_>,
    terms: &EvictionTerms,
    now: Instant,
) -> EvictionPlan {
    let clock = Clock::of(&situation.drain, terms);
    let planner = Planner { situation, clock, first_tier: first_tier(situation), terms, now };
    let mut pods: Vec<&SeenPod> = situation.pods.iter().collect();
    pods.sort_by_key(|pod| (pod.tier, pod.priority, &pod.id));
    let mut room = CALLS_LIMIT.saturating_sub(calls_under_way(situation));
    let decide = |pod: &&SeenPod| {
        let mut verdict = planner.judge(pod);
        if matches!(verdict, Verdict::Evict { .. } | Verdict::Delete { .. }) {
            if room == 0 {
                verdict = Verdict::Wait(WaitReason::Busy);
            }
            room = room.saturating_sub(1);
        }
        PodDecision { pod: pod.id.clone(), verdict }
    };
    let decisions = pods.iter().map(decide).collect();
    EvictionPlan { decisions, next_due: planner.next_due() }
}

fn calls_under_way(situation: &Situation<'_>) -> usize {
    situation.tried.values().filter(|tried| **tried == Tried::Calling).count()
}

/// The earliest tier that still has pods on the node.
fn first_tier(situation: &Situation<'_>) -> Option<Tier> {
    let is_there = |pod: &&SeenPod| {
        pod.stays.is_none() && situation.tried.get(&pod.id.uid) != Some(&Tried::Gone)
    };
    situation.pods.iter().filter(is_there).map(|pod| pod.tier).min()
}

/// The moments at which something changes by itself.
#[derive(Debug, Clone, Copy)]
struct Clock {
    /// Half of the time until everything goes: earlier tiers have that much for themselves, and
    /// the cordon has it to succeed.
    half: Instant,
    /// Deadline − grace: everything goes.
    time_up: Instant,
    /// Until when evictions are held back, if they are.
    held_until: Option<Instant>,
}

impl Clock {
    fn of(drain: &DrainAround, terms: &EvictionTerms) -> Self {
        let DrainAround { begun, deadline, .. } = *drain;
        let before = |duration| deadline.checked_sub(duration).unwrap_or(begun);
        let time_up = before(terms.grace);
        let half = begun + time_up.saturating_duration_since(begun) / 2;
        let latest = before(terms.reserve.max(terms.grace));
        let held_until = drain.held_until.map(|until| until.min(latest));
        Self { half, time_up, held_until }
    }
}

struct Planner<'a> {
    situation: &'a Situation<'a>,
    first_tier: Option<Tier>,
    terms: &'a EvictionTerms,
    clock: Clock,
    now: Instant,
}

impl Planner<'_> {
    fn judge(&self, pod: &SeenPod) -> Verdict {
        if let Some(reason) = pod.stays {
            return Verdict::Skip(SkipReason::Stays(reason));
        }
        let tried = self.situation.tried.get(&pod.id.uid);
        if tried == Some(&Tried::Gone) {
            return Verdict::Skip(SkipReason::Gone);
        }
        if pod.termination.is_some() || tried == Some(&Tried::Accepted) {
            return Verdict::Wait(WaitReason::Leaving);
        }
        if tried == Some(&Tried::Calling) {
            return Verdict::Wait(WaitReason::Calling);
        }
        if self.now >= self.situation.drain.deadline {
            return Verdict::Skip(SkipReason::TooLate);
        }
        match self.turn_of(pod) {
            Ok(why) => self.act(pod, tried, why),
            Err(reason) => Verdict::Wait(reason),
        }
    }

    /// Whether it is this pod's turn, and why.
    fn turn_of(&self, pod: &SeenPod) -> Result<EvictWhy, WaitReason> {
        if self.clock.held_until.is_some_and(|until| self.now < until) {
            return Err(WaitReason::Held);
        }
        if self.now >= self.clock.time_up {
            return Ok(EvictWhy::TimeUp);
        }
        if !self.situation.drain.is_cordoned && self.now < self.clock.half {
            return Err(WaitReason::NotCordoned);
        }
        if self.holds_work(pod.tier) {
            return Err(WaitReason::HoldsWork);
        }
        if !self.has_earlier(pod.tier) {
            return Ok(EvictWhy::Turn);
        }
        if self.now >= self.latest_start(pod) {
            return Ok(EvictWhy::OwnGrace);
        }
        Err(WaitReason::EarlierTier)
    }

    fn holds_work(&self, tier: Tier) -> bool {
        let holdings = self.situation.drain.holdings;
        match tier {
            Tier::Ordinary | Tier::Critical => false,
            Tier::Worker => holdings.has_worker_units,
            Tier::Engine => holdings.has_streams,
        }
    }

    /// Whether pods of an earlier tier are still on the node and on their way.
    fn has_earlier(&self, tier: Tier) -> bool {
        self.first_tier.is_some_and(|first| first < tier)
    }

    /// When a pod's turn comes though earlier ones are still there: critical pods get the grace
    /// that they ask for, unless that is more than half of the time; others wait until everything
    /// goes.
    fn latest_start(&self, pod: &SeenPod) -> Instant {
        if pod.tier != Tier::Critical {
            return self.clock.time_up;
        }
        let own = self.situation.drain.deadline.checked_sub(pod.grace).unwrap_or(self.clock.half);
        own.max(self.clock.half).min(self.clock.time_up)
    }

    fn act(&self, pod: &SeenPod, tried: Option<&Tried>, why: EvictWhy) -> Verdict {
        let grace = self.grace_of(pod);
        let is_time_up = self.now >= self.clock.time_up;
        let (is_blocked, retry_at) = match tried {
            Some(Tried::Blocked { retry_at }) => (true, *retry_at),
            Some(Tried::Failed { is_blocked, retry_at }) => (*is_blocked, *retry_at),
            _ => return Verdict::Evict { grace, why },
        };
        if is_time_up && is_blocked && self.terms.on_blocked == BlockedEviction::Wait {
            return Verdict::Skip(SkipReason::LeftToBudget);
        }
        // A refusal of a budget does not put off what is done without asking it.
        let is_first_deletion = is_time_up && matches!(tried, Some(Tried::Blocked { .. }));
        if self.now < retry_at && !is_first_deletion {
            return Verdict::Wait(WaitReason::Retry);
        }
        match is_time_up && is_blocked {
            true => Verdict::Delete { grace },
            false => Verdict::Evict { grace, why },
        }
    }

    /// What the pod asks for, but no more than is left, in whole seconds.
    fn grace_of(&self, pod: &SeenPod) -> Duration {
        let left = self.situation.drain.deadline.saturating_duration_since(self.now);
        Duration::from_secs(pod.grace.min(left).as_secs()).max(GRACE_MIN)
    }

    fn next_due(&self) -> Option<Instant> {
        let retries = self.situation.tried.values().filter_map(|tried| match tried {
            Tried::Blocked { retry_at } | Tried::Failed { retry_at, .. } => Some(*retry_at),
            Tried::Calling | Tried::Accepted | Tried::Gone => None,
        });
        let critical = self.situation.pods.iter().filter(|pod| pod.tier == Tier::Critical);
        let starts = critical.map(|pod| self.latest_start(pod));
        [self.clock.half, self.clock.time_up, self.situation.drain.deadline]
            .into_iter()
            .chain(self.clock.held_until)
            .chain(retries)
            .chain(starts)
            .filter(|at| *at > self.now)
            .min()
    }
}
