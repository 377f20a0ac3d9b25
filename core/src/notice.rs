//! Interruption notices: what a metadata body says, and how much time it leaves.
//!
//! Bodies come from outside and may be anything: parsing never panics and never guesses. Words
//! count only as AWS writes them; the order of members, further members, white space around the
//! value and a byte order mark change nothing. All moments here are on the node's clock, which may
//! be wrong; that is why the effective deadline of a Spot notice is bounded by the moment at which
//! it was first seen, and only ever becomes earlier.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::object::{read_object, without_mark};
use crate::time::UnixMillis;

/// Longest time that EC2 gives a Spot instance after the notice.
pub const SPOT_LEAD_MAX: Duration = Duration::from_secs(120);

/// Characters of a foreign body, and of what is wrong with it, that an error repeats.
const SHOWN_CHARACTERS: usize = 120;

/// What is going to happen to the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NoticeKind {
    /// EC2 terminates the Spot instance.
    SpotTerminate,
    /// EC2 stops the Spot instance.
    SpotStop,
    /// EC2 hibernates the Spot instance, beginning at once.
    SpotHibernate,
    /// Its Auto Scaling group takes the instance out.
    AsgTermination,
    /// Maintenance of the instance or of its host begins.
    Maintenance,
    /// AWS gives the instance up, since its hardware is degraded.
    Retirement,
    /// The risk of an interruption has risen; nothing is planned yet.
    Rebalance,
    /// Another handler (Karpenter, a managed node group) empties the node.
    Foreign,
    /// Somebody deletes an engine's pod; the node itself may stay.
    EngineDeleted,
}

impl NoticeKind {
    /// All kinds, for metrics with closed label sets.
    pub const ALL: [Self; 9] = [
        Self::SpotTerminate,
        Self::SpotStop,
        Self::SpotHibernate,
        Self::AsgTermination,
        Self::Maintenance,
        Self::Retirement,
        Self::Rebalance,
        Self::Foreign,
        Self::EngineDeleted,
    ];

    /// The word in records, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SpotTerminate => "spot_terminate",
            Self::SpotStop => "spot_stop",
            Self::SpotHibernate => "spot_hibernate",
            Self::AsgTermination => "asg_termination",
            Self::Maintenance => "maintenance",
            Self::Retirement => "retirement",
            Self::Rebalance => "rebalance",
            Self::Foreign => "foreign",
            Self::EngineDeleted => "engine_deleted",
        }
    }
}

/// What a metadata body says, before it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// What is going to happen.
    pub kind: NoticeKind,
    /// The time in the body: of the interruption, or of the recommendation. Some have none.
    pub time: Option<UnixMillis>,
}

/// A body that says nothing that is known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{resource} must be {expected}, got {got:?}: {problem}")]
pub struct NoticeError {
    resource: &'static str,
    expected: &'static str,
    problem: String,
    got: String,
}

impl NoticeError {
    /// `problem`: which part of the body is not as expected, and where.
    pub(crate) fn of(
        resource: &'static str,
        expected: &'static str,
        problem: &str,
        body: &str,
    ) -> Self {
        let got = body.chars().take(SHOWN_CHARACTERS).collect();
        Self { resource, expected, problem: without_middle(problem), got }
    }
}

/// A problem may repeat what came, and where it is stands at its end.
fn without_middle(problem: &str) -> String {
    let length = problem.chars().count();
    if length <= SHOWN_CHARACTERS {
        return problem.to_owned();
    }
    let half = SHOWN_CHARACTERS / 2;
    let start: String = problem.chars().take(half).collect();
    let end: String = problem.chars().skip(length - half).collect();
    format!("{start} … {end}")
}

#[derive(Deserialize)]
struct InstanceActionBody {
    action: String,
    time: jiff::Timestamp,
}

#[derive(Deserialize)]
struct RebalanceBody {
    #[serde(rename = "noticeTime")]
    notice_time: jiff::Timestamp,
}

/// Reads `spot/instance-action`.
///
/// # Errors
/// Not a JSON object with a known `action` and a UTC `time`.
pub fn parse_instance_action(body: &str) -> Result<Announcement, NoticeError> {
    let error = |problem: String| {
        let expected = r#"{"action":"terminate|stop|hibernate","time":"2017-09-18T08:22:00Z"}"#;
        NoticeError::of("spot/instance-action", expected, &problem, body)
    };
    let parsed: InstanceActionBody =
        read_object(body).map_err(|problem| error(problem.to_string()))?;
    let kind = match parsed.action.as_str() {
        "terminate" => NoticeKind::SpotTerminate,
        "stop" => NoticeKind::SpotStop,
        "hibernate" => NoticeKind::SpotHibernate,
        other => return Err(error(format!("unknown action {other:?}"))),
    };
    Ok(Announcement { kind, time: Some(millis_of(parsed.time)) })
}

