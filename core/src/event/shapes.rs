//! The shapes in which an event comes, told apart by their members alone.
//!
//! Each shape has a member that no other has; a body with those of two shapes is refused, since
//! nobody can say which is meant. Instances are read from `detail`: ARNs come in several forms.
//! `version` may be absent.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::health::{HealthDetail, read_health};
use super::{Event, Happening, InterruptionAction, LifecycleAction, MachineState, Transition};
use crate::notice::NoticeError;
use crate::object::{Object, read_object};
use crate::observation::InstanceId;
use crate::time::UnixMillis;

/// Longest name of a group or hook, and longest token, in characters: the limit of AWS.
const NAME_LIMIT: usize = 255;

/// Longest [`Event::id`], in characters.
const ID_LIMIT: usize = 96;

/// What Auto Scaling sends when a hook is created.
const TEST_NOTIFICATION: &str = "autoscaling:TEST_NOTIFICATION";

/// What a lifecycle action must be, for messages.
const LIFECYCLE: &str = "a lifecycle action with EC2InstanceId, AutoScalingGroupName, \
                         LifecycleHookName and LifecycleTransition";

/// The members that tell the shapes apart.
#[derive(Deserialize)]
struct Marks {
    #[serde(rename = "Message")]
    message: Option<IgnoredAny>,
    #[serde(rename = "detail-type")]
    detail_type: Option<IgnoredAny>,
    #[serde(rename = "LifecycleTransition")]
    transition: Option<IgnoredAny>,
    #[serde(rename = "Event")]
    event: Option<IgnoredAny>,
}

/// What SNS delivers.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Notification {
    r#type: String,
    message: String,
}

/// What EventBridge delivers, but for the detail.
#[derive(Deserialize)]
pub(super) struct Envelope {
    #[serde(default)]
    pub id: String,
    #[serde(rename = "detail-type")]
    pub detail_type: String,
    #[serde(default)]
    pub account: String,
    pub time: Option<jiff::Timestamp>,
    #[serde(default)]
    pub resources: Vec<String>,
}

/// The detail, once its type is known.
#[derive(Deserialize)]
struct WithDetail<T> {
    detail: Object<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct InstanceDetail {
    instance_id: String,
    instance_action: Option<String>,
    state: Option<String>,
}

/// Which word of Auto Scaling a body is.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AutoScalingBody {
    event: Option<String>,
    lifecycle_transition: Option<String>,
    #[serde(default)]
    request_id: String,
}

/// A lifecycle action, as the detail of an envelope or as a whole body.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LifecycleBody {
    #[serde(rename = "EC2InstanceId")]
    instance_id: String,
    auto_scaling_group_name: String,
    lifecycle_hook_name: String,
    lifecycle_action_token: Option<String>,
    lifecycle_transition: String,
    time: Option<jiff::Timestamp>,
}

/// Reads the body of a message.
///
/// # Errors
/// Not one of the shapes that AWS documents; the error says what is wrong, and repeats the
/// beginning of what came.
pub fn parse_event(body: &str) -> Result<Event, NoticeError> {
    let marks: Marks = read(body, "a JSON object", body)?;
    if marks.message.is_none() {
        return read_event(body, &marks);
    }
    let expected = "an SNS notification whose Message is an event";
    let notification: Notification = read(body, expected, body)?;
    if notification.r#type != "Notification" || marks.shapes() > 1 {
        let problem = format!("Type is {:?}, of {} shapes", notification.r#type, marks.shapes());
        return Err(refuse(expected, &problem, body));
    }
    let message = notification.message;
    let marks: Marks = read(&message, expected, &message)?;
    if marks.message.is_some() {
        return Err(refuse(expected, "Message has a Message itself", &message));
    }
    read_event(&message, &marks)
}

impl Marks {
    fn is_of_auto_scaling(&self) -> bool {
        self.transition.is_some() || self.event.is_some()
    }

    /// How many shapes the body has the member of.
    fn shapes(&self) -> usize {
        let has = [self.message.is_some(), self.detail_type.is_some(), self.is_of_auto_scaling()];
        has.into_iter().filter(|has| *has).count()
    }
}

/// Reads an event that is not wrapped in anything.
fn read_event(body: &str, marks: &Marks) -> Result<Event, NoticeError> {
    match (marks.detail_type.is_some(), marks.is_of_auto_scaling()) {
        (true, false) => read_envelope(body),
        (false, true) => read_auto_scaling(body),
        (has_both, _) => {
            let problem = if has_both { "it has members of both" } else { "it has neither" };
            Err(refuse("an event with detail-type, or a lifecycle action", problem, body))
        }
    }
}

