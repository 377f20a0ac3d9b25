//! Streams of notices: the difference between two moments, and everything at the beginning.

use std::time::Duration;

use ebbtide_core::ids::{FencingToken, UnitId};
use ebbtide_core::notice::NoticeKind;
use ebbtide_core::time::UnixMillis;
use ebbtide_queue::command::{HandBackCause, Stage};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::gate::ClosedFor;
use crate::socket::telling::{Clocks, Event, events};
use crate::workers::{LeaseKey, NodeNotice, UnitState, UnitView, View};

fn clocks() -> Clocks {
    Clocks { now: Instant::now(), wall: UnixMillis(1_000_000) }
}

fn quiet(units: Vec<UnitView>) -> View {
    View { closed_for: Vec::new(), notice: None, units, is_settling: false, is_over: false }
}

fn noticed(deadline: Instant, units: Vec<UnitView>) -> View {
    let kind = Some(NoticeKind::SpotTerminate);
    let notice = Some(NodeNotice { kind, reason: "notice", deadline: Some(deadline) });
    View { closed_for: vec![ClosedFor::Drain], notice, ..quiet(units) }
}

fn unit(slot: u16, state: UnitState) -> UnitView {
    let unit = UnitId { group: "g".parse().expect("valid"), slot };
    let key = LeaseKey { unit, fencing_token: FencingToken(7) };
    UnitView { key, stage: Stage::Generate, tokens: 4, state }
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

fn words(event: &Event) -> Value {
    serde_json::to_value(event).expect("JSON")
}

#[test]
fn stream_begins_with_everything_that_stands() {
    let clocks = clocks();
    let deadline = clocks.now + Duration::from_secs(100);
    let by = clocks.now + Duration::from_secs(2);
    let view = noticed(
        deadline,
        vec![
            unit(0, UnitState::Release(HandBackCause::Notice, by)),
            unit(1, UnitState::Keep(deadline)),
        ],
    );
    let told = events(None, &view, clocks);
    assert_eq!(names(&told), ["state", "notice", "release", "keep"]);
    let state = words(&told[0]);
    assert_eq!((&state["gate"], &state["closed_for"]), (&json!("closed"), &json!(["drain"])));
    assert_eq!(state["notice"], words(&told[1]));
    assert_eq!(state["units"][0]["state"], "release");
    assert_eq!(
        words(&told[1]),
        json!({"kind": "spot_terminate", "reason": "notice", "deadline_ms": 1_100_000,
            "remaining_ms": 100_000})
    );
    assert_eq!(
        words(&told[2]),
        json!({"units": [{"unit": "g.0000", "fencing_token": 7}], "reason": "notice",
            "by_ms": 1_002_000, "remaining_ms": 2_000})
    );
    assert_eq!(names(&events(None, &quiet(Vec::new()), clocks)), ["state"]);
}

#[test]
fn what_was_told_is_not_told_again_and_what_changed_is() {
    let clocks = clocks();
    let deadline = clocks.now + Duration::from_secs(100);
    let earlier = clocks.now + Duration::from_secs(50);
    let by = clocks.now + Duration::from_secs(2);
    let before = quiet(vec![unit(0, UnitState::Working), unit(1, UnitState::Working)]);
    assert!(events(Some(&before), &before.clone(), clocks).is_empty());
    let kept = noticed(
        deadline,
        vec![unit(0, UnitState::Keep(deadline)), unit(1, UnitState::Keep(deadline))],
    );
    let told = events(Some(&before), &kept, clocks);
    assert_eq!(names(&told), ["notice", "keep"]);
    assert_eq!(words(&told[1])["units"].as_array().map(Vec::len), Some(2), "one event for both");
    let released = noticed(
        earlier,
        vec![
            unit(0, UnitState::Release(HandBackCause::Notice, by)),
            unit(1, UnitState::Keep(deadline)),
        ],
    );
    let told = events(Some(&kept), &released, clocks);
    assert_eq!(names(&told), ["notice", "release"], "earlier, and one no longer finishes");
    let sooner = noticed(
        earlier,
        vec![
            unit(0, UnitState::Release(HandBackCause::Notice, clocks.now)),
            unit(1, UnitState::Keep(deadline)),
        ],
    );
    assert_eq!(names(&events(Some(&released), &sooner, clocks)), ["release"]);
    let reopened = quiet(vec![unit(1, UnitState::Working)]);
    let told = events(Some(&sooner), &reopened, clocks);
    assert_eq!((names(&told), words(&told[0])), (vec!["reopened"], json!({})));
}

#[test]
fn rebalance_and_shutdown_are_told_without_a_deadline() {
    let clocks = clocks();
    for (kind, reason, closed_for) in [
        (Some(NoticeKind::Rebalance), "rebalance", ClosedFor::Rebalance),
        (None, "shutdown", ClosedFor::Shutdown),
    ] {
        let notice = Some(NodeNotice { kind, reason, deadline: None });
        let view = View { closed_for: vec![closed_for], notice, ..quiet(Vec::new()) };
        let told = events(Some(&quiet(Vec::new())), &view, clocks);
        assert_eq!(names(&told), ["notice"]);
        assert_eq!(
            (&words(&told[0])["reason"], &words(&told[0])["remaining_ms"]),
            (&json!(reason), &Value::Null)
        );
    }
}

#[test]
fn only_what_concerns_the_worker_is_news() {
    let clocks = clocks();
    let at = |seconds| clocks.now + Duration::from_secs(seconds);
    let notice = |kind, reason, deadline| Some(NodeNotice { kind, reason, deadline });
    let spot = Some(NoticeKind::SpotTerminate);
    let known = notice(spot, "notice", Some(at(100)));
    for (notice, is_told) in [
        (known, false),
        (notice(None, "notice", Some(at(100))), false),
        (notice(spot, "notice", Some(at(101))), false),
        (notice(spot, "notice", Some(at(99))), true),
        (notice(Some(NoticeKind::SpotHibernate), "notice", Some(at(100))), true),
        (notice(None, "scale_in", Some(at(100))), true),
    ] {
        let closed =
            |notice| View { closed_for: vec![ClosedFor::Drain], notice, ..quiet(Vec::new()) };
        let told = events(Some(&closed(known)), &closed(notice), clocks);
        assert_eq!(names(&told).contains(&"notice"), is_told, "{notice:?}");
    }
}
