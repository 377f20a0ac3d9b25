//! One thing on the node that is kept as it is wanted: known or unknown, one call at a time, tried
//! again with bounded pauses.

use std::time::Duration;

use tokio::time::Instant;

use super::turn::Turn;
use crate::marks::MarkError;

/// Bounds of the pause after a failed call.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(200);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What stands on the node, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// An earlier process may have left something.
    Unknown,
    /// It stands with this reason, or not at all.
    Known(Option<&'static str>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Upkeep {
    standing: Standing,
    turn: Turn,
}

impl Upkeep {
    pub(super) fn new() -> Self {
        Self { standing: Standing::Unknown, turn: Turn::new(PAUSE_MIN, PAUSE_MAX) }
    }

    /// Whether a call has to be made now to bring it to `wanted`; if so, it counts as under way.
    ///
    /// `is_certain`: whether it is known that nobody wants anything else. Until then what an
    /// earlier process may have left stays.
    pub(super) fn begin(
        &mut self,
        wanted: Option<&'static str>,
        is_certain: bool,
        now: Instant,
    ) -> bool {
        if !self.turn.is_free(now) {
            return false;
        }
        let is_as_wanted = self.standing == Standing::Known(wanted);
        let is_due = !is_as_wanted && (wanted.is_some() || is_certain);
        if is_due {
            self.turn.begin();
        }
        is_due
    }

    /// Takes in the answer; returns whether it is the first failure in a row.
    pub(super) fn end(
        &mut self,
        wanted: Option<&'static str>,
        answer: &Result<(), MarkError>,
        now: Instant,
    ) -> bool {
        if answer.is_ok() {
            self.standing = Standing::Known(wanted);
            self.turn.succeed();
            return false;
        }
        // What stands now is anybody's guess.
        self.standing = Standing::Unknown;
        self.turn.fail(now)
    }

    /// Whether it stands, whatever the reason.
    pub(super) fn stands(&self) -> bool {
        matches!(self.standing, Standing::Known(Some(_)))
    }

    /// When a failed call is repeated.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.turn.next_due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Option<&str> = Some("swap");

    fn failure() -> Result<(), MarkError> {
        let node = "n1".parse().expect("valid");
        Err(MarkError { node, problem: "away".to_owned() })
    }

    #[test]
    fn one_call_at_a_time_and_none_when_it_stands() {
        let now = Instant::now();
        let mut upkeep = Upkeep::new();
        assert!(upkeep.begin(WANTED, false, now));
        assert!(!upkeep.begin(WANTED, false, now), "one is under way");
        assert!(!upkeep.end(WANTED, &Ok(()), now));
        assert!(upkeep.stands() && !upkeep.begin(WANTED, true, now));
        assert!(upkeep.begin(None, true, now), "nothing is wanted any more");
    }

    #[test]
    fn what_an_earlier_process_left_stays_until_nobody_wants_it_for_certain() {
        let now = Instant::now();
        let mut upkeep = Upkeep::new();
        assert!(!upkeep.begin(None, false, now));
        assert!(upkeep.begin(None, true, now));
    }

    #[test]
    fn failed_call_is_repeated_after_a_pause_and_told_once() {
        let now = Instant::now();
        let mut upkeep = Upkeep::new();
        assert!(upkeep.begin(WANTED, true, now));
        assert!(upkeep.end(WANTED, &failure(), now));
        assert!(!upkeep.begin(WANTED, true, now));
        let later = upkeep.next_due().expect("a retry");
        assert!(later <= now + PAUSE_MIN && upkeep.begin(WANTED, true, later));
        assert!(!upkeep.end(WANTED, &failure(), later), "not the first in a row");
    }
}
