//! Auto Scaling on the wire: what is asked, by a server that answers in AWS's own words.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use aws_sdk_autoscaling::config::{Credentials, SharedCredentialsProvider};
use axum::Router;
use axum::extract::{Form, State};
use axum::http::StatusCode;
use axum::routing::post;
use ebbtide_core::time::UnixMillis;

use super::*;
use crate::aws::{AwsSettings, load_config};
use crate::metrics::Metrics;

type Fields = BTreeMap<String, String>;

/// A server that keeps what it was asked and answers as it was told, in order.
#[derive(Clone, Default)]
struct Server {
    asked: Arc<Mutex<Vec<Fields>>>,
    answers: Arc<Mutex<VecDeque<(StatusCode, String)>>>,
}

impl Server {
    fn will_answer(&self, status: u16, body: &str) {
        let status = StatusCode::from_u16(status).expect("valid");
        self.answers.lock().expect("no panic").push_back((status, body.to_owned()));
    }

    fn asked(&self) -> Vec<Fields> {
        self.asked.lock().expect("no panic").clone()
    }

    async fn start(&self) -> AsgHooks {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let router = Router::new().route("/", post(answer_next)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let region = Some("us-east-1".to_owned());
        let settings = AwsSettings { region, endpoint_url: Some(url) };
        let keys = Credentials::new("test", "test", None, None, "test");
        let config = load_config(settings).await.into_builder();
        let config = config.credentials_provider(SharedCredentialsProvider::new(keys)).build();
        AsgHooks::new(&config, Metrics::new().expect("names differ").api_calls)
    }
}

async fn answer_next(
    State(server): State<Server>,
    Form(fields): Form<Fields>,
) -> (StatusCode, String) {
    server.asked.lock().expect("no panic").push(fields);
    let next = server.answers.lock().expect("no panic").pop_front();
    next.unwrap_or((StatusCode::IM_A_TEAPOT, "nothing more was expected".to_owned()))
}

fn action(token: Option<&str>) -> LifecycleRecord {
    LifecycleRecord {
        instance_id: "i-0a".to_owned(),
        group: "rollout-a".to_owned(),
        hook: "drain".to_owned(),
        token: token.map(str::to_owned),
        seen_at: UnixMillis(1),
    }
}

fn done(call: &str) -> String {
    format!(
        "<{call}Response xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\">\
         <{call}Result></{call}Result><ResponseMetadata>\
         <RequestId>7c6e177f-f082-11e1-ac58-3714bEXAMPLE</RequestId></ResponseMetadata>\
         </{call}Response>"
    )
}

fn error(kind: &str, code: &str, message: &str) -> String {
    format!(
        "<ErrorResponse xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\"><Error>\
         <Type>{kind}</Type><Code>{code}</Code><Message>{message}</Message></Error>\
         <RequestId>42d59b56-7407-4c4a-be0f-4c88daeea257</RequestId></ErrorResponse>"
    )
}

fn field<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.get(name).map(String::as_str)
}

/// Case 28, on the wire.
#[tokio::test]
async fn action_is_completed_with_continue_by_token_and_instance() {
    let server = Server::default();
    let hooks = server.start().await;
    for token in [Some("0befcbdb-6ecd-498a-9ff7-ae9b54447cd6"), None] {
        server.will_answer(200, &done("CompleteLifecycleAction"));
        assert_eq!(hooks.complete(&action(token)).await, Ok(ActionAnswer::Accepted));
        let asked = server.asked().pop().expect("asked");
        for (name, value) in [
            ("Action", "CompleteLifecycleAction"),
            ("AutoScalingGroupName", "rollout-a"),
            ("LifecycleHookName", "drain"),
            ("InstanceId", "i-0a"),
            ("LifecycleActionResult", "CONTINUE"),
        ] {
            assert_eq!(field(&asked, name), Some(value), "{asked:?}");
        }
        assert_eq!(field(&asked, "LifecycleActionToken"), token);
    }
}

/// Case 28: a fault of AWS may be answered by another try, and says so.
#[tokio::test]
async fn fault_of_the_server_is_retriable_and_a_refusal_is_not() {
    let server = Server::default();
    let hooks = server.start().await;
    server.will_answer(500, &error("Receiver", "InternalFailure", "try again"));
    let failed = hooks.complete(&action(None)).await.expect_err("a fault");
    assert!(failed.is_retriable(), "{failed}");
    server.will_answer(503, "no XML at all");
    let failed = hooks.complete(&action(None)).await.expect_err("a fault");
    assert!(failed.is_retriable(), "{failed}");
    server.will_answer(403, &error("Sender", "AccessDenied", "not authorized"));
    let refused = hooks.complete(&action(None)).await.expect_err("a refusal");
    assert!(!refused.is_retriable(), "{refused}");
    server.will_answer(200, &done("CompleteLifecycleAction"));
    assert_eq!(hooks.complete(&action(None)).await, Ok(ActionAnswer::Accepted));
}

