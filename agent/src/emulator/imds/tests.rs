//! The emulated IMDS over real HTTP.

use std::time::Duration;

use reqwest::StatusCode;
use tokio::time::timeout;

use super::*;

const LIMIT: Duration = Duration::from_secs(300);

struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    fn of(imds: &ImdsEmulator) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();
        Self { http, base: imds.base_url() }
    }

    fn put_token(&self) -> reqwest::RequestBuilder {
        self.http.put(format!("{}{}", self.base, path::TOKEN))
    }

    async fn token(&self) -> String {
        let reply = self.put_token().header("X-aws-ec2-metadata-token-ttl-seconds", "60");
        let reply = reply.send().await.unwrap();
        assert_eq!(reply.status(), StatusCode::OK);
        reply.text().await.unwrap()
    }

    async fn read_with(&self, path: &str, token: &str) -> (StatusCode, String) {
        let url = format!("{}{path}", self.base);
        let reply = self.http.get(url).header("X-aws-ec2-metadata-token", token);
        let reply = reply.send().await.unwrap();
        (reply.status(), reply.text().await.unwrap())
    }

    async fn read(&self, path: &str) -> (StatusCode, String) {
        self.read_with(path, &self.token().await).await
    }
}

fn started() -> (ImdsEmulator, ImdsHandle, Client) {
    let imds = ImdsEmulator::start(InstanceIdentity::spot("i-0abc", "us-east-2b")).unwrap();
    let (handle, client) = (imds.handle(), Client::of(&imds));
    (imds, handle, client)
}

#[tokio::test]
async fn token_call_is_refused_when_malformed_or_forwarded() {
    let (_imds, _handle, client) = started();
    let ttl = "X-aws-ec2-metadata-token-ttl-seconds";
    let status =
        |request: reqwest::RequestBuilder| async { request.send().await.unwrap().status() };
    assert_eq!(status(client.put_token()).await, 400);
    assert_eq!(status(client.put_token().header(ttl, "0")).await, 400);
    assert_eq!(status(client.put_token().header(ttl, "21601")).await, 400);
    assert_eq!(status(client.put_token().header(ttl, "21600")).await, 200);
    let forwarded = client.put_token().header(ttl, "60").header("X-Forwarded-For", "10.0.0.1");
    assert_eq!(status(forwarded).await, 403);
    let dated = client.http.put(format!("{}/2021-07-15/api/token", client.base)).header(ttl, "60");
    assert_eq!(status(dated).await, 403);
}

#[tokio::test]
async fn read_needs_a_valid_token() {
    let (_imds, handle, client) = started();
    assert_eq!(client.read_with(path::INSTANCE_ID, "made-up").await.0, 401);
    let token = client.token().await;
    assert_eq!(
        client.read_with(path::INSTANCE_ID, &token).await,
        (StatusCode::OK, "i-0abc".into())
    );
    handle.revoke_tokens();
    assert_eq!(client.read_with(path::INSTANCE_ID, &token).await.0, 401);
}

#[tokio::test]
async fn read_that_was_forwarded_or_has_two_tokens_is_refused() {
    let (_imds, _handle, client) = started();
    let token = client.token().await;
    let read = || {
        let request = client.http.get(format!("{}{}", client.base, path::ZONE));
        request.header("X-aws-ec2-metadata-token", &token)
    };
    let status =
        |request: reqwest::RequestBuilder| async { request.send().await.unwrap().status() };
    assert_eq!(status(read()).await, 200);
    assert_eq!(status(read().header("X-Forwarded-For", "10.0.0.1")).await, 403);
    assert_eq!(status(read().header("X-aws-ec2-metadata-token", &token)).await, 400);
}

