//! Which notices count now, from what the sources were seen to say. No I/O: time is an argument.
//!
//! A deadline is turned into monotonic time at first sight, so that a wall clock that is set
//! meanwhile moves nothing; it only ever becomes earlier. A notice that disappears counts until
//! its absence was seen several times: one wrong answer must not reopen a dying node.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide_core::notice::{Announcement, InterruptionNotice, NoticeKind};
use ebbtide_core::policy::RebalanceAction;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::control::DrainReason;
use tokio::time::Instant;

use super::foreign::ForeignMarks;
use crate::config::DrainTerms;
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

    /// Whether it is certain that nothing empties the node for this reason any more: its source
    /// says so again and again, or carries nothing that counts. Before the first looks nothing is
    /// certain, unless all that the drain was ever asked for is known here. Other sources are not
    /// asked: one that cannot be read would keep the node out of work for ever, and what it
    /// announces later is a notice of its own.
    pub(super) fn is_quiet_for(
        &self,
        reason: DrainReason,
        is_all_known: bool,
        now: Instant,
    ) -> bool {
        let is_absent =
            |source: &Source| self.absences.get(source).is_some_and(|n| *n >= ABSENCES_NEEDED);
        let is_over = |source: &Source| match (source, self.by_source.get(source)) {
            (Source::Rebalance, Some(standing)) => !self.is_fresh(standing.first_seen, now),
            // It is known, and its time has not come.
            (Source::Maintenance, Some(_)) => true,
            _ => false,
        };
        let is_foreign_over = reason != DrainReason::Foreign || self.foreign.is_quiet();
        let source = source_of(reason);
        self.emptying(now).is_none()
            && is_foreign_over
            && (is_all_known || source.is_none_or(|it| is_absent(&it) || is_over(&it)))
    }

    /// The notice that empties the node, with the earliest deadline of all that do. Of several the
    /// one of the highest rank gives its name: the others may be its consequences.
    pub(super) fn emptying(&self, now: Instant) -> Option<Emptying> {
        let announced = self.by_source.values().filter_map(|standing| {
            let deadline = self.emptied_by(standing, now)?;
            Some(Emptying { kind: standing.notice.kind, deadline })
        });
        let rebalance = self.drains_for_rebalance_since(now).map(|since| Emptying {
            kind: NoticeKind::Rebalance,
            deadline: since + self.terms.request_deadline,
        });
        let all = announced.chain(rebalance).chain(self.foreign.emptying());
        all.reduce(|one, other| {
            let order = |it: &Emptying| (Reverse(rank(it.kind)), it.deadline);
            let kind = if order(&one) <= order(&other) { one.kind } else { other.kind };
            Emptying { kind, deadline: one.deadline.min(other.deadline) }
        })
    }

    /// When the node must be empty for this notice, if it empties the node now.
    fn emptied_by(&self, standing: &Standing, now: Instant) -> Option<Instant> {
        let unhurried = standing.first_seen + self.terms.request_deadline;
        match standing.notice.kind {
            NoticeKind::Maintenance | NoticeKind::Retirement => {
                let is_time = self.leaves_at(standing)? <= now;
                is_time.then_some(standing.deadline?.min(unhurried.max(now)))
            }
            NoticeKind::Rebalance => None,
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

    fn drains_for_rebalance_since(&self, now: Instant) -> Option<Instant> {
        let is_heeded = self.terms.rebalance == RebalanceAction::Drain;
        self.rebalance_since(now).filter(|_| is_heeded)
    }

    /// Whether a rebalance recommendation keeps the node from leasing.
    pub(super) fn stops_leases(&self, now: Instant) -> bool {
        self.terms.rebalance == RebalanceAction::StopLeases && self.rebalance_since(now).is_some()
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

    /// When what counts changes by itself: a recommendation stops counting, or the time of a
    /// maintenance has come.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        let is_heeded = self.terms.rebalance != RebalanceAction::Ignore;
        let since = self.rebalance_since(now).filter(|_| is_heeded);
        let ends = since.map(|since| since + self.terms.rebalance_ttl);
        let begins = self.by_source.get(&Source::Maintenance);
        let begins = begins.and_then(|standing| self.leaves_at(standing)).filter(|at| *at > now);
        ends.into_iter().chain(begins).min()
    }

    /// The strongest AWS notice that counts now, for the node's record. A maintenance is told as
    /// soon as it is known, whenever it comes. What other handlers do is told by the drain key.
    pub(super) fn strongest(&self, now: Instant) -> Option<(NoticeKind, Option<Instant>)> {
        let emptying = self.emptying(now).filter(|emptying| rank(emptying.kind) == Rank::Announced);
        let emptying = emptying.map(|e| (e.kind, Some(e.deadline)));
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

/// The source of the notices that give this reason; none where AWS does not.
fn source_of(reason: DrainReason) -> Option<Source> {
    match reason {
        DrainReason::Notice => Some(Source::Spot),
        DrainReason::Rebalance => Some(Source::Rebalance),
        DrainReason::Lifecycle => Some(Source::Lifecycle),
        DrainReason::Maintenance => Some(Source::Maintenance),
        DrainReason::ScaleIn
        | DrainReason::Swap
        | DrainReason::Operator
        | DrainReason::Foreign
        | DrainReason::Drill => None,
    }
}

/// Whose word a notice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Of whoever deletes an engine's pod.
    Deletion,
    /// Of another handler on the node.
    Handler,
    /// Of AWS.
    Announced,
}

fn rank(kind: NoticeKind) -> Rank {
    match kind {
        NoticeKind::EngineDeleted => Rank::Deletion,
        NoticeKind::Foreign => Rank::Handler,
        _ => Rank::Announced,
    }
}

#[cfg(test)]
mod tests;
