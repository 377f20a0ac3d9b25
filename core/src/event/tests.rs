//! The documented shapes as a table; `tests/outside` has the laws for all bodies.

use super::*;

const INSTANCE: &str = "i-0123456789abcdef0";
const NOON: UnixMillis = UnixMillis(1_772_366_400_000);
const TOKEN: &str = "0befcbdb-6ecd-498a-9ff7-ae9b54447cd6";

fn instance() -> InstanceId {
    InstanceId(INSTANCE.to_owned())
}

/// An event as EventBridge delivers it.
fn envelope(detail_type: &str, resource: &str, detail: &str) -> String {
    format!(
        r#"{{"version":"0","id":"1e5527d7-bb36-4607-3370-4164db56a40e",
            "detail-type":"{detail_type}","source":"aws.ec2","account":"123456789012",
            "time":"2026-03-01T12:00:00Z","region":"us-east-2","resources":["{resource}"],
            "detail":{detail}}}"#
    )
}

fn of_instance(detail_type: &str, more: &str) -> String {
    let arn = format!("arn:aws:ec2:us-east-2:123456789012:instance/{INSTANCE}");
    let comma = if more.is_empty() { "" } else { "," };
    envelope(detail_type, &arn, &format!(r#"{{"instance-id":"{INSTANCE}"{comma}{more}}}"#))
}

fn spot(action: &str) -> String {
    let more = format!(r#""instance-action":"{action}""#);
    of_instance("EC2 Spot Instance Interruption Warning", &more)
}

fn lifecycle(way: &str, transition: &str) -> String {
    let detail = format!(
        r#"{{"LifecycleActionToken":"{TOKEN}","AutoScalingGroupName":"rollout-a",
            "LifecycleHookName":"drain","EC2InstanceId":"{INSTANCE}",
            "LifecycleTransition":"autoscaling:EC2_INSTANCE_{transition}",
            "NotificationMetadata":"x","Origin":"AutoScalingGroup","Destination":"EC2"}}"#
    );
    envelope(&format!("EC2 Instance-{way} Lifecycle Action"), "arn", &detail)
}

fn direct() -> String {
    format!(
        r#"{{"LifecycleHookName":"drain","AccountId":"123456789012",
            "RequestId":"3775fac9-93c3-7ead-8713-159816566000",
            "LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING",
            "AutoScalingGroupName":"rollout-a","Service":"AWS Auto Scaling",
            "Time":"2026-03-01T12:00:00.533Z","EC2InstanceId":"{INSTANCE}",
            "LifecycleActionToken":"{TOKEN}","NotificationMetadata":"x"}}"#
    )
}

fn through_sns(body: &str) -> String {
    let message = serde_json::Value::String(body.to_owned());
    format!(r#"{{"Type":"Notification","Message":{message}}}"#)
}

fn test_notification(member: &str) -> String {
    format!(
        r#"{{"AutoScalingGroupName":"rollout-a","Service":"AWS Auto Scaling",
            "{member}":"autoscaling:TEST_NOTIFICATION","AccountId":"123456789012",
            "RequestId":"3775fac9","Time":"2026-03-01T12:00:00.872Z"}}"#
    )
}

fn health(members: &str, entities: &[&str]) -> String {
    let entities: Vec<String> =
        entities.iter().map(|id| format!(r#"{{"entityValue":"{id}","tags":{{}}}}"#)).collect();
    let detail = format!(
        r#"{{"eventArn":"arn:aws:health:us-east-1::event/id","service":"EC2",
            "eventTypeCode":"AWS_EC2_DEDICATED_HOST_NETWORK_MAINTENANCE_SCHEDULED",
            "eventScopeCode":"ACCOUNT_SPECIFIC","eventRegion":"us-east-1",{members},
            "eventDescription":[{{"language":"en_US","latestDescription":"text"}}],
            "affectedEntities":[{}]}}"#,
        entities.join(",")
    );
    envelope("AWS Health Event", INSTANCE, &detail)
}

const CHANGE: &str = r#""eventTypeCategory":"scheduledChange","communicationId":"c-1",
    "startTime":"Sat, 05 Jun 2016 15:10:09 GMT""#;

fn read(body: &str) -> Event {
    parse_event(body).unwrap_or_else(|error| panic!("{error}"))
}

fn action(transition: Transition) -> Happening {
    Happening::Lifecycle(LifecycleAction {
        instance: instance(),
        group: "rollout-a".to_owned(),
        hook: "drain".to_owned(),
        token: Some(TOKEN.to_owned()),
        transition,
    })
}

