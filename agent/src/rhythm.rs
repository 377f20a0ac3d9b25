//! How the loops of an agent share one thread, so that an idle agent costs little.
//!
//! What it costs are its wake-ups: the first call after a pause finds cold caches, others right
//! behind it are cheap. So regular work of all loops is due at the same moments, and a loop is
//! polled when it was woken itself, not whenever another one was, as `select!` and `join!` do.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

/// Runs loops side by side until all have ended; dropping it drops them.
pub(crate) async fn all_of(loops: impl IntoIterator<Item = BoxFuture<'_, ()>>) {
    let mut loops: FuturesUnordered<_> = loops.into_iter().collect();
    while loops.next().await.is_some() {}
}

/// Runs loops side by side until one has ended, and drops the others.
pub(crate) async fn first_of(loops: impl IntoIterator<Item = BoxFuture<'_, ()>>) {
    let mut loops: FuturesUnordered<_> = loops.into_iter().collect();
    loops.next().await;
}

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
