//! Which notices count now, from what the sources were seen to say. No I/O: time is an argument.
//!
//! A deadline is turned into monotonic time at first sight, so that a wall clock that is set
//! meanwhile moves nothing; it only ever becomes earlier. A notice that disappears counts until
//! its absence was seen several times: one wrong answer must not reopen a dying node.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::notice::{Announcement, InterruptionNotice, NoticeKind};
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::DrainReason;
use tokio::time::Instant;

use super::foreign::ForeignMarks;
use crate::config::{DrainTerms, RebalanceResponse};
use crate::imds::{Sighting, Source};
use crate::kubernetes::{NodeSight, SeenPod};

/// Absences in a row, each a definite answer, after which a notice counts as withdrawn.
const ABSENCES_NEEDED: u32 = 3;

/// Everything that stands, by source.
#[derive(Debug)]
pub(super) struct Notices {
    terms: DrainTerms,
    by_source: BTreeMap<Source, Standing>,
    /// Definite absences in a row.
    absences: BTreeMap<Source, u32>,
    /// What other handlers say.
    foreign: ForeignMarks,
}

#[derive(Debug)]
struct Standing {
    notice: InterruptionNotice,
    /// When the node is lost; none for a rebalance recommendation.
    deadline: Option<Instant>,
    first_seen: Instant,
    /// The time that the recommendation carried at first.
    told: Option<UnixMillis>,
}

/// A notice that empties the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Emptying {
    pub(super) kind: NoticeKind,
    pub(super) deadline: Instant,
}

/// What a sighting changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing.
    Nothing,
    /// A new notice.
    Announced(NoticeKind),
    /// Its deadline has come closer, or its kind has changed.
    Tightened(NoticeKind),
    /// It was withdrawn.
    Withdrawn(NoticeKind),
}

impl Notices {
    pub(super) fn new(terms: DrainTerms) -> Self {
        let foreign = ForeignMarks::new(terms);
        Self { terms, by_source: BTreeMap::new(), absences: BTreeMap::new(), foreign }
    }

    /// Takes in what others do to the node and its pods; see [`ForeignMarks::see`].
    pub(super) fn see_node(
        &mut self,
        sight: &NodeSight,
        is_own: impl Fn(&SeenPod) -> bool,
        wall: UnixMillis,
        at: Instant,
    ) -> Vec<News> {
        self.foreign.see(sight, is_own, wall, at)
    }

    /// Takes in a look at a source.
    pub(super) fn see(&mut self, sighting: Sighting) -> News {
        match sighting.announcement {
            Some(announcement) => self.see_announcement(announcement, sighting),
            None => self.see_absence(sighting.source),
        }
    }

    fn see_announcement(&mut self, announcement: Announcement, sighting: Sighting) -> News {
        self.absences.remove(&sighting.source);
        let asg_deadline = self.terms.asg_deadline;
        let (wall, at) = (sighting.wall, sighting.at);
        let ttl = self.terms.rebalance_ttl;
        if self.by_source.get(&sighting.source).is_some_and(|s| s.is_superseded(announcement, ttl))
        {
            self.by_source.remove(&sighting.source);
        }
        let Some(standing) = self.by_source.get_mut(&sighting.source) else {
            let notice = InterruptionNotice::first_sight(announcement, asg_deadline, wall);
            let deadline = notice.remaining(wall).map(|remaining| at + remaining);
            let told = announcement.time;
            let standing = Standing { notice, deadline, first_seen: at, told };
            self.by_source.insert(sighting.source, standing);
            return News::Announced(announcement.kind);
        };
        if !standing.notice.see_again(announcement, asg_deadline, wall) {
            return News::Nothing;
        }
        let seen = standing.notice.remaining(wall).map(|remaining| at + remaining);
        standing.deadline = match (standing.deadline, seen) {
            (Some(known), Some(seen)) => Some(known.min(seen)),
            (known, seen) => known.or(seen),
        };
        News::Tightened(announcement.kind)
    }

    fn see_absence(&mut self, source: Source) -> News {
        let absences = self.absences.entry(source).or_default();
        *absences = absences.saturating_add(1);
        if *absences < ABSENCES_NEEDED {
            return News::Nothing;
        }
        match self.by_source.remove(&source) {
            Some(standing) => News::Withdrawn(standing.notice.kind),
            None => News::Nothing,
        }
    }