/// Every documented body, with what it says.
fn documented() -> Vec<(String, Happening)> {
    let interruption = |action| Happening::SpotInterruption { instance: instance(), action };
    let state = |state| Happening::StateChange { instance: instance(), state };
    let changed = |word: &str| {
        let more = format!(r#""state":"{word}""#);
        of_instance("EC2 Instance State-change Notification", &more)
    };
    let reservation = of_instance(
        "EC2 Capacity Reservation Instance Interruption Warning",
        r#""instance-action":"terminate""#,
    );
    let terminate = InterruptionAction::Terminate;
    vec![
        (spot("terminate"), interruption(terminate)),
        (spot("stop"), interruption(InterruptionAction::Stop)),
        (spot("hibernate"), interruption(InterruptionAction::Hibernate)),
        (
            of_instance("EC2 Instance Rebalance Recommendation", ""),
            Happening::Rebalance { instance: instance() },
        ),
        (changed("pending"), state(MachineState::Pending)),
        (changed("running"), state(MachineState::Running)),
        (changed("stopping"), state(MachineState::Stopping)),
        (changed("stopped"), state(MachineState::Stopped)),
        (changed("shutting-down"), state(MachineState::ShuttingDown)),
        (changed("terminated"), state(MachineState::Terminated)),
        (
            reservation,
            Happening::ReservationInterruption { instance: instance(), action: terminate },
        ),
        (lifecycle("terminate", "TERMINATING"), action(Transition::Terminating)),
        (lifecycle("launch", "LAUNCHING"), action(Transition::Launching)),
        (direct(), action(Transition::Terminating)),
        (through_sns(&direct()), action(Transition::Terminating)),
        (test_notification("Event"), Happening::TestNotification),
        (test_notification("LifecycleTransition"), Happening::TestNotification),
        (through_sns(&test_notification("Event")), Happening::TestNotification),
        (
            health(CHANGE, &[INSTANCE]),
            Happening::Maintenance(Maintenance {
                starts_at: UnixMillis(1_465_139_409_000),
                ends_at: None,
                is_retirement: false,
                instances: vec![instance()],
            }),
        ),
    ]
}

#[test]
fn documented_bodies_are_read() {
    for (body, happening) in documented() {
        assert_eq!(read(&body).happening, happening, "{body}");
    }
    assert_eq!(read(&spot("stop")).sent_at, Some(NOON));
    let direct = read(&direct());
    assert_eq!(direct.sent_at, Some(UnixMillis(NOON.0 + 533)));
}

#[test]
fn copies_of_one_event_have_one_name() {
    let bridged = read(&lifecycle("terminate", "TERMINATING"));
    assert_eq!(bridged.id, format!("lifecycle-{TOKEN}"));
    assert_eq!(read(&direct()).id, bridged.id, "straight to the queue");
    assert_eq!(read(&through_sns(&direct())).id, bridged.id, "through SNS");
    let pages = [health(CHANGE, &["i-0a"]), health(CHANGE, &["i-0b"])];
    let copy = pages[1].replace("1e5527d7", "9e5527d7").replace("us-east-2", "us-west-2");
    assert_eq!(read(&pages[0]).id, read(&copy).id);
    assert_eq!(read(&copy).id, "health-123456789012-c-1");
    assert_ne!(read(&spot("stop")).id, read(&spot("stop").replace("1e55", "2e55")).id);
}

#[test]
fn optional_members_may_be_absent() {
    let plain = spot("terminate").replace(r#""version":"0","#, "");
    assert_eq!(read(&plain), read(&spot("terminate")));
    let nameless = plain.replace(r#""id":"1e5527d7-bb36-4607-3370-4164db56a40e","#, "");
    assert_eq!(read(&nameless).id, format!("spot-{INSTANCE}-{}", NOON.0));
    let timeless = plain.replace(r#""time":"2026-03-01T12:00:00Z","#, "");
    assert_eq!(read(&timeless).sent_at, None);
    let sns = through_sns(&format!(
        r#"{{"LifecycleHookName":"drain","AutoScalingGroupName":"rollout-a",
            "LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING",
            "EC2InstanceId":"{INSTANCE}"}}"#
    ));
    let without_token = read(&sns);
    assert_eq!(
        (without_token.sent_at, without_token.id),
        (None, format!("lifecycle-{INSTANCE}-drain"))
    );
}

/// The instance is in `detail`; ARNs differ by partition, and some have a zone and no account.
#[test]
fn form_of_the_arn_does_not_matter() {
    let plain = read(&spot("terminate"));
    for arn in [
        "arn:aws:ec2:us-east-2b:instance/i-0123456789abcdef0",
        "arn:aws-cn:ec2:cn-north-1:123456789012:instance/i-0123456789abcdef0",
        "",
    ] {
        let known = format!("arn:aws:ec2:us-east-2:123456789012:instance/{INSTANCE}");
        assert_eq!(read(&spot("terminate").replace(&known, arn)), plain, "{arn}");
    }
}

/// Case 51, the reading of it.
#[test]
fn every_affected_instance_is_read_once() {
    let entities = ["i-0b", "vol-0c", "arn:aws:ec2:us-east-2:1:instance/i-0a", "i-0b"];
    let event = read(&health(CHANGE, &entities));
    let found: Vec<&str> = event.instances().iter().map(|id| id.0.as_str()).collect();
    assert_eq!(found, ["i-0a", "i-0b"]);
    let without = read(&health(CHANGE, &[]));
    assert_eq!(without.instances(), [instance()], "the resources of the envelope stand in");
}

#[test]
fn health_event_says_when_it_begins_and_ends_whatever_the_weekday() {
    let days = ["Sat, 05 Jun 2016", "Sun, 05 Jun 2016", "05 Jun 2016", "Sun, 5 Jun 2016"];
    for day in days {
        let members = format!(
            r#""eventTypeCategory":"scheduledChange","startTime":"{day} 15:10:09 GMT",
                "endTime":"{day} 15:10:10 GMT""#
        );
        let Happening::Maintenance(read) = read(&health(&members, &[INSTANCE])).happening else {
            panic!("{day}");
        };
        assert_eq!(read.starts_at, UnixMillis(1_465_139_409_000), "{day}");
        assert_eq!(read.ends_at, Some(UnixMillis(1_465_139_410_000)), "{day}");
    }
}

#[test]
fn only_scheduled_changes_of_ec2_that_are_open_concern_us() {
    let closed = format!(r#"{CHANGE},"statusCode":"closed""#);
    let issue = CHANGE.replace("scheduledChange", "issue");
    for body in [
        health(&closed, &[INSTANCE]),
        health(&issue, &[INSTANCE]),
        health(CHANGE, &[INSTANCE]).replace(r#""service":"EC2""#, r#""service":"RDS""#),
    ] {
        assert_eq!(read(&body).happening, Happening::OtherHealth, "{body}");
    }
    let retired = health(CHANGE, &[INSTANCE])
        .replace("DEDICATED_HOST_NETWORK_MAINTENANCE", "INSTANCE_RETIREMENT");
    let Happening::Maintenance(retired) = read(&retired).happening else { panic!("{retired}") };
    assert!(retired.is_retirement);
}

#[test]
fn unknown_shapes_are_refused_with_what_came() {
    let long = "x".repeat(100_000);
    for body in [
        "",
        "null",
        "[]",
        "{}",
        "<?xml version=\"1.0\"?>",
        r#"{"Type":"Notification"}"#,
        r#"{"Type":"Notification","Message":"hello"}"#,
        r#"{"detail-type":"EC2 Spot Instance Interruption Warning"}"#,
        &spot("explode"),
        &spot("stop").replace("i-0123", "x-0123"),
        &spot("stop").replace("2026-03-01T12", "yesterday"),
        &of_instance("EC2 Instance State-change Notification", r#""state":"odd""#),
        &of_instance("EC2 Something New", ""),
        &lifecycle("terminate", "VANISHING"),
        &direct().replace("rollout-a", ""),
        &through_sns(&through_sns(&direct())),
        &health(&CHANGE.replace("Jun", "Moon"), &[INSTANCE]),
        &health(r#""eventTypeCategory":"scheduledChange""#, &[INSTANCE]),
        &long,
    ] {
        let error = parse_event(body).expect_err(body).to_string();
        assert!(error.starts_with("queue message must be "), "{error}");
        assert!(error.len() < 700, "{error}");
    }
}

#[test]
fn error_repeats_what_came() {
    let error = parse_event(&spot("explode")).expect_err("no such action").to_string();
    assert!(error.contains("instance-action terminate, stop or hibernate"), "{error}");
    assert!(error.contains("1e5527d7-bb36"), "{error}");
}

#[test]
fn kinds_have_words_of_their_own() {
    let words: std::collections::BTreeSet<_> = EventKind::ALL.map(EventKind::as_str).into();
    assert_eq!(words.len(), EventKind::ALL.len());
    for (body, _) in documented() {
        assert!(EventKind::ALL.contains(&read(&body).kind()));
    }
}
