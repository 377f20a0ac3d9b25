//! Scheduled maintenance: what `events/maintenance/scheduled` says, and which event counts.
//!
//! The body is an array of events, or nothing at all. Times look like `8 May 2020 16:00:00 GMT`,
//! the day without a leading zero.

use serde::Deserialize;

use crate::notice::{Announcement, NoticeError, NoticeKind};
use crate::object::{Object, without_mark};
use crate::time::UnixMillis;

/// What is read, for messages.
const RESOURCE: &str = "events/maintenance/scheduled";

/// How its times are written.
const TIME_FORMAT: &str = "%d %b %Y %H:%M:%S GMT";

/// An event that is still to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledEvent {
    /// Its id, such as `instance-event-0d59937288b749b32`.
    pub id: String,
    /// Its code, such as `system-reboot`.
    pub code: String,
    /// When it begins at the earliest, UTC.
    pub not_before: UnixMillis,
}

impl ScheduledEvent {
    /// Whether the instance is given up because its hardware is degraded, so that leaving early
    /// may be better than waiting.
    pub fn is_retirement(&self) -> bool {
        matches!(self.code.as_str(), "instance-retirement" | "instance-stop")
    }

    fn announcement(&self) -> Announcement {
        let kind =
            if self.is_retirement() { NoticeKind::Retirement } else { NoticeKind::Maintenance };
        Announcement { kind, time: Some(self.not_before) }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EventBody {
    #[serde(default)]
    event_id: String,
    code: String,
    not_before: String,
    #[serde(default)]
    state: String,
}

/// Reads `events/maintenance/scheduled`: the events that are neither completed nor canceled. An
/// empty body and `[]` both say that there are none.
///
/// # Errors
/// Not a JSON array of events with `Code` and a `NotBefore` in GMT.
pub fn parse_scheduled_events(body: &str) -> Result<Vec<ScheduledEvent>, NoticeError> {
    let list = without_mark(body).trim();
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let error = |problem: String| {
        let expected = r#"[{"Code":"system-reboot","NotBefore":"21 Jan 2019 09:00:43 GMT"}]"#;
        NoticeError::of(RESOURCE, expected, &problem, body)
    };
    let events: Vec<Object<EventBody>> =
        serde_json::from_str(list).map_err(|problem| error(problem.to_string()))?;
    let ahead = events.into_iter().map(|Object(event)| event);
    let ahead = ahead.filter(|event| !is_over(&event.state));
    ahead.map(|event| read_event(event).map_err(error)).collect()
}

/// A state that is not documented is taken for one that is still to come.
fn is_over(state: &str) -> bool {
    matches!(state, "completed" | "canceled")
}

fn read_event(event: EventBody) -> Result<ScheduledEvent, String> {
    let problem = || format!("NotBefore is {:?}", event.not_before);
    let time = jiff::civil::DateTime::strptime(TIME_FORMAT, event.not_before.trim());
    let time = time.and_then(|time| jiff::tz::TimeZone::UTC.to_timestamp(time));
    let since_epoch = time.ok().and_then(|time| u64::try_from(time.as_millisecond()).ok());
    let not_before = UnixMillis(since_epoch.ok_or_else(problem)?);
    Ok(ScheduledEvent { id: event.event_id, code: event.code, not_before })
}

/// The event that counts, in whatever order they come: the one that begins first, of several the
/// retirement. `leaves_early`: a retirement goes before all others, since the node leaves at its
/// announcement.
pub fn next_event(events: &[ScheduledEvent], leaves_early: bool) -> Option<Announcement> {
    let rank = |event: &&ScheduledEvent| {
        let comes_after = !event.is_retirement();
        (leaves_early && comes_after, event.not_before, comes_after)
    };
    events.iter().min_by_key(rank).map(ScheduledEvent::announcement)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(code: &str, not_before: &str, state: &str) -> String {
        format!(
            r#"{{"NotBefore":"{not_before}","Code":"{code}","Description":"d","EventId":"e-{code}",
                "NotAfter":"21 Jan 2030 09:17:23 GMT","State":"{state}"}}"#
        )
    }

    fn read(events: &[String]) -> Vec<ScheduledEvent> {
        parse_scheduled_events(&format!("[{}]", events.join(","))).expect("documented")
    }

    /// Case 23.
    #[test]
    fn one_digit_day_is_read() {
        let events = read(&[event("system-reboot", "8 May 2020 16:00:00 GMT", "active")]);
        assert_eq!(events[0].not_before, UnixMillis(1_588_953_600_000));
        let padded = read(&[event("system-reboot", "08 May 2020 16:00:00 GMT", "active")]);
        assert_eq!(padded, events);
    }

    /// Case 11.
    #[test]
    fn empty_body_and_empty_list_say_that_nothing_is_planned() {
        for body in ["", " \n", "[]", "[\n]\n"] {
            assert_eq!(parse_scheduled_events(body), Ok(Vec::new()), "{body:?}");
        }
    }

    #[test]
    fn missing_optional_members_and_unknown_codes_do_not_hide_an_event() {
        let body = r#"[{"Code":"instance-teleport","NotBefore":"21 Jan 2019 09:00:43 GMT"}]"#;
        let events = parse_scheduled_events(body).expect("readable");
        let announced = next_event(&events, true).expect("one is ahead");
        assert_eq!(announced.kind, NoticeKind::Maintenance);
    }

    #[test]
    fn completed_and_canceled_events_do_not_count() {
        let over = ["completed", "canceled"];
        let over = over.map(|state| event("system-reboot", "8 May 2020 16:00:00 GMT", state));
        assert!(read(&over).is_empty());
    }

    #[test]
    fn event_that_begins_first_counts_and_an_early_retirement_before_it() {
        let events = read(&[
            event("instance-retirement", "9 May 2020 16:00:00 GMT", "active"),
            event("system-maintenance", "8 May 2020 16:00:00 GMT", "active"),
        ]);
        let kind = |early| next_event(&events, early).map(|announced| announced.kind);
        assert_eq!(kind(false), Some(NoticeKind::Maintenance));
        assert_eq!(kind(true), Some(NoticeKind::Retirement));
        assert_eq!(next_event(&[], true), None);
    }
}
