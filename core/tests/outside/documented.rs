//! The documented bodies, and who reads them.

use std::fmt::{Debug, Display};

use ebbtide_core::event::parse_event;
use ebbtide_core::maintenance::parse_scheduled_events;
use ebbtide_core::notice::{parse_instance_action, parse_rebalance};

use crate::json::Json;

/// One reader of bodies from outside.
#[derive(Clone, Copy)]
pub struct Reader {
    /// How its refusals begin.
    pub resource: &'static str,
    /// The meaning of a body, or the refusal.
    pub read: fn(&str) -> Result<String, String>,
    /// The members without which a body means nothing.
    needed: &'static [&'static str],
}

/// A documented body.
#[derive(Clone)]
pub struct Body {
    pub reader: Reader,
    pub text: String,
}

impl Body {
    /// Whether it means nothing without this member.
    pub fn needs(&self, member: &str) -> bool {
        self.reader.needed.contains(&member)
    }

    pub fn meaning(&self) -> String {
        (self.reader.read)(&self.text).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Debug for Body {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.text)
    }
}

fn told<T: Debug, E: Display>(read: Result<T, E>) -> Result<String, String> {
    read.map(|meaning| format!("{meaning:?}")).map_err(|error| error.to_string())
}

pub const SPOT: Reader = Reader {
    resource: "spot/instance-action",
    read: |body| told(parse_instance_action(body)),
    needed: &["action", "time"],
};

pub const REBALANCE: Reader = Reader {
    resource: "events/recommendations/rebalance",
    read: |body| told(parse_rebalance(body)),
    needed: &["noticeTime"],
};

pub const MAINTENANCE: Reader = Reader {
    resource: "events/maintenance/scheduled",
    read: |body| told(parse_scheduled_events(body)),
    needed: &["Code", "NotBefore"],
};

pub const MESSAGE: Reader = Reader {
    resource: "queue message",
    read: |body| told(parse_event(body)),
    needed: &[
        "Type",
        "Message",
        "detail-type",
        "detail",
        "instance-id",
        "instance-action",
        "state",
        "EC2InstanceId",
        "AutoScalingGroupName",
        "Event",
        "LifecycleHookName",
        "LifecycleTransition",
        "service",
        "eventTypeCategory",
        "eventTypeCode",
        "startTime",
        "entityValue",
    ],
};

pub const READERS: [Reader; 4] = [SPOT, REBALANCE, MAINTENANCE, MESSAGE];

/// Members that are read, but are not needed.
const OPTIONAL: [&str; 14] = [
    "id",
    "time",
    "account",
    "resources",
    "State",
    "EventId",
    "RequestId",
    "Time",
    "LifecycleActionToken",
    "communicationId",
    "statusCode",
    "endTime",
    "affectedEntities",
    "status",
];

/// Members whose values are words of AWS, which count only as AWS writes them.
pub const WORDS: [&str; 9] = [
    "action",
    "instance-action",
    "state",
    "detail-type",
    "Type",
    "Event",
    "LifecycleTransition",
    "eventTypeCategory",
    "NotBefore",
];

/// Whether any reader reads a member of this name.
pub fn is_read(member: &str) -> bool {
    OPTIONAL.contains(&member) || READERS.iter().any(|it| it.needed.contains(&member))
}

const METADATA: [(Reader, &str); 8] = [
    (SPOT, r#"{"action":"terminate","time":"2017-09-18T08:22:00Z"}"#),
    (SPOT, r#"{"action":"stop","time":"2017-09-18T08:22:00Z"}"#),
    (SPOT, r#"{"action":"hibernate","time":"2017-09-18T08:22:00Z"}"#),
    (REBALANCE, r#"{"noticeTime":"2020-11-05T08:22:00Z"}"#),
    (
        MAINTENANCE,
        r#"[{"NotBefore":"21 Jan 2019 09:00:43 GMT","Code":"system-reboot","State":"active",
            "Description":"scheduled reboot","EventId":"instance-event-0d59937288b749b32",
            "NotAfter":"21 Jan 2019 09:17:23 GMT"}]"#,
    ),
    (
        MAINTENANCE,
        r#"[{"NotBefore":"8 May 2020 16:00:00 GMT","Code":"instance-stop","State":"active"},
            {"NotBefore":"1 Jan 2020 16:00:00 GMT","Code":"system-reboot","State":"completed"},
            {"NotBefore":"9 May 2020 16:00:00 GMT","Code":"instance-retirement","EventId":"e"}]"#,
    ),
    (MAINTENANCE, r#"[{"NotBefore":"8 May 2020 16:00:00 GMT","Code":"x","State":"canceled"}]"#),
    (MAINTENANCE, "[]"),
];

const LIFECYCLE: &str = r#""LifecycleHookName":"drain","AutoScalingGroupName":"rollout-a",
    "EC2InstanceId":"i-0123456789abcdef0","NotificationMetadata":"x",
    "LifecycleActionToken":"0befcbdb-6ecd-498a-9ff7-ae9b54447cd6""#;

const TERMINATING: &str = r#""LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING""#;

/// An event as EventBridge delivers it.
pub fn envelope(detail_type: &str, detail: &str) -> String {
    format!(
        r#"{{"version":"0","id":"1e5527d7-bb36-4607-3370-4164db56a40e","source":"aws.ec2",
            "detail-type":"{detail_type}","account":"123456789012","time":"2026-03-01T12:00:00Z",
            "region":"us-east-2","resources":["arn:aws:ec2:us-east-2b:instance/i-0a"],
            "detail":{detail}}}"#
    )
}

