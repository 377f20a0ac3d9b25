//! What is learned of each pool from its launches and losses, and which pools are left out for a
//! while.
//!
//! A failed launch sends a pool to the bench, for the longer of three minutes and the longest
//! launch that failed, doubled each time. After the bench one single replica is launched there as a
//! probe; only when something has come is the pool as good as others. A refusal that concerns the
//! number asked for is no reason for the bench before a single replica was refused.
//!
//! Only times that the provider gave are compared with each other; the time on the bench runs on
//! the controller's clock from the moment the failure was seen.

use std::time::Duration;

use super::pace::count;
use super::reserved::Tenure;
use super::writer::WriterMemory;
use crate::observation::{FailureKind, PoolView};
use crate::time::UnixMillis;

/// Shortest time on the bench (Karpenter's offering cache).
const BENCH_MIN: Duration = Duration::from_secs(180);

/// Longest time on the bench (Cluster Autoscaler's longest back-off).
const BENCH_MAX: Duration = Duration::from_secs(1800);

/// Time after a bench in which the next one is a repetition (Cluster Autoscaler's reset).
const BENCH_MEMORY: Duration = Duration::from_hours(3);

/// How long a pool that has just lost an instance to AWS comes last (Karpenter's cache of
/// unavailable offerings).
const RECLAIM_PAUSE: Duration = Duration::from_secs(180);

/// Longest time that a pool may stay short without a word and without growing.
pub(super) const LAUNCH_LIMIT: Duration = Duration::from_secs(600);

/// Time after which a loss counts half: four times as long as most Spot reclaims come in a row.
const LOSS_HALF_LIFE_SECONDS: f64 = 3600.0;

/// What is remembered of one pool.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct PoolMemory {
    /// Provider time up to which activities are accounted for; `None` before the first look.
    seen_until: Option<UnixMillis>,
    looked_at: UnixMillis,
    /// Nodes that counted at the last look.
    counted: u32,
    /// What was asked for at the last look.
    desired: u32,
    /// Since when the pool has had fewer nodes than asked for without growing.
    short_since: Option<UnixMillis>,
    /// The last bench, until something has come since.
    bench: Option<Bench>,
    /// The longest launch that failed.
    worst_pass: Duration,
    /// Replicas that were refused together, while fewer are tried.
    refused: Option<u32>,
    /// Nodes that were asked for before a call for more that was never answered, until a look shows
    /// whether anything of it was heard.
    unanswered: Option<u32>,
    /// Launches that do not end, at the last look.
    stuck: usize,
    /// Nodes lost lately, older ones counting less.
    losses: f64,
    /// Since when nodes have run there without a failed launch, a bench or a loss.
    good_since: Option<UnixMillis>,
    /// Until when the pool comes last, after AWS took an instance of it.
    last_until: Option<UnixMillis>,
    /// Who else writes its size.
    pub writer: WriterMemory,
    /// How far it is in the time for which it is reserved.
    pub tenure: Tenure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bench {
    until: UnixMillis,
    length: Duration,
    kind: FailureKind,
    /// Whether another pool of the same quota was refused, not this one.
    is_shared: bool,
}

/// How far a pool may be counted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// As far as it has room.
    Free,
    /// For a single replica, until one has come.
    Probing,
    /// Not at all.
    Benched,
}

impl PoolMemory {
    /// What is remembered after a look at the pool. A size that is unknown changes nothing.
    #[must_use]
    pub fn advance(&self, view: &PoolView, now: UnixMillis) -> Self {
        let Some(size) = view.size.known() else { return self.clone() };
        let counted = size.count();
        let (seen_until, telling) = self.news(view);
        let mut next = Self {
            seen_until,
            looked_at: now,
            counted,
            desired: size.desired,
            short_since: self.short_since.or(Some(now)),
            ..self.clone()
        };
        if size.is_unmanaged {
            next.writer.note_asked(Some(size.desired));
        }
        next.writer.note_found(size.desired, now);
        next.count_losses(self, now);
        next.end_bench(counted > self.counted, size.is_unmanaged, now);
        if next.unanswered.take().is_some_and(|before| size.desired <= before) {
            next.send_to_bench(FailureKind::TimedOut, Duration::ZERO, now);
        }
        if counted >= size.desired {
            return Self { short_since: None, ..next };
        }
        if counted > self.counted {
            next.short_since = Some(now);
        }
        let is_overdue = next.short_since.is_some_and(|since| now.since(since) >= LAUNCH_LIMIT);
        if let Some(kind) = telling.or(is_overdue.then_some(FailureKind::TimedOut)) {
            next.send_to_bench(kind, next.pass(now), now);
        }
        next
    }