fn read_auto_scaling(body: &str) -> Result<Event, NoticeError> {
    let expected = "a lifecycle action or a test notification";
    let read: AutoScalingBody = read(body, expected, body)?;
    let (event, transition) = (read.event.as_deref(), read.lifecycle_transition.as_deref());
    match (event, transition) {
        (Some(TEST_NOTIFICATION), None)
        | (None | Some(TEST_NOTIFICATION), Some(TEST_NOTIFICATION)) => {
            let id = name_event(&["test", &read.request_id]);
            Ok(Event { id, sent_at: None, happening: Happening::TestNotification })
        }
        (Some(TEST_NOTIFICATION), Some(_)) | (Some(_), Some(TEST_NOTIFICATION)) => {
            Err(refuse(expected, "Event and LifecycleTransition say different things", body))
        }
        (_, Some(_)) => read_lifecycle(self::read(body, LIFECYCLE, body)?, None, body),
        (_, None) => Err(refuse(expected, "it has no LifecycleTransition", body)),
    }
}

fn read_envelope(body: &str) -> Result<Event, NoticeError> {
    let envelope: Envelope = read(body, "an event with detail-type, time and detail", body)?;
    match envelope.detail_type.as_str() {
        "EC2 Spot Instance Interruption Warning"
        | "EC2 Capacity Reservation Instance Interruption Warning" => {
            read_interruption(&envelope, body)
        }
        "EC2 Instance Rebalance Recommendation" => {
            let instance = read_instance(body)?.0;
            event_of_instance(&envelope, Happening::Rebalance { instance }, "rebalance", body)
        }
        "EC2 Instance State-change Notification" => read_state_change(&envelope, body),
        "EC2 Instance-terminate Lifecycle Action" => {
            read_lifecycle_of(&envelope, Transition::Terminating, body)
        }
        "EC2 Instance-launch Lifecycle Action" => {
            read_lifecycle_of(&envelope, Transition::Launching, body)
        }
        "AWS Health Event" => {
            let expected = "a health event with service, eventTypeCategory and startTime";
            let detail: HealthDetail = read_detail(body, expected)?;
            read_health(&envelope, detail).map_err(|problem| refuse(expected, &problem, body))
        }
        other => {
            let problem = format!("unknown detail-type {other:?}");
            Err(refuse("an event of a detail-type that is known", &problem, body))
        }
    }
}

fn read_instance(body: &str) -> Result<(InstanceId, InstanceDetail), NoticeError> {
    let expected = "an event whose detail has an instance-id";
    let detail: InstanceDetail = read_detail(body, expected)?;
    let instance = read_id(&detail.instance_id, expected, body)?;
    Ok((instance, detail))
}

fn read_id(text: &str, expected: &'static str, body: &str) -> Result<InstanceId, NoticeError> {
    let problem = || format!("no id of an instance: {text:?}");
    InstanceId::of_ec2(text).ok_or_else(|| refuse(expected, &problem(), body))
}

fn read_interruption(envelope: &Envelope, body: &str) -> Result<Event, NoticeError> {
    let (instance, detail) = read_instance(body)?;
    let action = match detail.instance_action.as_deref() {
        Some("terminate") => InterruptionAction::Terminate,
        Some("stop") => InterruptionAction::Stop,
        Some("hibernate") => InterruptionAction::Hibernate,
        other => {
            let problem = format!("instance-action is {other:?}");
            return Err(refuse("an instance-action terminate, stop or hibernate", &problem, body));
        }
    };
    let (happening, word) = if envelope.detail_type.contains("Spot") {
        (Happening::SpotInterruption { instance, action }, "spot")
    } else {
        (Happening::ReservationInterruption { instance, action }, "reservation")
    };
    event_of_instance(envelope, happening, word, body)
}

fn read_state_change(envelope: &Envelope, body: &str) -> Result<Event, NoticeError> {
    let (instance, detail) = read_instance(body)?;
    let state = match detail.state.as_deref() {
        Some("pending") => MachineState::Pending,
        Some("running") => MachineState::Running,
        Some("stopping") => MachineState::Stopping,
        Some("stopped") => MachineState::Stopped,
        Some("shutting-down") => MachineState::ShuttingDown,
        Some("terminated") => MachineState::Terminated,
        other => {
            let problem = format!("state is {other:?}");
            return Err(refuse("a state that EC2 documents", &problem, body));
        }
    };
    event_of_instance(envelope, Happening::StateChange { instance, state }, "state", body)
}

