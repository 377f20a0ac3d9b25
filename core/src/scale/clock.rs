//! Time that counts: only that between two looks which both counted.

use std::time::Duration;

use crate::bottleneck::GAP_MAX;
use crate::time::UnixMillis;

/// A clock that stands still while a look does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CountedClock {
    counted: Duration,
    last: Option<UnixMillis>,
}

impl CountedClock {
    /// The clock after a look at `now`, which counts or does not.
    #[must_use]
    pub fn advance(self, now: UnixMillis, is_counted: bool) -> Self {
        let gap = self.last.map(|last| now.since(last)).filter(|gap| *gap <= GAP_MAX);
        let gap = gap.filter(|_| is_counted).unwrap_or_default();
        Self { counted: self.counted + gap, last: is_counted.then_some(now) }
    }

    /// Time that has counted so far.
    pub fn counted(self) -> Duration {
        self.counted
    }
}
