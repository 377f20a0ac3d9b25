//! Numbers, spans of time and lists as people read them.

use std::time::Duration;

/// A number with its noun, in the plural where that is due.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(number))
}

/// A number with a comma at every thousand.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A span of time in the one unit that tells most: `3.2 s`, `95 s`, `12 min`, `31 h`, `5 d`.
pub fn span(time: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / MINUTE),
        7200..172_800 => format!("{} h", seconds / HOUR),
        _ => format!("{} d", seconds / (24 * HOUR)),
    }
}

/// Parts joined by `separator` into lines of at most `width` characters; a part is never broken.
pub fn flow(parts: &[String], separator: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        let piece = if is_last { part.clone() } else { format!("{part}{separator}") };
        let room = width.saturating_sub(piece.trim_end().chars().count());
        match lines.last_mut().filter(|line| line.chars().count() <= room) {
            Some(line) => line.push_str(&piece),
            None => lines.push(piece),
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_parted() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1234567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }

    #[test]
    fn spans_are_told_in_the_unit_that_tells_most() {
        let table = [
            (350, "0.3 s"),
            (3_210, "3.2 s"),
            (95_000, "95 s"),
            (720_000, "12 min"),
            (7_300_000, "2 h"),
            (432_000_000, "5 d"),
        ];
        for (ms, text) in table {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn long_lists_flow_into_lines() {
        let parts: Vec<String> = ["aaaa", "bbbb", "cccc"].map(String::from).into();
        assert_eq!(flow(&parts, " + ", 20), ["aaaa + bbbb + cccc"]);
        assert_eq!(flow(&parts, " + ", 13), ["aaaa + bbbb +", "cccc"]);
        assert_eq!(flow(&parts, " + ", 3), ["aaaa +", "bbbb +", "cccc"]);
        assert!(flow(&[], ", ", 10).is_empty());
    }
}
