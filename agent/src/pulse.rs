//! Whether the loops turn: each one beats, and one that has been silent for too long is stalled.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The loops that must turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loop {
    /// Reads the Spot instance action.
    SpotPoll,
    /// Applies notices and drains.
    Interruption,
    /// Stores tokens and ends.
    Store,
    /// Reads the control keys and reports the node.
    Meeting,
}

impl Loop {
    pub(crate) const ALL: [Self; 4] =
        [Self::SpotPoll, Self::Interruption, Self::Store, Self::Meeting];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::SpotPoll => "spot_poll",
            Self::Interruption => "interruption",
            Self::Store => "store",
            Self::Meeting => "meeting",
        }
    }
}

/// When each loop last turned; a loop that never began is not watched.
#[derive(Debug, Default)]
pub(crate) struct Pulses {
    beats: Mutex<[Option<Instant>; Loop::ALL.len()]>,
}

impl Pulses {
    pub(crate) fn beat(&self, which: Loop, now: Instant) {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)[which as usize] = Some(now);
    }

    /// The loops that have been silent for longer than `limit`.
    pub(crate) fn stalled(&self, limit: Duration, now: Instant) -> Vec<&'static str> {
        let beats = *self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stalled = |which: &Loop| {
            beats[*which as usize].is_some_and(|beat| now.saturating_duration_since(beat) > limit)
        };
        Loop::ALL.into_iter().filter(is_stalled).map(Loop::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_loop_is_named() {
        let limit = Duration::from_secs(30);
        let pulses = Pulses::default();
        let start = Instant::now();
        pulses.beat(Loop::SpotPoll, start);
        pulses.beat(Loop::Store, start + limit);
        assert!(pulses.stalled(limit, start + limit).is_empty());
        let later = start + limit + Duration::from_secs(1);
        assert_eq!(pulses.stalled(limit, later), ["spot_poll"]);
    }
}
