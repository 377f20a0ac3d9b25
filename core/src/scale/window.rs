//! Stabilisation: the largest or smallest wish of the last while, in bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

/// Which wish of the window counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// The largest: nothing is given up before it was unneeded all along.
    Largest,
    /// The smallest: nothing is ordered before it was needed all along.
    Smallest,
}

/// Wishes with the counted time at which each was made; only those are kept that can still become
/// the answer, so that their number is bounded by that of distinct wishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WishWindow {
    keep: Keep,
    began_at: Option<Duration>,
    wishes: VecDeque<(Duration, u32)>,
}

impl WishWindow {
    pub fn new(keep: Keep) -> Self {
        Self { keep, began_at: None, wishes: VecDeque::new() }
    }

    /// Adds a wish made at `at` and forgets what is older than `length`.
    pub fn push(&mut self, wish: u32, length: Duration, at: Duration) {
        self.began_at.get_or_insert(at);
        let keep = self.keep;
        let is_beaten = |old: u32| match keep {
            Keep::Largest => old <= wish,
            Keep::Smallest => old >= wish,
        };
        while self.wishes.back().is_some_and(|(_, old)| is_beaten(*old)) {
            self.wishes.pop_back();
        }
        self.wishes.push_back((at, wish));
        while self.wishes.front().is_some_and(|(made_at, _)| *made_at + length < at) {
            self.wishes.pop_front();
        }
    }

    /// The wish that counts; `None` until the window has been watched over its whole length.
    pub fn settled(&self, length: Duration, at: Duration) -> Option<u32> {
        let began_at = self.began_at?;
        if began_at + length > at {
            return None;
        }
        self.wishes.front().map(|(_, wish)| *wish)
    }

    /// Counted time until [`Self::settled`] gives an answer, or the counting wish is forgotten.
    pub fn remaining(&self, length: Duration, at: Duration) -> Duration {
        let from = match (self.began_at, self.wishes.front()) {
            (Some(began_at), _) if began_at + length > at => began_at,
            (_, Some((made_at, _))) => *made_at,
            _ => at,
        };
        (from + length).saturating_sub(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_settled_before_the_window_is_full() {
        let mut window = WishWindow::new(Keep::Largest);
        window.push(3, SECOND * 10, SECOND);
        assert_eq!(window.settled(SECOND * 10, SECOND * 9), None);
        assert_eq!(window.remaining(SECOND * 10, SECOND * 9), SECOND * 2);
        assert_eq!(window.settled(SECOND * 10, SECOND * 11), Some(3));
    }

    #[test]
    fn window_of_no_length_answers_with_the_last_wish() {
        let mut window = WishWindow::new(Keep::Largest);
        window.push(9, Duration::ZERO, SECOND);
        window.push(4, Duration::ZERO, SECOND * 2);
        assert_eq!(window.settled(Duration::ZERO, SECOND * 2), Some(4));
    }

    proptest! {
        #[test]
        fn answers_as_a_plain_search_does(
            wishes in proptest::collection::vec(0..20_u32, 1..60),
            length in 0..20_u32,
        ) {
            let length = SECOND * length;
            for keep in [Keep::Largest, Keep::Smallest] {
                let mut window = WishWindow::new(keep);
                for (index, wish) in wishes.iter().enumerate() {
                    let at = SECOND * u32::try_from(index).expect("few");
                    window.push(*wish, length, at);
                    let seen = wishes[..=index].iter().enumerate();
                    let recent = seen
                        .filter(|(made, _)| {
                            SECOND * u32::try_from(*made).expect("few") + length >= at
                        })
                        .map(|(_, wish)| *wish);
                    let expected = match keep {
                        Keep::Largest => recent.max(),
                        Keep::Smallest => recent.min(),
                    };
                    let expected = if length > at { None } else { expected };
                    prop_assert_eq!(window.settled(length, at), expected);
                }
            }
        }
    }
}
