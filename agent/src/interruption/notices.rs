//! Which notices count now, from what the sources were seen to say. No I/O: time is an argument.
//!
//! A deadline is turned into monotonic time at first sight, so that a wall clock that is set
//! meanwhile moves nothing; it only ever becomes earlier. A notice that disappears counts until
//! its absence was seen several times: one wrong answer must not reopen a dying node.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::notice::{Announcement, InterruptionNotice, NoticeKind};
use ebbtide_core::policy::RebalanceAction;
use ebbtide_core::time::UnixMillis;
use tokio::time::Instant;

use crate::config::DrainTerms;
use crate::imds::{Sighting, Source};

/// Absences in a row, each a definite answer, after which a notice counts as withdrawn.
const ABSENCES_NEEDED: u32 = 3;

/// Everything that stands, by source.
#[derive(Debug)]
pub(super) struct Notices {
    terms: DrainTerms,
    by_source: BTreeMap<Source, Standing>,
    /// Definite absences in a row.
    absences: BTreeMap<Source, u32>,
}

#[derive(Debug)]
struct Standing {
    notice: InterruptionNotice,
    /// When the node is lost; none for a rebalance recommendation.
    deadline: Option<Instant>,
    first_seen: Instant,
    /// The time that it carried at first.
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
        Self { terms, by_source: BTreeMap::new(), absences: BTreeMap::new() }
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
        let standing = self.by_source.get(&sighting.source);
        if standing.is_some_and(|standing| self.is_superseded(standing, announcement, at)) {
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

    /// Whether an announcement is another one, not this one again: a recommendation whose time
    /// lies further on than one counts, or a maintenance that was put off before its time came.
    fn is_superseded(&self, standing: &Standing, seen: Announcement, now: Instant) -> bool {
        let (Some(told), Some(time)) = (standing.told, seen.time) else { return false };
        match seen.kind {
            NoticeKind::Rebalance => time.since(told) > self.terms.rebalance_ttl,
            NoticeKind::Maintenance | NoticeKind::Retirement => {
                time > told && self.emptied_by(standing, now).is_none()
            }
            _ => false,
        }
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
    /// or carries nothing that counts any more. Before the first looks nothing is certain.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        let is_absent =
            |source: &Source| self.absences.get(source).is_some_and(|n| *n >= ABSENCES_NEEDED);
        let is_over = |source: &Source| {
            *source == Source::Rebalance
                && self.by_source.get(source).is_some_and(|standing| !self.is_fresh(standing, now))
        };
        self.emptying(now).is_none() && Source::ALL.iter().all(|s| is_absent(s) || is_over(s))
    }

    /// The notice that empties the node, with the earliest deadline of all that do.
    pub(super) fn emptying(&self, now: Instant) -> Option<Emptying> {
        let emptying = self.by_source.values().filter_map(|standing| {
            let deadline = self.emptied_by(standing, now)?;
            Some(Emptying { kind: standing.notice.kind, deadline })
        });
        emptying.min_by_key(|emptying| emptying.deadline)
    }

    /// When the node must be empty for this notice, if it empties the node now.
    fn emptied_by(&self, standing: &Standing, now: Instant) -> Option<Instant> {
        let unhurried = standing.first_seen + self.terms.request_deadline;
        match standing.notice.kind {
            NoticeKind::Maintenance | NoticeKind::Retirement => {
                let is_time = self.leaves_at(standing)? <= now;
                is_time.then_some(standing.deadline?.min(unhurried.max(now)))
            }
            NoticeKind::Rebalance => self.drains_for_rebalance(standing, now).then_some(unhurried),
            _ => standing.deadline,
        }
    }

    /// When the node begins to be emptied for a maintenance: some time ahead of it, or at its
    /// announcement when the hardware is degraded and the policy says so.
    fn leaves_at(&self, standing: &Standing) -> Option<Instant> {
        let begins = standing.deadline?;
        match standing.notice.kind {
            NoticeKind::Retirement if self.terms.leave_degraded => Some(standing.first_seen),
            NoticeKind::Maintenance | NoticeKind::Retirement => {
                let ahead = begins.saturating_duration_since(standing.first_seen);
                Some(standing.first_seen + ahead.saturating_sub(self.terms.maintenance_lead))
            }
            _ => None,
        }
    }

    fn drains_for_rebalance(&self, standing: &Standing, now: Instant) -> bool {
        self.terms.rebalance == RebalanceAction::Drain && self.is_fresh(standing, now)
    }

    /// Whether a rebalance recommendation keeps the node from leasing.
    pub(super) fn stops_leases(&self, now: Instant) -> bool {
        self.terms.rebalance == RebalanceAction::StopLeases
            && self
                .by_source
                .get(&Source::Rebalance)
                .is_some_and(|standing| self.is_fresh(standing, now))
    }

    /// A recommendation that nothing followed counts only for a time.
    fn is_fresh(&self, standing: &Standing, now: Instant) -> bool {
        now.saturating_duration_since(standing.first_seen) < self.terms.rebalance_ttl
    }

    /// When what counts changes by itself: a recommendation stops counting, or the time of a
    /// maintenance has come.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        let is_heeded = self.terms.rebalance != RebalanceAction::Ignore;
        let ends = self
            .by_source
            .get(&Source::Rebalance)
            .filter(|standing| is_heeded && self.is_fresh(standing, now));
        let ends = ends.map(|standing| standing.first_seen + self.terms.rebalance_ttl);
        let begins = self.by_source.get(&Source::Maintenance);
        let begins = begins.and_then(|standing| self.leaves_at(standing)).filter(|at| *at > now);
        ends.into_iter().chain(begins).min()
    }

