//! Which pools are left out for a while: benched after a failed launch, for growing times, or left
//! to another writer who sets their size; and which come last, since AWS takes instances there.
//!
//! Only times that the provider gave are compared with each other; the time on the bench runs on
//! the controller's clock from the moment the failure was seen.

use std::time::Duration;

use crate::observation::{FailureKind, PoolView};
use crate::time::UnixMillis;

/// First time on the bench (Karpenter's offering cache).
const BENCH_FIRST: Duration = Duration::from_secs(180);

/// Longest time on the bench (Cluster Autoscaler's longest back-off).
const BENCH_MAX: Duration = Duration::from_secs(1800);

/// How long a pool that has just lost an instance to AWS comes last (Karpenter's cache of
/// unavailable offerings).
const RECLAIM_PAUSE: Duration = Duration::from_secs(180);

/// Longest time that a pool may stay short without a word and without growing.
pub(super) const LAUNCH_LIMIT: Duration = Duration::from_secs(600);

/// Looks in a row at which a pool must have another size than was asked for, before somebody else
/// is taken to write it.
const CONFLICT_LOOKS: u32 = 3;

/// How long a pool is left to the other writer: at most one write of ours in that time.
const CONFLICT_WINDOW: Duration = Duration::from_secs(300);

/// What is remembered of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PoolMemory {
    /// Provider time up to which activities are accounted for; `None` before the first look.
    seen_until: Option<UnixMillis>,
    /// Nodes that counted at the last look.
    counted: u32,
    /// Since when the pool has had fewer nodes than asked for without growing.
    short_since: Option<UnixMillis>,
    /// What was asked for at the last look.
    desired: u32,
    bench: Option<Bench>,
    /// Since when nodes have run there without a failed launch, a bench or a loss.
    good_since: Option<UnixMillis>,
    /// Until when the pool comes last, after AWS took an instance of it.
    last_until: Option<UnixMillis>,
    /// The size that was last asked for and granted.
    asked: Option<u32>,
    /// Looks in a row that showed another size.
    strange_looks: u32,
    conflict: Option<Conflict>,
}

/// Somebody else writes the size of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict {
    pub until: UnixMillis,
    /// What was asked for here.
    pub asked: u32,
    /// What was found.
    pub found: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bench {
    until: UnixMillis,
    length: Duration,
    kind: FailureKind,
}

impl PoolMemory {
    /// What is remembered after a look at the pool. A size that is unknown changes nothing.
    #[must_use]
    pub fn advance(&self, view: &PoolView, now: UnixMillis) -> Self {
        let Some(size) = view.size.known() else { return self.clone() };
        let counted = u32::try_from(size.counted().count()).unwrap_or(u32::MAX);
        let (seen_until, telling) = self.news(view);
        let mut next = Self {
            seen_until,
            counted,
            desired: size.desired,
            short_since: self.short_since.or(Some(now)),
            ..self.clone()
        };
        next.compare_size(size.desired, now);
        next.look_for_good(self, now);
        if counted >= size.desired {
            return Self { short_since: None, bench: None, ..next };
        }
        if counted > self.counted {
            next.short_since = Some(now);
        }
        let is_overdue = next.short_since.is_some_and(|since| now.since(since) >= LAUNCH_LIMIT);
        if let Some(kind) = telling.or(is_overdue.then_some(FailureKind::TimedOut)) {
            next.send_to_bench(kind, now);
        }
        next
    }

    /// Nodes that go without being asked for are lost; nodes that come take none back.
    fn look_for_good(&mut self, before: &Self, now: UnixMillis) {
        let fewer = before.counted.saturating_sub(self.counted);
        let is_lost = fewer > before.desired.saturating_sub(self.desired);
        let is_benched = self.benched(now).is_some();
        if self.counted == 0 || is_benched {
            self.good_since = None;
        } else if is_lost {
            self.good_since = Some(now);
        } else {
            self.good_since.get_or_insert(now);
        }
    }

