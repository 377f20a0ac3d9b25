//! The shapes in which an event comes, told apart by their members alone.
//!
//! Instances are read from `detail`: ARNs come in several forms. `version` may be absent.

use serde::Deserialize;
use serde_json::Value;

use super::health::{HealthDetail, read_health};
use super::{Event, Happening, InterruptionAction, LifecycleAction, MachineState, Transition};
use crate::notice::NoticeError;
use crate::observation::InstanceId;
use crate::time::UnixMillis;

/// Longest name of a group or hook, and longest token, in characters: the limit of AWS.
const NAME_LIMIT: usize = 255;

/// Longest [`Event::id`], in characters.
const ID_LIMIT: usize = 96;

/// Longest instance id, in characters: today's have 19.
const INSTANCE_ID_LIMIT: usize = 32;

/// What Auto Scaling sends when a hook is created.
const TEST_NOTIFICATION: &str = "autoscaling:TEST_NOTIFICATION";

/// What EventBridge delivers.
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
    pub detail: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct InstanceDetail {
    instance_id: String,
    instance_action: Option<String>,
    state: Option<String>,
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
/// Not one of the shapes that AWS documents; the error repeats the beginning of what came.
pub fn parse_event(body: &str) -> Result<Event, NoticeError> {
    let value: Value = serde_json::from_str(body).map_err(|_| refuse("a JSON object", body))?;
    if value.get("Type").and_then(Value::as_str) == Some("Notification") {
        let expected = "an SNS notification whose Message is an event";
        let message = value.get("Message").and_then(Value::as_str);
        let message = message.ok_or_else(|| refuse(expected, body))?;
        let inner = serde_json::from_str(message).map_err(|_| refuse(expected, message))?;
        return read_event(inner, message);
    }
    read_event(value, body)
}

fn read_event(value: Value, body: &str) -> Result<Event, NoticeError> {
    if value.get("detail-type").is_some() {
        return read_envelope(value, body);
    }
    let says = |member: &str| value.get(member).and_then(Value::as_str);
    if [says("Event"), says("LifecycleTransition")].contains(&Some(TEST_NOTIFICATION)) {
        let id = says("RequestId").unwrap_or("");
        let id = name_event(&["test", id]);
        return Ok(Event { id, sent_at: None, happening: Happening::TestNotification });
    }
    if says("LifecycleTransition").is_some() {
        return read_lifecycle(value, None, body);
    }
    Err(refuse("an event with detail-type, or a lifecycle action", body))
}

fn read_envelope(value: Value, body: &str) -> Result<Event, NoticeError> {
    let expected = "an event with detail-type, time and detail";
    let envelope: Envelope = Envelope::deserialize(value).map_err(|_| refuse(expected, body))?;
    match envelope.detail_type.as_str() {
        "EC2 Spot Instance Interruption Warning"
        | "EC2 Capacity Reservation Instance Interruption Warning" => {
            read_interruption(&envelope, body)
        }
        "EC2 Instance Rebalance Recommendation" => {
            let instance = read_instance(&envelope, body)?.0;
            Ok(event_of_instance(&envelope, Happening::Rebalance { instance }, "rebalance"))
        }
        "EC2 Instance State-change Notification" => read_state_change(&envelope, body),
        "EC2 Instance-terminate Lifecycle Action" | "EC2 Instance-launch Lifecycle Action" => {
            let time = envelope.time;
            read_lifecycle(envelope.detail, time, body)
        }
        "AWS Health Event" => {
            let expected = "a health event with service, eventTypeCategory and startTime";
            let error = || refuse(expected, body);
            let detail = HealthDetail::deserialize(&envelope.detail).map_err(|_| error())?;
            read_health(&envelope, detail).ok_or_else(error)
        }
        _ => Err(refuse("an event of a detail-type that is known", body)),
    }
}

fn read_instance(
    envelope: &Envelope,
    body: &str,
) -> Result<(InstanceId, InstanceDetail), NoticeError> {
    let error = || refuse("an event whose detail has an instance-id", body);
    let detail = InstanceDetail::deserialize(&envelope.detail).map_err(|_| error())?;
    let instance = instance_id(&detail.instance_id).ok_or_else(error)?;
    Ok((instance, detail))
}

fn read_interruption(envelope: &Envelope, body: &str) -> Result<Event, NoticeError> {
    let (instance, detail) = read_instance(envelope, body)?;
    let action = match detail.instance_action.as_deref() {
        Some("terminate") => InterruptionAction::Terminate,
        Some("stop") => InterruptionAction::Stop,
        Some("hibernate") => InterruptionAction::Hibernate,
        _ => return Err(refuse("an instance-action terminate, stop or hibernate", body)),
    };
    let (happening, word) = if envelope.detail_type.contains("Spot") {
        (Happening::SpotInterruption { instance, action }, "spot")
    } else {
        (Happening::ReservationInterruption { instance, action }, "reservation")
    };
    Ok(event_of_instance(envelope, happening, word))
}

fn read_state_change(envelope: &Envelope, body: &str) -> Result<Event, NoticeError> {
    let (instance, detail) = read_instance(envelope, body)?;
    let state = match detail.state.as_deref() {
        Some("pending") => MachineState::Pending,
        Some("running") => MachineState::Running,
        Some("stopping") => MachineState::Stopping,
        Some("stopped") => MachineState::Stopped,
        Some("shutting-down") => MachineState::ShuttingDown,
        Some("terminated") => MachineState::Terminated,
        _ => return Err(refuse("a state that EC2 documents", body)),
    };
    Ok(event_of_instance(envelope, Happening::StateChange { instance, state }, "state"))
}

/// Where the envelope has no id, instance and time stand for it.
fn event_of_instance(envelope: &Envelope, happening: Happening, word: &str) -> Event {
    let sent_at = envelope.time.map(millis_of);
    let mut event = Event { id: name_event(&[word, &envelope.id]), sent_at, happening };
    if envelope.id.is_empty() {
        let instance = event.instances().first().map_or("", |instance| &instance.0);
        let time = sent_at.map(|at| at.0.to_string()).unwrap_or_default();
        event.id = name_event(&[word, instance, &time]);
    }
    event
}

/// An action is named by its token, whichever way it came.
fn read_lifecycle(
    value: Value,
    sent_at: Option<jiff::Timestamp>,
    body: &str,
) -> Result<Event, NoticeError> {
    let error = || {
        let expected = "a lifecycle action with EC2InstanceId, AutoScalingGroupName, \
                        LifecycleHookName and LifecycleTransition";
        refuse(expected, body)
    };
    let read = LifecycleBody::deserialize(value).map_err(|_| error())?;
    let transition = match read.lifecycle_transition.as_str() {
        "autoscaling:EC2_INSTANCE_TERMINATING" => Transition::Terminating,
        "autoscaling:EC2_INSTANCE_LAUNCHING" => Transition::Launching,
        _ => return Err(error()),
    };
    let texts = [Some(&read.auto_scaling_group_name), Some(&read.lifecycle_hook_name)];
    let texts = texts.into_iter().chain([read.lifecycle_action_token.as_ref()]);
    if !texts.flatten().all(|text| is_name(text)) {
        return Err(error());
    }
    let instance = instance_id(&read.instance_id).ok_or_else(error)?;
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

/// An instance id: `i-` and letters, digits or `-`.
pub(super) fn instance_id(text: &str) -> Option<InstanceId> {
    let rest = text.strip_prefix("i-")?;
    let is_plain =
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_plain && text.len() <= INSTANCE_ID_LIMIT).then(|| InstanceId(text.to_owned()))
}

fn is_name(text: &str) -> bool {
    let length = text.chars().count();
    (1..=NAME_LIMIT).contains(&length) && !text.chars().any(char::is_control)
}

/// One name of several parts, with nothing in it but letters, digits, `_` and `-`.
pub(super) fn name_event(parts: &[&str]) -> String {
    let name = parts.join("-");
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '_';
    name.chars().filter(is_plain).take(ID_LIMIT).collect()
}

pub(super) fn millis_of(time: jiff::Timestamp) -> UnixMillis {
    UnixMillis(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

fn refuse(expected: &'static str, body: &str) -> NoticeError {
    NoticeError::of("queue message", expected, body)
}