    /// Whether it is certain that nothing empties the node: every source says so again and again,
    /// or carries nothing that counts any more. Before the first looks nothing is certain. Other
    /// handlers must be known to be quiet as well where one of them was the reason.
    pub(super) fn is_quiet_for(&self, reason: DrainReason, now: Instant) -> bool {
        let is_absent =
            |source: &Source| self.absences.get(source).is_some_and(|n| *n >= ABSENCES_NEEDED);
        let is_over = |source: &Source| {
            *source == Source::Rebalance
                && self
                    .by_source
                    .get(source)
                    .is_some_and(|standing| !self.is_fresh(standing.first_seen, now))
        };
        let is_foreign_over = reason != DrainReason::Foreign || self.foreign.is_quiet();
        self.emptying(now).is_none()
            && is_foreign_over
            && Source::ALL.iter().all(|s| is_absent(s) || is_over(s))
    }

    /// The notice that empties the node, with the earliest deadline of all that do.
    ///
    /// The end of an engine pod may be a consequence of another notice: then it only brings the
    /// deadline forward.
    pub(super) fn emptying(&self, now: Instant) -> Option<Emptying> {
        let announced = self.by_source.values().filter_map(|standing| {
            Some(Emptying { kind: standing.notice.kind, deadline: standing.deadline? })
        });
        let rebalance = self.drains_for_rebalance_since(now).map(|since| Emptying {
            kind: NoticeKind::Rebalance,
            deadline: since + self.terms.request_deadline,
        });
        let all = announced.chain(rebalance).chain(self.foreign.emptying());
        all.reduce(|one, other| {
            let is_one_minor = one.kind == NoticeKind::EngineDeleted;
            let is_other_minor = other.kind == NoticeKind::EngineDeleted;
            let is_one = match (is_one_minor, is_other_minor) {
                (true, false) => false,
                (false, true) => true,
                _ => one.deadline <= other.deadline,
            };
            let kind = if is_one { one.kind } else { other.kind };
            Emptying { kind, deadline: one.deadline.min(other.deadline) }
        })
    }

    fn drains_for_rebalance_since(&self, now: Instant) -> Option<Instant> {
        let is_heeded = self.terms.rebalance == RebalanceResponse::Drain;
        self.rebalance_since(now).filter(|_| is_heeded)
    }

    /// Whether a rebalance recommendation keeps the node from leasing.
    pub(super) fn stops_leases(&self, now: Instant) -> bool {
        self.terms.rebalance == RebalanceResponse::StopLeases && self.rebalance_since(now).is_some()
    }

    /// When the recommendation that counts now was seen first, here or by another handler.
    fn rebalance_since(&self, now: Instant) -> Option<Instant> {
        let own = self.by_source.get(&Source::Rebalance).map(|standing| standing.first_seen);
        let seen = own.into_iter().chain(self.foreign.rebalance_since());
        seen.filter(|since| self.is_fresh(*since, now)).min()
    }

    /// A recommendation that nothing followed counts only for a time.
    fn is_fresh(&self, first_seen: Instant, now: Instant) -> bool {
        now.saturating_duration_since(first_seen) < self.terms.rebalance_ttl
    }

    /// When a recommendation stops counting, if one counts now.
    pub(super) fn next_expiry(&self, now: Instant) -> Option<Instant> {
        let is_heeded = self.terms.rebalance != RebalanceResponse::Ignore;
        let since = self.rebalance_since(now).filter(|_| is_heeded);
        since.map(|since| since + self.terms.rebalance_ttl)
    }

    /// The strongest AWS notice that counts now, for the node's record. What other handlers do is
    /// told by the drain key.
    pub(super) fn strongest(&self, now: Instant) -> Option<(NoticeKind, Option<Instant>)> {
        let is_foreign = |kind| matches!(kind, NoticeKind::Foreign | NoticeKind::EngineDeleted);
        let emptying = self.emptying(now).filter(|emptying| !is_foreign(emptying.kind));
        let emptying = emptying.map(|e| (e.kind, Some(e.deadline)));
        emptying.or_else(|| self.stops_leases(now).then_some((NoticeKind::Rebalance, None)))
    }

    /// Time that a notice left at its first sight; `None` when it carries no deadline.
    pub(super) fn lead_of(&self, source: Source) -> Option<Duration> {
        let notice = self.by_source.get(&source)?.notice;
        notice.remaining(notice.first_seen)
    }
}