/// Where the envelope has no id, instance and time stand for it.
fn event_of_instance(
    envelope: &Envelope,
    happening: Happening,
    word: &str,
    body: &str,
) -> Result<Event, NoticeError> {
    let sent_at = envelope.time.map(millis_of);
    let mut event = Event { id: name_event(&[word, &envelope.id]), sent_at, happening };
    if envelope.id.is_empty() {
        let instance = event.instances().first().map_or("", |instance| &instance.0);
        let nameless = || refuse("an event with an id or a time", "it has neither", body);
        let time = sent_at.ok_or_else(nameless)?.0.to_string();
        event.id = name_event(&[word, instance, &time]);
    }
    Ok(event)
}

fn read_lifecycle_of(
    envelope: &Envelope,
    transition: Transition,
    body: &str,
) -> Result<Event, NoticeError> {
    let event = read_lifecycle(read_detail(body, LIFECYCLE)?, envelope.time, body)?;
    match &event.happening {
        Happening::Lifecycle(action) if action.transition == transition => Ok(event),
        _ => Err(refuse(LIFECYCLE, "LifecycleTransition is not that of detail-type", body)),
    }
}

/// An action is named by its token, whichever way it came.
fn read_lifecycle(
    read: LifecycleBody,
    sent_at: Option<jiff::Timestamp>,
    body: &str,
) -> Result<Event, NoticeError> {
    let transition = match read.lifecycle_transition.as_str() {
        "autoscaling:EC2_INSTANCE_TERMINATING" => Transition::Terminating,
        "autoscaling:EC2_INSTANCE_LAUNCHING" => Transition::Launching,
        other => {
            let problem = format!("LifecycleTransition is {other:?}");
            return Err(refuse(LIFECYCLE, &problem, body));
        }
    };
    let texts = [Some(&read.auto_scaling_group_name), Some(&read.lifecycle_hook_name)];
    let texts = texts.into_iter().chain([read.lifecycle_action_token.as_ref()]);
    if let Some(text) = texts.flatten().find(|text| !is_name(text)) {
        return Err(refuse(LIFECYCLE, &format!("no name: {text:?}"), body));
    }
    let instance = read_id(&read.instance_id, LIFECYCLE, body)?;
    let id = match &read.lifecycle_action_token {
        Some(token) => name_event(&["lifecycle", token]),
        None => name_event(&["lifecycle", &instance.0, &read.lifecycle_hook_name]),
    };
    let sent_at = sent_at.or(read.time).map(millis_of);
    let action = LifecycleAction {
        instance,
        group: read.auto_scaling_group_name,
        hook: read.lifecycle_hook_name,
        token: read.lifecycle_action_token,
        transition,
    };
    Ok(Event { id, sent_at, happening: Happening::Lifecycle(action) })
}

fn is_name(text: &str) -> bool {
    let length = text.chars().count();
    (1..=NAME_LIMIT).contains(&length) && !text.chars().any(char::is_control)
}

/// One name of several parts, with nothing in it but letters, digits, `_` and `-`. Where something
/// had to go, a checksum of the whole takes its place, so that different parts stay different.
pub(super) fn name_event(parts: &[&str]) -> String {
    let name = parts.join("-");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.len() <= ID_LIMIT && name.chars().all(is_plain) {
        return name;
    }
    let checksum = format!("-{:08x}", crc32fast::hash(name.as_bytes()));
    let kept = name.chars().filter(|c| is_plain(*c)).take(ID_LIMIT - checksum.len());
    kept.chain(checksum.chars()).collect()
}

pub(super) fn millis_of(time: jiff::Timestamp) -> UnixMillis {
    UnixMillis(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

fn read<'a, T: Deserialize<'a>>(
    text: &'a str,
    expected: &'static str,
    body: &str,
) -> Result<T, NoticeError> {
    read_object(text).map_err(|problem| refuse(expected, &problem.to_string(), body))
}

fn read_detail<'a, T: Deserialize<'a>>(
    body: &'a str,
    expected: &'static str,
) -> Result<T, NoticeError> {
    let with_detail: WithDetail<T> = read(body, expected, body)?;
    Ok(with_detail.detail.0)
}

fn refuse(expected: &'static str, problem: &str, body: &str) -> NoticeError {
    NoticeError::of("queue message", expected, problem, body)
}
