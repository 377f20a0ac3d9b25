//! The client against the emulated service: tokens, hangs, refusals, garbage, proxies.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::*;
use crate::emulator::imds::{EVERY_PATH, Fault, InstanceIdentity, path};
use crate::emulator::{ImdsEmulator, ImdsHandle};

const LIMIT: Duration = Duration::from_secs(10);

/// Longest cycle: what is allowed to a read with everything that goes with it.
const CYCLE_LIMIT: Duration = Duration::from_secs(2);

fn started() -> (ImdsEmulator, ImdsHandle, ImdsClient) {
    let imds = ImdsEmulator::start(InstanceIdentity::spot("i-0abc", "us-east-2b")).unwrap();
    let client = ImdsClient::new(&imds.base_url()).unwrap();
    let handle = imds.handle();
    (imds, handle, client)
}

async fn read(client: &ImdsClient, path: &str) -> Result<Option<String>, ImdsError> {
    timeout(LIMIT, client.read(path)).await.unwrap()
}

#[tokio::test]
async fn absent_resource_means_that_nothing_is_planned() {
    let (_imds, handle, client) = started();
    assert_eq!(read(&client, path::SPOT_ACTION).await, Ok(None));
    assert_eq!(read(&client, path::ZONE).await, Ok(Some("us-east-2b".to_owned())));
    assert_eq!(handle.requests(path::TOKEN), 1, "one token serves all reads");
}

#[tokio::test]
async fn refused_token_is_replaced_and_the_read_repeated_exactly_once() {
    let (_imds, handle, client) = started();
    read(&client, path::ZONE).await.unwrap();
    handle.revoke_tokens();
    assert_eq!(read(&client, path::ZONE).await, Ok(Some("us-east-2b".to_owned())));
    assert_eq!((handle.requests(path::TOKEN), handle.requests(path::ZONE)), (2, 3));

    handle.fault(path::ZONE, Fault::Status(401));
    let refused = read(&client, path::ZONE).await;
    assert!(matches!(refused, Err(ImdsError::Status { status: 401, .. })), "{refused:?}");
    assert_eq!(handle.requests(path::TOKEN), 3);
    assert_eq!(handle.requests(path::ZONE), 5);
}

#[tokio::test]
async fn token_that_lives_shorter_than_promised_is_replaced() {
    let (_imds, handle, client) = started();
    handle.override_token_lifetime(Some(Duration::ZERO));
    read(&client, path::ZONE).await.expect_err("no token lives long enough");
    handle.override_token_lifetime(None);
    assert_eq!(read(&client, path::ZONE).await, Ok(Some("us-east-2b".to_owned())));
}

#[tokio::test]
async fn hanging_token_call_names_the_hop_limit_within_the_cycle() {
    let (_imds, handle, client) = started();
    handle.fault(path::TOKEN, Fault::Hang);
    let begun = Instant::now();
    let error = read(&client, path::SPOT_ACTION).await.unwrap_err();
    assert!(begun.elapsed() < CYCLE_LIMIT, "took {:?}", begun.elapsed());
    assert_eq!(error, ImdsError::HopLimit);
    assert!(error.to_string().contains("hostNetwork"), "{error}");
    assert_eq!(handle.requests(path::SPOT_ACTION), 0, "never read without a token");
}

#[tokio::test]
async fn reads_that_need_a_token_together_share_its_failure() {
    let (_imds, handle, client) = started();
    handle.fault(path::TOKEN, Fault::Hang);
    let begun = Instant::now();
    let reads = (0..8).map(|_| client.read(path::SPOT_ACTION));
    let results = timeout(LIMIT, futures::future::join_all(reads)).await.unwrap();
    assert!(begun.elapsed() < CYCLE_LIMIT, "took {:?}", begun.elapsed());
    assert!(results.iter().all(Result::is_err));
    assert_eq!(handle.requests(path::TOKEN), 1);
}

#[tokio::test]
async fn service_that_is_away_slow_or_failing_is_an_error_in_bounded_time() {
    let (_imds, handle, client) = started();
    read(&client, path::ZONE).await.unwrap();
    for fault in [Fault::Status(503), Fault::Hang, Fault::Delay(Duration::from_secs(30))] {
        handle.fault(EVERY_PATH, fault.clone());
        let begun = Instant::now();
        read(&client, path::SPOT_ACTION).await.unwrap_err();
        assert!(begun.elapsed() < CYCLE_LIMIT, "{fault:?} took {:?}", begun.elapsed());
    }
    handle.clear_faults();
    handle.refuse();
    let refused = read(&client, path::SPOT_ACTION).await;
    assert!(matches!(refused, Err(ImdsError::Unreachable { .. })), "{refused:?}");
    handle.come_back().unwrap();
    assert_eq!(read(&client, path::SPOT_ACTION).await, Ok(None));
}

/// Case 10, the slow path itself.
#[tokio::test]
async fn answer_that_takes_most_of_the_cycle_is_read() {
    let (_imds, handle, client) = started();
    read(&client, path::SPOT_ACTION).await.unwrap();
    handle.fault(path::ZONE, Fault::Delay(Duration::from_millis(1500)));
    let begun = Instant::now();
    let (slow, other) = futures::join!(read(&client, path::ZONE), async {
        let other = read(&client, path::SPOT_ACTION).await;
        (other, begun.elapsed())
    });
    assert_eq!(slow, Ok(Some("us-east-2b".to_owned())));
    assert_eq!(other.0, Ok(None));
    assert!(other.1 < Duration::from_millis(1500), "another path waited for it: {other:?}");
}

/// Case 5, the time of a cycle: a refused token costs two more calls, each of them slow.
#[tokio::test]
async fn cycle_of_calls_that_are_all_slow_ends_in_time_and_the_next_one_succeeds() {
    let (_imds, handle, client) = started();
    read(&client, path::ZONE).await.unwrap();
    handle.revoke_tokens();
    handle.fault(EVERY_PATH, Fault::Delay(Duration::from_millis(650)));
    let begun = Instant::now();
    let refused = read(&client, path::ZONE).await;
    assert!(begun.elapsed() < CYCLE_LIMIT, "took {:?}", begun.elapsed());
    assert!(matches!(refused, Err(ImdsError::Unreachable { .. })), "{refused:?}");
    assert_eq!(read(&client, path::ZONE).await, Ok(Some("us-east-2b".to_owned())));
}

#[tokio::test]
async fn endless_body_is_not_read() {
    let (_imds, handle, client) = started();
    handle.fault(path::ZONE, Fault::Body("x".repeat(1 << 20)));
    let refused = read(&client, path::ZONE).await;
    assert!(matches!(refused, Err(ImdsError::TooLong { .. })), "{refused:?}");
}

#[test]
fn endpoint_must_be_a_url() {
    for endpoint in ["", "169.254.169.254", "https://169.254.169.254", "ftp://x"] {
        assert!(ImdsClient::new(endpoint).is_err(), "{endpoint:?} must be refused");
    }
    assert!(ImdsClient::new("http://[fd00:ec2::254]/").is_ok());
}
