//! The deadline: so many updates until then.
//!
//! - There should be at least the replicas with which the updates that are left fit into the time
//!   that is left, less two starts.
//! - On-demand nodes are bought whatever they cost when the run is a whole update behind uniform
//!   progress, or when the updates that are left would take all the time but two starts.
//! - They are given back for Spot only when the run is ahead of what it should have done two starts
//!   later, with as much time to spare.
//! - Whether the deadline can be met at all is said as soon as the pace is measured; that changes
//!   nothing by itself.
//!
//! *Uniform progress*: since the goal was set the run should have done its share of the updates in
//! its share of the time. A controller that starts anew takes the run as it finds it. When the
//! deadline has passed nobody knows what an update is worth: sizing goes on as without one.
//!
//! Source: safety net and Uniform Progress of Can't Be Late (NSDI'24), as in the autoscaling
//! reference, section 1.3; a start is the changeover.

use std::time::Duration;

use super::demand::{settled, whole};
use super::pace::count;
use super::reason::{CapacityReason, Reason};
use super::terms::SizingTerms;
use super::value::UpdateTime;
use crate::observation::Observation;
use crate::policy::UpdateDeadline;
use crate::time::UnixMillis;

/// What is remembered of the way to the goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Schedule {
    goal: Option<UpdateDeadline>,
    /// When the goal was seen first, and the updates that were done by then.
    began: Option<(UnixMillis, u64)>,
    done: Option<u64>,
}

/// What the deadline asks for at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Urgency {
    /// Fewest replicas that keep the deadline.
    pub least: u32,
    /// Why on-demand nodes are bought whatever they cost, if so.
    pub hurry: Option<Reason>,
    /// Whether on-demand nodes must stay where they are: there is no time to lose them.
    pub is_tight: bool,
    /// Why the deadline cannot be met, if so.
    pub problem: Option<Reason>,
}

impl Urgency {
    /// The wish with what the deadline asks for, as far as there is work for it.
    pub fn raise(&self, wish: u32, useful: u32, reasons: &mut Vec<Reason>) -> u32 {
        reasons.extend(self.problem.clone());
        let least = self.least.min(useful);
        if least > wish {
            reasons.push(CapacityReason::DeadlineNeeds { replicas: least }.into());
        }
        wish.max(least)
    }
}

impl Schedule {
    /// What is remembered after one more look. Updates of a trainer that is silent are as before.
    #[must_use]
    pub fn advance(&self, goal: Option<UpdateDeadline>, observation: &Observation) -> Self {
        let began = self.began.filter(|_| self.goal == goal);
        let done = observation.trainer.known().map(|trainer| trainer.step).or(self.done);
        let began = began.or_else(|| Some((observation.now, done?)));
        Self { goal, began, done }
    }

    /// What the deadline asks for, when so many replicas are `wanted` without it and so many run.
    pub fn judge(
        &self,
        terms: &SizingTerms,
        time: Option<UpdateTime>,
        (wanted, running): (u32, u32),
        now: UnixMillis,
    ) -> Urgency {
        let (Some(goal), Some(done)) = (self.goal, self.done) else {
            // Before the trainer has spoken once nobody knows how far the run is.
            return Urgency { is_tight: self.goal.is_some(), ..Urgency::default() };
        };
        let left = u64::from(goal.updates).saturating_sub(done);
        if left == 0 {
            return Urgency::default();
        }
        if goal.by <= now {
            let reason = CapacityReason::DeadlinePassed { done, updates: goal.updates };
            return Urgency { problem: Some(reason.into()), ..Urgency::default() };
        }
        let way = Way { goal, left: count(left), remaining: goal.by.remaining(now) };
        let changeovers = terms.startup * 2;
        let least = time.map_or(0, |time| way.least(time, changeovers, running));
        let least = least.min(terms.max_replicas);
        let wanted = terms.clamp(wanted.max(running).max(least));
        let net = time.and_then(|time| way.safety_net(time, wanted, changeovers));
        let behind = self.behind(goal, done, now);
        Urgency {
            least,
            is_tight: net.is_some() || !self.is_ahead(done, now.plus(changeovers)),
            hurry: behind.or(net).map(Reason::from),
            problem: time.and_then(|time| way.problem(terms, time)).map(Reason::from),
        }
    }