impl Standing {
    /// Whether an announcement is another recommendation, not this one again: its time lies
    /// further on than a recommendation counts.
    fn is_superseded(&self, announcement: Announcement, ttl: Duration) -> bool {
        let is_rebalance = announcement.kind == NoticeKind::Rebalance;
        match (self.told, announcement.time) {
            (Some(told), Some(time)) => is_rebalance && time.since(told) > ttl,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: UnixMillis = UnixMillis(1_000_000_000);

    fn terms(rebalance: RebalanceResponse) -> DrainTerms {
        DrainTerms { rebalance, ..DrainTerms::default() }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A look `after` the start; `lead` is the time of the announcement relative to the look.
    fn look(
        start: Instant,
        after: u64,
        source: Source,
        what: Option<(NoticeKind, u64)>,
    ) -> Sighting {
        let wall = WALL.plus(seconds(after));
        let announcement =
            what.map(|(kind, lead)| Announcement { kind, time: Some(wall.plus(seconds(lead))) });
        Sighting { source, announcement, wall, at: start + seconds(after) }
    }

    #[test]
    fn moving_time_is_one_notice_with_the_earliest_deadline() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceResponse::StopLeases));
        let spot = Some((NoticeKind::SpotTerminate, 120));
        let first = notices.see(look(start, 0, Source::Spot, spot));
        assert_eq!(first, News::Announced(NoticeKind::SpotTerminate));
        for after in 1..20 {
            assert_eq!(notices.see(look(start, after, Source::Spot, spot)), News::Nothing);
        }
        let emptying = notices.emptying(start).expect("it empties the node");
        assert_eq!(emptying.deadline, start + seconds(120));
    }

    #[test]
    fn earlier_time_and_hibernation_tighten() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceResponse::StopLeases));
        notices.see(look(start, 0, Source::Spot, Some((NoticeKind::SpotStop, 110))));
        let news = notices.see(look(start, 5, Source::Spot, Some((NoticeKind::SpotStop, 40))));
        assert_eq!(news, News::Tightened(NoticeKind::SpotStop));
        let deadline = |notices: &Notices| notices.emptying(start).map(|e| e.deadline);
        assert_eq!(deadline(&notices), Some(start + seconds(45)));
        notices.see(look(start, 6, Source::Spot, Some((NoticeKind::SpotHibernate, 40))));
        assert_eq!(deadline(&notices), Some(start + seconds(6)));
    }

    #[test]
    fn only_repeated_absence_withdraws() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceResponse::StopLeases));
        let spot = Some((NoticeKind::SpotTerminate, 100));
        notices.see(look(start, 0, Source::Spot, spot));
        notices.see(look(start, 1, Source::Spot, None));
        notices.see(look(start, 2, Source::Spot, spot));
        for after in [3, 4] {
            assert_eq!(notices.see(look(start, after, Source::Spot, None)), News::Nothing);
        }
        assert!(notices.emptying(start).is_some());
        let news = notices.see(look(start, 5, Source::Spot, None));
        assert_eq!(news, News::Withdrawn(NoticeKind::SpotTerminate));
        assert!(notices.emptying(start).is_none());
        assert!(
            !notices.is_quiet_for(DrainReason::Notice, start),
            "the other sources have said nothing yet"
        );
        for source in [Source::Rebalance, Source::Lifecycle] {
            (0..3).for_each(|after| {
                notices.see(look(start, after, source, None));
            });
        }
        assert!(notices.is_quiet_for(DrainReason::Notice, start));
    }

    #[test]
    fn rebalance_stops_leases_until_its_time_is_over_and_not_again() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceResponse::StopLeases));
        let fixed = |after| Sighting {
            announcement: Some(Announcement { kind: NoticeKind::Rebalance, time: Some(WALL) }),
            ..look(start, after, Source::Rebalance, None)
        };
        notices.see(fixed(0));
        assert!(notices.stops_leases(start + seconds(899)));
        assert!(notices.emptying(start).is_none());
        assert_eq!(notices.next_expiry(start), Some(start + seconds(900)));
        for after in [900, 1000, 5000] {
            notices.see(fixed(after));
            assert!(!notices.stops_leases(start + seconds(after)), "after {after} s");
        }
        notices.see(look(start, 6000, Source::Rebalance, Some((NoticeKind::Rebalance, 0))));
        assert!(notices.stops_leases(start + seconds(6001)), "another one counts again");
    }

    #[test]
    fn rebalance_drains_or_does_nothing_when_told_so() {
        let start = Instant::now();
        let rebalance = look(start, 0, Source::Rebalance, Some((NoticeKind::Rebalance, 0)));
        let mut notices = Notices::new(terms(RebalanceResponse::Drain));
        notices.see(rebalance);
        assert_eq!(notices.emptying(start).map(|e| e.deadline), Some(start + seconds(600)));
        let mut notices = Notices::new(terms(RebalanceResponse::Ignore));
        notices.see(rebalance);
        assert_eq!(notices.strongest(start), None);
    }

    #[test]
    fn earliest_of_several_notices_decides() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceResponse::StopLeases));
        let lifecycle = Some((NoticeKind::AsgTermination, 0));
        notices.see(look(start, 0, Source::Lifecycle, lifecycle));
        notices.see(look(start, 1, Source::Spot, Some((NoticeKind::SpotTerminate, 60))));
        let emptying = notices.emptying(start).expect("it empties the node");
        assert_eq!(emptying.kind, NoticeKind::SpotTerminate);
        assert_eq!(emptying.deadline, start + seconds(61));
    }
}