    /// For how long nodes have run there without a failed launch, a bench or a loss; `None` while
    /// nothing runs.
    pub fn good_for(&self, now: UnixMillis) -> Option<Duration> {
        self.good_since.map(|since| now.since(since))
    }

    /// AWS takes an instance of the pool.
    pub fn note_reclaim(&mut self, now: UnixMillis) {
        self.last_until = Some(now.plus(RECLAIM_PAUSE));
        self.good_since = None;
    }

    /// For how much longer the pool comes last, when it does.
    pub fn comes_last(&self, now: UnixMillis) -> Option<Duration> {
        let until = self.last_until.filter(|until| *until > now)?;
        Some(until.remaining(now))
    }

    /// A size was asked for and granted; `None` when nobody knows what holds now. Only a look
    /// that shows the size ends a row of strange ones: asking again and again does not.
    pub fn note_asked(&mut self, asked: Option<u32>) {
        self.asked = asked;
    }

    /// Nothing was asked for here, so nobody else's size is in conflict with it.
    pub fn forget_writes(&mut self) {
        (self.asked, self.strange_looks, self.conflict) = (None, 0, None);
    }

    /// What is taken to be asked for.
    pub fn asked(&self) -> Option<u32> {
        self.asked
    }

    fn compare_size(&mut self, found: u32, now: UnixMillis) {
        let Some(asked) = self.asked.filter(|asked| *asked != found) else {
            self.strange_looks = 0;
            return;
        };
        self.strange_looks += 1;
        if self.strange_looks >= CONFLICT_LOOKS {
            self.conflict = Some(Conflict { until: now.plus(CONFLICT_WINDOW), asked, found });
            (self.asked, self.strange_looks) = (Some(found), 0);
        }
    }

    /// Whether the pool is left alone: somebody else writes its size, or seems to, and it was
    /// written back once already.
    pub fn is_left_alone(&self, now: UnixMillis) -> bool {
        self.conflict(now).is_some() || self.strange_looks > 1
    }

    /// The other writer that the pool is left to, as of `now`.
    pub fn conflict(&self, now: UnixMillis) -> Option<Conflict> {
        self.conflict.filter(|conflict| conflict.until > now)
    }

    /// Up to when activities are accounted for, and the newest failure since that says something
    /// about the pool. At the first look every failure is an old one: it answers nothing that was
    /// asked here.
    fn news(&self, view: &PoolView) -> (Option<UnixMillis>, Option<FailureKind>) {
        let Some(activities) = view.activities.known() else { return (self.seen_until, None) };
        let newest_failure = activities.failures.iter().map(|failure| failure.at).max();
        let newest = activities.newest_at.max(newest_failure).unwrap_or_default();
        let seen_until = self.seen_until.unwrap_or(newest);
        let fresh = activities.failures.iter().filter(|failure| failure.at > seen_until);
        let telling = fresh.filter(|failure| failure.kind.benches()).max_by_key(|f| f.at);
        (Some(seen_until.max(newest)), telling.map(|failure| failure.kind))
    }

    /// A failure while on the bench was not asked for by us and changes nothing; one after it
    /// doubles the time.
    fn send_to_bench(&mut self, kind: FailureKind, now: UnixMillis) {
        let length = match self.bench {
            Some(bench) if bench.until > now => return,
            Some(bench) => (bench.length * 2).min(BENCH_MAX),
            None => BENCH_FIRST,
        };
        self.bench = Some(Bench { until: now.plus(length), length, kind });
        self.good_since = None;
        self.short_since = Some(now);
    }

    /// Why and for how much longer the pool is left out, when it is.
    pub fn benched(&self, now: UnixMillis) -> Option<(FailureKind, Duration)> {
        let bench = self.bench.filter(|bench| bench.until > now)?;
        Some((bench.kind, bench.until.remaining(now)))
    }
}