    /// Updates that should be done at a moment, by uniform progress.
    fn expected(&self, at: UnixMillis) -> Option<f64> {
        let (goal, (began_at, began_with)) = (self.goal?, self.began?);
        let all = count(u64::from(goal.updates).saturating_sub(began_with));
        let time = goal.by.since(began_at).as_secs_f64();
        let passed = at.since(began_at).as_secs_f64();
        let due = if time > passed { all * passed / time } else { all };
        Some(count(began_with) + due)
    }

    fn is_ahead(&self, done: u64, at: UnixMillis) -> bool {
        self.expected(at).is_some_and(|expected| count(done) >= expected)
    }

    fn behind(&self, goal: UpdateDeadline, done: u64, now: UnixMillis) -> Option<CapacityReason> {
        let expected = self.expected(now)?;
        let is_behind = count(done) + 1.0 <= expected;
        let expected = whole(expected);
        is_behind.then_some(CapacityReason::BehindSchedule { done, expected, by: goal.by })
    }
}

/// The way that is left to the goal.
struct Way {
    goal: UpdateDeadline,
    /// Updates; at least one.
    left: f64,
    /// Until the deadline; more than zero.
    remaining: Duration,
}

impl Way {
    /// Fewest replicas with which all that is left is done two changeovers before the deadline;
    /// none when it is too late to launch any, or when the trainer alone is too slow.
    fn least(&self, time: UpdateTime, changeovers: Duration, running: u32) -> u32 {
        let remaining = self.remaining.saturating_sub(changeovers).as_secs_f64();
        time.replicas_within(remaining / self.left).map_or(0, |needed| settled(needed, running))
    }

    /// With so many replicas all that is left would take the time up to two changeovers before the
    /// deadline, or longer.
    fn safety_net(
        &self,
        time: UpdateTime,
        replicas: u32,
        changeovers: Duration,
    ) -> Option<CapacityReason> {
        let needed = seconds(self.left * time.seconds(replicas));
        let is_tight = self.remaining < needed.saturating_add(changeovers);
        let (left, remaining) = (whole(self.left), self.remaining);
        is_tight.then_some(CapacityReason::NoTimeToSpare { left, needed, remaining })
    }

    /// Whether not even the most replicas that are allowed would be fast enough.
    fn problem(&self, terms: &SizingTerms, time: UpdateTime) -> Option<CapacityReason> {
        let allowed = self.remaining.as_secs_f64() / self.left;
        let possible = time.seconds(terms.max_replicas);
        (possible > allowed).then(|| CapacityReason::DeadlineInfeasible {
            left: whole(self.left),
            by: self.goal.by,
            allowed: seconds(allowed),
            possible: seconds(possible),
        })
    }
}

/// A number of seconds that is not negative, in whole ones.
fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number.round()).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::tests::world::World;

    /// The time that is left grows shorter all the while, the updates only when one is done.
    #[test]
    fn replicas_for_the_deadline_do_not_come_and_go_with_each_update() {
        let mut world = World::new();
        (world.terms.max_replicas, world.terms.startup) = (30, Duration::from_secs(2000));
        // Updates of 350 s, of which training takes 200 s, and rollouts 1500 s of one replica: ten
        // replicas at the beginning of an update, a few more at its end.
        let time = Some(UpdateTime::new(200.0, 1500.0, true));
        let by = world.seen.now.plus(Duration::from_secs(39_000));
        let goal = Some(UpdateDeadline { updates: 100, by });
        let (mut schedule, mut running, mut wanted) = (Schedule::default(), 8, Vec::new());
        for step in 0..20 {
            if let crate::observation::Signal::Known { value, .. } = &mut world.seen.trainer {
                value.step = step;
            }
            for _ in 0..7 {
                schedule = schedule.advance(goal, &world.seen);
                let now = world.seen.now;
                running = schedule.judge(&world.terms, time, (running, running), now).least;
                wanted.push(running);
                world.pass(Duration::from_secs(50));
            }
        }
        wanted.dedup();
        assert_eq!(wanted, [10, 11]);
    }
}
