//! Whose turn it is to call: one call at a time, and after one that failed a pause that grows.

use std::time::Duration;

use ebbtide_queue::client::Backoff;
use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub(super) struct Turn {
    is_calling: bool,
    /// When the next call may be made, while a pause stands.
    try_at: Option<Instant>,
    backoff: Backoff,
}

impl Turn {
    /// Nothing is under way; pauses will be between these two.
    pub(super) fn new(shortest: Duration, longest: Duration) -> Self {
        Self { is_calling: false, try_at: None, backoff: Backoff::new(shortest, longest) }
    }

    /// Whether a call may be made now. A pause that is over is forgotten, whether or not a call
    /// follows: it must not keep waking anybody.
    pub(super) fn is_free(&mut self, now: Instant) -> bool {
        if self.try_at.is_some_and(|at| at <= now) {
            self.try_at = None;
        }
        !self.is_calling && self.try_at.is_none()
    }

    /// Whether a call is under way.
    pub(super) fn is_calling(&self) -> bool {
        self.is_calling
    }

    /// A call is under way from now on.
    pub(super) fn begin(&mut self) {
        self.is_calling = true;
    }

    /// It was answered.
    pub(super) fn succeed(&mut self) {
        self.is_calling = false;
        self.backoff.reset();
    }

    /// It failed; returns whether this is the first failure in a row.
    pub(super) fn fail(&mut self, now: Instant) -> bool {
        self.is_calling = false;
        let is_first = self.backoff.failures() == 0;
        self.try_at = Some(now + self.backoff.next_pause());
        is_first
    }

    /// No call is made before then.
    pub(super) fn rest_until(&mut self, at: Instant) {
        self.try_at = Some(at);
    }

    /// When a pause ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.try_at.filter(|_| !self.is_calling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_millis(100);

    #[test]
    fn one_call_at_a_time_and_a_pause_after_a_failure() {
        let now = Instant::now();
        let mut turn = Turn::new(SHORTEST, Duration::from_secs(2));
        assert!(turn.is_free(now));
        turn.begin();
        assert!(!turn.is_free(now));
        assert!(turn.fail(now));
        assert!(!turn.is_free(now));
        let due = turn.next_due().expect("a pause");
        assert!(due <= now + SHORTEST && turn.is_free(due));
        turn.begin();
        assert!(!turn.fail(due), "not the first in a row");
    }

    #[test]
    fn pause_that_is_over_wakes_nobody_even_if_no_call_follows() {
        let now = Instant::now();
        let mut turn = Turn::new(SHORTEST, Duration::from_secs(2));
        turn.begin();
        turn.fail(now);
        assert!(turn.is_free(now + SHORTEST));
        assert_eq!(turn.next_due(), None);
    }
}
