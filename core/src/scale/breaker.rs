//! The breaker: nothing more is launched when nothing of what was launched comes up.
//!
//! It is judged by growth, not by reaching what was asked for, so a busy and healthy fleet does not
//! trip it: a scale-up has failed when no node has reported within the time that a launch may take.
//! After [`FAILURES_LIMIT`] in a row, or when instances came into service and never reported, the
//! breaker opens; as soon as a node reports it closes. While it is open one replica at a time is
//! tried when nothing else is on its way: at once below the minimum, else after [`JOIN_LIMIT`].
//! Drains are never held back, neither are those that are taken back.
//!
//! Source: atlassian/escalator, as in the autoscaling reference, section 1.7.

use std::time::Duration;

use super::arrivals::JOIN_LIMIT;
use super::bench::LAUNCH_LIMIT;
use super::reason::BreakerReason;
use crate::time::UnixMillis;

/// Scale-ups in a row without a node.
const FAILURES_LIMIT: u32 = 3;

/// What is remembered of scale-ups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Breaker {
    /// When the scale-up that nothing has come of yet began.
    began_at: Option<UnixMillis>,
    /// Scale-ups in a row that nothing came of.
    failures: u32,
    open: Option<BreakerReason>,
    /// When it opened, or one more replica was tried since.
    tried_at: UnixMillis,
    joins: u64,
    /// Instances that never joined and are still there.
    unjoined: usize,
}

impl Breaker {
    /// Takes in one more look: how many nodes have reported, how many instances never joined.
    /// `startup` is how long a start takes, when that is longer than a launch usually may.
    pub fn look(&mut self, joins: u64, unjoined: usize, startup: Duration, now: UnixMillis) {
        if joins > self.joins {
            *self = Self { joins, unjoined: self.unjoined, ..Self::default() };
        }
        let limit = LAUNCH_LIMIT.max(startup);
        if self.began_at.is_some_and(|began_at| now.since(began_at) >= limit) {
            self.failures += 1;
            self.began_at = None;
        }
        let has_unjoined = unjoined > std::mem::replace(&mut self.unjoined, unjoined);
        if self.open.is_none() {
            let has_failed = self.failures >= FAILURES_LIMIT;
            self.open = match (has_unjoined, has_failed) {
                (true, _) => Some(BreakerReason::JoinFailed),
                (false, true) => Some(BreakerReason::ScaleUpFailed),
                (false, false) => None,
            };
            self.tried_at = now;
        }
    }

    /// A launch was granted.
    pub fn note_launch(&mut self, now: UnixMillis) {
        self.began_at.get_or_insert(now);
        self.tried_at = now;
    }

    /// Why nothing more is launched, if so.
    pub fn open(&self) -> Option<BreakerReason> {
        self.open
    }

    /// How many replicas may be launched now, when so many run or are on their way.
    pub fn most_launches(
        &self,
        is_any_awaited: bool,
        running: u32,
        minimum: u32,
        now: UnixMillis,
    ) -> u32 {
        if self.open.is_none() {
            return u32::MAX;
        }
        let is_time = running < minimum || now.since(self.tried_at) >= JOIN_LIMIT;
        u32::from(is_time && !is_any_awaited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    /// A launch every minute for so long.
    fn launch_for(breaker: &mut Breaker, from: UnixMillis, minutes: u32, joins: u64) -> UnixMillis {
        let mut now = from;
        for _ in 0..minutes {
            breaker.look(joins, 0, MINUTE, now);
            if breaker.open().is_none() {
                breaker.note_launch(now);
            }
            now = now.plus(MINUTE);
        }
        now
    }

    #[test]
    fn three_scale_ups_without_a_node_open_it_and_a_node_closes_it() {
        let mut breaker = Breaker::default();
        let now = launch_for(&mut breaker, UnixMillis(0), 30, 0);
        assert_eq!(breaker.open(), None, "two scale-ups of ten minutes have failed");
        let now = launch_for(&mut breaker, now, 2, 0);
        assert_eq!(breaker.open(), Some(BreakerReason::ScaleUpFailed));
        assert_eq!(breaker.most_launches(false, 5, 2, now), 0);
        breaker.look(1, 0, MINUTE, now);
        assert_eq!((breaker.open(), breaker.most_launches(false, 5, 2, now)), (None, u32::MAX));
    }

    #[test]
    fn fleet_that_grows_slowly_does_not_trip_it() {
        let mut breaker = Breaker::default();
        let mut now = UnixMillis(0);
        for joins in 0..20 {
            now = launch_for(&mut breaker, now, 9, joins);
            assert_eq!(breaker.open(), None);
        }
    }

    #[test]
    fn long_start_is_no_failure() {
        let mut breaker = Breaker::default();
        breaker.note_launch(UnixMillis(0));
        for minutes in 0..60 {
            breaker.look(0, 0, MINUTE * 61, UnixMillis(0).plus(MINUTE * minutes));
        }
        assert_eq!(breaker.failures, 0);
    }

    #[test]
    fn while_it_is_open_one_replica_at_a_time_is_tried() {
        let mut breaker = Breaker::default();
        let opened = UnixMillis(0).plus(MINUTE);
        breaker.look(0, 1, MINUTE, opened);
        assert_eq!(breaker.open(), Some(BreakerReason::JoinFailed));
        assert_eq!(breaker.most_launches(false, 1, 2, opened), 1, "the minimum at once");
        assert_eq!(breaker.most_launches(true, 1, 2, opened), 0, "one at a time");
        assert_eq!(breaker.most_launches(false, 2, 2, opened), 0, "more has time");
        let later = opened.plus(JOIN_LIMIT);
        assert_eq!(breaker.most_launches(false, 2, 2, later), 1);
        breaker.note_launch(later);
        assert_eq!(breaker.most_launches(false, 2, 2, later.plus(MINUTE)), 0);
    }

    #[test]
    fn instance_that_stays_unjoined_opens_it_once() {
        let mut breaker = Breaker::default();
        breaker.look(0, 1, MINUTE, UnixMillis(1));
        breaker.look(1, 1, MINUTE, UnixMillis(2));
        assert_eq!(breaker.open(), None, "a node has reported since");
        breaker.look(1, 1, MINUTE, UnixMillis(3));
        assert_eq!(breaker.open(), None, "and nothing new has failed");
    }
}
