//! For how long the trainer has been too slow or too fast, or its pool larger than it.

use std::time::Duration;

use crate::bottleneck::GAP_MAX;
use crate::scale::reason::Direction;
use crate::time::UnixMillis;

/// Share of the window for which the evidence may be missing: a buffer that touches its target
/// once is no new beginning.
const MISSED_SHARE: u32 = 10;

/// Longest pause that evidence outlives, where the window is not longer: no sync and no checkpoint
/// takes an hour.
const PAUSE_LIMIT: Duration = Duration::from_hours(1);

/// What has been wanted, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Watch {
    /// When it was last looked, as long as time counts.
    looked_at: Option<UnixMillis>,
    /// When time last counted.
    counted_at: Option<UnixMillis>,
    wants: Option<Direction>,
    held: Duration,
    missed: Duration,
}

impl Watch {
    /// The time until the next look does not count.
    pub fn pause(&mut self) {
        self.looked_at = None;
    }

    /// Takes in what is wanted now. The opposite begins anew, and so does a lack of evidence for
    /// longer than a tenth of the window, `after`, or too long a pause.
    pub fn look(&mut self, wants: Option<Direction>, after: Duration, now: UnixMillis) {
        if self.counted_at.replace(now).is_some_and(|at| now.since(at) > after.max(PAUSE_LIMIT)) {
            *self = Self { counted_at: Some(now), ..Self::default() };
        }
        let gap = self.looked_at.map(|at| now.since(at)).filter(|gap| *gap <= GAP_MAX);
        let gap = gap.unwrap_or_default();
        self.looked_at = Some(now);
        if wants.is_some() && wants == self.wants {
            self.held = self.held.saturating_add(gap);
        } else if wants.is_some() {
            self.begin(wants);
        } else {
            self.missed = self.missed.saturating_add(gap);
            if self.missed > after / MISSED_SHARE {
                self.begin(None);
            }
        }
    }

    fn begin(&mut self, wants: Option<Direction>) {
        (self.wants, self.held, self.missed) = (wants, Duration::ZERO, Duration::ZERO);
    }

    /// For how long that has been wanted.
    pub fn held(&self, direction: Direction) -> Duration {
        if self.wants == Some(direction) { self.held } else { Duration::ZERO }
    }
}
