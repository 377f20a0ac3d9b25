//! When regular work is due: all loops at the same moments, because what an idle agent costs is
//! its wake-ups. The first call after a pause finds cold caches; others right behind it are cheap.

use std::time::Duration;

use tokio::time::Instant;

/// The beat that the loops of one agent share. Each agent has its own, so that those of a fleet do
/// not all ask at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rhythm {
    begun: Instant,
}

impl Rhythm {
    /// Begins now.
    pub(crate) fn begin() -> Self {
        Self { begun: Instant::now() }
    }

    /// The next moment for what is done `every` so often: after now, by that time at the latest.
    pub(crate) fn next(&self, every: Duration) -> Instant {
        self.next_after(Instant::now(), every)
    }

    fn next_after(&self, now: Instant, every: Duration) -> Instant {
        let since_begun = now.saturating_duration_since(self.begun).as_nanos();
        let since_last = since_begun % every.as_nanos().max(1);
        let since_last = u64::try_from(since_last).map_or(every, Duration::from_nanos);
        now + every.saturating_sub(since_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_due_together() {
        let (second, two) = (Duration::from_secs(1), Duration::from_secs(2));
        let rhythm = Rhythm::begin();
        let at = |millis| rhythm.begun + Duration::from_millis(millis);
        assert_eq!(rhythm.next_after(at(300), second), at(1000));
        assert_eq!(rhythm.next_after(at(300), two), at(2000));
        assert_eq!(rhythm.next_after(at(1000), second), at(2000), "not the moment that is now");
        assert_eq!(rhythm.next_after(at(1700), two), rhythm.next_after(at(1700), second));
        assert_eq!(rhythm.next_after(at(1700), Duration::ZERO), at(1700));
    }
}
