//! Durations as people write them: `250ms`, `90s`, `2m`, `1h30m`.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::time::whole_millis;

/// Units from large to small, with their length in milliseconds.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("must be a duration such as 90s or 1h30m, got {got}{hint}")]
pub struct DurationError {
    got: String,
    hint: &'static str,
}

/// Reads whole numbers with units, the larger unit first, each unit once.
///
/// # Errors
/// When the text is anything else; a bare number has no unit and is refused too.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let refuse = |hint| DurationError { got: in_words(text), hint };
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    if is_number(text) {
        return Err(refuse("; add a unit: ms, s, m or h"));
    }
    if text.contains('.') {
        return Err(refuse("; use a smaller unit instead of a fraction"));
    }
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut total_ms: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_where(rest, |c| !c.is_ascii_digit());
        let (unit, after) = split_where(after, |c| !c.is_ascii_alphabetic());
        let Some((_, unit_ms)) = units.find(|(name, _)| *name == unit) else {
            return Err(refuse("; the units are h, m, s and ms, in this order"));
        };
        let number: u64 = number.parse().map_err(|_| refuse(""))?;
        let part_ms = number.checked_mul(*unit_ms).ok_or_else(|| refuse(""))?;
        total_ms = total_ms.checked_add(part_ms).ok_or_else(|| refuse(""))?;
        rest = after;
    }
    if text.is_empty() { Err(refuse("")) } else { Ok(Duration::from_millis(total_ms)) }
}

fn in_words(text: &str) -> String {
    if text.is_empty() { "nothing".to_owned() } else { super::section::shorten(text) }
}

fn split_where(text: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

/// Shows a duration as [`parse_duration`] reads it, in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Written(pub Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest_ms = whole_millis(self.0);
        if rest_ms == 0 {
            return f.write_str("0s");
        }
        for (unit, unit_ms) in UNITS {
            let count = rest_ms / unit_ms;
            rest_ms %= unit_ms;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_add_up() {
        let table = [("250ms", 250), ("90s", 90_000), ("2m", 120_000), ("1h30m", 5_400_000)];
        for (text, expected_ms) in table {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(expected_ms)), "{text}");
        }
    }

    #[test]
    fn anything_but_whole_numbers_with_falling_units_is_refused() {
        let texts = ["", "90", "0", "1.5s", "s", "5d", "5 s", "5s2m", "1s1s", "-5s", "+5s", "5S"];
        for text in texts {
            assert!(parse_duration(text).is_err(), "{text:?} must be refused");
        }
        assert!(parse_duration("99999999999999999999s").is_err());
        assert!(parse_duration("18446744073709551615h").is_err());
    }

    #[test]
    fn the_message_helps() {
        let message = |text| parse_duration(text).expect_err("refused").to_string();
        assert_eq!(
            message("90"),
            "must be a duration such as 90s or 1h30m, got 90; add a unit: ms, s, m or h"
        );
        assert!(message("1.5s").ends_with("; use a smaller unit instead of a fraction"));
        assert!(message("5d").ends_with("; the units are h, m, s and ms, in this order"));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(ms in 0..10_000_000_000_u64) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&Written(duration).to_string()), Ok(duration));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = parse_duration(&text);
        }
    }
}