/// Reads `events/recommendations/rebalance`.
///
/// # Errors
/// Not a JSON object with a UTC `noticeTime`.
pub fn parse_rebalance(body: &str) -> Result<Announcement, NoticeError> {
    let parsed: RebalanceBody = read_object(body).map_err(|problem| {
        let expected = r#"{"noticeTime":"2020-11-05T08:22:00Z"}"#;
        NoticeError::of("events/recommendations/rebalance", expected, &problem.to_string(), body)
    })?;
    Ok(Announcement { kind: NoticeKind::Rebalance, time: Some(millis_of(parsed.notice_time)) })
}

/// Reads `autoscaling/target-lifecycle-state`; `None` when the instance stays with its group.
///
/// # Errors
/// A state that AWS does not document.
pub fn parse_target_lifecycle(body: &str) -> Result<Option<Announcement>, NoticeError> {
    match without_mark(body).trim() {
        "Terminated" | "Warmed:Terminated" => {
            Ok(Some(Announcement { kind: NoticeKind::AsgTermination, time: None }))
        }
        "InService" | "Detached" | "Standby" | "Warmed:Hibernated" | "Warmed:Running"
        | "Warmed:Stopped" => Ok(None),
        other => {
            let expected = "a documented target state such as InService or Terminated";
            let problem = format!("unknown state {other:?}");
            Err(NoticeError::of("autoscaling/target-lifecycle-state", expected, &problem, body))
        }
    }
}

