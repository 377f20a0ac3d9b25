//! The laws of webhooks: templates, headers, retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::post;
use ebbtide_harness::EVENT_LIMIT;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

fn notice() -> WebhookNotice {
    WebhookNotice {
        run: "grpo".to_owned(),
        node: "n\"1".to_owned(),
        replica: "ep-0".to_owned(),
        instance_id: Some("i-0abc".to_owned()),
        zone: None,
        reason: "spot_terminate".to_owned(),
        remaining_seconds: Some(118),
        units: 64,
        ..WebhookNotice::default()
    }
}

fn webhook(template: Option<&str>) -> Result<Webhook, WebhookError> {
    Webhook::new("http://127.0.0.1:9/x", &[], template.map(str::to_owned))
}

#[test]
fn default_body_is_json_whatever_it_carries() {
    let body = webhook(None).unwrap().body(&notice()).unwrap();
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let text = "node n\"1 (i-0abc, ?): spot_terminate, 118 s left, 64 units in flight (run grpo)";
    assert_eq!(body["text"], text);
}

#[test]
fn mistakes_are_refused_at_the_start() {
    for template in ["{{ node", "{{ nodes }}", "{{ node | reverse_all }}"] {
        assert!(webhook(Some(template)).is_err(), "{template}");
    }
    for url in ["", "hooks.example.com/x", "ftp://example.com/"] {
        assert!(Webhook::new(url, &[], None).is_err(), "{url}");
    }
    for header in ["", "Authorization", "a b: c", "x:"] {
        assert!(Webhook::new("http://h/", &[header.to_owned()], None).is_err(), "{header}");
    }
    let error = Webhook::new("http://h/", &["b d: secret".to_owned()], None).err().unwrap();
    assert!(!error.to_string().contains("secret"), "{error}");
}

/// A server that answers so many times with `status`, then well; tells what it was sent.
async fn serve(
    failures: usize,
    status: StatusCode,
) -> (String, mpsc::Receiver<(HeaderMap, String)>) {
    let (sent, received) = mpsc::channel(8);
    let answered = Arc::new(AtomicUsize::new(0));
    let answer = move |headers: HeaderMap, body: String| {
        let (sent, answered) = (sent.clone(), answered.clone());
        async move {
            sent.send((headers, body)).await.unwrap();
            let is_failure = answered.fetch_add(1, Ordering::SeqCst) < failures;
            if is_failure { status } else { StatusCode::OK }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let router = Router::new().route("/hook", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, received)
}

#[tokio::test]
async fn server_that_fails_is_called_again_with_the_same_body_and_headers() {
    let (url, mut received) = serve(2, StatusCode::SERVICE_UNAVAILABLE).await;
    let headers = ["Authorization: Bearer x".to_owned()];
    let webhook = Webhook::new(&url, &headers, Some("{{ reason }}".to_owned())).unwrap();
    webhook.tell(&notice()).await.unwrap();
    for _ in 0..3 {
        let (headers, body) = received.recv().await.unwrap();
        assert_eq!(
            (headers["authorization"].to_str().unwrap(), body.as_str()),
            ("Bearer x", "spot_terminate")
        );
    }
}

#[tokio::test]
async fn refusal_is_not_repeated() {
    let (url, mut received) = serve(8, StatusCode::FORBIDDEN).await;
    let webhook = Webhook::new(&url, &[], None).unwrap();
    assert!(matches!(webhook.tell(&notice()).await, Err(TellError::Status(_))));
    received.recv().await.unwrap();
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn try_that_is_not_answered_ends_after_its_time() {
    // It takes connections, and nobody reads from them.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let mut webhook = Webhook::new(&url, &[], None).unwrap();
    assert_eq!(webhook.try_limit, Duration::from_secs(5), "as the guide says");
    webhook.try_limit = Duration::from_millis(50);
    let told = timeout(EVENT_LIMIT, webhook.tell(&notice())).await.expect("ends");
    let error = told.expect_err("nobody answers").to_string();
    assert_eq!(error, "no answer within 0.05 s");
}