    /// Nodes that go without being asked for are lost; nodes that come take none back.
    fn count_losses(&mut self, before: &Self, now: UnixMillis) {
        let fewer = before.counted.saturating_sub(self.counted);
        let lost = fewer.saturating_sub(before.desired.saturating_sub(self.desired));
        let half_lives = now.since(before.looked_at).as_secs_f64() / LOSS_HALF_LIFE_SECONDS;
        self.losses = before.losses * (-half_lives).exp2() + count(lost.into());
        if self.counted == 0 || self.standing(now) == Standing::Benched {
            self.good_since = None;
        } else if lost > 0 {
            self.good_since = Some(now);
        } else {
            self.good_since.get_or_insert(now);
        }
    }

    /// A bench is forgotten when something has come after it, or all that was asked for has come
    /// during it, or it is long ago. Where what lives is what was asked for, nobody keeps asking
    /// for the rest: what comes during it says nothing about that.
    fn end_bench(&mut self, has_grown: bool, is_unmanaged: bool, now: UnixMillis) {
        let Some(bench) = self.bench else { return };
        let is_over = bench.until <= now;
        let is_complete = !is_unmanaged && self.counted >= self.desired;
        let has_come = has_grown && (is_over || is_complete);
        if has_come || now.since(bench.until) > BENCH_MEMORY {
            self.bench = None;
        }
    }

    /// Nodes lost lately, those of an hour ago counting half.
    pub fn losses(&self) -> f64 {
        self.losses
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

    /// A request for so many replicas was refused as a whole. Where the number may be the reason,
    /// half of it is tried next; the bench is for a pool that gives not even one.
    pub fn note_refusal(&mut self, kind: FailureKind, replicas: u32) {
        if !kind.benches() {
            return;
        }
        self.refused = (kind == FailureKind::Quota && replicas > 1).then_some(replicas);
        if self.refused.is_none() {
            self.send_to_bench(kind, Duration::ZERO, self.looked_at);
        }
    }

    /// A request for more than these nodes was not answered within its limit, and may have been
    /// heard, or some of it.
    pub fn note_unanswered(&mut self, before: u32) {
        self.unanswered = Some(before);
    }

    /// A request was granted.
    pub fn note_granted(&mut self) {
        self.refused = None;
    }

    /// The most replicas that are asked for next, after more were refused.
    pub fn halved(&self) -> Option<u32> {
        self.refused.map(|refused| (refused / 2).max(1))
    }

    /// So many launches have not ended in the time that a launch may take.
    pub fn note_stuck(&mut self, stuck: usize, now: UnixMillis) {
        if stuck > std::mem::replace(&mut self.stuck, stuck) {
            self.send_to_bench(FailureKind::TimedOut, LAUNCH_LIMIT, now);
        }
    }

    fn pass(&self, now: UnixMillis) -> Duration {
        self.short_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// A failure while on the bench was not asked for by us and changes nothing; one after it
    /// doubles the time. `pass` is how long the launch took that failed.
    fn send_to_bench(&mut self, kind: FailureKind, pass: Duration, now: UnixMillis) {
        let worst_pass = self.worst_pass.max(pass);
        let length = match self.bench.filter(|bench| !bench.is_shared) {
            Some(bench) if bench.until > now => return,
            Some(bench) => (bench.length * 2).max(worst_pass),
            None => BENCH_MIN.max(worst_pass),
        };
        let length = length.min(BENCH_MAX);
        let until = now.plus(length);
        self.bench = Some(Bench { until, length, kind, is_shared: false });
        self.worst_pass = worst_pass;
        self.good_since = None;
        // A group that keeps trying by itself is judged anew after the bench.
        self.short_since = Some(until);
    }

    /// The quota that this pool was refused for, and until when.
    pub fn lacks_quota_until(&self) -> Option<UnixMillis> {
        let bench = self.bench.filter(|bench| !bench.is_shared)?;
        (bench.kind == FailureKind::Quota).then_some(bench.until)
    }

    /// Another pool of the same quota was refused; `None` when that is over.
    pub fn share_quota(&mut self, until: Option<UnixMillis>) {
        let is_own = self.bench.is_some_and(|bench| !bench.is_shared);
        if is_own {
            return;
        }
        let (kind, is_shared) = (FailureKind::Quota, true);
        self.bench = until.map(|until| Bench { until, length: BENCH_MIN, kind, is_shared });
    }

    /// How far the pool may be counted on. One that was not refused itself waits until the one that
    /// was has been probed.
    pub fn standing(&self, now: UnixMillis) -> Standing {
        match self.bench {
            None => Standing::Free,
            Some(bench) if bench.until > now => Standing::Benched,
            Some(bench) if bench.is_shared && now.since(bench.until) < BENCH_MAX => {
                Standing::Benched
            }
            Some(_) => Standing::Probing,
        }
    }

    /// Why and for how much longer the pool is left out, when it is.
    pub fn benched(&self, now: UnixMillis) -> Option<(FailureKind, Duration)> {
        let bench = self.bench.filter(|_| self.standing(now) == Standing::Benched)?;
        Some((bench.kind, bench.until.remaining(now)))
    }
}