fn millis_of(time: jiff::Timestamp) -> UnixMillis {
    UnixMillis(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

/// A notice as the node acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterruptionNotice {
    /// What is going to happen.
    pub kind: NoticeKind,
    /// When the instance is lost; `None` for a rebalance recommendation, which says no time.
    pub deadline: Option<UnixMillis>,
    /// When the agent saw the notice first.
    pub first_seen: UnixMillis,
}

impl InterruptionNotice {
    /// The notice that an announcement makes at its first sight, `now`.
    ///
    /// `asg_deadline`: time that a `Terminated` target state leaves, since no body says it.
    pub fn first_sight(
        announcement: Announcement,
        asg_deadline: Duration,
        now: UnixMillis,
    ) -> Self {
        let mut notice = Self { kind: announcement.kind, deadline: None, first_seen: now };
        notice.deadline = notice.deadline_by(announcement, asg_deadline, now);
        notice
    }

    /// Takes in a later sighting of the same source: the deadline only becomes earlier, so that a
    /// time which moves with every read is still one drain. Returns whether anything changed.
    pub fn see_again(
        &mut self,
        announcement: Announcement,
        asg_deadline: Duration,
        now: UnixMillis,
    ) -> bool {
        let before = *self;
        self.kind = announcement.kind;
        self.deadline = match (self.deadline, self.deadline_by(announcement, asg_deadline, now)) {
            (Some(known), Some(seen)) => Some(known.min(seen)),
            (known, seen) => known.or(seen),
        };
        *self != before
    }

    /// Time left from `now` until the instance is lost; zero when that moment has passed, `None`
    /// when no moment is known.
    pub fn remaining(&self, now: UnixMillis) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.remaining(now))
    }

    /// The effective deadline: whatever the clock says, EC2 never leaves more than
    /// [`SPOT_LEAD_MAX`] after its notice, and hibernation begins at once.
    fn deadline_by(
        &self,
        announcement: Announcement,
        asg_deadline: Duration,
        now: UnixMillis,
    ) -> Option<UnixMillis> {
        let latest = self.first_seen.plus(SPOT_LEAD_MAX);
        match announcement.kind {
            NoticeKind::SpotTerminate | NoticeKind::SpotStop => {
                Some(announcement.time.map_or(latest, |time| time.min(latest)))
            }
            NoticeKind::SpotHibernate => Some(now),
            NoticeKind::AsgTermination => Some(self.first_seen.plus(asg_deadline)),
            NoticeKind::Maintenance | NoticeKind::Retirement => announcement.time,
            // Metadata says nothing of other handlers; what they leave is known elsewhere.
            NoticeKind::Rebalance | NoticeKind::Foreign | NoticeKind::EngineDeleted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASG_DEADLINE: Duration = Duration::from_secs(90);
    const NOW: UnixMillis = UnixMillis(1_000_000_000);

    fn spot(kind: NoticeKind, time: UnixMillis) -> Announcement {
        Announcement { kind, time: Some(time) }
    }

    #[test]
    fn documented_bodies_are_read() {
        let action = |name: &str| {
            let body =
                format!("{{\n\t\"action\": \"{name}\",\n\t\"time\": \"1970-01-01T00:00:07Z\"\n}}");
            parse_instance_action(&body).map(|read| (read.kind, read.time))
        };
        let time = Some(UnixMillis(7000));
        assert_eq!(action("terminate"), Ok((NoticeKind::SpotTerminate, time)));
        assert_eq!(action("stop"), Ok((NoticeKind::SpotStop, time)));
        assert_eq!(action("hibernate"), Ok((NoticeKind::SpotHibernate, time)));
        let rebalance = parse_rebalance(r#"{"noticeTime":"1970-01-01T00:00:07Z"}"#);
        assert_eq!(rebalance, Ok(spot(NoticeKind::Rebalance, UnixMillis(7000))));
    }

    #[test]
    fn only_termination_of_the_target_state_is_a_notice() {
        let is_notice = |body| parse_target_lifecycle(body).map(|read| read.is_some());
        assert_eq!(is_notice("Terminated\n"), Ok(true));
        assert_eq!(is_notice("Warmed:Terminated"), Ok(true));
        for body in ["InService", "Detached", "Standby", "Warmed:Running", "Warmed:Stopped"] {
            assert_eq!(is_notice(body), Ok(false), "{body}");
        }
        assert!(is_notice("<?xml version").is_err());
    }

    #[test]
    fn error_repeats_what_came_in_bounded_length() {
        let error = parse_instance_action(&"x".repeat(10_000)).expect_err("no JSON");
        assert!(error.to_string().contains("spot/instance-action"), "{error}");
        assert!(error.to_string().len() < 400, "{error}");
    }

    #[test]
    fn wrong_clock_never_gives_more_than_the_longest_lead() {
        // The clock of the node, relative to the truth; the interruption is 100 s away.
        for skew_seconds in [-90_i64, 0, 90] {
            let time = UnixMillis(NOW.0.saturating_add_signed((100 - skew_seconds) * 1000));
            let announcement = spot(NoticeKind::SpotTerminate, time);
            let notice = InterruptionNotice::first_sight(announcement, ASG_DEADLINE, NOW);
            let remaining = notice.remaining(NOW).expect("a Spot notice has a deadline");
            assert!(remaining <= SPOT_LEAD_MAX, "skew {skew_seconds} left {remaining:?}");
        }
    }

    #[test]
    fn hibernation_and_past_times_mean_now() {
        let later = NOW.plus(Duration::from_secs(60));
        for announcement in
            [spot(NoticeKind::SpotHibernate, later), spot(NoticeKind::SpotTerminate, UnixMillis(5))]
        {
            let notice = InterruptionNotice::first_sight(announcement, ASG_DEADLINE, NOW);
            assert_eq!(notice.remaining(NOW), Some(Duration::ZERO), "{announcement:?}");
        }
    }

    #[test]
    fn moving_time_keeps_the_earliest_deadline() {
        let lead = Duration::from_secs(110);
        let sight = |now: UnixMillis| spot(NoticeKind::SpotTerminate, now.plus(lead));
        let mut notice = InterruptionNotice::first_sight(sight(NOW), ASG_DEADLINE, NOW);
        let first = notice.deadline;
        for seconds in 1..30 {
            let now = NOW.plus(Duration::from_secs(seconds));
            assert!(!notice.see_again(sight(now), ASG_DEADLINE, now));
        }
        assert_eq!(notice.deadline, first);
    }

    #[test]
    fn asg_termination_counts_from_first_sight_and_rebalance_has_no_deadline() {
        let announcement = Announcement { kind: NoticeKind::AsgTermination, time: None };
        let notice = InterruptionNotice::first_sight(announcement, ASG_DEADLINE, NOW);
        assert_eq!(notice.remaining(NOW), Some(ASG_DEADLINE));
        let announcement = spot(NoticeKind::Rebalance, NOW);
        let notice = InterruptionNotice::first_sight(announcement, ASG_DEADLINE, NOW);
        assert_eq!(notice.remaining(NOW), None);
    }
}