    /// The strongest notice that counts now, for the node's record. A maintenance is told as soon
    /// as it is known, whenever it comes.
    pub(super) fn strongest(&self, now: Instant) -> Option<(NoticeKind, Option<Instant>)> {
        let emptying = self.emptying(now).map(|e| (e.kind, Some(e.deadline)));
        let advised = || self.stops_leases(now).then_some((NoticeKind::Rebalance, None));
        let ahead = || {
            let standing = self.by_source.get(&Source::Maintenance)?;
            Some((standing.notice.kind, standing.deadline))
        };
        emptying.or_else(advised).or_else(ahead)
    }

    /// Time that a notice left at its first sight; `None` when it carries no deadline.
    pub(super) fn lead_of(&self, source: Source) -> Option<Duration> {
        let notice = self.by_source.get(&source)?.notice;
        notice.remaining(notice.first_seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: UnixMillis = UnixMillis(1_000_000_000);

    fn terms(rebalance: RebalanceAction) -> DrainTerms {
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
        let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
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
        let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
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
        let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
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
        assert!(!notices.is_quiet(start), "the other sources have said nothing yet");
        for source in [Source::Rebalance, Source::Lifecycle, Source::Maintenance] {
            (0..3).for_each(|after| {
                notices.see(look(start, after, source, None));
            });
        }
        assert!(notices.is_quiet(start));
    }

    #[test]
    fn rebalance_stops_leases_until_its_time_is_over_and_not_again() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
        let fixed = |after| Sighting {
            announcement: Some(Announcement { kind: NoticeKind::Rebalance, time: Some(WALL) }),
            ..look(start, after, Source::Rebalance, None)
        };
        notices.see(fixed(0));
        assert!(notices.stops_leases(start + seconds(899)));
        assert!(notices.emptying(start).is_none());
        assert_eq!(notices.next_change(start), Some(start + seconds(900)));
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
        let mut notices = Notices::new(terms(RebalanceAction::Drain));
        notices.see(rebalance);
        assert_eq!(notices.emptying(start).map(|e| e.deadline), Some(start + seconds(600)));
        let mut notices = Notices::new(terms(RebalanceAction::Ignore));
        notices.see(rebalance);
        assert_eq!(notices.strongest(start), None);
    }

    /// A look at a maintenance `lead` seconds after the start.
    fn maintenance(start: Instant, after: u64, kind: NoticeKind, lead: u64) -> Sighting {
        look(start, after, Source::Maintenance, Some((kind, lead - after)))
    }

    /// Case 25.
    #[test]
    fn maintenance_far_ahead_is_told_and_drains_only_when_its_lead_begins() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
        let ahead = 21 * 86_400;
        notices.see(maintenance(start, 0, NoticeKind::Maintenance, ahead));
        let told = notices.strongest(start);
        assert_eq!(told, Some((NoticeKind::Maintenance, Some(start + seconds(ahead)))));
        assert_eq!(notices.emptying(start), None);
        let begins = start + seconds(ahead - 1800);
        assert_eq!(notices.next_change(start), Some(begins));
        assert_eq!(notices.emptying(begins - seconds(1)), None);
        assert!(notices.emptying(begins).is_some());
    }

    /// Case 25, the other half.
    #[test]
    fn degraded_node_leaves_at_once_when_the_policy_says_so() {
        let start = Instant::now();
        let early = DrainTerms { leave_degraded: true, ..DrainTerms::default() };
        let mut notices = Notices::new(early);
        notices.see(maintenance(start, 0, NoticeKind::Retirement, 21 * 86_400));
        assert_eq!(notices.emptying(start).map(|e| e.deadline), Some(start + seconds(600)));
        let mut notices = Notices::new(early);
        notices.see(maintenance(start, 0, NoticeKind::Maintenance, 21 * 86_400));
        assert_eq!(notices.emptying(start), None, "only degraded hardware is left early");
    }

    #[test]
    fn maintenance_that_is_put_off_counts_from_its_new_time() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
        notices.see(maintenance(start, 0, NoticeKind::Maintenance, 7200));
        notices.see(maintenance(start, 60, NoticeKind::Maintenance, 14_400));
        let told = notices.strongest(start).and_then(|(_, deadline)| deadline);
        assert_eq!(told, Some(start + seconds(14_400)));
        notices.see(maintenance(start, 13_000, NoticeKind::Maintenance, 20_000));
        let told = notices.strongest(start).and_then(|(_, deadline)| deadline);
        assert_eq!(told, Some(start + seconds(14_400)), "the drain is under way");
    }

    #[test]
    fn earliest_of_several_notices_decides() {
        let start = Instant::now();
        let mut notices = Notices::new(terms(RebalanceAction::StopLeases));
        let lifecycle = Some((NoticeKind::AsgTermination, 0));
        notices.see(look(start, 0, Source::Lifecycle, lifecycle));
        notices.see(look(start, 1, Source::Spot, Some((NoticeKind::SpotTerminate, 60))));
        let emptying = notices.emptying(start).expect("it empties the node");
        assert_eq!(emptying.kind, NoticeKind::SpotTerminate);
        assert_eq!(emptying.deadline, start + seconds(61));
    }
}
