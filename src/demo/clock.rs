//! The demo's time: it runs from the start, or from the first work of a trainer outside.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A clock that all parts of the demo share.
#[derive(Clone)]
pub struct Clock {
    begun_at: watch::Sender<Option<Instant>>,
}

impl Clock {
    /// A clock that stands still until it is begun.
    pub fn standing() -> Self {
        Self { begun_at: watch::Sender::new(None) }
    }

    /// Lets it run; a clock that runs goes on.
    pub fn begin(&self) {
        self.begun_at.send_if_modified(|begun_at| {
            let is_first = begun_at.is_none();
            begun_at.get_or_insert_with(Instant::now);
            is_first
        });
    }

    /// Since when it runs, if it does.
    pub fn begun_at(&self) -> Option<Instant> {
        *self.begun_at.borrow()
    }

    /// What it shows; zero while it stands.
    pub fn elapsed(&self) -> Duration {
        self.begun_at().map_or(Duration::ZERO, |begun_at| begun_at.elapsed())
    }

    /// Waits until it runs.
    pub async fn begun(&self) {
        // The sender is this clock itself, so that it cannot be gone.
        let _ = self.begun_at.subscribe().wait_for(Option::is_some).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn standing_clock_shows_nothing_until_it_is_begun_and_begins_once() {
        let clock = Clock::standing();
        assert_eq!((clock.elapsed(), clock.begun_at()), (Duration::ZERO, None));
        clock.begin();
        clock.begun().await;
        let begun_at = clock.begun_at();
        clock.begin();
        assert_eq!((begun_at.is_some(), clock.begun_at()), (true, begun_at));
    }
}