fn of_instance(detail_type: &str, more: &str) -> String {
    envelope(detail_type, &format!(r#"{{"instance-id":"i-0123456789abcdef0"{more}}}"#))
}

/// A scheduled change of EC2, by AWS Health.
pub fn health(communication: &str, more: &str) -> String {
    let detail = format!(
        r#"{{"eventArn":"arn:aws:health:us-east-1::event/id","service":"EC2",
            "eventTypeCode":"AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
            "eventTypeCategory":"scheduledChange","eventScopeCode":"ACCOUNT_SPECIFIC",
            "communicationId":"{communication}","startTime":"Sat, 05 Jun 2016 15:10:09 GMT",
            "eventDescription":[{{"language":"en_US","latestDescription":"text"}}]{more}}}"#
    );
    envelope("AWS Health Event", &detail)
}

/// Straight from Auto Scaling.
pub fn direct() -> String {
    format!(
        r#"{{{LIFECYCLE},{TERMINATING},"Time":"2026-03-01T12:00:00.533Z","RequestId":"3775fac9",
            "Service":"AWS Auto Scaling","AccountId":"123456789012"}}"#
    )
}

/// A message as SNS hands it on.
pub fn through_sns(message: &str) -> String {
    let members = [
        ("Type", "Notification"),
        ("MessageId", "m-1"),
        ("TopicArn", "arn:aws:sns:us-east-2:123456789012:t"),
        ("Message", message),
    ];
    let members = members.map(|(name, text)| (name.to_owned(), Json::Text(text.to_owned())));
    Json::Object(members.into()).plain()
}

/// Every shape of a message, not wrapped in anything.
pub fn messages() -> Vec<String> {
    let state = |word: &str| {
        let more = format!(r#","state":"{word}""#);
        of_instance("EC2 Instance State-change Notification", &more)
    };
    let terminate = r#","instance-action":"terminate""#;
    let entities = r#","endTime":"Sun, 5 Jun 2016 16:10:09 GMT","statusCode":"upcoming",
        "affectedEntities":[{"entityValue":"i-0b","tags":{"stage":"prod"},"status":"PENDING"},
                            {"entityValue":"arn:aws:ec2:us-east-2:1:instance/i-0a"}]"#;
    let launching = TERMINATING.replace("TERMINATING", "LAUNCHING");
    let test = |member: &str| {
        format!(
            r#"{{"AutoScalingGroupName":"rollout-a","Service":"AWS Auto Scaling","RequestId":"3775",
                "{member}":"autoscaling:TEST_NOTIFICATION","Time":"2026-03-01T12:00:00.872Z"}}"#
        )
    };
    vec![
        of_instance("EC2 Spot Instance Interruption Warning", terminate),
        of_instance("EC2 Spot Instance Interruption Warning", r#","instance-action":"hibernate""#),
        of_instance("EC2 Capacity Reservation Instance Interruption Warning", terminate),
        of_instance("EC2 Instance Rebalance Recommendation", ""),
        state("running"),
        state("shutting-down"),
        envelope(
            "EC2 Instance-terminate Lifecycle Action",
            &format!(r#"{{{LIFECYCLE},{TERMINATING},"Origin":"AutoScalingGroup"}}"#),
        ),
        envelope("EC2 Instance-launch Lifecycle Action", &format!("{{{LIFECYCLE},{launching}}}")),
        direct(),
        test("Event"),
        test("LifecycleTransition"),
        health("c-1", entities),
        health("c-1", r#","statusCode":"closed""#),
    ]
}

/// Every documented body.
pub fn documented() -> Vec<Body> {
    let metadata = METADATA.map(|(reader, text)| Body { reader, text: text.to_owned() });
    let wrapped = messages().into_iter().map(|message| through_sns(&message));
    let messages = messages().into_iter().chain(wrapped);
    let messages = messages.map(|text| Body { reader: MESSAGE, text });
    metadata.into_iter().chain(messages).collect()
}
