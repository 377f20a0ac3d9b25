//! Bodies and members that are plain text: target states, and moments in AWS's several forms.

use ebbtide_core::event::{Happening, parse_event};
use ebbtide_core::maintenance::parse_scheduled_events;
use ebbtide_core::notice::{parse_instance_action, parse_rebalance, parse_target_lifecycle};
use ebbtide_core::time::UnixMillis;
use proptest::prelude::*;

use crate::cases;
use crate::documented::health;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A day and a time of day, as numbers, possibly of a day that there is not.
#[derive(Debug, Clone, Copy)]
struct Moment {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    /// Reckoned without a library: days since 1970 of the proleptic Gregorian calendar.
    fn since_epoch(self) -> UnixMillis {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let of_era = year.rem_euclid(400);
        let day_of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + day_of_year;
        let days = year.div_euclid(400) * 146_097 + day_of_era - 719_468;
        let seconds = days * 86_400 + self.hour * 3600 + self.minute * 60 + self.second;
        UnixMillis(u64::try_from(seconds).unwrap() * 1000)
    }

    fn exists(self) -> bool {
        let is_leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let days = match self.month {
            2 if is_leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        self.day <= days
    }

    fn date(self, day: &str) -> String {
        let Self { year, hour, minute, second, .. } = self;
        let month = MONTHS[usize::try_from(self.month).unwrap() - 1];
        format!("{day} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
    }
}

fn moment() -> impl Strategy<Value = Moment> {
    let date = (1970..=9999_i64, 1..=12_i64, 1..=31_i64);
    (date, 0..=23_i64, 0..=59_i64, 0..=59_i64).prop_map(
        |((year, month, day), hour, minute, second)| Moment {
            year,
            month,
            day,
            hour,
            minute,
            second,
        },
    )
}

fn not_before(text: &str) -> Option<UnixMillis> {
    let body = format!(r#"[{{"Code":"system-reboot","NotBefore":"{text}"}}]"#);
    parse_scheduled_events(&body).ok().map(|events| events[0].not_before)
}

fn starts_at(text: &str) -> Option<UnixMillis> {
    let body = health("c-1", "").replace("Sat, 05 Jun 2016 15:10:09 GMT", text);
    match parse_event(&body).ok()?.happening {
        Happening::Maintenance(maintenance) => Some(maintenance.starts_at),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Case 23, for every day there is and some that there are not.
    #[test]
    fn dates_are_read_with_and_without_a_leading_zero(at in moment()) {
        let expected = at.exists().then(|| at.since_epoch());
        for day in [at.day.to_string(), format!("{:02}", at.day)] {
            let text = at.date(&day);
            prop_assert_eq!(not_before(&text), expected, "{}", text);
            prop_assert_eq!(starts_at(&text), expected, "{}", text);
            for weekday in ["Mon", "Sun"] {
                let text = format!("{weekday}, {text}");
                prop_assert_eq!(starts_at(&text), expected, "{}", text);
                prop_assert_eq!(not_before(&text), None, "{}", text);
            }
        }
    }

    /// What is read means what its words say, however odd it looks.
    #[test]
    fn odd_dates_are_refused_or_mean_what_they_say(
        day in " ?[-+]?[0-9]{0,3}(st)?",
        month in "[A-Z][a-z]{2}|Jan|FEB|mar|April|5",
        year in "-?[0-9]{2}|2[0-9]{3}|[0-9]{5}",
        time in "[0-2]?[0-9]:[0-9]{1,2}(:[0-9]{1,3})?",
        zone in " GMT|GMT| UTC| EST| [+]0100|| GMT [+]1| GMT ",
    ) {
        let text = format!("{day} {month} {year} {time}{zone}");
        let Some(read) = not_before(&text) else { return Ok(()) };
        let text = text.replace("GMT", " GMT");
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |text: &str| text.parse::<i64>().unwrap_or_else(|_| panic!("{text}"));
        let is_it = |name: &&str| name.eq_ignore_ascii_case(words[1]);
        let month = MONTHS.iter().position(is_it).expect("a month");
        let clock: Vec<i64> = words[3].split(':').map(number).collect();
        let at = Moment {
            year: number(words[2]),
            month: i64::try_from(month).unwrap() + 1,
            day: number(words[0]),
            hour: clock[0],
            minute: clock[1],
            second: clock[2],
        };
        prop_assert!(at.exists() && words.len() == 5 && words[4] == "GMT", "{}", text);
        prop_assert_eq!(read, at.since_epoch(), "{}", text);
    }

    #[test]
    fn moment_is_the_same_whatever_its_offset(at in moment(), minutes in -1439..=1439_i64) {
        prop_assume!(at.exists() && at.year > 1970 && at.year < 9999);
        let millis = i64::try_from(at.since_epoch().0).unwrap();
        let local = jiff::Timestamp::from_millisecond(millis + minutes * 60_000).unwrap();
        let local = local.to_string().replace('Z', "");
        let (sign, minutes) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
        let offset = format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60);
        for (text, time) in [(format!("{local}{offset}"), Some(at.since_epoch())), (local, None)] {
            let action = format!(r#"{{"action":"stop","time":"{text}"}}"#);
            prop_assert_eq!(parse_instance_action(&action).ok().and_then(|it| it.time), time);
            let recommended = format!(r#"{{"noticeTime":"{text}"}}"#);
            prop_assert_eq!(parse_rebalance(&recommended).ok().and_then(|it| it.time), time);
        }
    }

    #[test]
    fn target_state_is_a_documented_word_or_refused(
        before in "\u{feff}?[ \t\r\n]{0,3}",
        word in "Terminated|InService|Warmed:(Terminated|Stopped)|terminated|TERMINATED|\\PC{0,20}",
        after in "[ \t\r\n]{0,3}",
    ) {
        let read = parse_target_lifecycle(&format!("{before}{word}{after}"));
        let leaves = ["Terminated", "Warmed:Terminated"];
        let stays = ["InService", "Detached", "Standby", "Warmed:Stopped"];
        match read {
            Ok(Some(_)) => prop_assert!(leaves.contains(&word.trim()), "{}", word),
            Ok(None) => prop_assert!(stays.contains(&word.trim()), "{}", word),
            Err(_) => {
                prop_assert!(!leaves.contains(&word.as_str()) && !stays.contains(&word.as_str()));
            }
        }
    }
}