#[tokio::test]
async fn action_that_is_not_active_has_ended() {
    let server = Server::default();
    let hooks = server.start().await;
    let message = "No active Lifecycle Action found with instance ID i-0a";
    server.will_answer(400, &error("Sender", "ValidationError", message));
    assert_eq!(hooks.complete(&action(None)).await, Ok(ActionAnswer::NotActive));
    server.will_answer(400, &error("Sender", "ValidationError", message));
    assert_eq!(hooks.heartbeat(&action(None)).await, Ok(ActionAnswer::NotActive));
}

#[tokio::test]
async fn heartbeat_names_the_action() {
    let server = Server::default();
    let hooks = server.start().await;
    server.will_answer(200, &done("RecordLifecycleActionHeartbeat"));
    assert_eq!(hooks.heartbeat(&action(Some("t"))).await, Ok(ActionAnswer::Accepted));
    let asked = server.asked().pop().expect("asked");
    assert_eq!(field(&asked, "Action"), Some("RecordLifecycleActionHeartbeat"));
    assert_eq!(field(&asked, "LifecycleActionToken"), Some("t"));
    assert_eq!(field(&asked, "InstanceId"), Some("i-0a"));
}

#[tokio::test]
async fn hooks_on_the_way_out_are_read_with_their_time_limits() {
    let server = Server::default();
    let hooks = server.start().await;
    let member = |name: &str, way: &str, timeout: &str| {
        format!(
            "<member><AutoScalingGroupName>rollout-a</AutoScalingGroupName>\
             <LifecycleHookName>{name}</LifecycleHookName>\
             <LifecycleTransition>autoscaling:EC2_INSTANCE_{way}</LifecycleTransition>\
             <GlobalTimeout>172800</GlobalTimeout>{timeout}<DefaultResult>ABANDON</DefaultResult>\
             </member>"
        )
    };
    let limit = "<HeartbeatTimeout>300</HeartbeatTimeout>";
    let members = [
        member("drain", "TERMINATING", limit),
        member("warm", "LAUNCHING", limit),
        member("plain", "TERMINATING", ""),
    ];
    let body = done("DescribeLifecycleHooks").replace(
        "<DescribeLifecycleHooksResult>",
        &format!(
            "<DescribeLifecycleHooksResult><LifecycleHooks>{}</LifecycleHooks>",
            members.concat()
        ),
    );
    server.will_answer(200, &body);
    let found = hooks.hooks_of("rollout-a").await.expect("answered");
    let hook = |name: &str, seconds| TerminateHook {
        name: name.to_owned(),
        timeout: Duration::from_secs(seconds),
    };
    assert_eq!(found, [hook("drain", 300), hook("plain", 3600)]);
}

#[tokio::test]
async fn only_instances_that_a_hook_holds_on_their_way_out_are_found() {
    let server = Server::default();
    let hooks = server.start().await;
    let member = |id: &str, state: &str| {
        format!(
            "<member><InstanceId>{id}</InstanceId><LifecycleState>{state}</LifecycleState>\
             <AutoScalingGroupName>rollout-a</AutoScalingGroupName>\
             <AvailabilityZone>us-east-1a</AvailabilityZone>\
             <HealthStatus>HEALTHY</HealthStatus></member>"
        )
    };
    let members = [
        member("i-0a", "Terminating:Wait"),
        member("i-0b", "Terminating:Proceed"),
        member("i-0c", "InService"),
        member("i-0d", "Pending:Wait"),
    ];
    let body = done("DescribeAutoScalingInstances").replace(
        "<DescribeAutoScalingInstancesResult>",
        &format!(
            "<DescribeAutoScalingInstancesResult><AutoScalingInstances>{}</AutoScalingInstances>",
            members.concat()
        ),
    );
    server.will_answer(200, &body);
    let ids = ["i-0a", "i-0b", "i-0c", "i-0d"].map(|id| InstanceId(id.to_owned()));
    let held = hooks.held(&ids).await.expect("answered");
    let expected = HeldInstance { instance: ids[0].clone(), group: "rollout-a".to_owned() };
    assert_eq!(held, [expected]);
    let asked = server.asked().pop().expect("asked");
    assert_eq!(field(&asked, "InstanceIds.member.4"), Some("i-0d"), "{asked:?}");
}

#[test]
fn action_that_has_ended_is_told_from_a_refusal() {
    let what = "CompleteLifecycleAction";
    let refused = |code: &str, message: &str| {
        answer(Err(AwsError::Refused { what, code: code.into(), message: message.into() }))
    };
    let gone = [
        "No active Lifecycle Action found with token 0bef",
        "AutoScalingGroup name not found - no such group: rollout-a",
    ];
    for message in gone {
        assert_eq!(refused("ValidationError", message), Ok(ActionAnswer::NotActive));
    }
    assert!(refused("ValidationError", "1 validation error detected").is_err());
    assert!(refused("AccessDenied", "No active Lifecycle Action found").is_err());
}