#[tokio::test]
async fn announced_notice_is_read_until_it_is_withdrawn() {
    let (_imds, handle, client) = started();
    let (status, body) = client.read(path::SPOT_ACTION).await;
    assert_eq!(status, 404);
    assert!(body.starts_with("<?xml"), "the body of a 404 is XHTML, got {body}");

    let time: Timestamp = "2026-03-01T12:00:00.750Z".parse().unwrap();
    let told = handle.announce_spot(SpotAction::Stop, time);
    assert_eq!(told.to_string(), "2026-03-01T12:00:00Z");
    let (status, body) = client.read(path::SPOT_ACTION).await;
    assert_eq!(
        (status.as_u16(), body.as_str()),
        (200, r#"{"action":"stop","time":"2026-03-01T12:00:00Z"}"#)
    );

    handle.withdraw_spot();
    assert_eq!(client.read(path::SPOT_ACTION).await.0, 404);
}

#[tokio::test]
async fn every_documented_resource_is_served() {
    let (_imds, handle, client) = started();
    handle.recommend_rebalance("2020-11-05T08:22:00Z".parse().unwrap());
    handle.set_target_lifecycle("Terminated");
    handle.set_maintenance(serde_json::json!([]));
    for (path, body) in [
        (path::REBALANCE, r#"{"noticeTime":"2020-11-05T08:22:00Z"}"#),
        (path::TARGET_LIFECYCLE, "Terminated"),
        (path::MAINTENANCE, "[]"),
        (path::LIFE_CYCLE, "spot"),
        (path::ZONE, "us-east-2b"),
    ] {
        assert_eq!(client.read(path).await, (StatusCode::OK, body.to_owned()), "{path}");
    }
    let (_, document) = client.read(path::IDENTITY).await;
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["instanceId"], "i-0abc");
    assert_eq!(document["region"], "us-east-2");
}

#[tokio::test]
async fn faults_meet_the_paths_they_were_set_for() {
    let (_imds, handle, client) = started();
    handle.fault_times(path::SPOT_ACTION, Fault::Status(503), 1);
    assert_eq!(client.read(path::SPOT_ACTION).await.0, 503);
    assert_eq!(client.read(path::SPOT_ACTION).await.0, 404);

    handle.fault(path::REBALANCE, Fault::Body("\u{0}<garbage".into()));
    assert_eq!(client.read(path::REBALANCE).await, (StatusCode::OK, "\u{0}<garbage".into()));
    handle.clear_faults();
    assert_eq!(client.read(path::REBALANCE).await.0, 404);
}

#[tokio::test]
async fn hanging_read_ends_only_with_the_client_or_the_service() {
    let (_imds, handle, client) = started();
    let token = client.token().await;
    handle.fault(path::SPOT_ACTION, Fault::Hang);
    let url = format!("{}{}", client.base, path::SPOT_ACTION);
    let read = client.http.get(url).header("X-aws-ec2-metadata-token", token);
    let read = tokio::spawn(read.send());
    timeout(LIMIT, handle.await_requests(path::SPOT_ACTION, 1)).await.unwrap();
    assert!(!read.is_finished());
    handle.refuse();
    assert!(timeout(LIMIT, read).await.unwrap().unwrap().is_err());
}

#[tokio::test]
async fn service_refuses_and_comes_back_on_the_same_port() {
    let (imds, handle, client) = started();
    let before = imds.base_url();
    assert_eq!(client.read(path::ZONE).await.0, 200);
    handle.refuse();
    let error = client.put_token().send().await.unwrap_err();
    assert!(error.is_connect() || error.is_request(), "expected a refusal, got {error}");
    handle.come_back().unwrap();
    assert_eq!(imds.base_url(), before);
    assert_eq!(client.read(path::ZONE).await.0, 200);
}

#[tokio::test]
async fn requests_are_counted_by_path() {
    let (_imds, handle, client) = started();
    client.read(path::ZONE).await;
    client.read(path::ZONE).await;
    assert_eq!(handle.requests(path::ZONE), 2);
    assert_eq!(handle.requests(path::TOKEN), 2);
    assert_eq!(handle.requests(path::SPOT_ACTION), 0);
}
